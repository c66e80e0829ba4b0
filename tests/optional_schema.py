"""Check of a value by a JSON Schema: with jsonschema if it is installed, else of what our schemas use."""

from importlib.util import find_spec

TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "number": (int, float),
    "integer": int,
}


def errors(value, schema):
    """Return what is wrong with a value, a line each."""
    found = [*_errors(value, schema, schema, "")]
    if find_spec("jsonschema"):
        import jsonschema

        jsonschema.Draft202012Validator.check_schema(schema)
        found += [error.message for error in jsonschema.Draft202012Validator(schema).iter_errors(value)]
    return found


def _is(value, name):
    return isinstance(value, TYPES[name]) and (name in ("boolean",) or not isinstance(value, bool))


def _errors(value, schema, whole, path):
    if "$ref" in schema:
        schema = whole["$defs"][schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        tried = [[*_errors(value, each, whole, path)] for each in schema["anyOf"]]
        yield from [] if [] in tried else tried[0]
    types = schema.get("type", [])
    types = [types] if isinstance(types, str) else types
    if types and not any(_is(value, name) for name in types):
        yield f"{path}: {value!r} is not {types}"
        return
    if "const" in schema and value != schema["const"]:
        yield f"{path}: {value!r} is not {schema['const']!r}"
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: {value!r} is not one of {schema['enum']}"
    if "minimum" in schema and value < schema["minimum"]:
        yield f"{path}: {value!r} is below {schema['minimum']}"
    if isinstance(value, dict) and "properties" in schema:
        yield from (f"{path}: no {name}" for name in schema["required"] if name not in value)
        yield from (f"{path}: unknown {name}" for name in value if name not in schema["properties"])
        for name in {*value} & {*schema["properties"]}:
            yield from _errors(value[name], schema["properties"][name], whole, f"{path}/{name}")
    if isinstance(value, list) and "items" in schema:
        for number, each in enumerate(value):
            yield from _errors(each, schema["items"], whole, f"{path}/{number}")
