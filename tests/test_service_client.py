"""The client of tensorflow.ProfilerService, against fakes on loopback and the servers of TensorFlow and JAX."""

import os
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec

import grpc
import pytest
from warm_python import warm_python

from tpunb.io import xplane
from tpunb.profiler import service_client
from tpunb.profiler.service_client import ProfilerClient, ServiceError, messages
from tpunb.testing import FakeProfiler

pytestmark = pytest.mark.live

SERVICE = "/tensorflow.ProfilerService/"


class StandIn(grpc.GenericRpcHandler):
    """A service that keeps the bytes it was sent and gives the answer it was told: bytes, or (code, words)."""

    def __init__(self, answer=b""):
        self.answer, self.asked = answer, []

    def service(self, details):
        method = details.method.removeprefix(SERVICE)
        if not details.method.startswith(SERVICE):
            return None

        def respond(request, context):
            self.asked.append((method, request))
            if isinstance(self.answer, tuple):
                context.abort(*self.answer)
            return self.answer

        return grpc.unary_unary_rpc_method_handler(respond)


@pytest.fixture
def connect():
    """Start a server for a handler; return a client of it. All end with the test."""
    servers, clients = [], []

    def start(handler):
        server = grpc.server(ThreadPoolExecutor(2), handlers=[handler])
        address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        server.start()
        servers.append(server)
        clients.append(ProfilerClient(address))
        clients[-1].wait_ready(60)
        return clients[-1]

    yield start
    for client in clients:
        client.close()
    for server in servers:
        server.stop(0)


def answer(xspace):
    """The bytes of a ProfileResponse, spelled: field 8, length, content."""
    length, size = len(xspace), b""
    while length > 127:
        size, length = size + bytes([length & 127 | 128]), length >> 7
    return b"\x42" + size + bytes([length]) + xspace


def number(data, at):
    value = shift = 0
    while True:
        value |= (data[at] & 127) << shift
        shift, at = shift + 7, at + 1
        if data[at - 1] < 128:
            return value, at


def fields(data):
    """The fields of a protobuf message by number, decoded by hand: whole numbers and strings of bytes."""
    found, at = {}, 0
    while at < len(data):
        tag, at = number(data, at)
        value, at = number(data, at)
        assert tag & 7 in (0, 2), "only whole numbers and strings are sent"
        if tag & 7 == 2:
            value, at = data[at : at + value], at + value
        assert tag >> 3 not in found
        found[tag >> 3] = value
    return found


# -- the stand-in ---------------------------------------------------------------------------------------------


def test_the_request_asks_for_an_xspace_of_that_length_under_that_name(connect):
    service = StandIn()
    connect(service).window(0.25, "session-1")
    [(method, request)] = service.asked
    assert method == "Profile"
    sent = fields(request)
    options = fields(sent.pop(4))
    # duration_ms, max_events, session_id, emit_xspace of profiler_service.proto
    assert sent == {1: 250, 2: 1_000_000, 6: b"session-1", 9: 1}
    # include_dataset_ops, host, device level, version, duration_ms of profiler_options.proto; 0 and False are not sent
    assert options == {1: 1, 2: 2, 3: 1, 5: 1, 9: 250}


def test_tensorflow_reads_the_options_as_they_were_meant(connect):
    theirs = pytest.importorskip("tensorflow.tsl.profiler.protobuf.profiler_options_pb2")
    service = StandIn()
    connect(service).window(1.5, "session-1")
    options = theirs.ProfileOptions.FromString(fields(service.asked[0][1])[4])
    sent = {field.name: value for field, value in options.ListFields()}
    assert sent == {
        "version": 1,
        "include_dataset_ops": True,
        "host_tracer_level": 2,
        "device_tracer_level": 1,
        "duration_ms": 1500,
    }
    assert (options.python_tracer_level, options.enable_hlo_proto) == (0, False)


