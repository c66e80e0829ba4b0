"""A TPU by name, resolved by a Cloud TPU API and a metadata server on loopback, down to windows of its workers."""

import os
import re
import socket
import sys
import threading
from contextlib import ExitStack
from dataclasses import replace

import pytest
from fake_cloud import FakeCloud, worker

from tpunb.errors import MissingExtra, TpunbError, install
from tpunb.profiler.sources import cloud_tpu
from tpunb.profiler.sources.cloud_tpu import TPU

VARIABLES = re.compile("(TPU|KUBE|GOOGLE|GCLOUD|CLOUDSDK|GCE)_.*|.*_PROXY", re.IGNORECASE)


@pytest.fixture(autouse=True)
def nobody_home(monkeypatch, tmp_path):
    """No variable says anything, nobody is logged in, and at the metadata server's address nothing listens."""
    for name in filter(VARIABLES.fullmatch, list(os.environ)):
        monkeypatch.delenv(name)
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    monkeypatch.setenv("GCE_METADATA_IP", "127.0.0.1:1")
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))


@pytest.fixture
def cloud(monkeypatch):
    """A cloud that this program runs in."""
    pytest.importorskip("cloud_tpu_client")
    metadata = pytest.importorskip("google.auth.compute_engine._metadata")
    cloud = FakeCloud()
    for name, value in cloud.environment().items():
        monkeypatch.setenv(name, value)
    # read from the environment when it was imported, which was maybe before this test
    monkeypatch.setattr(metadata, "_GCE_METADATA_HOST", cloud.host)
    yield cloud
    cloud.close()


def found(*args, **more):
    """The addresses that a name is resolved to."""
    return list(TPU(*args, **more)._resolve().addresses)


def refused(*args, **more):
    with pytest.raises(TpunbError) as caught:
        found(*args, **more)
    assert caught.value.hint
    return caught.value


def endpoints(*ips):
    return [{"ipAddress": ip, "port": 8470} for ip in ips]


# -- addresses in place of a name -----------------------------------------------------------------------------


NAMES = {
    "grpc://10.0.0.2:8470": ["10.0.0.2:8466"],
    "10.0.0.2:8470,10.0.0.3:8470": ["10.0.0.2:8466", "10.0.0.3:8466"],
    "grpc://10.0.0.2:8470, grpc://10.0.0.3:8470": ["10.0.0.2:8466", "10.0.0.3:8466"],
    "grpc://10.0.0.2": ["10.0.0.2:8466"],
    "10.0.0.2:9012": ["10.0.0.2:9012"],
    "grpc://[::1]:8470": ["[::1]:8466"],
    "grpc://fd00::2": ["[fd00::2]:8466"],
}


@pytest.mark.parametrize("by", ["argument", "TPU_NAME", "KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS"])
def test_workers_may_be_named_by_their_addresses(monkeypatch, by):
    def resolved(name):
        if by == "argument":
            return found(name)
        monkeypatch.setenv(by, name)
        return found()

    assert {name: resolved(name) for name in NAMES} == NAMES


def test_port_replaces_that_of_the_computation(monkeypatch):
    assert found("grpc://10.0.0.2:8470,10.0.0.3:7", port=9999) == ["10.0.0.2:9999", "10.0.0.3:7"]


