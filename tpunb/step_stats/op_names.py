"""Canonical names, categories and layers of operations.

Names are canonical so that steps can be compared: ``fusion.123`` is ``fusion``, ``dense/MatMul:MatMul`` is ``MatMul``,
and kernels of one library have the name of their operation, as in Tables II and III of the TPUPoint paper.
"""

from __future__ import annotations

import re
from functools import lru_cache

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
    | ParallelFor$ | TaskDispatcher:: | SlinkyThreadPool::
    | multi_step_on_iterator$ | one_step_on_(data|iterator)$ | convert_to_tensor$
    | end:\ | \$                      # zero-length end markers; frames of the Python tracer
    | RunStep | Xprof | XprofSession
    | ParseArguments$ | PythonRefManager:: | Wait\ for\ (usage|donation)\ holds$ | Handle\ input
    | \w+Client::CreateOutputs$ | AllocateOutputBuffer
    | ThunkExecutor::Execute           # a whole program; its thunks show themselves
    """,
    re.VERBOSE,
)
"""Events of the host that are bookkeeping of the framework, not operations."""

FRAMEWORK_OP = re.compile(r"[A-Za-z0-9._][\w./>\-\[\]]*:(?P<type>[A-Za-z_]\w*)")
"""An operation of the framework: ``scope/name:Type``."""

PIPELINE = "input pipeline"
"""Category of the iterators of an input pipeline, and of the operations that only pipelines run."""

INPUT_WAIT = "input wait"
"""Category of operations that wait for the next element of an input pipeline."""

ITERATOR = "Iterator::"
"""Prefix of the names of tf.data's iterators, which are their paths in the pipeline."""

MIXED = "mixed"
"""Layer or part of an operation that is of several, such as a fusion."""

FUNCTION_CALL = "tf.function"
"""Framework op of an event that is the call of a whole ``tf.function``."""

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
_ANONYMOUS = "(anonymous namespace)::"
_TYPE = re.compile(r"[A-Za-z_]\w*(?:::\w+)*")
_ENTRY = re.compile(r"(\w+::)*(\w*elementwise_kernel|reduce_kernel|kentry|kernel_entry|device_kernel|Kernel2?)")
"""Kernels that run whatever function their template names."""
_INNER_TYPES = re.compile(
    r"""
      (unsigned|signed|char|bool|short|int|long|float|double|const|void|true|false|u?int\d+_t|size_t)$
    | ((std|c10|at::detail)::)\w+ | (at::native::)?(gpu_kernel_impl\w*|[AB]?(U|Bi)naryFunctor|ReduceOp|func_wrapper_t)$
    """,
    re.VERBOSE,
)
"""Arguments of such a template that do not say what it runs."""
_EAGER = "EagerLocalExecute: "

_END = "(Host|H|Device|D|Peer|P|M)"  # SYCL calls the memory of the host M
_COPY = re.compile(rf"(?:hip|cuda|cu)?(?:[Mm]emcpy|Copy) ?{_END}(?:2|[Tt]o){_END}")
_COPIES = dict.fromkeys(["HD", "MD"], "host to device copy") | dict.fromkeys(["DH", "DM"], "device to host copy")
_COPIES |= dict.fromkeys(["DD", "PP"], "device copy")
_LIBRARIES = r"(nccl|rccl|msccl|hccl|oneccl|ccl_|nvshmem|rocshmem|k?userbuffers)"
_COMMUNICATION = re.compile(
    rf"""
      {_LIBRARIES} | (oneapi::)?ccl:: | (barrier|sync)_(all_)?on_stream          # of oneCCL, of NVSHMEM
    | deep_ep::(?!layout)(\w+::)*\w*(dispatch|combine|notify|barrier) | (\w+::)*symmetric_memory::
    | (\w+::)*\w*(all_?(reduce|gather|to_?all)|reduce_?scatter|cross_device_reduce)
    """,
    re.VERBOSE | re.IGNORECASE,
)
_ON_DEVICE = [
    (re.compile(r"(?:hip|cuda|cu)?[Mm]emset"), "memset"),
    (_COMMUNICATION, "collective"),
    (re.compile(r"memcpy|s?dma_", re.IGNORECASE), "copy"),  # from where and to where is not said
]
_COLLECTIVES = [
    *("all-reduce", "all-gather", "all-to-all", "reduce-scatter", "all-reduce-scatter"),
    *("collective-permute", "collective-broadcast", "ragged-all-to-all"),
]
_HLO = re.compile(
    rf"%?(?P<opcode>(?:{'|'.join(_COLLECTIVES)}|infeed|outfeed|send|recv)(?:-start|-done)?)(?:\.\d+)*(?: = |$)"
)
"""Instructions whose names say what they do, where a profiler stored no category."""