def test_programs_are_requested_without_events(connect):
    theirs = pytest.importorskip("tensorflow.tsl.profiler.protobuf.profiler_options_pb2")
    service = StandIn()
    connect(service).programs("session-1")
    options = theirs.ProfileOptions.FromString(fields(service.asked[0][1])[4])
    assert options.enable_hlo_proto
    assert (options.host_tracer_level, options.device_tracer_level, options.duration_ms) == (0, 0, 1)


@pytest.mark.parametrize(("seconds", "milliseconds"), [(0.0001, 1), (0.0126, 13), (60, 60_000)])
def test_a_window_lasts_whole_milliseconds_and_at_least_one(connect, seconds, milliseconds):
    service = StandIn()
    connect(service).window(seconds, "s")
    sent = fields(service.asked[0][1])
    assert (sent[1], fields(sent[4])[9]) == (milliseconds, milliseconds)


@pytest.mark.parametrize(
    "xspace",
    [b"", b"\x00", bytes(range(256)), b"\n\x03\x12\x01a" * 999, b"\xff" * 20_000_000],
    ids=["empty", "zero", "every byte", "planes", "20 MB"],
)
def test_the_xspace_comes_back_untouched(connect, xspace):
    assert connect(StandIn(answer(xspace))).window(0.01, "s") == xspace


def test_fields_of_the_answer_that_we_do_not_know_are_passed_over(connect):
    tool_data = b"\x32\x03abc"  # field 6
    assert connect(StandIn(tool_data + answer(b"planes") + b"\x38\x01")).window(0.01, "s") == b"planes"


@pytest.mark.parametrize(
    ("code", "words", "line"),
    [
        (grpc.StatusCode.INTERNAL, "Another profiling\n session  active", "INTERNAL: Another profiling session active"),
        (grpc.StatusCode.UNAVAILABLE, "", "UNAVAILABLE"),
        (grpc.StatusCode.UNKNOWN, "x" * 1000, f"UNKNOWN: {'x' * 300}"),
    ],
    ids=["lines", "no words", "many words"],
)
def test_a_refusal_is_one_line_with_the_code_and_the_words_of_the_service(connect, code, words, line):
    client = connect(StandIn((code, words)))
    for ask in (lambda: client.window(0.01, "s"), lambda: client.terminate("s")):
        with pytest.raises(ServiceError) as caught:
            ask()
        assert str(caught.value) == line


def test_other_service_raises(connect):
    class Other(grpc.GenericRpcHandler):
        def service(self, details):
            return None

    with pytest.raises(ServiceError, match=r"^UNIMPLEMENTED"):
        connect(Other()).window(0.01, "s")


def test_invalid_response_raises(connect):
    with pytest.raises(ServiceError, match=r"^INTERNAL"):
        connect(StandIn(b"\x42\xff")).window(0.01, "s")


def test_terminate_names_the_session(connect):
    service = StandIn()
    connect(service).terminate("session-7")
    [(method, request)] = service.asked
    assert method == "Terminate"
    assert fields(request) == {1: b"session-7"}


@pytest.mark.parametrize(
    ("code", "words", "busy"),
    [
        (grpc.StatusCode.INTERNAL, "Another profiling session active.", True),
        (grpc.StatusCode.INTERNAL, "Failed to create profiler session: Another profiling session active.", True),
        (grpc.StatusCode.ALREADY_EXISTS, "A profiling session is already running.", True),
        (grpc.StatusCode.INTERNAL, "out of memory", False),
        (grpc.StatusCode.UNAUTHENTICATED, "who are you", False),
        (grpc.StatusCode.PERMISSION_DENIED, "not you", False),
        (grpc.StatusCode.UNAVAILABLE, "", False),
    ],
)
def test_error_holds_its_code_and_whether_the_profiler_is_busy(connect, code, words, busy):
    client = connect(StandIn((code, words)))
    for ask in (lambda: client.window(0.01, "s"), lambda: client.terminate("s")):
        with pytest.raises(ServiceError) as caught:
            ask()
        assert (caught.value.code, caught.value.busy) == (code.name, busy)


