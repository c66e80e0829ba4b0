"""Names of operations: one name an operation, and bookkeeping left out."""

import polars as pl
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

import tpunb as tp
from tpunb.io import xplane
from tpunb.step_stats.op_names import canonical, category, is_noise, kind, layer

NAMES = [
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
    (
        "void at::native::(anonymous namespace)::max_pool_forward_nchw<float>(int)",
        "at::native::max_pool_forward_nchw",
    ),
    ("std::enable_if<((8)>(0))&&ok<T>::exists, void>::type vllm::rms_norm<T, 8>(T*)", "vllm::rms_norm"),
    ("void ns::F<int>::operator()(int) const", "ns::F::operator"),
    # but not of a template that runs any function
    (
        "void at::native::elementwise_kernel<4, at::native::gpu_kernel_impl<at::native::copy_kernel(X&)>>(int)",
        "at::native::elementwise_kernel<copy_kernel>",
    ),
    (
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>(R)",
        "at::native::reduce_kernel<MeanOps>",
    ),
    ("void ck_tile::kentry<256, 1, ck_tile::GemmKernel<ck_tile::Tile>>(A)", "ck_tile::kentry<GemmKernel>"),
    ("Iterator::Prefetch", "Iterator::Prefetch"),
    # left as they are: nothing else would remain
    ("(anonymous)", "(anonymous)"),
    ("_1", "_1"),
    ("%", "%"),
    ("", ""),
]


def test_an_event_counts_under_the_name_of_its_operation():
    assert [(name, canonical(name)) for name, _ in NAMES] == NAMES


BEHIND = [
    ("layer_5/GreaterEqual:GreaterEqual", None, "GreaterEqual"),
    ("layer_5/MatMul:MatMul", "fusion.3", "MatMul"),  # the framework's word goes before the compiler's
    ("layer_5", "fusion.3", "fusion"),  # a scope alone is no operation
    (None, "dot.3", "MatMul"),
    (None, "", "kernel"),
    ("layer_5", None, "kernel"),
]


def test_what_stands_behind_a_kernel_names_it():
    assert [(*behind, canonical("kernel<float>(int)", *behind)) for *behind, _ in BEHIND] == BEHIND


NOISE = [
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
    # JAX
    "ParseArguments",
    "PythonRefManager::CollectGarbage",
    "Wait for usage holds",
    "Handle inputs",
    "CommonPjRtClient::CreateOutputs",
    "AllocateOutputBuffersWithInputReuse",
    "ThunkExecutor::Execute (wait for completion)",
]


def test_bookkeeping_of_the_host_is_noise():
    assert [name for name in NOISE if not is_noise(name)] == []


OPERATIONS = [
    "MatMul",
    "Iterator::Prefetch",
    "Iterator::Root::ParallelMapV2",
    "EagerLocalExecute: Mul",
    "FunctionRunner",
    "MemoryAllocationPlanner",
    "ParallelForEach",
    "TransferBufferFromDevice",
    "convert_to_tensor_2",
    "TPUCompile",
    "PjitFunction(step)",
    "CommonPjRtBuffer::Await",
    "the end: not at the beginning",
    "",
]


def test_operations_and_what_only_resembles_bookkeeping_are_no_noise():
    assert [name for name in OPERATIONS if is_noise(name)] == []


WORD = st.from_regex(r"[A-Za-z][A-Za-z0-9-]{0,8}", fullmatch=True)


@given(
    name=WORD,
    scopes=st.lists(WORD, max_size=2),
    number=st.sampled_from(["", ".1", "_22", ".3.clone", ".4.remat2"]),
    form=st.sampled_from(["{0}", "%{0} = f32[8] {0}(...)", "void {0}<float>(int)", "{0}(int)"]),
)
def test_naming_twice_is_naming_once(name, scopes, number, form):
    # of names as frameworks make them; in text at large a prefix may hide another ("%%x"), and each goes once
    once = canonical("/".join([*scopes, form.format(name + number)]))
    assert canonical(once) == once