def test_the_endpoints_of_kubernetes_come_first(monkeypatch):
    monkeypatch.setenv("TPU_NAME", "10.0.0.1:8470")
    monkeypatch.setenv("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "10.0.0.2:8470")
    assert found() == ["10.0.0.2:8466"]
    assert found("10.0.0.3:8470") == ["10.0.0.3:8466"]


def test_a_variable_that_holds_no_addresses_is_named(monkeypatch):
    monkeypatch.setenv("TPU_NAME", "10.0.0.2:port")
    assert str(refused()) == "TPU_NAME: no addresses: '10.0.0.2:port'"


def test_missing_name_raises():
    assert str(refused()) == "no TPU is named, and TPU_NAME is not set"


# -- the TPU VM we are on -------------------------------------------------------------------------------------


@pytest.mark.live
@pytest.mark.parametrize("name", ["local", ""])
def test_single_tpu_vm_is_this_machine(name):
    assert found(name) == ["127.0.0.1:9012"]
    assert found(name, port=9999) == ["127.0.0.1:9999"]


@pytest.mark.live
def test_tpu_vm_is_recognised_by_its_environment(monkeypatch):
    monkeypatch.setenv("TPU_NAME", "local")
    assert found() == ["127.0.0.1:9012"]


@pytest.mark.parametrize("named", [True, False])
def test_the_workers_of_a_tpu_vm_are_those_that_its_environment_names(monkeypatch, named):
    monkeypatch.setenv("TPU_WORKER_HOSTNAMES", "t1v-w-0,t1v-w-1")
    assert found(*["local"] * named) == ["t1v-w-0:9012", "t1v-w-1:9012"]


@pytest.mark.live
@pytest.mark.parametrize("listed", ["a:0:10.0.0.5,b:1:10.0.0.6", "10.0.0.5,10.0.0.6"])
def test_the_workers_of_a_tpu_vm_are_those_that_its_metadata_server_names(cloud, listed):
    cloud.metadata["instance/attributes/worker-network-endpoints"] = listed
    assert found("local") == ["10.0.0.5:9012", "10.0.0.6:9012"]


# -- by the API -----------------------------------------------------------------------------------------------


@pytest.mark.live
def test_a_node_s_profiler_listens_beside_the_computation(cloud):
    cloud.add("bert", tensorflowVersion="2.12.0", apiVersion="V1", networkEndpoints=endpoints("10.0.0.2", "10.0.0.3"))
    assert found("bert") == ["10.0.0.2:8466", "10.0.0.3:8466"]
    assert found("bert", port=7) == ["10.0.0.2:7", "10.0.0.3:7"]


@pytest.mark.live
def test_a_node_of_old_has_one_address_of_its_own(cloud):
    cloud.add("old", ipAddress="10.0.0.2", port="8470")
    assert found("old") == ["10.0.0.2:8466"]


@pytest.mark.live
@pytest.mark.parametrize(
    ("version", "says"),
    [
        ("v1", {"tensorflowVersion": "tpu-vm-tf-2.16.1-pjrt"}),
        ("v1", {"tensorflowVersion": "v2-alpha-tpuv5"}),
        ("v1", {"apiVersion": "V2_ALPHA1"}),
        ("v2", {"runtimeVersion": "tpu-ubuntu2204-base"}),
        ("v2", {"runtimeVersion": "mine", "apiVersion": "V2"}),
    ],
)
def test_on_a_tpu_vm_the_training_opens_the_profiler(cloud, version, says):
    cloud.add("vm", version=version, **says, networkEndpoints=endpoints("10.0.0.2"))
    assert found("vm") == ["10.0.0.2:9012"]
    assert found("vm", port=9999) == ["10.0.0.2:9999"]


@pytest.mark.live
def test_the_name_may_come_from_the_environment(cloud, monkeypatch):
    cloud.add("bert", networkEndpoints=endpoints("10.0.0.2"))
    monkeypatch.setenv("TPU_NAME", "bert")
    assert found() == ["10.0.0.2:8466"]


@pytest.mark.live
def test_given_zone_and_project_need_no_metadata_server(cloud):
    cloud.nodes["v1", "projects/mine/locations/there-b/nodes/bert"] = {
        "state": "READY",
        "networkEndpoints": endpoints("10.0.0.2"),
    }
    cloud.metadata["project/project-id"] = "wrong"
    assert found("bert", zone="there-b", project="mine") == ["10.0.0.2:8466"]
    assert "/computeMetadata/v1/instance/zone" not in cloud.asked


@pytest.mark.live
def test_environment_gives_zone_and_project(cloud, monkeypatch):
    cloud.nodes["v1", "projects/mine/locations/there-b/nodes/bert"] = {"state": "READY", "ipAddress": "10.0.0.2"}
    monkeypatch.setenv("GCE_METADATA_HOST", "127.0.0.1:1")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "mine")
    monkeypatch.setenv("CLOUDSDK_COMPUTE_ZONE", "there-b")
    assert found("bert") == ["10.0.0.2:8466"]


