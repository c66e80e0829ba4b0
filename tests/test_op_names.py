"""Names of operations: one name an operation, and bookkeeping left out."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tpunb as tp
from tpunb.op_names import FUNCTION_CALL, canonical, is_noise


@pytest.mark.parametrize(
    ("name", "known_as"),
    [
        # HLO: the number is of the instruction, not of the operation
        ("fusion", "fusion"),
        ("fusion.123", "fusion"),
        ("fusion.123.clone", "fusion"),
        ("fusion.4.remat2", "fusion"),
        ("loop_fusion_7", "loop_fusion"),
        ("copy-done.2", "copy-done"),
        ("%copy-done.2 = f32[8]{0} copy-done(f32[8]{0} %copy-start.2)", "copy-done"),
        ("all-reduce.1.cloned.3", "all-reduce"),
        # framework: the type is the operation, not its scope
        ("dense/MatMul:MatMul", "MatMul"),
        ("model/layer_5/GreaterEqual_1:GreaterEqual", "GreaterEqual"),
        ("while/body/_1/Adam/Sub:Sub", "Sub"),
        ("EagerLocalExecute: Mul", "Mul"),
        # kernels of a library for an operation
        ("_MklNativeConv2DBackpropFilterWithBias", "Conv2DBackpropFilter"),
        ("_MklNativeFusedMatMul", "MatMul"),
        ("_FusedConv2D", "Conv2D"),
        ("dense/BiasAdd:_MklNativeFusedMatMul", "MatMul"),
        # the names of Tables II and III
        ("dot.7", "MatMul"),
        ("copy.1", "Copy"),
        ("infeed", "Infeed"),
        ("multiply.3", "Mul"),
        ("reshape.9", "Reshape"),
        ("transpose", "Transpose"),
        # code: what it is a template of is enough
        ("void Eigen::EigenMetaKernel<float, 3>(int)", "Eigen::EigenMetaKernel"),
        ("volta_sgemm_128x64_nn", "volta_sgemm_128x64_nn"),
        ("Iterator::Prefetch", "Iterator::Prefetch"),
        # left as they are: nothing else would remain
        ("(anonymous)", "(anonymous)"),
        ("_1", "_1"),
        ("%", "%"),
        ("", ""),
    ],
)
def test_an_event_counts_under_the_name_of_its_operation(name, known_as):
    assert canonical(name) == known_as


@pytest.mark.parametrize(
    ("tf_op", "hlo_op", "known_as"),
    [
        ("layer_5/GreaterEqual:GreaterEqual", None, "GreaterEqual"),
        ("layer_5/MatMul:MatMul", "fusion.3", "MatMul"),  # the framework's word goes before the compiler's
        ("layer_5", "fusion.3", "fusion"),  # a scope alone is no operation
        (None, "dot.3", "MatMul"),
        (None, "", "kernel"),
        ("layer_5", None, "kernel"),
    ],
)
def test_what_stands_behind_a_kernel_names_it(tf_op, hlo_op, known_as):
    assert canonical("kernel<float>(int)", tf_op, hlo_op) == known_as


@pytest.mark.parametrize(
    "name",
    [
        "ThreadpoolListener::Record",
        "ExecutorState::Process",
        "ExecutorDoneCallback",
        "EagerExecute: __inference_one_step_on_iterator_12",
        "EagerKernelExecute",
        "EagerLocalExecute: __inference_train_step_3",
        "KernelAndDeviceFunc::Run",
        "TFE_Py_Execute",
        "FunctionRun",
        "RunGraphDone",
        "InstantiatedCapturedFunction::Run",
        "MemoryAllocation",
        "MemoryDeallocation",
        "ParallelFor",
        "one_step_on_data",
        "multi_step_on_iterator",
        "end: Iterator::Map",
        "$train.py:33 step",
        "XprofSession",
    ],
)
def test_bookkeeping_of_the_host_is_noise(name):
    assert is_noise(name)


@pytest.mark.parametrize(
    "name",
    [
        "MatMul",
        "Iterator::Prefetch",
        "Iterator::Root::ParallelMapV2",
        "EagerLocalExecute: Mul",
        "FunctionRunner",
        "MemoryAllocationPlanner",
        "ParallelForEach",
        "TransferBufferFromDevice",
        "convert_to_tensor_2",
        "the end: not at the beginning",
        "",
    ],
)
def test_operations_and_what_only_resembles_bookkeeping_are_not(name):
    assert not is_noise(name)


def test_a_framework_op_is_never_noise_unless_it_calls_a_whole_function():
    assert not is_noise("MemoryAllocation", "pool/MemoryAllocation:MemoryAllocation")
    assert is_noise("my_train_step", FUNCTION_CALL)
    assert not is_noise("my_train_step")


WORD = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,8}", fullmatch=True)


@given(
    name=WORD,
    scopes=st.lists(WORD, max_size=2),
    number=st.sampled_from(["", ".1", "_22", ".3.clone", ".4.remat2"]),
    form=st.sampled_from(["{0}", "%{0} = f32[8] {0}(...)", "void {0}<float>(int)", "{0}(int)"]),
)
@settings(deadline=None)
def test_naming_twice_is_naming_once(name, scopes, number, form):
    # of names as frameworks make them; in text at large a prefix may hide another ("%%x"), and each goes once
    once = canonical("/".join([*scopes, form.format(name + number)]))
    assert canonical(once) == once


@given(name=st.text(min_size=1), tf_op=st.none() | st.text(), hlo_op=st.none() | st.text())
@settings(deadline=None, max_examples=500)
def test_no_event_with_a_name_loses_it(name, tf_op, hlo_op):
    assert canonical(name, tf_op, hlo_op)


@given(
    parts=st.lists(st.sampled_from(["%", "void ", " = ", "EagerLocalExecute: ", ".1", "<", "(", " ", "x"]), min_size=1)
)
@settings(deadline=None, max_examples=500)
def test_a_name_of_nothing_but_trimmings_keeps_something(parts):
    assert canonical("".join(parts))


def test_names_of_real_captures_are_named_once_and_never_lost(real_profiles):
    files = sorted([*real_profiles.glob("*.xplane.pb"), *real_profiles.glob("*.trace.json.gz")])
    assert files
    named = {row: canonical(*row) for row in tp.load(files).events.select("name", "tf_op", "hlo_op").unique().rows()}
    assert len(named) > 5000
    assert {op for op in named.values() if canonical(op) != op} == set()
    assert {row for row, op in named.items() if not op and any(row)} == set()
    assert len(set(named.values())) < len(named) / 4  # many names, few operations
