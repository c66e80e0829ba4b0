"""Workers by address are profiled at once; failing ones are named, and the others continue."""

import gc
import re
import signal
import threading
from _thread import interrupt_main
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import replace

import grpc
import pytest
from profiler_server import address_of_tensorflow

from tpunb.errors import TpunbError
from tpunb.profiler import service_client
from tpunb.profiler.sources import address as module
from tpunb.profiler.sources.address import Address
from tpunb.testing import FakeProfiler


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """Let a machine that stood still for a while seem late to no one."""
    monkeypatch.setattr(service_client, "LIMITS", replace(service_client.LIMITS, late_share=60.0))
    monkeypatch.setattr(module, "LIMITS", replace(module.LIMITS, worker_ended_s=120.0))


@pytest.fixture
def workers():
    """Start stand-ins that answer with their own number; all end with the test."""
    with ExitStack() as stack:

        def start(*misbehaviours, instant=True):
            return [
                stack.enter_context(FakeProfiler([f"window of {i}".encode()], misbehave=how, instant=instant))
                for i, how in enumerate(misbehaviours)
            ]

        yield start


class Clock:
    """A clock that a test sets."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "monotonic", clock)
    return clock


def of(*stand_ins):
    return Address(*(stand_in.address for stand_in in stand_ins))


# -- addresses ------------------------------------------------------------------------------------------------


def test_an_address_is_host_and_port():
    taken = {
        "10.0.0.2:8466": "10.0.0.2:8466",
        "grpc://10.0.0.2:8466": "10.0.0.2:8466",
        "grpc://t1v-n-1.local:9012/": "t1v-n-1.local:9012",
        "[::1]:8466": "[::1]:8466",
        "grpc://[fe80::1%eth0]:1": "[fe80::1%eth0]:1",
        "w-0_a:65535": "w-0_a:65535",
    }
    assert {given: Address(given).addresses[0] for given in taken} == taken


WRONG = [
    *("10.0.0.2", "10.0.0.2:", ":8466", "10.0.0.2:0", "10.0.0.2:65536", "10.0.0.2:port", "::1:8466", "[::1]"),
    *("[localhost]:8466", "http://10.0.0.2:8466", "a:1,b:2", "a b:1", "a:1\n", "unix:///tmp/socket:1", ""),
    *(8466, None, ["10.0.0.2:8466"]),
]


def test_anything_else_is_refused_in_one_sentence():
    for given in WRONG:
        with pytest.raises(
            ValueError, match=r"^The addresses parameter of Address must be 'host:port', such"
        ) as caught:
            Address("10.0.0.1:8466", given)
        assert str(caught.value).endswith(f"Got {given!r} instead.")


def test_no_address_is_refused():
    with pytest.raises(ValueError, match=r"must be one 'host:port' or more\. Got none instead\.$"):
        Address()


def test_one_address_twice_is_refused():
    with pytest.raises(ValueError, match=r"must be different ones\. Got 'grpc://a:1' twice instead\.$"):
        Address("a:1", "grpc://a:1")


def test_the_repr_is_the_call_that_makes_it():
    one = Address("grpc://a:1", "[::1]:2")
    assert repr(one) == "Address('a:1', '[::1]:2')"
    assert eval(repr(one)).addresses == one.addresses


# -- windows --------------------------------------------------------------------------------------------------


@pytest.mark.live
def test_every_worker_gives_its_window(workers):
    first, second = workers(None, None)
    source = of(first, second)
    source.start()
    assert source.window(0.5) == {first.address: b"window of 0", second.address: b"window of 1"}
    assert source.facts() == {"workers": [first.address, second.address]}


@pytest.mark.live
def test_the_workers_watch_at_the_same_time(workers):
    first, second = workers(None, None, instant=False)
    source = of(first, second)
    with ThreadPoolExecutor(1) as pool:
        window = pool.submit(source.window, 60)
        first.wait_asked()  # neither answers before its minute is over, yet both have been asked
        second.wait_asked()
        end(source, window)


def end(source, window):
    """End a window and return what it gives."""
    source.stop()
    return window.result(60)


@pytest.mark.live
def test_stop_ends_the_window_on_every_worker_by_its_session(workers):
    stand_ins = workers(None, None, instant=False)
    source = of(*stand_ins)
    with ThreadPoolExecutor(1) as pool:
        window = pool.submit(source.window, 60)
        for stand_in in stand_ins:
            stand_in.wait_asked()
        assert end(source, window) == {s.address: f"window of {i}".encode() for i, s in enumerate(stand_ins)}
    for stand_in in stand_ins:
        [profile] = [asked for asked in stand_in.asked if asked.method == "Profile"]
        assert {asked.session_id for asked in stand_in.asked if asked.method == "Terminate"} == {profile.session_id}


@pytest.mark.live
def test_every_window_of_every_source_is_a_session_of_its_own(workers):
    [worker] = workers(None)
    for source in (of(worker), of(worker)):
        source.window(0.1)
        source.window(0.1)
    assert len({asked.session_id for asked in worker.asked}) == 4


@pytest.mark.live
def test_stop_where_nothing_is_watched_does_nothing(workers):
    [worker] = workers(None)
    source = of(worker)
    source.stop()
    assert worker.asked == []
    assert source.window(0.1) == {worker.address: b"window of 0"}
    source.stop()
    assert [asked.method for asked in worker.asked] == ["Profile"]


@pytest.mark.live
def test_a_worker_that_refuses_to_end_is_named(workers):
    good, bad = workers(None, None, instant=False)
    source = of(good, bad)
    with ThreadPoolExecutor(1) as pool:
        window = pool.submit(source.window, 60)
        good.wait_asked()
        bad.wait_asked()
        bad.misbehave = "unauthorised"
        with pytest.raises(TpunbError, match=rf"^not ended: {re.escape(bad.address)}: UNAUTHENTICATED"):
            source.stop()
        bad.misbehave = None
        answers = end(source, window)
    assert list(answers.values()) == [b"window of 0", b"window of 1"]


@pytest.mark.live
def test_ipv6_works():
    class Service(grpc.GenericRpcHandler):
        def service(self, details):
            return grpc.unary_unary_rpc_method_handler(lambda request, context: b"\x42\x03abc")  # field 8: the XSpace

    server = grpc.server(ThreadPoolExecutor(1), handlers=[Service()])
    try:
        port = server.add_insecure_port("[::1]:0")
    except RuntimeError:
        pytest.skip("this machine has no IPv6 loopback")
    server.start()
    try:
        source = Address(f"[::1]:{port}")
        source.start()
        assert source.window(0.1) == {f"[::1]:{port}": b"abc"}
    finally:
        server.stop(0)


@pytest.mark.live
def test_the_profiler_server_of_a_framework_is_a_worker():
    from tpunb.io import xplane

    source = Address(address_of_tensorflow())
    source.start()
    with ThreadPoolExecutor(1) as pool:
        window = pool.submit(source.window, 60)
        while not window.done():  # it may not watch yet
            source.stop()
            wait([window], timeout=0.1)
    [data] = window.result().values()
    assert xplane.read(data, source="window")[1].hosts


# -- starting -------------------------------------------------------------------------------------------------


@pytest.mark.live
def test_one_worker_that_answers_is_enough_to_start(workers, nowhere):
    [worker] = workers(None)
    Address(nowhere, worker.address).start()


@pytest.mark.live
def test_where_none_answers_all_are_named(nowhere, monkeypatch):
    monkeypatch.setattr(module, "LIMITS", replace(module.LIMITS, ready_s=0.3))
    with pytest.raises(TpunbError, match=r"^no profiler service answered within 0\.3 s at ") as caught:
        Address(nowhere, "127.0.0.1:1").start()
    assert str(caught.value).endswith(f"at {nowhere}, 127.0.0.1:1")
    assert "start_server" in caught.value.hint


def test_unknown_hosts_fail_at_once(monkeypatch):
    def unknown(host, port):
        raise module.socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(module.socket, "getaddrinfo", unknown)
    with pytest.raises(TpunbError, match=r"^unknown host: tpu-vm-3\n") as caught:
        Address("tpu-vm-3:8466").start()
    assert caught.value.hint == "check the spelling, or give the IP address"
    with pytest.raises(TpunbError, match=r"^unknown hosts: a, b\n"):
        Address("a:1", "b:2").start()


@pytest.mark.live
def test_waiting_start_is_interruptible(nowhere, monkeypatch):
    wait_ready = module.ProfilerClient.wait_ready

    def interrupt(*args):
        interrupt_main()
        wait_ready(*args)

    monkeypatch.setattr(module.ProfilerClient, "wait_ready", interrupt)
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a worker of pytest-xdist hears none
    gc.disable()  # an interrupt that arrives in a callback of the collector is dropped
    try:
        with pytest.raises(KeyboardInterrupt):
            Address(nowhere).start()
    finally:
        gc.enable()
        signal.signal(signal.SIGINT, handler)


# -- workers that fail ----------------------------------------------------------------------------------------


@pytest.mark.live
@pytest.mark.parametrize(
    ("how", "says", "advises"),
    [
        ("unauthorised", "UNAUTHENTICATED: Request had invalid", "no credentials"),
        ("busy", "INTERNAL: Another profiling session active", "other profiling"),
        ("empty", "its answer is empty", "check that it computes"),
        ("dies", "UNAVAILABLE: ", "check that the training runs"),
    ],
)
def test_failed_worker_is_named_and_the_others_are_profiled(workers, how, says, advises):
    good, bad, other = workers(None, how, None)
    source = of(good, bad, other)
    answers = source.window(0.1)
    assert (answers[good.address], answers[other.address]) == (b"window of 0", b"window of 2")
    error = answers[bad.address]
    assert isinstance(error, TpunbError)
    assert str(error).startswith(f"{bad.address}: {says}")
    assert advises in error.hint


@pytest.mark.live
def test_a_worker_that_cannot_be_reached_is_named(workers, nowhere):
    [good] = workers(None)
    answers = Address(nowhere, good.address).window(0.1)
    assert str(answers[nowhere]).startswith(f"{nowhere}: UNAVAILABLE: ")
    assert answers[good.address] == b"window of 0"


@pytest.mark.live
def test_a_service_of_another_kind_is_named(workers):
    server = grpc.server(ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    [error] = Address(f"127.0.0.1:{port}").window(0.1).values()
    assert str(error).startswith(f"127.0.0.1:{port}: UNIMPLEMENTED")
    assert error.hint == "check the port: another service listens there"
    server.stop(0)


@pytest.mark.live
def test_unexpected_error_of_a_worker_is_reported(workers):
    good, bad = workers(None, None)
    source = of(good, bad)
    source._workers[1].client.close()
    answers = source.window(0.1)
    assert answers[good.address] == b"window of 0"
    assert str(answers[bad.address]).startswith(f"{bad.address}: ValueError(")


@pytest.mark.live
def test_a_worker_that_failed_rests_twice_as_long_each_time_up_to_a_minute(workers, clock):
    good, bad = workers(None, "unauthorised")
    source = of(good, bad)
    rests = []
    for asked in range(1, 10):
        answers = source.window(0.1)
        assert str(answers[bad.address]).startswith(f"{bad.address}: UNAUTHENTICATED")
        assert "asked again" not in str(answers[bad.address])
        message = str(source.window(0.1)[bad.address])
        assert message.startswith(str(answers[bad.address]))
        rests.append(int(re.fullmatch(r".*; asked again in ([0-9]+) s", message)[1]))
        clock.now += rests[-1]
        assert len(bad.asked) == asked
    assert rests == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert len(good.asked) == 18  # the other one never rested


@pytest.mark.live
def test_a_worker_that_comes_back_is_as_good_as_new(workers, clock):
    good, bad = workers(None, "unauthorised")
    source = of(good, bad)
    for _ in range(3):
        source.window(0.1)
        clock.now += 60
    bad.misbehave = None
    assert source.window(0.1)[bad.address] == b"window of 1"
    bad.misbehave = "busy"
    source.window(0.1)
    assert str(source.window(0.1)[bad.address]).endswith("; asked again in 1 s")


@pytest.mark.live
def test_a_worker_that_is_killed_and_restarted_gives_windows_again(workers, clock):
    [worker] = workers(None)
    source = of(worker)
    source.start()
    assert source.window(0.1) == {worker.address: b"window of 0"}
    worker.stop()
    assert str(source.window(0.1)[worker.address]).startswith(f"{worker.address}: UNAVAILABLE")
    worker.restart()
    source.start()
    clock.now += 1
    assert source.window(0.1) == {worker.address: b"window of 0"}


@pytest.mark.live
def test_a_silent_worker_costs_one_deadline_and_then_no_more(workers, monkeypatch):
    # it is asked again at once
    monkeypatch.setattr(module, "LIMITS", replace(module.LIMITS, worker_trial_s=0.2, worker_rest_s=0.0))
    good, bad = workers(None, "silent")
    source = of(good, bad)
    client, ask = source._workers[1].client, source._workers[1].client.window
    client.window = lambda seconds, session, timeout: ask(seconds, session, timeout=0.5)
    answers = source.window(0.1)
    assert str(answers[bad.address]).startswith(f"{bad.address}: DEADLINE_EXCEEDED")
    client.window = ask
    answers = source.window(0.1)  # would last a minute if it waited for that worker
    assert re.match(rf"{re.escape(bad.address)}: no answer yet, [0-9]+ s after it was asked", str(answers[bad.address]))
    owed = source._workers[1].session
    assert source.window(0.1)[good.address] == b"window of 0"
    assert source._workers[1].session == owed  # not asked again while it owes an answer
    assert owed
    assert len(good.asked) == 3


@pytest.mark.live
def test_where_all_have_failed_before_the_first_that_answers_is_enough(workers, monkeypatch):
    monkeypatch.setattr(module, "LIMITS", replace(module.LIMITS, worker_trial_s=0.1, worker_rest_s=0.0))
    good, bad = workers("busy", "busy")
    source = of(good, bad)
    source.window(0.1)
    good.misbehave, bad.misbehave = None, "silent"
    answers = source.window(0.1)  # and not a minute later
    assert answers[good.address] == b"window of 0"
    assert "no answer yet" in str(answers[bad.address])


@pytest.mark.live
def test_stopped_window_waits_briefly_for_a_failed_worker(workers, monkeypatch):
    monkeypatch.setattr(
        module,
        "LIMITS",
        replace(module.LIMITS, worker_trial_s=0.1, worker_terminate_s=0.1, worker_ended_s=60.0, worker_rest_s=0.0),
    )
    good, bad = workers(None, "busy", instant=False)
    source = of(good, bad)
    source.window(0.1)
    bad.misbehave = "silent"
    with ThreadPoolExecutor(1) as pool:
        window = pool.submit(source.window, 60)
        good.wait_asked(2)
        bad.wait_asked(2)
        answers = end(source, window)
    assert answers[good.address] == b"window of 0"
    assert "no answer yet" in str(answers[bad.address])


@pytest.mark.live
def test_a_late_answer_makes_a_worker_trusted_again(workers, monkeypatch):
    monkeypatch.setattr(module, "LIMITS", replace(module.LIMITS, worker_trial_s=0.1, worker_rest_s=0.0))
    [good] = workers(None)
    go_on = threading.Event()
    with FakeProfiler(lambda _: go_on.wait(60) and b"at last", misbehave="unauthorised", instant=True) as bad:
        source = of(good, bad)
        source.window(0.1)
        bad.misbehave = None
        assert "no answer yet" in str(source.window(0.1)[bad.address])
        go_on.set()
        with source._changed:
            assert source._changed.wait_for(lambda: not source._workers[1].session, 60)
        assert source._workers[1].failures == 0
        assert source.window(0.1) == {good.address: b"window of 0", bad.address: b"at last"}


@pytest.mark.live
def test_a_stopped_window_does_not_wait_for_a_silent_worker(workers, monkeypatch):
    monkeypatch.setattr(module, "LIMITS", replace(module.LIMITS, worker_ended_s=60.0, worker_terminate_s=0.1))
    good, bad = workers(None, "silent", instant=False)
    source = of(good, bad)
    with ThreadPoolExecutor(1) as pool:
        window = pool.submit(source.window, 60)
        good.wait_asked()
        bad.wait_asked()
        source.stop()
        with source._changed:
            assert source._changed.wait_for(lambda: not source._workers[0].session, 60)
        monkeypatch.setattr(module, "LIMITS", replace(module.LIMITS, worker_ended_s=0.2))
        source.stop()  # again and again, as a capture does
        answers = window.result(60)
    assert "no answer yet" in str(answers[bad.address])
    assert answers[good.address] == b"window of 0"
    bad.wait_asked(1, "Terminate")
    assert [asked.method for asked in bad.asked].count("Terminate") == 1  # it owes the answer to that one too


@pytest.mark.live
def test_with_all_at_rest_a_window_still_takes_its_time_but_hears_stop(workers):
    [bad] = workers("unauthorised")
    source = of(bad)
    for _ in range(2):
        source._workers[0].rests_until = 0
        source.window(0.1)
    source._workers[0].rests_until = module.monotonic() + 60
    source._workers[0].failures = 9
    assert "asked again" in str(source.window(0.05)[bad.address])
    with ThreadPoolExecutor(1) as pool:
        window = pool.submit(source.window, 50)
        while not window.done():
            source.stop()
            wait([window], timeout=0.05)
        assert "asked again" in str(window.result()[bad.address])
    assert len(bad.asked) == 2


@pytest.mark.live
def test_with_all_at_rest_the_first_that_is_due_is_asked_in_the_same_window(workers):
    [bad] = workers("unauthorised")
    source = of(bad)
    source.window(0.1)
    bad.misbehave = None
    assert source.window(50) == {bad.address: b"window of 0"}  # after its rest of a second