@pytest.mark.live
def test_a_server_that_is_no_metadata_server_is_not_believed(cloud, monkeypatch):
    monkeypatch.setattr(FakeCloud, "answer", lambda *_: (200, "<html>log in to the hotel's network</html>"))
    cloud.server.RequestHandlerClass.send_header = lambda *_: None
    assert "its project is not known" in str(refused("bert"))


# -- what goes wrong ------------------------------------------------------------------------------------------


@pytest.mark.live
def test_unknown_project_or_zone_raises(monkeypatch):
    error = refused("bert")
    assert str(error) == (
        "TPU bert: its project is not known: none given, no metadata server answers at 127.0.0.1:1, "
        "and GOOGLE_CLOUD_PROJECT is not set"
    )
    assert error.hint == "TPU('bert', zone=..., project=...)"
    assert "its zone is not known" in str(refused("bert", project="lab"))


@pytest.mark.live
@pytest.mark.parametrize("state", ["CREATING", "PREEMPTED", "STOPPED"])
def test_tpu_that_is_not_ready_raises_with_its_state(cloud, state):
    cloud.add("bert", networkEndpoints=endpoints("10.0.0.2"))
    cloud.nodes["v1", "projects/lab/locations/here-a/nodes/bert"]["state"] = state
    assert str(refused("bert")) == f"TPU bert is not ready: its state is {state}"


@pytest.mark.live
@pytest.mark.parametrize("says", [{}, {"networkEndpoints": []}, {"networkEndpoints": [{}]}])
def test_tpu_without_addresses_raises(cloud, says):
    cloud.add("bert", **says)
    assert str(refused("bert")) == "TPU bert: its workers have no addresses yet"


@pytest.mark.live
def test_unknown_name_raises_with_zone_and_project(cloud):
    error = refused("brt")
    assert str(error) == "TPU brt in here-a of lab: no TPU of this name"
    assert "gcloud compute tpus" in error.hint
    full = "projects/lab/locations/here-a/nodes/brt"
    assert [path for path in cloud.asked if "nodes" in path] == [f"/v1/{full}", f"/v2/{full}"]


@pytest.mark.live
@pytest.mark.parametrize("status", [401, 403])
def test_missing_permission_raises(cloud, status):
    cloud.nodes["v1", "projects/lab/locations/here-a/nodes/bert"] = status
    error = refused("bert")
    assert "no permission to read it" in str(error)
    assert f"{status}, refused with {status}" in str(error)
    assert "roles/tpu.viewer" in error.hint


@pytest.mark.live
def test_other_api_failure_raises(cloud):
    cloud.nodes["v1", "projects/lab/locations/here-a/nodes/bert"] = 400
    assert "the Cloud TPU API answered 400, refused with 400" in str(refused("bert"))


@pytest.mark.live
def test_account_without_token_raises(cloud):
    del cloud.metadata["instance/service-accounts/default/token"]
    error = refused("bert")
    assert str(error).startswith("TPU bert in here-a of lab: the credentials do not work: Failed to retrieve http://")
    assert "Response object" not in str(error)


@pytest.mark.live
def test_missing_credentials_raise(cloud, monkeypatch):
    from google.auth.exceptions import DefaultCredentialsError

    def nobody(**_):
        raise DefaultCredentialsError("nobody is logged in")

    monkeypatch.setattr("google.auth.default", nobody)
    error = refused("bert")
    assert str(error) == "TPU bert in here-a of lab: no Google Cloud credentials"
    assert "gcloud auth" in error.hint