@given(
    names=st.lists(WORD.map(lambda word: word.replace("-", "_") + "_kernel"), min_size=2, max_size=2, unique=True),
    form=st.sampled_from(
        [
            *(
                "void a::(anonymous namespace)::{0}<float, 4>(int*)",
                "std::enable_if<(1>0), void>::type a::{0}<b::c>(d)",
            ),
            "void at::native::vectorized_elementwise_kernel<4, at::native::{0}<float>, std::array<char*, 2> >(int)",
            *("{0}(a::b<c>)", "void a::{0}<b<c>, (d)2>::run<3>(int) const"),
        ]
    ),
)
def test_two_functions_never_have_one_name(names, form):
    assert canonical(form.format(names[0])) != canonical(form.format(names[1]))


@given(name=st.text(min_size=1), tf_op=st.none() | st.text(), hlo_op=st.none() | st.text())
@examples(100)
def test_no_event_with_a_name_loses_it(name, tf_op, hlo_op):
    assert canonical(name, tf_op, hlo_op)


@given(
    parts=st.lists(st.sampled_from(["%", "void ", " = ", "EagerLocalExecute: ", ".1", "<", "(", " ", "x"]), min_size=1)
)
@examples(100)
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


ON_DEVICES = [
    ("MemcpyH2D", "host to device copy"),
    ("MemcpyD2H", "device to host copy"),
    ("Memcpy HtoD (Pinned -> Device)", "host to device copy"),
    ("MemcpyD2D", "device copy"),
    ("MemcpyP2P", "device copy"),
    ("CopyDeviceToDevice", "device copy"),
    ("CopyHostToDevice", "host to device copy"),
    ("MemcpyOther", "copy"),
    ("Memset", "memset"),
    ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "collective"),
    ("void ncclKernel_AllGather", "collective"),
    ("void deep_ep::intranode::dispatch<8, 768, 8192>(int4*, float*)", "collective"),
    ("void deep_ep::internode_ll::combine<true, 7168>(void*)", "collective"),
    ("void deep_ep::internode::notify_dispatch<false, 4>(int const*)", "collective"),
    ("void deep_ep::layout::get_dispatch_layout<256, 32>(long const*)", None),
    ("nvshmemi_transfer_rma_p2p", "collective"),
    ("barrier_all_on_stream_kernel_threadgroup(int, int)", "collective"),
    ("mscclKernel_Sum_half_LL_false(ncclDevComm*)", "collective"),
    ("void mscclpp::allreduce7<int>(void*)", "collective"),
    ("rcclGenericKernel", "collective"),
    ("void oneapi::ccl::v1::gpu_kernel<float>(int)", "collective"),
    ("oneccl_allreduce_small", "collective"),
    ("void c10d::symmetric_memory::barrier_kernel(unsigned int**)", "collective"),
    ("void c10d::symmetric_memory::(anonymous namespace)::multimem_all_reduce_kernel<float>()", "collective"),
    ("kuserbuffers_pushrecv(int, int)", "collective"),
    ("cclean_up", None),
    ("dispatch_gemm", None),
    ("void (anonymous namespace)::multimem_all_reduce_kernel<c10::BFloat16, 16>(c10::BFloat16*)", "collective"),
    ("void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(RankData*)", "collective"),
    ("void gemm<all_reduce_epilogue>(int)", None),
    ("all-reduce.1", "all-reduce"),
    ("all-gather-start.12", "all-gather-start"),
    ("%infeed = ((f32[8]), token[]) infeed(token[] %t)", "infeed"),
    ("send-done", "send-done"),
    ("all-reduce-scatter.3", "all-reduce-scatter"),
    ("fusion.3", None),
    ("all-reduce_fusion", None),  # what it does besides is not in its name
    ("copy-done.2", None),
    ("IteratorGetNextOp::DoCompute", None),
    ("", None),
]