def test_an_address_may_say_grpc(connect):
    service = StandIn(answer(b"planes"))
    server = grpc.server(ThreadPoolExecutor(1), handlers=[service])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    client = ProfilerClient(f"grpc://127.0.0.1:{port}")
    assert client.window(0.01, "s") == b"planes"
    client.close()
    server.stop(0)


def test_where_nothing_listens_waiting_ends(nowhere):
    client = ProfilerClient(nowhere)
    with pytest.raises(ServiceError, match=r"^no profiler service answered within 0\.2 s$") as caught:
        client.wait_ready(0.2)
    assert caught.value.code == "UNAVAILABLE"
    client.close()


def test_where_nothing_listens_a_window_fails(nowhere):
    client = ProfilerClient(nowhere)
    for ask in (lambda: client.window(0.01, "s"), lambda: client.terminate("s")):
        with pytest.raises(ServiceError, match=r"^UNAVAILABLE: "):
            ask()
    client.close()


class Silent(StandIn):
    """A service that takes a call and does not answer it before it is told to."""

    def __init__(self):
        super().__init__()
        self.called, self.go_on = threading.Event(), threading.Event()

    def service(self, details):
        def respond(request, context):
            self.called.set()
            self.go_on.wait(60)
            return b""

        return grpc.unary_unary_rpc_method_handler(respond)


def test_a_service_that_never_answers_is_given_up(connect):
    service = Silent()
    client = connect(service)
    with pytest.raises(ServiceError, match=r"^DEADLINE_EXCEEDED"):
        client.window(0.01, "s", timeout=0.2)
    service.go_on.set()


def test_closing_the_client_ends_a_window_that_runs(connect):
    service = Silent()
    client = connect(service)
    with ThreadPoolExecutor(1) as pool:
        window = pool.submit(client.window, 20, "s")
        assert service.called.wait(60)
        client.close()
        with pytest.raises(ServiceError, match=r"^CANCELLED"):
            window.result(60)
    service.go_on.set()


def test_our_messages_leave_those_of_the_framework_alone():
    pytest.importorskip("tensorflow.tsl.profiler.protobuf.profiler_options_pb2")
    from google.protobuf import descriptor_pool

    descriptor = messages()["ProfileOptions"].DESCRIPTOR
    assert descriptor.full_name == "tensorflow.ProfileOptions"
    theirs = descriptor_pool.Default().FindMessageTypeByName("tensorflow.ProfileOptions")
    assert descriptor.file.pool is not descriptor_pool.Default()
    numbers = {field.name: field.number for field in theirs.fields}
    assert {field.name: field.number for field in descriptor.fields}.items() <= numbers.items()


# -- the stand-in that the package offers ---------------------------------------------------------------------


def test_a_client_finds_a_service_that_died_and_came_back():
    with FakeProfiler([b"x"], instant=True) as server:
        client = ProfilerClient(server.address)
        for life in range(3):
            assert client.window(1, f"before {life}") == b"x"
            server.misbehave = "dies"
            with pytest.raises(ServiceError, match=r"^UNAVAILABLE"):
                client.window(1, f"cut {life}")
            server.misbehave = None
            server.restart()
            client.wait_ready(60)
        client.close()


# -- the profiler servers of TensorFlow and JAX ---------------------------------------------------------------

TENSORFLOW = """
import tensorflow as tf
tf.profiler.experimental.server.start(port)
x = tf.ones((8, 8))
def step(i):
    with tf.profiler.experimental.Trace("train", step_num=i, _r=1):
        tf.linalg.matmul(x, x)
"""

JAX = """
import jax
server = jax.profiler.start_server(port)
x = jax.numpy.ones((8, 8))
def step(i):
    with jax.profiler.StepTraceAnnotation("train", step_num=i):
        (x @ x).block_until_ready()
"""

