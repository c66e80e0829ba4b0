"""Names of operations: which events count as one, and under which name.

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
    | RunStep | Xprof | XprofSession | TPUCompile
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