def test_what_the_time_of_a_device_goes_into():
    assert [(name, category(name, side="device")) for name, _ in ON_DEVICES] == ON_DEVICES


ON_HOSTS = [
    # where the step stands still for its input, as Keras and TensorFlow captures name it
    ("IteratorGetNextOp::DoCompute", "input wait"),
    ("IteratorGetNextAsOptionalOp::DoCompute", "input wait"),
    ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "input wait"),
    ("EagerLocalExecute: IteratorGetNext", None),  # the call around it: the wait is nested in it
    ("IteratorGetNext:IteratorGetNext", "input wait"),
    ("cond/IteratorGetNextAsOptional_4:IteratorGetNextAsOptional", "input wait"),
    ("IteratorGetNext/_12:_Recv", None),
    ("MultiDeviceIteratorGetNextFromShard", "input pipeline"),
    ("Iterator::Root::Prefetch", "input pipeline"),
    ("MakeIterator::PrefetchDataset", "input pipeline"),
    ("EagerLocalExecute: MakeIterator", None),
    ("PrefetchProduce", "input pipeline"),
    ("MapAndBatchConsume", "input pipeline"),
    ("Iterators", None),
    # compiling begins with tracing
    ("trace_to_jaxpr_dynamic", "compile"),
    ("lower_sharding_computation", "compile"),
    ("backend_compile", "compile"),
    ("backend_compile_and_load", "compile"),
    ("PjRtCpuClient::Compile", "compile"),
    ("TfrtTpuCompiler::Compile", "compile"),
    ("CpuCompiler::RunBackend", "compile"),
    ("XlaCompilationCache::Compile", "compile"),
    ("TPUCompile", "compile"),
    ("cluster_0/xla_compile:_XlaCompile", "compile"),
    ("tf.function-graph_building", "compile"),
    ("HLO passes through layout assignment", "compile"),
    ("XLA::TPU run backend", "compile"),
    ("CompiledFunction::Call", None),
    ("PjitFunction(compile_me)", None),
    # between host and device
    ("tpu::System::TransferToDevice=>IssueEvent", "transfer"),
    ("TransferFromDevice", "transfer"),
    ("TransferBufferFromDevice", "transfer"),
    ("TfrtTpuClient::BufferFromHostBuffer::TfrtTpuBuffer", "transfer"),
    ("TfrtTpuBuffer::ToLiteral", "transfer"),
    ("MapDmaBuffer", "transfer"),
    ("XlaLinearize", "transfer"),
    ("TpuClient::LinearizeIntoImpl", "transfer"),
    ("D2H Dispatch", "transfer"),
    ("DevicePutWithSharding", "transfer"),
    ("InfeedEnqueueTuple:InfeedEnqueueTuple", "transfer"),
    ("MemcpyH2D", "transfer"),
    ("cuMemcpyDtoHAsync_v2", "transfer"),
    ("hipMemcpyDtoDAsync", None),
    ("np.asarray(jax.Array)", None),  # waits for the computation first
    ("model/dense/MatMul:MatMul", None),
    ("", None),
]


def test_what_the_time_of_a_host_goes_into():
    assert [(name, category(name, side="host")) for name, _ in ON_HOSTS] == ON_HOSTS


COLUMNS = [
    ("infeed", ["infeed"]),
    ("outfeed", ["outfeed"]),
    ("input", ["input wait"]),
    ("compile", ["compile"]),
    ("transfer", ["send", "recv-done", "host send", "host recv", "host send-done", "host recv-done"]),
    ("transfer", ["host to device copy", "device to host copy", "transfer"]),
    ("collective", ["all-reduce", "all-reduce-start", "all-gather-done", "all-to-all", "reduce-scatter"]),
    ("collective", ["collective-permute-start", "collective-broadcast", "ragged-all-to-all", "collective"]),
    ("collective", ["all-reduce fusion", "all-gather fusion", "all-reduce-scatter fusion"]),
    (None, ["device copy", "memset", "input pipeline", "copy-done", "async-start", "data formatting", "while"]),
    (None, ["loop fusion", "convolution fusion", "all-reduced", "", "host", " fusion"]),
]


