"""The fake profiler service with a client: it behaves, and misbehaves, as services do."""

import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import polars as pl
import pytest

from tpunb.io import xplane
from tpunb.profiler.service_client import ProfilerClient, ServiceError
from tpunb.testing import FakeProfiler
from tpunb.testing.fake_profiler import _Proxy

pytestmark = pytest.mark.live

SEC = 1_000_000_000  # nanoseconds


@pytest.fixture
def serve():
    """Start a fake profiler and its client; both end with the test."""
    opened = []

    def start(*args, **kwargs):
        server = FakeProfiler(*args, **kwargs)
        server.start()
        client = ProfilerClient(server.address)
        opened.append((server, client))
        client.wait_ready(60)
        return server, client

    yield start
    for server, client in opened:
        client.close()
        server.stop()


def test_the_proxy_is_cut_after_the_given_bytes():
    with socket.create_server(("127.0.0.1", 0)) as behind:
        proxy = _Proxy(0, behind.getsockname()[1])
        with socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as client:
            server, _ = behind.accept()
            with server:
                server.sendall(b"abc")
                assert client.recv(99) == b"abc"
                proxy.left = 50
                client.sendall(b"question")  # what goes the other way does not count
                assert server.recv(99) == b"question"
                server.sendall(b"x" * 100)
                assert client.makefile("rb").read() == b"x" * 50
                assert server.recv(99) == b""
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", proxy.port))
        proxy.close()
        proxy.close()


# -- the fake profiler behaves -------------------------------------------------------------------------------


def test_windows_are_repeated_in_turn(serve):
    _, client = serve([b"a", b"b"], instant=True)
    assert [client.window(1, f"s{i}") for i in range(5)] == [b"a", b"b", b"a", b"b", b"a"]


def test_files_of_a_folder_are_replayed_by_name(serve, tmp_path):
    for name in ("b/2.xplane.pb", "a/9.xplane.pb", "b/10.xplane.pb", "a/trace.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    _, client = serve(tmp_path, instant=True)
    assert [client.window(1, f"s{i}") for i in range(3)] == [b"a/9.xplane.pb", b"b/10.xplane.pb", b"b/2.xplane.pb"]
    for windows in (tmp_path / "b/2.xplane.pb", str(tmp_path / "b/2.xplane.pb"), [tmp_path / "b/2.xplane.pb"]):
        assert serve(windows, instant=True)[1].window(1, "s") == b"b/2.xplane.pb"


@pytest.mark.parametrize("windows", [[], "."], ids=["list", "folder"])
def test_no_windows_are_rejected(windows, tmp_path):
    with pytest.raises(ValueError, match="windows parameter of FakeProfiler must hold at least one"):
        FakeProfiler(tmp_path if windows == "." else windows)


def test_a_function_receives_the_profiled_seconds(serve):
    watched = []
    server, client = serve(lambda seconds: watched.append(seconds) or b"x", instant=True)
    client.window(12.5, "s")
    server.instant = False
    client.window(0.02, "t")
    client.terminate("u")
    client.window(30, "u")
    assert watched[0] == 12.5
    assert watched[1] >= 0.02
    assert 0 <= watched[2] < 29


def test_the_default_window_has_the_requested_time(serve):
    _, client = serve(instant=True)
    facts = xplane.read(client.window(2.5, "s"), source="window")[1]
    assert facts.stop_ns - facts.start_ns == 2.5 * SEC


def test_requests_are_recorded(serve):
    server, client = serve(instant=True)
    client.window(30, "session-1")
    client.terminate("session-1")
    assert server.asked == [("Profile", 30_000, "session-1"), ("Terminate", 0, "session-1")]
    assert server.asked[0].duration_ms == 30_000


def test_a_window_lasts_its_time(serve):
    _, client = serve([b"x"])
    began = time.monotonic()
    client.window(0.3, "s")
    assert time.monotonic() - began >= 0.3


def test_terminate_ends_the_window_of_that_session_alone(serve):
    server, client = serve([b"x"])
    with ThreadPoolExecutor(1) as pool:
        window = pool.submit(client.window, 30, "mine")
        server.wait_asked()
        client.terminate("yours")
        assert not window.done()
        client.terminate("mine")
        assert window.result(60) == b"x"


def test_an_early_terminate_ends_the_next_window_only(serve):
    server, client = serve([b"x"])
    client.terminate("s")
    assert client.window(30, "s") == b"x"
    with ThreadPoolExecutor(1) as pool:
        again = pool.submit(client.window, 30, "s")
        server.wait_asked(2)
        with pytest.raises(ServiceError, match="Another profiling session"):
            client.window(1, "beside")
        client.terminate("s")
        assert again.result(60) == b"x"


def test_a_second_session_is_refused_and_the_first_continues(serve):
    server, client = serve([b"x"])
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.window, 30, "first")
        server.wait_asked()
        with pytest.raises(ServiceError, match=r"^INTERNAL: Another profiling session active\.$") as refused:
            client.window(1, "second")
        assert refused.value.busy
        client.terminate("first")
        assert first.result(60) == b"x"
    client.terminate("third")
    assert client.window(1, "third") == b"x"


