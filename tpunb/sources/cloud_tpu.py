"""A TPU by its name: its workers' profiler services, found as TensorFlow's cluster resolver finds the workers."""

from __future__ import annotations

import os
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager
from typing import Any

from tpunb.errors import MissingExtra, TpunbError
from tpunb.io import places
from tpunb.sources.address import Address
from tpunb.sources.frameworks import annotation

NODE_PORT = 8466
"""Where the profiler of a TPU node listens."""

VM_PORT = 9012
"""Where the training on a TPU VM opens its profiler server, by the documentation; any other it has to be told."""

_MASTER_PORT = 8470  # of a TPU node, for the computation itself
_METADATA_S = 3.0
_RESOLVE_S = 60.0
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_VM_RUNTIMES = ("tpu-vm", "tpu-ubuntu", "v2-")
_PROJECTS = ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT")
_ZONES = ("CLOUDSDK_COMPUTE_ZONE",)


class TPU:
    """A Cloud TPU by its name; all its workers are watched side by side.

    Parameters
    ----------
    name
        Its name in its zone; also the workers' addresses as ``host:port[,host:port]``, or ``"local"`` for the TPU VM
        that this program runs on. Unless given, what the environment says: ``KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS``,
        ``TPU_NAME``.
    zone, project
        Where it is; unless given, those of the machine that this program runs on, as its metadata server tells, else
        ``CLOUDSDK_COMPUTE_ZONE`` and ``GOOGLE_CLOUD_PROJECT``.
    port
        Where its workers' profiler services listen; unless given, 8466 on a TPU node and 9012 on a TPU VM, where the
        training opens it: ``jax.profiler.start_server(9012)``, ``tf.profiler.experimental.server.start(9012)``.

    >>> TPU("bert", zone="us-central2-b")
    TPU('bert', zone='us-central2-b')
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        zone: str | None = None,
        project: str | None = None,
        port: int | None = None,
    ) -> None:
        for said, value in (("name", name), ("zone", zone), ("project", project)):
            if not isinstance(value, str | None):
                raise ValueError(f"The {said} parameter of TPU must be a name or None. Got {value!r} instead.")
        if port is not None and (not isinstance(port, int) or not 1 <= port <= 65535):
            raise ValueError(f"The port parameter of TPU must be in [1, 65535]. Got {port!r} instead.")
        self.name, self.zone, self.project, self.port = name, zone, project, port
        self._workers: Address | None = None

    def __repr__(self) -> str:
        named = {"zone": self.zone, "project": self.project, "port": self.port}
        given = [] if self.name is None else [repr(self.name)]
        given += [f"{said}={value!r}" for said, value in named.items() if value is not None]
        return f"TPU({', '.join(given)})"

    def start(self) -> None:
        """Find the workers and wait until one answers.

        Raises
        ------
        TpunbError
            When the name is unknown, the TPU is not ready, the API or the workers cannot be reached or refuse.
        MissingExtra
            When the API must be asked and cloud-tpu-client is not installed.
        """
        if self._workers is None:
            self._workers = _bounded(self._resolve)
        self._workers.start()

    def facts(self) -> dict[str, Any]:
        """Return the name, and the workers once they are found."""
        return {"tpu": repr(self), **({} if self._workers is None else self._workers.facts())}

    def window(self, seconds: float) -> dict[str, bytes | TpunbError]:
        """Watch all workers for `seconds` and return an XSpace each by address, or why there is none."""
        if self._workers is None:
            raise TpunbError(f"{self!r} was not started", hint="call start() first, as a capture does")
        return self._workers.window(seconds)

    def stop(self) -> None:
        """End the running window on every worker; it returns with what they have seen."""
        if self._workers is not None:
            self._workers.stop()

    def step(self, mark: str, number: int) -> AbstractContextManager[Any]:
        """Open the annotation of a step by the framework that this process uses."""
        return annotation(mark, number)

    def _resolve(self) -> Address:
        """Return the workers, by what the name is and what the environment says."""
        name, by = self.name, "the name"
        if name is None:
            for by in ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_NAME"):
                if (name := os.environ.get(by)) is not None:
                    break
        if name is None:
            if not _hostnames():
                raise TpunbError("no TPU is named, and TPU_NAME is not set", hint="TPU('its-name', zone='its-zone')")
            name = "local"
        if name in ("", "local"):
            return _addresses(_of_this_vm(), self.port or VM_PORT, by)
        if ":" in name:  # names have none
            return _addresses(name.split(","), self.port or NODE_PORT, by)
        node = self._asked(name)
        ips = [str(one.get("ipAddress", "")) for one in node.get("networkEndpoints", []) or [node]]
        if not all(ips):
            raise TpunbError(f"TPU {name}: its workers have no addresses yet", hint="wait a moment and start again")
        return _addresses(ips, self.port or (VM_PORT if _is_vm(node) else NODE_PORT), f"TPU {name}")

    def _asked(self, name: str) -> dict[str, Any]:
        """Return what the Cloud TPU API says of the TPU of that name."""
        project = self.project or _metadata("project/project-id") or _environment(_PROJECTS)
        zone = self.zone or (_metadata("instance/zone") or "").rpartition("/")[2] or _environment(_ZONES)
        for said, value, variables in (("project", project, _PROJECTS), ("zone", zone, _ZONES)):
            if not value:
                raise TpunbError(
                    f"TPU {name}: its {said} is not known: none given, no metadata server answers at "
                    f"{_metadata_host()}, and {variables[0]} is not set",
                    hint=f"TPU({name!r}, zone=..., project=...)",
                )
        node = _node(name, str(zone), str(project))
        if (state := node.get("state")) != "READY":
            raise TpunbError(f"TPU {name} is not ready: its state is {state}", hint="wait until it is READY")
        return node


def _node(name: str, zone: str, project: str) -> dict[str, Any]:
    """Ask the API of TPU nodes, then that of TPU VMs: either may know only its own."""
    try:
        import google.auth
        from cloud_tpu_client import client as cloud_tpu_client
        from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
        from googleapiclient import discovery
        from googleapiclient.errors import Error, HttpError
        from httplib2 import HttpLib2Error
    except ImportError as error:
        raise MissingExtra("cloud-tpu-client is not installed", hint="pip install 'tpunb[tpu]'") from error

    where = f"TPU {name} in {zone} of {project}"
    try:
        # its own way to credentials is that of a library given up long ago, and knows less ways to log in
        credentials, _ = google.auth.default(scopes=[_SCOPE])
        client = cloud_tpu_client.Client(name, zone=zone, project=project, credentials=credentials)
        try:
            # its own call answers every failure with one ValueError, an unknown name as a missing permission
            return dict(client._tpu_service().projects().locations().nodes().get(name=client._full_name()).execute())
        except HttpError as error:
            if error.resp.status != 404:
                raise
        url = os.environ.get("TPU_API_DISCOVERY_URL")
        newer = discovery.build("tpu", "v2", credentials=credentials, discoveryServiceUrl=url, cache_discovery=False)
        return dict(newer.projects().locations().nodes().get(name=client._full_name()).execute())
    except DefaultCredentialsError as error:
        raise TpunbError(f"{where}: no credentials to ask for it", hint=_LOGIN) from error
    except GoogleAuthError as error:
        raise TpunbError(f"{where}: the credentials do not work: {_line(_first(error))}", hint=_LOGIN) from error
    except HttpError as error:
        raise _refused(where, error.resp.status, _line(error.reason)) from error
    except (Error, HttpLib2Error, OSError) as error:
        raise TpunbError(f"{where}: the Cloud TPU API cannot be reached: {_line(error)}", hint=_NETWORK) from error


_LOGIN = "log in: gcloud auth application-default login"
_NETWORK = "check the network and the proxy, or give the workers' addresses: Address('host:port', ...)"


def _refused(where: str, status: int, reason: str) -> TpunbError:
    """Return the error for an answer of the API that is none."""
    if status == 404:
        return TpunbError(f"{where}: there is none of that name", hint="gcloud compute tpus tpu-vm list --zone=ZONE")
    if status in (401, 403):
        hint = "the account needs the role roles/tpu.viewer there, and the project the Cloud TPU API"
        return TpunbError(f"{where}: it may not be read: {status}, {reason}", hint=hint)
    return TpunbError(f"{where}: the Cloud TPU API answered {status}, {reason}", hint="try again in a moment")


def _is_vm(node: dict[str, Any]) -> bool:
    """Say whether the training runs on the TPU's own machines, with the profiler server that it opens."""
    runtime = str(node.get("runtimeVersion") or node.get("tensorflowVersion") or "")
    return runtime.startswith(_VM_RUNTIMES) or str(node.get("apiVersion", "")).startswith("V2")