def test_the_time_of_a_step_that_a_category_counts_for():
    found = [(column, word, kind(word)) for column, categories in COLUMNS for word in categories]
    assert [row for row in found if row[0] != row[2]] == []


LAYERS = [
    # TensorFlow: the op is not the layer, nor is what a function of TensorFlow opens within it
    ("model/dense_1/MatMul:MatMul", "model/dense_1"),
    ("model/dense_1/MatMul", "model/dense_1"),
    ("model/dense_1/BiasAdd/ReadVariableOp:ReadVariableOp", "model/dense_1"),
    ("model/dense_1/Tensordot/MatMul:MatMul", "model/dense_1"),
    ("functional_1/conv2d_1/convolution", "functional_1/conv2d_1"),
    ("model/batch_normalization/moments/SquaredDifference:SquaredDifference", "model/batch_normalization"),
    ("model/layer_norm/batchnorm/mul/ReadVariableOp:ReadVariableOp", "model/layer_norm"),
    ("model/dropout/dropout/random_uniform/RandomUniform:RandomUniform", "model/dropout"),
    ("model/dropout_3/dropout/Mul:Mul", "model/dropout_3"),
    ("model/add/add:AddV2", "model/add"),  # a layer of Keras, not an operator
    ("model/add/Cast:Cast", "model"),  # what an operator reads or casts
    ("MyModel/Encoder/MatMul:MatMul", "MyModel/Encoder"),
    # what it wraps around them
    ("replica_4/bert/layer_0/query/einsum/Einsum/Cast:Cast", "bert/layer_0/query"),
    ("StatefulPartitionedCall/model/dense/MatMul:MatMul", "model/dense"),
    ("StatefulPartitionedCall_1/PartitionedCall/model/dense/MatMul:MatMul", "model/dense"),
    ("while/body/_1/while/Adam/Sub:Sub", "Adam"),
    ("while/body/_1/Adam/Sub:Sub", "Adam"),
    ("cond_17/then/_256/cond_17/Adam/WarmUp/else/_9/cond_17/Adam/WarmUp/Decay/sub:Sub", "Adam/WarmUp/Decay"),
    ("ConstantFolding/model/layer_norm/moments/truediv_recip", "model/layer_norm"),
    ("model/embedding/ArithmeticOptimizer/ReorderCast_float_Cast:Cast", "model/embedding"),
    # gradients are of the layer that they are gradients of
    ("gradient_tape/model/dense/MatMul/MatMul_1:MatMul", "model/dense"),
    ("gradient_tape/model/dense/BiasAdd/BiasAddGrad", "model/dense"),
    ("gradient_tape/model/conv2d_1/ReluGrad:ReluGrad", "model/conv2d_1"),
    ("gradient_tape/replica_4/model/norm/batchnorm/mul_1/Mul:Mul", "model/norm"),
    ("gradients/model/dense/MatMul_grad/MatMul_1:MatMul", "model/dense"),
    # of no layer
    ("MatMul:MatMul", None),
    ("replica_4/Cast_4:Cast", None),
    ("gradient_tape/replica_4/truediv/RealDiv:Mul", None),
    ("XlaModule:", None),
    ("tf.function", None),
    ("_send_model/dense/MatMul_0:_Send", None),
    ("IteratorGetNextAsOptional_3/_36:Identity", None),
    ("", None),
    # JAX
    ("jit(f)/jit(main)/layer_0/attn/dot_general", "layer_0/attn"),
    ("jit(f)/jit(main)/layer_0/attn/dot_general:", "layer_0/attn"),
    ("jit(step)/jit(main)/jvp(Model)/Dense_0/dot_general", "Model/Dense_0"),
    ("jit(step)/jit(main)/transpose(jvp(Model))/Dense_0/dot_general", "Model/Dense_0"),
    ("jvp(Model)/Dense_0/dot_general", "Model/Dense_0"),
    ("jit(step)/jvp(vmap(layer_0))/attn/tanh", "layer_0/attn"),
    ("jit(step)/transpose(jvp(vmap(jvp(vmap()))))/checkpoint/rematted_computation/mlp/dot_general", "mlp"),
    ("jit(step)/jvp(vmap(scanned))/while/body/closed_call/sin", "scanned"),
    ("jit(step)/jvp(vmap(scanned))/while/cond/lt", "scanned"),
    ("jit(step)/jvp(vmap(scanned))/while", "scanned"),
    ("jit(step)/scan/while/body/Block_0/add", "Block_0"),
    ("jit(step)/cond/branch_1_fun/Block_0/add", "Block_0"),
    ("jit(step)/jvp(mlp)/jit(relu)/max", "mlp"),
    ("pmap(step)/shard_map/mlp/add", "mlp"),
    ("jit(step)/body/head/add", "body/head"),  # a model of a body and a head, no loop
    ("jit(step_fun)/QKVParallelLinear/mn,pn->mp/dot_general", "QKVParallelLinear"),
    ("jit(step)/transpose(jvp())/mul;jit(step)/transpose(jvp(Model))/Dense_0/add", "Model/Dense_0"),
    ("jit(step_fun)/aten::view/reshape", None),
    ("jit(f)/add", None),
    ("args[0]", None),
    ("arg1 (path=(:args, 1))", None),
]


