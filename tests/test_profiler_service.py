"""The client of tensorflow.ProfilerService: against a stand-in on loopback, and against TensorFlow's own server."""

import socket
import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import suppress

import grpc
import pytest

from tpunb.io import xplane
from tpunb.io.profiler_service import ProfilerClient, ServiceError, _messages

SERVICE = "/tensorflow.ProfilerService/"


class StandIn(grpc.GenericRpcHandler):
    """A service that keeps the bytes it was sent and gives the answer it was told: bytes, or (code, words)."""

    def __init__(self, answer=b""):
        self.answer, self.asked = answer, []

    def service(self, details):
        if not details.method.startswith(SERVICE):
            return None

        def respond(request, context):
            self.asked.append((details.method.removeprefix(SERVICE), request))
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
        clients[-1].wait_ready(20)
        return clients[-1]

    yield start
    for client in clients:
        client.close()
    for server in servers:
        server.stop(0)


@pytest.fixture
def nowhere():
    """An address at which nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return f"127.0.0.1:{port}"


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
    said = {field.name: value for field, value in options.ListFields()}
    assert said == {
        "version": 1,
        "include_dataset_ops": True,
        "host_tracer_level": 2,
        "device_tracer_level": 1,
        "duration_ms": 1500,
    }
    assert (options.python_tracer_level, options.enable_hlo_proto) == (0, False)


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


def test_a_service_of_another_kind_is_told(connect):
    class Other(grpc.GenericRpcHandler):
        def service(self, details):
            return None

    with pytest.raises(ServiceError, match=r"^UNIMPLEMENTED"):
        connect(Other()).window(0.01, "s")


def test_an_answer_that_is_none_is_told(connect):
    with pytest.raises(ServiceError, match=r"^INTERNAL"):
        connect(StandIn(b"\x42\xff")).window(0.01, "s")


def test_terminate_names_the_session(connect):
    service = StandIn()
    connect(service).terminate("session-7")
    [(method, request)] = service.asked
    assert method == "Terminate"
    assert fields(request) == {1: b"session-7"}


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
    with pytest.raises(ServiceError, match=r"^no profiler service answered within 0\.2 s$"):
        client.wait_ready(0.2)
    client.close()


def test_where_nothing_listens_a_window_fails(nowhere):
    client = ProfilerClient(nowhere)
    for ask in (lambda: client.window(0.01, "s", timeout=5), lambda: client.terminate("s")):
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
            self.go_on.wait(30)
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
        assert service.called.wait(20)
        client.close()
        with pytest.raises(ServiceError, match=r"^CANCELLED"):
            window.result(20)
    service.go_on.set()


def test_our_messages_leave_those_of_the_framework_alone():
    pytest.importorskip("tensorflow.tsl.profiler.protobuf.profiler_options_pb2")
    from google.protobuf import descriptor_pool

    ours = _messages()["ProfileOptions"].DESCRIPTOR
    assert ours.full_name == "tensorflow.ProfileOptions"
    theirs = descriptor_pool.Default().FindMessageTypeByName("tensorflow.ProfileOptions")
    assert ours.file.pool is not descriptor_pool.Default()
    numbers = {field.name: field.number for field in theirs.fields}
    assert {field.name: field.number for field in ours.fields}.items() <= numbers.items()


# -- the profiler server of TensorFlow ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def real():
    """A client of the profiler server of this process; it has one, whoever opens it."""
    pytest.importorskip("tensorflow")
    from tpunb.sources import Local

    Local().start()
    client = ProfilerClient(Local._address)
    client.wait_ready(20)
    yield client
    client.close()


def end(client, session, window):
    """End a window now; it may not have begun to watch yet, so ask until it comes back."""
    while not window.done():
        with suppress(ServiceError):
            client.terminate(session)
        wait([window], timeout=0.1)
    return window.result()


def watched_ns(data):
    said = xplane.facts(data, source="window")
    return said.stop_ns - said.start_ns


def test_a_real_window_is_an_xspace_that_says_when_it_watched(real):
    data = real.window(0.1, "real-1")
    said = xplane.facts(data, source="window")
    assert said.hosts
    assert said.errors == []
    assert watched_ns(data) >= 0.1e9
    xplane.events(data, source="window")


def test_a_real_window_can_be_ended_early_and_gives_what_it_saw(real):
    with ThreadPoolExecutor(1) as pool:
        data = end(real, "real-long", pool.submit(real.window, 60, "real-long"))
    assert 0 < watched_ns(data) < 30e9


def test_a_real_second_window_is_refused_while_one_runs_and_the_first_goes_on(real):
    with ThreadPoolExecutor(2) as pool:
        windows = {pool.submit(real.window, 60, session): session for session in ("real-a", "real-b")}
        [refused], [running] = wait(windows, timeout=30, return_when=FIRST_COMPLETED)
        data = end(real, windows[running], running)
    with pytest.raises(ServiceError, match="Another profiling session"):
        refused.result()
    assert watched_ns(data) > 0
    assert real.window(0.05, "real-after")  # and then the profiler is free again