def test_a_cancelled_window_frees_the_profiler(serve):
    server, client = serve([b"a", b"b"])
    leaver = ProfilerClient(server.address)
    with ThreadPoolExecutor(1) as pool:
        window = pool.submit(leaver.window, 30, "given up")
        server.wait_asked()
        leaver.close()
        with pytest.raises(ServiceError, match=r"^CANCELLED"):
            window.result(60)
    deadline, data = time.monotonic() + 60, None
    while data is None and time.monotonic() < deadline:  # the server hears of it soon after
        client.terminate("next")
        with suppress(ServiceError):
            data = client.window(30, "next")
    assert data == b"a"  # nothing was collected for the other


def test_waiting_for_a_request_times_out(serve):
    server, _ = serve()
    with pytest.raises(TimeoutError, match="less than 1 times"):
        server.wait_asked(timeout=0.01)


# -- the fake profiler misbehaves ----------------------------------------------------------------------------


def test_late_windows_keep_the_profiler_busy(serve):
    server, client = serve([b"x"], misbehave="late", instant=True)
    server.late_s = 300.0
    with ThreadPoolExecutor(1) as pool:
        late = pool.submit(client.window, 0.01, "s", timeout=300)
        server.wait_asked()
        client.terminate("s")  # does not hurry it
        with pytest.raises(ServiceError) as refused:
            client.window(0.01, "t")
        assert refused.value.busy
        assert not late.done()
        server.stop()
        with pytest.raises(ServiceError, match=r"^(UNAVAILABLE|CANCELLED)"):
            late.result(60)


def test_the_delay_can_be_set(serve):
    server, client = serve([b"x"], misbehave="late", instant=True)
    server.late_s = 0.05
    assert client.window(0.01, "s") == b"x"
    server.late_s = 300.0
    with pytest.raises(ServiceError, match=r"^DEADLINE_EXCEEDED"):
        client.window(0.01, "t", timeout=0.2)


def test_an_empty_response_has_no_xspace(serve):
    server, client = serve([b"x"], misbehave="empty", instant=True)
    assert client.window(1, "s") == b""
    server.misbehave = None
    assert client.window(1, "t") == b"x"


def test_an_over_size_window_exceeds_the_requested_events(serve):
    _, client = serve([b"x"], misbehave="over-size", instant=True)
    data = client.window(1, "s")
    assert len(data) > 20_000_000
    events, facts = xplane.read(data, source="window")
    assert events.height == 1_250_000  # of the million that the client asks for
    assert facts.stop_ns - facts.start_ns == SEC
    assert events.select(pl.col("start_ps") + pl.col("dur_ps")).max().item() <= SEC * 1000