def test_the_layer_of_a_framework_op():
    assert [(tf_op, layer(tf_op)) for tf_op, _ in LAYERS] == LAYERS


@given(
    scopes=st.lists(st.sampled_from(["model", "dense_1", "layer_0", "attention", "Block_3"]), min_size=1, max_size=4),
    wrapped=st.sampled_from(
        [
            "{0}/MatMul:MatMul",
            "gradient_tape/{0}/MatMul/MatMul_1:MatMul",
            "StatefulPartitionedCall/replica_1/{0}/BiasAdd:BiasAdd",
            "while/body/_1/while/{0}/add:AddV2",
            "jit(f)/jit(main)/{0}/dot_general",
            "jit(f)/transpose(jvp())/while/body/closed_call/{0}/dot_general",
        ]
    ),
)
def test_a_layer_is_found_in_whatever_wraps_it(scopes, wrapped):
    assert layer(wrapped.format("/".join(scopes))) == "/".join(scopes)


PIECES = ["jit(", "jvp(", ")", "/", "while", "body", "_1", ":", ";", "ArithmeticOptimizer", "gradient_tape", "x", "::"]


@given(text=st.text() | st.lists(st.sampled_from(PIECES)).map("".join))
@examples(100)
def test_any_text_has_a_layer_or_none_and_a_category_or_none(text):
    assert layer(text) is None or (layer(text) and len(layer(text)) < len(text))
    for side in ("host", "device"):
        assert category(text, side=side) is None or kind(category(text, side=side)) in {*KINDS, None}
    assert kind(text) in {*KINDS, None}


KINDS = {"infeed", "outfeed", "transfer", "collective", "input", "compile"}


@pytest.mark.parametrize(
    "piece", ["jvp(", "/_1", "Compile", "a/", "then/_1/", "x_grad/", "a;", "-done", ".1", "::", "Dataset"]
)
def test_long_names_end(piece):
    text = piece * 50_000 + "!"
    assert len(layer(text) or "") <= len(text)
    assert {category(text, side="host"), category(text, side="device")} <= {None, "compile"}
    assert kind(text) is None