@pytest.mark.live
def test_unreachable_api_raises(cloud, monkeypatch):
    monkeypatch.setenv("TPU_API_DISCOVERY_URL", "http://127.0.0.1:1/{api}/{apiVersion}")
    assert "the Cloud TPU API cannot be reached: " in str(refused("bert"))


def test_without_the_client_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloud_tpu_client", None)
    with pytest.raises(MissingExtra, match=r"^cloud-tpu-client is not installed") as caught:
        found("bert", zone="here-a", project="lab")
    assert caught.value.hint == install("tpu")


def test_the_client_is_not_needed_where_the_api_is_not_asked(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloud_tpu_client", None)
    assert found("grpc://10.0.0.2:8470") == ["10.0.0.2:8466"]


def test_a_resolution_that_never_ends_is_given_up(monkeypatch):
    never = threading.Event()
    monkeypatch.setattr(cloud_tpu, "LIMITS", replace(cloud_tpu.LIMITS, resolve_s=0.2))
    monkeypatch.setattr(TPU, "_resolve", lambda self: never.wait(60))
    with pytest.raises(TpunbError, match=r"^TPU\('bert'\): no answer within 0\.2 s"):
        TPU("bert").start()
    never.set()


def test_wrong_arguments_are_refused_in_one_sentence():
    for arguments, sentence in (
        ({"name": 3}, "The name parameter of TPU must be a name or None. Got 3 instead."),
        ({"zone": b"a"}, "The zone parameter of TPU must be a name or None. Got b'a' instead."),
        ({"project": 7}, "The project parameter of TPU must be a name or None. Got 7 instead."),
        ({"port": 0}, "The port parameter of TPU must be in [1, 65535]. Got 0 instead."),
        ({"port": "9012"}, "The port parameter of TPU must be in [1, 65535]. Got '9012' instead."),
    ):
        with pytest.raises(ValueError, match=r"^The ") as caught:
            TPU(**arguments)
        assert str(caught.value) == sentence


def test_the_repr_is_the_call_that_makes_it():
    texts = ["TPU()", "TPU('')", "TPU('bert')", "TPU('bert', zone='here-a', project='lab', port=9999)", "TPU(port=7)"]
    assert [repr(eval(text)) for text in texts] == texts


# -- from a name to windows -----------------------------------------------------------------------------------


def free_at_both(first, second, port=0):
    """A port at which nothing listens at two addresses of loopback; skips where there is none."""
    try:
        with socket.socket() as one, socket.socket() as other:
            one.bind((first, port))
            other.bind((second, one.getsockname()[1]))
            return one.getsockname()[1]
    except OSError as error:
        pytest.skip(f"this machine's loopback has no such addresses, or they are taken: {error}")


@pytest.mark.live
@pytest.mark.parametrize("kind", ["vm", "node"])
def test_from_a_name_to_a_window_of_each_worker(cloud, kind):
    first, second = "127.0.0.2", "127.0.0.3"
    port = free_at_both(first, second, 8466 if kind == "node" else 0)
    says = {"tensorflowVersion": "2.12.0"} if kind == "node" else {"apiVersion": "V2_ALPHA1"}
    cloud.add("bert", **says, networkEndpoints=endpoints(first, second))
    source = TPU("bert", port=None if kind == "node" else port)
    assert source.facts() == {"tpu": repr(source)}
    with pytest.raises(TpunbError, match="was not started"):
        source.window(0.1)
    source.stop()
    with ExitStack() as stack:
        stack.enter_context(worker(f"{first}:{port}", b"window of the first"))
        stack.enter_context(worker(f"{second}:{port}", b"window of the second"))
        source.start()
        assert source.window(0.1) == {
            f"{first}:{port}": b"window of the first",
            f"{second}:{port}": b"window of the second",
        }
        assert source.facts() == {"tpu": repr(source), "workers": [f"{first}:{port}", f"{second}:{port}"]}
        source.stop()
        asked = len(cloud.asked)
        source.start()  # again: the workers are known by now
        assert len(cloud.asked) == asked