def _addresses(hosts: list[str], port: int, by: str) -> Address:
    """Return the workers; where no port is told, or that of the computation, the profiler's."""
    addresses = []
    for host in filter(None, (host.strip().removeprefix("grpc://") for host in hosts)):
        bare, told = _split(host)
        addresses.append(f"{bare}:{port if told in ('', str(_MASTER_PORT)) else told}")
    try:
        return Address(*dict.fromkeys(addresses))
    except ValueError as error:
        raise TpunbError(f"{by}: no addresses: {','.join(hosts)!r}", hint="as in grpc://10.0.0.2:8470") from error


def _split(host: str) -> tuple[str, str]:
    """Return host and port, "" where none is told; IPv6 addresses come with brackets where a port is."""
    if host.count(":") > 1 and not host.startswith("["):
        return f"[{host}]", ""
    if host.endswith("]") or ":" not in host:
        return host, ""
    bare, _, port = host.rpartition(":")
    return bare, port


def _hostnames() -> str:
    return os.environ.get("TPU_WORKER_HOSTNAMES", "")


def _of_this_vm() -> list[str]:
    """Return the hosts of the TPU VM that we are on; ourselves alone where nobody tells of others."""
    told = _hostnames() or _metadata("instance/attributes/worker-network-endpoints") or "127.0.0.1"
    workers = [worker.strip().split(":") for worker in told.split(",")]
    return [worker[2] if len(worker) == 3 else worker[0] for worker in workers]  # older ones say two things before it