def test_the_layers_of_a_real_gpu_capture_are_scopes_that_its_profiler_drew_over_the_same_kernels(real_profiles):
    data = (real_profiles / "gpu-v100_tf2_bert_steps.xplane.pb").read_bytes()
    events = xplane.read(data, source="v100")[0].with_columns(pl.col("plane", "line", "name", "tf_op").cast(pl.String))
    scopes = events.filter(pl.col("line") == "TensorFlow Name Scope")
    kernels = events.filter(pl.col("line").str.ends_with("(Compute)")).with_row_index("kernel")
    drawn = (
        kernels.join(scopes.select("plane", scope="name", at="start_ps", dur="dur_ps"), on="plane")
        .filter(
            pl.col("at") <= pl.col("start_ps"), pl.col("at") + pl.col("dur") >= pl.col("start_ps") + pl.col("dur_ps")
        )
        .group_by("kernel", "tf_op")
        .agg("scope")
    )
    rows = [(layer(tf_op), set(drawn_over)) for _, tf_op, drawn_over in drawn.rows()]
    assert len(rows) == 1330
    assert sum(of is None for of, _ in rows) == 14  # the loss's, which has no layer
    assert [row for row in rows if row[0] is not None and not set(row[0].split("/")) <= row[1]] == []
    assert len({of for of, _ in rows}) == 246


def test_categories_in_real_captures(real_profiles):
    def seconds(file, side):
        events = xplane.read((real_profiles / file).read_bytes(), source=file)[0]
        on_side = events.filter(pl.col("plane").cast(pl.String).str.starts_with("/device:") == (side == "device"))
        by_name = on_side.group_by(pl.col("name").cast(pl.String)).agg(pl.col("dur_ps").sum() / 1e12)
        found = [(category(name, side=side), dur) for name, dur in by_name.rows()]
        rows = pl.DataFrame(found, schema={"category": pl.String, "seconds": pl.Float64}, orient="row")
        return dict(rows.group_by("category").agg(pl.col("seconds").sum().round(5)).rows())

    v100 = "gpu-v100_tf2_bert_steps.xplane.pb"
    waits = {"input wait": 0.01404, "input pipeline": 0.03993, "transfer": 0.00587}
    assert seconds(v100, "host").items() >= waits.items()
    assert seconds(v100, "device").keys() == {"host to device copy", "device to host copy", None}
    assert seconds("tpu-v6e-4_jax_host-offload.xplane.pb", "host").keys() == {"compile", "transfer", None}
    assert seconds("gpu-mi300x_jax_conv.xplane.pb", "device").keys() == {"device copy", None}


FUNCTIONS = st.sampled_from(["softmax_warp_forward", "layer_norm", "gemm_kernel", "Pool", "add", "add2", "cat_2d"])
TEMPLATES = st.sampled_from(["", "<float>", "<4, at::native::AddFunctor<float>>", "<(int)2, std::array<char*, 2ul>>"])
ARGUMENTS = st.sampled_from(
    ["(int)", "(float*, long)", "(std::array<char*, 2ul>)", "(TensorInfo<float, unsigned int>)"]
)
SPACES = st.sampled_from(
    ["", "at::native::", "ck_tile::", "(anonymous namespace)::", "at::native::(anonymous namespace)::"]
)
RETURNS = st.sampled_from(["", "void ", "std::enable_if<true, void>::type "])


def kernels(function):
    return st.tuples(RETURNS, SPACES, function, TEMPLATES, ARGUMENTS)


@given(kernels(FUNCTIONS), kernels(FUNCTIONS))
def test_kernels_of_two_functions_never_have_one_name(one, other):
    names = [canonical("".join(kernel)) for kernel in (one, other)]
    for kernel, name in zip((one, other), names, strict=True):
        assert name.rpartition("::")[2] == kernel[2]
    if one[2] != other[2]:
        assert names[0] != names[1]
