"""Names of operations: which events count as one, under which name, of which layer, and what their time goes into.

Names are canonical so that steps compare: ``fusion.123`` is ``fusion``, ``dense/MatMul:MatMul`` is ``MatMul``,
and kernels of one library for one operation bear the operation's name, the one Tables II and III of the
TPUPoint paper use where there is one.
"""

from __future__ import annotations

import re

NOISE = re.compile(
    r"""
      ThreadpoolListener::            # thread-pool bookkeeping
    | ExecutorState:: | ExecutorDoneCallback | ExecutorPropagateOutputs
    | Eager(Execute|KernelExecute|CopyToDevice|RemoteExecute)
    | EagerLocalExecute:\ __           # a whole function; its operations show themselves
    | KernelAndDeviceFunc:: | TFE_ | FunctionRun$ | RunGraphDone$
    | ValidateInputTypeAndPlacement | InstantiatedCapturedFunction:: | CapturedFunction::
    | BaseCollectiveExecutor:: | RecordUsage | SchedWithHint
    | Memory(Allocation|Deallocation)$
    | ParallelFor$ | TaskDispatcher::
    | multi_step_on_iterator$ | one_step_on_(data|iterator)$ | convert_to_tensor$
    | end:\ | \$                      # zero-length end markers; frames of the Python tracer
    | RunStep | Xprof | XprofSession
    | ParseArguments$ | PythonRefManager:: | Wait\ for\ (usage|donation)\ holds$ | Handle\ input
    | \w+Client::CreateOutputs$ | AllocateOutputBuffer
    | ThunkExecutor::Execute           # a whole program; its thunks show themselves
    """,
    re.VERBOSE,
)
"""Framework noise: events of the host that are bookkeeping, not operations. The one list of them."""

FRAMEWORK_OP = re.compile(r"[A-Za-z0-9._][\w./>\-\[\]]*:(?P<type>[A-Za-z_]\w*)")
"""An operation of the framework: ``scope/name:Type``."""

FUNCTION_CALL = "tf.function"
"""The framework op of an event that is the call of a whole ``tf.function``, under the name its author gave it."""

_PAPER = {
    "copy": "Copy",
    "dot": "MatMul",
    "FusedConv2D": "Conv2D",
    "FusedMatMul": "MatMul",
    "infeed": "Infeed",
    "multiply": "Mul",
    "reshape": "Reshape",
    "transpose": "Transpose",
}
_VENDOR = re.compile(r"^_(?:Mkl)?(?:Native)?(?P<op>[A-Z]\w*?)(?:WithBias)?$")
_NUMBER = re.compile(r"([._]\d+|\.(clone|remat\d*|cloned))+$")
_TEMPLATE = re.compile(r"[<(].*$", re.DOTALL)
_EAGER = "EagerLocalExecute: "

