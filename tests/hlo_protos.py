"""Programs as bytes: spelled instruction by instruction, and as fields of another message."""

from tpunb.protobuf.table import Messages, text


def varint(number):
    low = bytes([number & 127 | (128 if number > 127 else 0)])
    return low + varint(number >> 7) if number > 127 else low


def messages(*protos):
    """Return the messages, as an XPlane has them: fields of another message."""
    data = b"".join(b"\x0a" + varint(len(proto)) + proto for proto in protos)
    return Messages.of(data, source="toy").sub(text(1))


def toy(hlo_pb2, *instructions, name="jit_f"):
    """Return a program of one computation: (name, opcode, fields) each."""
    proto = hlo_pb2.HloProto()
    proto.hlo_module.name = name
    computation = proto.hlo_module.computations.add(name="main")
    for instruction, opcode, *fields in instructions:
        computation.instructions.add(name=instruction, opcode=opcode, **dict(*fields))
    return proto.SerializeToString()