TRAINING = """
import itertools, socket, sys, threading, time
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]
{framework}
step(0)
def train():
    for i in itertools.count(1):
        step(i)
        time.sleep(0.005)
threading.Thread(target=train, daemon=True).start()
print("port", port, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module", params=["tensorflow", "jax"])
def address(request):
    """The address of the profiler server of a process that trains."""
    if find_spec(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    code = TRAINING.format(framework={"tensorflow": TENSORFLOW, "jax": JAX}[request.param])
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(
        [*warm_python(), "-c", code],
        env=os.environ | quiet,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        line = next(line for line in process.stdout if line.startswith("port "))
        yield f"127.0.0.1:{int(line.split()[1])}"
        process.kill()


@pytest.fixture(scope="module")
def real(address):
    client = ProfilerClient(address)
    client.wait_ready(60)
    yield client
    client.close()


def running(pool, client, session, *, probe):
    """Begin a window of a minute and return it once it watches: no other is let in then."""
    while True:
        window = pool.submit(client.window, 60, session)
        while not window.done():
            try:
                probe.window(0.01, "real-probe")
            except ServiceError as refused:
                if refused.busy:
                    return window


def watched_ns(data):
    facts = xplane.read(data, source="window")[1]
    return facts.stop_ns - facts.start_ns


def test_real_window_is_an_xspace_with_its_time(real):
    data = real.window(0.1, "real-1")
    facts = xplane.read(data, source="window")[1]
    assert facts.hosts
    assert facts.errors == []
    assert watched_ns(data) >= 0.1e9


def marked(data):
    events = xplane.read(data, source="window")[0]
    return events.filter(name="train")["step_num"].drop_nulls().to_list()


def test_a_real_window_holds_the_steps_of_its_time(real):
    steps = next(filter(None, (marked(real.window(0.5, f"real-steps-{turn}")) for turn in range(120))))
    assert steps == list(range(steps[0], steps[-1] + 1))


def test_real_window_can_be_terminated_early(real):
    with ThreadPoolExecutor(1) as pool:
        window = running(pool, real, "real-long", probe=real)
        real.terminate("real-long")
        assert 0 < watched_ns(window.result(120)) < 60e9


def test_second_real_window_is_refused_while_one_runs(real):
    with ThreadPoolExecutor(1) as pool:
        window = running(pool, real, "real-a", probe=real)
        with pytest.raises(ServiceError, match="Another profiling session") as refused:
            real.window(0.05, "real-b")
        assert refused.value.busy
        real.terminate("real-a")
        assert watched_ns(window.result(120)) > 0
    assert real.window(0.05, "real-after")  # and then the profiler is free again


def test_a_real_terminate_that_comes_first_ends_the_window_at_once(real):
    real.terminate("real-first")
    assert 0 < watched_ns(real.window(60, "real-first")) < 60e9


def test_abandoned_real_window_frees_the_profiler(real, address):
    leaver = ProfilerClient(address)
    with ThreadPoolExecutor(1) as pool:
        window = running(pool, leaver, "real-left", probe=real)
        leaver.close()
        with pytest.raises(ServiceError, match=r"^CANCELLED"):
            window.result(60)
    deadline, data = time.monotonic() + 60, b""
    while not data and time.monotonic() < deadline:  # the service hears of it soon after
        with suppress(ServiceError):
            data = real.window(0.05, "real-next")
    assert data


def test_window_that_does_not_end_in_time_is_terminated(monkeypatch):
    request = service_client._profile_request
    monkeypatch.setattr(service_client, "_profile_request", lambda _, session: request(60.0, session))
    with FakeProfiler([b"x"]) as server:
        client = ProfilerClient(server.address)
        assert client.window(0.1, "s") == b"x"  # the service takes a minute for it
        client.close()
    assert [asked.method for asked in server.asked] == ["Profile", "Terminate"]


def test_window_that_is_collected_for_long_is_returned():
    with FakeProfiler([b"x"], misbehave="late") as server:
        server.late_s = 1.5
        client = ProfilerClient(server.address)
        assert client.window(0.1, "s") == b"x"
        client.close()