_END = "(Host|H|Device|D|Peer|P)"
_COPY = re.compile(rf"(?:hip|cuda|cu)?(?:[Mm]emcpy|Copy) ?{_END}(?:2|[Tt]o){_END}")
_COPIES = {"HD": "host to device copy", "DH": "device to host copy"} | dict.fromkeys(["DD", "PP"], "device copy")
_ON_DEVICE = [
    (re.compile(r"(?:hip|cuda|cu)?[Mm]emset"), "memset"),
    (re.compile(r"(?:void )?(?:nccl|rccl)"), "collective"),
]
_COLLECTIVES = [
    *("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "all-reduce-scatter"),
    *("collective-permute", "collective-broadcast", "ragged-all-to-all"),
]
_HLO = re.compile(
    rf"%?(?P<opcode>(?:{'|'.join(_COLLECTIVES)}|infeed|outfeed|send|recv)(?:-start|-done)?)(?:\.\d+)*(?: = |$)"
)
"""Instructions whose names alone tell what they do, where a profiler stored no category."""

_ON_HOST = [
    (re.compile(r"IteratorGetNext\w*(::DoCompute)?\Z"), "input wait"),
    (
        re.compile(r"(Make)?Iterator::|MakeIterator\Z|MultiDeviceIterator|\w+(Produce|Consume|Dataset(V\d+)?)\Z"),
        "input pipeline",
    ),
    (
        re.compile(
            r"""
              [\w:]*[Cc]ompil(e(?!d)|er|ation)                  # PjRtCpuClient::Compile, backend_compile
            | trace_to_jaxpr | lower_sharding_computation       # by jax.monitoring's names, compiling begins here
            | tf\.function-graph_building\Z
            | HLO\ passes\  | XLA::TPU\                         # stages of a compiler
            """,
            re.VERBOSE,
        ),
        "compile",
    ),
    (
        re.compile(
            r"""
              [\w:]*(Transfer(To|From)Device | Transfer(Literal|Buffer) | BufferFromHost | ToLiteral\Z | ViaPcie)
            | MapDmaBuffer | (\w+::)?(Xla)?(L|Del)inearize
            | (H2D|D2H|PCIe/Memcpy)\ Dispatch\Z | (Batched)?DevicePut
            | InfeedEnqueue | OutfeedDequeue
            """,
            re.VERBOSE,
        ),
        "transfer",
    ),
]
_KINDS = (
    {"infeed": "infeed", "outfeed": "outfeed", "input wait": "input", "compile": "compile", "transfer": "transfer"}
    | dict.fromkeys(["send", "recv", "host send", "host recv", _COPIES["HD"], _COPIES["DH"]], "transfer")
    | dict.fromkeys([*_COLLECTIVES, "collective"], "collective")
)
_HALF = re.compile(r"(-start|-done)?( fusion)?$")

_PLUMBING = re.compile(r":(_(Send|Recv|HostSend|HostRecv|Arg|Retval|DeviceRetval)|\w*Dataset(V\d+)?)\Z")
_WRAPPER = re.compile(
    r"""
      StatefulPartitionedCall(_\d+)? | PartitionedCall(_\d+)? | Func | gradients | gradient_tape | replica_\d+ | _\d+
    | ConstantFolding | LayoutOptimizer | ArithmeticOptimizer
    | (jit|pjit|pmap|xmap|custom_partitioning)\(.*\) | shard_map(\(.*\))? | (core_)?closed_call
    | checkpoint | remat\d? | rematted_computation | custom_(jvp|vjp)_call\w*
    | aten::.* | .*->.*               # an operation of PyTorch; the specification of an einsum
    |
    """,
    re.VERBOSE | re.DOTALL,
)
_TRANSFORM = re.compile(r"(jvp|transpose|vmap|linearize|remat|checkpoint|custom_jvp|custom_vjp)\((.*)\)", re.DOTALL)
_DEEPEST = 16  # transforms of transforms of ...
_LOOP = re.compile(r"(while|cond|scan)(_\d+)?")
_BRANCH = re.compile(r"while|body|cond|then|else|branch_\d+_fun|branch_executed|pivot_[tf]|switch_pred")
_BODY = re.compile(r"(?:then|else|body|cond)/_\d+/")  # of a TensorFlow loop: behind it a name begins anew
_COPIED = re.compile(r"_\d+")
_READ = re.compile(r"(ReadVariableOp|Cast|x|y|shape)(_\d+)?")
_INNER = re.compile(
    r"""
      ( BiasAdd | BroadcastTo | Cast | Conv\dD | Einsum | GatherV2 | Gelu | Identity | MatMul | Tensordot | Tile
      | ReadVariableOp | Softmax | \w*CrossEntropyWithLogits | \w+_grad
      | batchnorm | convolution | einsum | moments | random_uniform
      )(_\d+)?
    """,
    re.VERBOSE,
)
"""Scopes that TensorFlow's own functions open within a layer."""

_ARITHMETIC = re.compile(
    r"""
      ( add | sub | mul | truediv | floordiv | mod | pow | neg | div_no_nan | matmul | strided_slice | transpose
      | Add(V2)? | Sub | Mul | RealDiv | Pow | Square | Sqrt | Rsqrt | Exp | Log | Mean | Sum | Max(imum)? | Min(imum)?
      | SquaredDifference | Relu6? | (Max|Avg)Pool\w* | Reshape | Transpose | Concat(V2)? | Pad(V2)? | StridedSlice
      )(_\d+)?
    """,
    re.VERBOSE,
)
"""Operators that open a scope for what they read or cast, and for their gradient."""


def is_noise(name: str, tf_op: str | None = None) -> bool:
    """Say whether a host event is framework bookkeeping rather than an operation.

    >>> is_noise("ThreadpoolListener::Record"), is_noise("Iterator::Prefetch")
    (True, False)
    """
    return tf_op == FUNCTION_CALL or (tf_op is None and NOISE.match(name) is not None)


def canonical(name: str, tf_op: str | None = None, hlo_op: str | None = None) -> str:
    """Return the name under which an event counts as an operation.

    Parameters
    ----------
    name
        The event's own name: of a kernel, of an HLO instruction, ``scope/name:Type`` of a framework op.
    tf_op, hlo_op
        The framework op and the HLO instruction behind a kernel, where the profiler knows them; they win.

    >>> canonical("fusion.123"), canonical("%copy-done.2 = f32[8] copy-done(...)")
    ('fusion', 'copy-done')
    >>> canonical("dense/BiasAdd:_MklNativeFusedMatMul"), canonical("_MklNativeConv2DBackpropFilterWithBias")
    ('MatMul', 'Conv2DBackpropFilter')
    >>> canonical("void Eigen::EigenMetaKernel<float>(int)", tf_op="layer_5/GreaterEqual:GreaterEqual")
    'GreaterEqual'
    """
    if tf_op is not None and (found := FRAMEWORK_OP.fullmatch(tf_op)):
        name = found["type"]
    elif hlo_op:
        name = hlo_op
    elif found := FRAMEWORK_OP.fullmatch(name):
        name = found["type"]
    bare = name.removeprefix(_EAGER).removeprefix("%").partition(" = ")[0].removeprefix("void ")
    name = bare or name
    name = _TEMPLATE.sub("", name).strip() or name
    name = _NUMBER.sub("", name) or name
    name = _VENDOR.sub(r"\g<op>", name)
    return _PAPER.get(name, name)


def category(name: str, *, side: str) -> str | None:
    """Return what the time of an event goes into, by its name alone; None where that does not tell.

    An event of a device whose HLO category is known needs no other.

    Parameters
    ----------
    name
        The event's own.
    side
        "host" or "device".

    >>> category("MemcpyH2D", side="device"), category("ncclDevKernel_AllReduce_Sum_f32", side="device")
    ('host to device copy', 'collective')
    >>> category("IteratorGetNextOp::DoCompute", side="host"), category("Iterator::Root::Prefetch", side="host")
    ('input wait', 'input pipeline')
    >>> category("PjRtCpuClient::Compile", side="host"), category("matmul", side="host")
    ('compile', None)
    """
    copy = _COPY.match(name)
    copied = _COPIES.get(copy[1][0] + copy[2][0]) if copy else None
    if side == "device":
        if found := _HLO.match(name):
            return found["opcode"]
        return copied or next((word for pattern, word in _ON_DEVICE if pattern.match(name)), None)
    if copied is not None:
        return kind(copied)
    framework = FRAMEWORK_OP.fullmatch(name)
    bare = framework["type"].removeprefix("_") if framework else name
    return next((word for pattern, word in _ON_HOST if pattern.match(bare)), None)


def kind(category: str) -> str | None:
    """Return which time of a step (``tpunb.schema.STEPS``, without ``_ps``) a category counts for, or None.

    >>> kind("all-gather-done"), kind("all-reduce fusion"), kind("host recv"), kind("loop fusion")
    ('collective', 'collective', 'transfer', None)
    """
    return _KINDS.get(_HALF.sub("", category))


def layer(tf_op: str) -> str | None:
    """Return the layer of the model that a framework op is of, by its scopes; None where it is of none.

    What TensorFlow and JAX wrap around a model's own scopes (functions, transforms, loops, gradients, replicas)
    goes, and what TensorFlow's functions open within a layer: a gradient is of the layer that it is the gradient of.

    >>> layer("gradient_tape/model/dense_1/MatMul/MatMul_1:MatMul"), layer("model/dense_1/BiasAdd:BiasAdd")
    ('model/dense_1', 'model/dense_1')
    >>> layer("jit(step)/jit(main)/transpose(jvp(Model))/Dense_0/dot_general"), layer("jit(f)/add")
    ('Model/Dense_0', None)
    """
    return next((found for op in tf_op.split(";") if (found := _layer(op))), None)  # fused ones are joined by ";"


def _layer(op: str) -> str | None:
    if _PLUMBING.search(op):
        return None
    if "(" in op.partition("/")[0]:  # JAX: in a function, jit(f)
        return "/".join(_own(op.split("/"))) or None
    name, rewritten, _ = op.partition(":")[0].partition("/ArithmeticOptimizer/")
    *before, name = _BODY.split(f"{name}/?" if rewritten else name)
    parts = name.split("/")
    while len(parts) > 1 and _COPIED.fullmatch(parts[-1]):
        parts.pop()
    scopes = [part for part in _own(parts) if not (before and _LOOP.fullmatch(part))]
    if scopes and ("gradient_tape/" in op or _READ.fullmatch(parts[-1])) and _ARITHMETIC.fullmatch(scopes[-1]):
        scopes.pop()
    while scopes and (_INNER.fullmatch(scopes[-1]) or _doubled(scopes)):
        scopes.pop()
    return "/".join(scopes) or None


def _own(parts: list[str]) -> list[str]:
    """Return the scopes that the model itself opened, of those around the last part."""
    own = []
    for before, part, after in zip(["", *parts], parts, parts[1:], strict=False):
        bare = part
        for _ in range(_DEEPEST):
            if not (found := _TRANSFORM.fullmatch(bare)):
                break
            bare = found[2]
        loop = _LOOP.fullmatch(part) and _BRANCH.fullmatch(after)
        branch = _BRANCH.fullmatch(part) and _LOOP.fullmatch(before)
        if not (loop or branch or _WRAPPER.fullmatch(bare)):
            own.append(bare)
    return own


def _doubled(scopes: list[str]) -> bool:
    """Say whether the last scope is the function ``dropout`` within a layer of that kind."""
    return scopes[-1] == "dropout" and len(scopes) > 1 and scopes[-2].startswith("dropout")