_ON_HOST = [
    (re.compile(r"IteratorGetNext\w*(::DoCompute)?\Z | enumerate\(DataLoader\)\#", re.VERBOSE), INPUT_WAIT),
    (
        re.compile(
            r"""
              (Make)?Iterator:: | MakeIterator\Z | MultiDeviceIterator | AnonymousIterator(V\d+)?\Z
            | \w+(Produce|Consume|Dataset(V\d+)?)\Z
            | (Eager)?PyFunc(Stateless)?\Z | ReadFile\Z | Decode[A-Z]\w* | Parse\w*Example\w*
            """,
            re.VERBOSE,
        ),
        PIPELINE,
    ),
    (
        re.compile(
            r"""
              [\w:]*[Cc]ompil(e(?!d)|er|ation)                  # PjRtCpuClient::Compile, backend_compile
            | trace_to_jaxpr | lower_sharding_computation       # compilation begins here in the names of jax.monitoring
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
    {"infeed": "infeed", "outfeed": "outfeed", INPUT_WAIT: "input", "compile": "compile", "transfer": "transfer"}
    | dict.fromkeys(["send", "recv", "host send", "host recv", _COPIES["HD"], _COPIES["DH"]], "transfer")
    | dict.fromkeys([*_COLLECTIVES, "collective"], "collective")
)
_FROM_FILE = ("::TFRecord", "::TextLine", "::FixedLengthRecord", "::SSTable", "::RecordIO")
_IN_ADVANCE = re.compile("::(MemoryReader|MemoryWriter|(Parallel)?Interleave|Prefetch|ForeverRepeat)")
_CLASSES = [
    (re.compile(r"\w*Apply[A-Z]\w*|AssignSubVariableOp"), "optimizer"),
    (re.compile(r"\w*(Backprop|Grad)\w*"), "backward"),
    (re.compile(rf"({'|'.join(_COLLECTIVES)})(-start|-done)?|Collective[A-Z]\w*|{_LIBRARIES}\w*"), "collective"),
]
_COLLECTIVE = re.compile(r"all[-_]?(reduce|gather|to[-_]?all)|reduce[-_]?scatter|cross_device_reduce", re.I)
_LAUNCH = re.compile(
    r"PjitFunction | XlaLaunch | ReadSyncFlag | (\w+::)+\w*(Execut|Await|BlockHostUntil|BlockUntil)\w*"
    r" | (cuda|hip|cu)\w*(Launch|Synchronize|StreamWait)\w*",
    re.VERBOSE,
)
_HALF = re.compile(r"(-start|-done)?( fusion)?$")

_BACKWARD = re.compile(r"\btranspose\(|(^|/)gradient(s(_\d+)?|_tape)/")
_UPDATE = re.compile(
    r"(^|/)(adadelta|adafactor|adagrad|adam|adamax|adamw|ftrl|lamb|lars|lion|muon|nadam|rmsprop|sgd)(_\d+)?/"
    r"|:Resource(Sparse)?Apply",
    re.IGNORECASE,
)
"""Scopes of optimizers in Keras and TensorFlow."""

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
_BODY = re.compile(r"(?:then|else|body|cond)/_\d+/")  # of a TensorFlow loop: a new name begins after it
_COPIED = re.compile(r"_\d+")
_READ = re.compile(r"(ReadVariableOp|Cast|x|y|shape)(_\d+)?")
_INNER = re.compile(
    r"""
      ( BiasAdd | BroadcastTo | Cast | Conv\dD | Einsum | GatherV2 | Gelu | Identity | MatMul | Tensordot | Tile
      | ReadVariableOp | Softmax | \w*CrossEntropyWithLogits | \w+_grad
      | batchnorm | convolution | einsum | moments | random_uniform | stateless_(dropout|random_\w+)
      )(_\d+)?
    """,
    re.VERBOSE,
)
"""Scopes that functions of TensorFlow open within a layer."""

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


def is_noise(name: str) -> bool:
    """Return whether a host event without a framework op is bookkeeping rather than an operation.

    >>> is_noise("ThreadpoolListener::Record"), is_noise("Iterator::Prefetch")
    (True, False)
    """
    return NOISE.match(name) is not None


@lru_cache(1 << 14)  # hosts and windows have the same
def canonical(name: str, tf_op: str | None = None, hlo_op: str | None = None) -> str:
    """Return the name under which an event counts as an operation; a recorded framework op or HLO instruction wins.

    >>> canonical("fusion.123"), canonical("%copy-done.2 = f32[8] copy-done(...)")
    ('fusion', 'copy-done')
    >>> canonical("dense/BiasAdd:_MklNativeFusedMatMul"), canonical("_MklNativeConv2DBackpropFilterWithBias")
    ('MatMul', 'Conv2DBackpropFilter')
    >>> canonical("void Eigen::EigenMetaKernel<float>(int)", tf_op="layer_5/GreaterEqual:GreaterEqual")
    'GreaterEqual'
    """
    if tf_op is not None and (framework := FRAMEWORK_OP.fullmatch(tf_op)):
        name = framework["type"]
    elif hlo_op:
        name = hlo_op
    elif framework := FRAMEWORK_OP.fullmatch(name):
        name = framework["type"]
    bare = name.removeprefix(_EAGER).removeprefix("%").partition(" = ")[0]
    name = _function(bare) or bare or name
    name = _NUMBER.sub("", name) or name
    name = _VENDOR.sub(r"\g<op>", name)
    return _PAPER.get(name, name)


def _function(name: str) -> str:
    """Return the name of a function without its return type, template arguments and parameters.

    >>> _function("void at::native::(anonymous namespace)::pool<float>(int)")
    'at::native::pool'
    >>> _function("void at::native::elementwise_kernel<4, at::native::AddFunctor<float>>(int)")
    'at::native::elementwise_kernel<AddFunctor>'
    """
    name = name.replace(_ANONYMOUS, "").replace("operator()", "operator")
    kept, begins = "", len(name)
    opened: list[str] = []
    for at, letter in enumerate(name):
        if not opened and letter == "(":
            break
        if letter in "<(":
            begins = min(begins, at)
            opened.append(letter)
        elif not opened:
            kept += letter
        elif letter == ")" or (letter == ">" and opened[-1] == "<" and name[at - 1] != "-"):
            while opened.pop() != ("(" if letter == ")" else "<") and opened:
                pass
    result, _, function = kept.strip().rpartition(" ")
    if result != "void" and "::" not in result:
        function = kept.strip()
    if _ENTRY.fullmatch(function):
        inner = (word for word in _TYPE.findall(name[begins:]) if not _INNER_TYPES.match(word))
        function += "".join(f"<{word.rpartition('::')[2]}>" for word in [next(inner, "")] if word)
    return function


@lru_cache(1 << 14)
def category(name: str, *, side: str) -> str | None:
    """Return the category of an event by its name, where the profiler stored none; None if the name does not say.

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
        if instruction := _HLO.match(name):
            return instruction["opcode"]
        function = _function(name)
        return copied or next((label for pattern, label in _ON_DEVICE if pattern.match(function)), None)
    if copied is not None:
        return kind(copied)
    framework = FRAMEWORK_OP.fullmatch(name)
    bare = framework["type"].removeprefix("_") if framework else name
    return next((label for pattern, label in _ON_HOST if pattern.match(bare)), None)


def kind(category: str) -> str | None:
    """Return the time of a step (``tpunb.schema.STEPS``, without ``_ps``) that a category is part of, or None.

    >>> kind("all-gather-done"), kind("all-reduce fusion"), kind("host recv"), kind("loop fusion")
    ('collective', 'collective', 'transfer', None)
    """
    return _KINDS.get(_HALF.sub("", category))


def input_stage(op: str) -> str | None:
    """Return the stage of the input pipeline that an operation is part of, by XProf's rules; None for others.

    >>> input_stage("Iterator::Prefetch::TFRecord"), input_stage("Iterator::TFRecord"), input_stage("Iterator::Map")
    ('read in advance', 'read on demand', 'preprocess')
    """
    if not op.startswith(ITERATOR):
        return "enqueue" if op.startswith("InfeedEnqueue") else None
    if not op.endswith(_FROM_FILE):
        return "preprocess"
    return "read in advance" if _IN_ADVANCE.search(op) else "read on demand"


def operation_class(op: str) -> str | None:
    """Return the class of an operation by its canonical name: "optimizer", "backward" or "collective"; else None.

    >>> operation_class("ResourceApplyAdam"), operation_class("ReluGrad"), operation_class("all-reduce-start")
    ('optimizer', 'backward', 'collective')
    """
    return next((label for pattern, label in _CLASSES if pattern.fullmatch(op)), None)


def collective(op: str) -> str | None:
    """Return which collective an operation of a device is, whatever its library calls it; None if it is none.

    >>> collective("ncclDevKernel_AllReduce_Sum_f32_RING_LL"), collective("multimem_all_reduce_kernel")
    ('allreduce', 'allreduce')
    >>> collective("all-gather-start"), collective("fusion")
    ('allgather', None)
    """
    match = _COLLECTIVE.search(op)
    return match and re.sub("[-_]", "", match[0].lower()).replace("crossdevicereduce", "allreduce")


PEERS = "send|recv|reduce|gather|scatter|broadcast|all-to-all|clip"
"""Pattern of operations of a pipeline in which workers wait for each other: gradients are clipped by a norm of all."""


def is_launch(op: str) -> bool:
    """Return whether an operation of the host launches work on a device, which may wait for earlier work, or waits.

    >>> is_launch("CommonPjRtLoadedExecutable::ExecuteHelperOnSingleDevice"), is_launch("cudaLaunchKernel")
    (True, True)
    """
    return _LAUNCH.fullmatch(op) is not None


@lru_cache(1 << 14)
def layer(tf_op: str) -> str | None:
    """Return the layer of the model of a framework op, by its scopes; None where it has none.

    Scopes that TensorFlow and JAX add are removed: a gradient is part of the layer that it differentiates.

    >>> layer("gradient_tape/model/dense_1/MatMul/MatMul_1:MatMul"), layer("model/dense_1/BiasAdd:BiasAdd")
    ('model/dense_1', 'model/dense_1')
    >>> layer("jit(step)/jit(main)/transpose(jvp(Model))/Dense_0/dot_general"), layer("jit(f)/add")
    ('Model/Dense_0', None)
    >>> layer("net/a/mul;net/b/add"), layer("net/a/mul;net/a/act/tanh")  # fused: of several layers; of one in another
    ('mixed', 'net/a')
    """
    layers = sorted({*filter(None, map(_layer, tf_op.split(";")))}, key=len)
    within = all(f"{each}/".startswith(f"{layers[0]}/") for each in layers)
    return None if not layers else layers[0] if within else MIXED


def part(tf_op: str) -> str | None:
    """Return the part of a training step of a framework op; None where its name does not say, "mixed" for several.

    >>> part("gradient_tape/model/dense_1/MatMul/MatMul_1:MatMul"), part("model/dense_1/BiasAdd:BiasAdd")
    ('backward', 'forward')
    >>> part("jit(step)/transpose(jvp(Model))/Dense_0/dot_general"), part("jit(step)/jvp(Model)/add")
    ('backward', 'forward')
    >>> part("adam/AssignSubVariableOp_2"), part("model/dense/mul;adam/mul"), part("jit(f)/add")
    ('update', 'mixed', None)
    >>> part("gradient_tape/model/dense/ReluGrad;model/dense/BiasAdd")  # which the backward pass computes again
    'backward'
    """
    parts = {*filter(None, map(_part, tf_op.split(";")))}
    if parts == {"forward", "backward"}:
        return "backward"
    return parts.pop() if len(parts) == 1 else MIXED if parts else None


def _part(op: str) -> str | None:
    if _UPDATE.search(op):
        return "update"
    if _BACKWARD.search(op):
        return "backward"
    if "jvp(" in op or ("(" not in op.partition("/")[0] and _layer(op)):
        return "forward"
    return None


def _layer(op: str) -> str | None:
    if _PLUMBING.search(op):
        return None
    if "(" in op.partition("/")[0]:  # JAX: in a function, jit(f)
        return "/".join(_model_scopes(op.split("/"))) or None
    name, rewritten, _ = op.partition(":")[0].partition("/ArithmeticOptimizer/")
    *before, name = _BODY.split(f"{name}/?" if rewritten else name)
    parts = name.split("/")
    while len(parts) > 1 and _COPIED.fullmatch(parts[-1]):
        parts.pop()
    scopes = [part for part in _model_scopes(parts) if not (before and _LOOP.fullmatch(part))]
    if scopes and ("gradient_tape/" in op or _READ.fullmatch(parts[-1])) and _ARITHMETIC.fullmatch(scopes[-1]):
        scopes.pop()
    while scopes and (_INNER.fullmatch(scopes[-1]) or _doubled(scopes)):
        scopes.pop()
    return "/".join(scopes) or None


def _model_scopes(parts: list[str]) -> list[str]:
    """Return the scopes of the model among those around the last part."""
    scopes = []
    for before, part, after in zip(["", *parts], parts, parts[1:], strict=False):
        bare = part
        for _ in range(_DEEPEST):
            if not (transform := _TRANSFORM.fullmatch(bare)):
                break
            bare = transform[2]
        loop = _LOOP.fullmatch(part) and _BRANCH.fullmatch(after)
        branch = _BRANCH.fullmatch(part) and _LOOP.fullmatch(before)
        if not (loop or branch or _WRAPPER.fullmatch(bare)):
            scopes.append(bare)
    return scopes


def _doubled(scopes: list[str]) -> bool:
    """Return whether the last scope is the function ``dropout`` within a layer of that name."""
    return scopes[-1] == "dropout" and len(scopes) > 1 and scopes[-2].startswith("dropout")