def test_it_dies_after_half_of_a_response_and_closes_the_port(serve):
    server, client = serve([b"x" * 50_000_000], misbehave="dies", instant=True)
    with pytest.raises(ServiceError, match=r"^UNAVAILABLE") as cut:
        client.window(1, "s")
    assert (cut.value.code, cut.value.busy) == ("UNAVAILABLE", False)
    other = ProfilerClient(server.address)
    with pytest.raises(ServiceError, match="no profiler service answered"):
        other.wait_ready(0.3)
    other.close()


@pytest.mark.parametrize("size", [0, 1, 100])
def test_it_dies_within_a_small_response(serve, size):
    _, client = serve([b"x" * size], misbehave="dies", instant=True)
    with pytest.raises(ServiceError, match=r"^UNAVAILABLE"):
        client.window(1, "s")


def test_it_restarts_at_the_same_port_for_the_same_client(serve):
    server, client = serve([b"a", b"b"], misbehave="dies")
    address = server.address
    client.terminate("s")
    with pytest.raises(ServiceError, match=r"^UNAVAILABLE"):
        client.window(30, "s")
    server.misbehave = None
    server.restart()
    assert server.address == address
    client.wait_ready(60)
    client.terminate("s")
    assert client.window(30, "s") == b"b"  # no session was left behind
    assert [asked.method for asked in server.asked].count("Profile") == 2


def test_stopping_during_a_window_is_like_killing_the_process(serve):
    server, client = serve()
    with ThreadPoolExecutor(1) as pool:
        window = pool.submit(client.window, 30, "s")
        server.wait_asked()
        server.stop()
        with pytest.raises(ServiceError, match=r"^(UNAVAILABLE|CANCELLED)"):
            window.result(60)
    with pytest.raises(ServiceError, match=r"^UNAVAILABLE"):
        client.window(1, "t")
    server.restart()
    client.wait_ready(60)
    client.terminate("u")
    assert client.window(30, "u")


def test_busy_refuses_windows(serve):
    server, client = serve([b"x"], misbehave="busy", instant=True)
    with pytest.raises(ServiceError, match=r"^INTERNAL: .*Another profiling session active") as refused:
        client.window(1, "s")
    assert refused.value.busy
    server.misbehave = None
    assert client.window(1, "s") == b"x"


def test_unauthorised_refuses_every_call(serve):
    _, client = serve(misbehave="unauthorised")
    for ask in (lambda: client.window(1, "s"), lambda: client.terminate("s")):
        with pytest.raises(ServiceError, match=r"^UNAUTHENTICATED: ") as refused:
            ask()
        assert (refused.value.code, refused.value.busy) == ("UNAUTHENTICATED", False)


def test_silent_accepts_calls_and_never_responds(serve):
    server, client = serve([b"x"], misbehave="silent", instant=True)
    with pytest.raises(ServiceError, match=r"^DEADLINE_EXCEEDED"):
        client.window(2, "s", timeout=0.9)
    server.wait_asked()
    assert server.asked == [("Profile", 2000, "s")]
    server.misbehave = None
    assert client.window(0.01, "t") == b"x"


def test_an_unknown_misbehaviour_is_rejected():
    with pytest.raises(ValueError, match=r"must be one of 'late', .* Got 'rude' instead"):
        FakeProfiler(misbehave="rude")
    server = FakeProfiler()
    with pytest.raises(ValueError, match="Got '' instead"):
        server.misbehave = ""


def test_a_port_in_use_is_an_error_and_leaves_no_thread(serve):
    server, _ = serve()
    threads = [thread.name for thread in threading.enumerate()].count("tpunb-proxy")
    other = FakeProfiler(port=server.port)
    with pytest.raises(OSError, match=r"in use"):
        other.start()
    other.stop()
    assert [thread.name for thread in threading.enumerate()].count("tpunb-proxy") <= threads


def test_stop_may_be_called_twice():
    with FakeProfiler() as server:
        server.stop()
    server.stop()