def _metadata_host() -> str:
    return os.environ.get("GCE_METADATA_HOST") or os.environ.get("GCE_METADATA_IP") or "metadata.google.internal"


def _metadata(path: str) -> str | None:
    """Return what the machine's metadata server says; None where there is none, or it does not know."""
    url = f"http://{_metadata_host()}/computeMetadata/v1/{path}"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is next door: no proxy knows it
    try:
        with direct.open(request, timeout=_METADATA_S) as answer:
            told: str = answer.read().decode().strip()
            return told if answer.headers.get("Metadata-Flavor") == "Google" else None
    except (OSError, ValueError):  # of which URLError and HTTPError are: most machines are no Google Cloud machines
        return None


def _environment(names: tuple[str, ...]) -> str | None:
    return next(filter(None, map(os.environ.get, names)), None)


def _bounded(resolve: Callable[[], Address]) -> Address:
    """Resolve in a thread of its own: neither name servers nor the libraries below hear an interrupt or a deadline."""
    answer: Future[Address] = Future()

    def ask() -> None:
        try:
            answer.set_result(resolve())
        except BaseException as error:  # noqa: BLE001  raised where it was asked for
            answer.set_exception(error)

    threading.Thread(target=ask, daemon=True, name="tpunb-resolving").start()
    if places.awaited([answer], _RESOLVE_S):
        return answer.result()
    raise TpunbError(f"the TPU's workers were not found within {_RESOLVE_S:g} s", hint=_NETWORK)


def _first(error: object) -> object:
    """Return what an error says first, where it holds another error, and that the server's answer."""
    while isinstance(error, Exception) and error.args:
        error = error.args[0]
    return error


def _line(error: object) -> str:
    return " ".join(str(error).split())[:300]
