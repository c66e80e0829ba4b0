"""Profile a Cloud TPU by name: its workers are resolved as TensorFlow's cluster resolver does."""

from __future__ import annotations

import os
import urllib.error
import urllib.request
from typing import Any

from tpunb.errors import MissingExtra, TpunbError, install
from tpunb.io import storage
from tpunb.profiler.limits import LIMITS
from tpunb.profiler.sources.address import Address
from tpunb.profiler.sources.frameworks import annotation
from tpunb.text import format_error, plain

NODE_PORT = 8466
"""The profiler's port on a TPU node."""

VM_PORT = 9012
"""The port on which the training on a TPU VM opens its profiler server, by the documentation."""

_MASTER_PORT = 8470  # of a TPU node, for the computation itself
_SCOPE = "https://www.googleapis.com/auth/cloud-platform"
_VM_RUNTIMES = ("tpu-vm", "tpu-ubuntu", "v2-")
_PROJECTS = ("GOOGLE_CLOUD_PROJECT", "CLOUDSDK_CORE_PROJECT")
_ZONES = ("CLOUDSDK_COMPUTE_ZONE",)


class TPU:
    """A Cloud TPU by name; all its workers are profiled at once.

    Parameters
    ----------
    name
        Name in its zone, or the workers' addresses as ``host:port[,host:port]``, or ``"local"`` for the TPU VM that
        this program runs on. If None, ``KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS`` or ``TPU_NAME`` from the environment.
    zone, project
        Zone and project; if None, those of this machine by its metadata server, or ``CLOUDSDK_COMPUTE_ZONE`` and
        ``GOOGLE_CLOUD_PROJECT``.
    port
        Port of the workers' profiler services; if None, 8466 on a TPU node and 9012 on a TPU VM, where the training
        opens it: ``jax.profiler.start_server(9012)``, ``tf.profiler.experimental.server.start(9012)``.

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
        for parameter, value in (("name", name), ("zone", zone), ("project", project)):
            if not isinstance(value, str | None):
                raise ValueError(f"The {parameter} parameter of TPU must be a name or None. Got {value!r} instead.")
        if port is not None and (not isinstance(port, int) or not 1 <= port <= 65535):
            raise ValueError(f"The port parameter of TPU must be in [1, 65535]. Got {port!r} instead.")
        self.name, self.zone, self.project, self.port = name, zone, project, port
        self._workers: Address | None = None

    def __repr__(self) -> str:
        options = {"zone": self.zone, "project": self.project, "port": self.port}
        parameters = [] if self.name is None else [repr(self.name)]
        parameters += [f"{name}={value!r}" for name, value in options.items() if value is not None]
        return f"TPU({', '.join(parameters)})"

    def start(self) -> None:
        """Resolve the workers and wait until one answers.

        Raises
        ------
        TpunbError
            If the name is unknown, the TPU is not ready, or the API or the workers are unreachable or refuse.
        MissingExtra
            If the API is needed and cloud-tpu-client is not installed.
        """
        if self._workers is None:
            # neither name servers nor the libraries respond to an interrupt or a deadline
            self._workers = storage.bounded(self._resolve, repr(self), _NETWORK, LIMITS.resolve_s)
        self._workers.start()

    def facts(self) -> dict[str, Any]:
        """Return the name, and the workers once they are resolved."""
        return {"tpu": repr(self), **({} if self._workers is None else self._workers.facts())}

    def window(self, seconds: float) -> dict[str, bytes | TpunbError]:
        """Profile all workers for `seconds` and return an XSpace or an error each, by address."""
        if self._workers is None:
            raise TpunbError(f"{self!r} was not started", hint="call start() first, as a capture does")
        return self._workers.window(seconds)

    def programs(self) -> bytes:
        """Return an XSpace that holds the compiled programs of one worker."""
        return b"" if self._workers is None else self._workers.programs()

    def stop(self) -> None:
        """End the running window on every worker; it returns what they have recorded."""
        if self._workers is not None:
            self._workers.stop()

    step = staticmethod(annotation)

    def _resolve(self) -> Address:
        """Return the workers, from the name or the environment."""
        name, origin = self.name, "the name"
        if name is None:
            for origin in ("KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS", "TPU_NAME"):
                if (name := os.environ.get(origin)) is not None:
                    break
        if name is None:
            if not _hostnames():
                raise TpunbError("no TPU is named, and TPU_NAME is not set", hint="TPU('its-name', zone='its-zone')")
            name = "local"
        if name in ("", "local"):
            return _addresses(_workers_of_this_vm(), self.port or VM_PORT, origin)
        if ":" in name:  # names have none
            return _addresses(name.split(","), self.port or NODE_PORT, origin)
        node = self._describe(name)
        ips = [str(endpoint.get("ipAddress", "")) for endpoint in node.get("networkEndpoints", []) or [node]]
        if not all(ips):
            raise TpunbError(f"TPU {name}: its workers have no addresses yet", hint="wait a moment and start again")
        return _addresses(ips, self.port or (VM_PORT if _is_vm(node) else NODE_PORT), f"TPU {name}")

    def _describe(self, name: str) -> dict[str, Any]:
        """Return the Cloud TPU API's description of a TPU."""
        project = self.project or _metadata("project/project-id") or _environment(_PROJECTS)
        zone = self.zone or (_metadata("instance/zone") or "").rpartition("/")[2] or _environment(_ZONES)
        for parameter, value, variables in (("project", project, _PROJECTS), ("zone", zone, _ZONES)):
            if not value:
                raise TpunbError(
                    f"TPU {name}: its {parameter} is not known: none given, no metadata server answers at "
                    f"{_metadata_host()}, and {variables[0]} is not set",
                    hint=f"TPU({name!r}, zone=..., project=...)",
                )
        node = _node(name, str(zone), str(project))
        if (state := node.get("state")) != "READY":
            raise TpunbError(f"TPU {name} is not ready: its state is {state}", hint="wait until it is READY")
        return node


def _node(name: str, zone: str, project: str) -> dict[str, Any]:
    """Query the API of TPU nodes, then that of TPU VMs: each may have only its own."""
    try:
        import google.auth
        from cloud_tpu_client import client as cloud_tpu_client
        from google.auth.exceptions import DefaultCredentialsError, GoogleAuthError
        from googleapiclient import discovery
        from googleapiclient.errors import Error, HttpError
        from httplib2 import HttpLib2Error
    except ImportError as error:
        raise MissingExtra("cloud-tpu-client is not installed", hint=install("tpu")) from error

    where = f"TPU {name} in {zone} of {project}"
    try:
        # the client's default credentials are those of an abandoned library with fewer ways to log in
        credentials, _ = google.auth.default(scopes=[_SCOPE])
        client = cloud_tpu_client.Client(name, zone=zone, project=project, credentials=credentials)
        try:
            # the client's public call raises the same ValueError for every failure
            return dict(client._tpu_service().projects().locations().nodes().get(name=client._full_name()).execute())
        except HttpError as error:
            if error.resp.status != 404:
                raise
        url = os.environ.get("TPU_API_DISCOVERY_URL")
        vms = discovery.build("tpu", "v2", credentials=credentials, discoveryServiceUrl=url, cache_discovery=False)
        return dict(vms.projects().locations().nodes().get(name=client._full_name()).execute())
    except DefaultCredentialsError as error:
        raise TpunbError(f"{where}: no Google Cloud credentials", hint=_LOGIN) from error
    except GoogleAuthError as error:
        raise TpunbError(f"{where}: the credentials do not work: {_reason(error)}", hint=_LOGIN) from error
    except HttpError as error:
        raise _api_error(where, error.resp.status, _reason(error.reason)) from error
    except (Error, HttpLib2Error, OSError) as error:
        message = f"{where}: the Cloud TPU API cannot be reached: {format_error(error)}"
        raise TpunbError(message, hint=_NETWORK) from error


_LOGIN = "log in: gcloud auth application-default login"
_NETWORK = "check the network and the proxy, or give the workers' addresses: Address('host:port', ...)"


def _api_error(where: str, status: int, reason: str) -> TpunbError:
    if status == 404:
        return TpunbError(f"{where}: no TPU of this name", hint="gcloud compute tpus tpu-vm list --zone=ZONE")
    if status in (401, 403):
        hint = "grant the account the role roles/tpu.viewer, and enable the Cloud TPU API in the project"
        return TpunbError(f"{where}: no permission to read it: {status}, {reason}", hint=hint)
    return TpunbError(f"{where}: the Cloud TPU API answered {status}, {reason}", hint="try again in a moment")


def _is_vm(node: dict[str, Any]) -> bool:
    """Return whether the training runs on the TPU's machines, and opens the profiler server there."""
    runtime = str(node.get("runtimeVersion") or node.get("tensorflowVersion") or "")
    return runtime.startswith(_VM_RUNTIMES) or str(node.get("apiVersion", "")).startswith("V2")


def _addresses(hosts: list[str], port: int, origin: str) -> Address:
    """Return the workers, with the profiler's port where none is given, or that of the computation."""
    addresses = []
    for host in filter(None, (host.strip().removeprefix("grpc://") for host in hosts)):
        name, given = _split(host)
        addresses.append(f"{name}:{port if given in ('', str(_MASTER_PORT)) else given}")
    try:
        return Address(*dict.fromkeys(addresses))
    except ValueError as error:
        raise TpunbError(f"{origin}: no addresses: {','.join(hosts)!r}", hint="as in grpc://10.0.0.2:8470") from error


def _split(host: str) -> tuple[str, str]:
    """Return host and port, "" without one; an IPv6 address with a port has brackets."""
    if host.count(":") > 1 and not host.startswith("["):
        return f"[{host}]", ""
    if host.endswith("]") or ":" not in host:
        return host, ""
    name, _, port = host.rpartition(":")
    return name, port


def _hostnames() -> str:
    return os.environ.get("TPU_WORKER_HOSTNAMES", "")


def _workers_of_this_vm() -> list[str]:
    """Return the hosts of the TPU VM that this program runs on; only this one if there is no list."""
    listed = _hostnames() or _metadata("instance/attributes/worker-network-endpoints") or "127.0.0.1"
    workers = [worker.strip().split(":") for worker in listed.split(",")]
    return [worker[2] if len(worker) == 3 else worker[0] for worker in workers]  # older: unused:unused:address


def _metadata_host() -> str:
    return os.environ.get("GCE_METADATA_HOST") or os.environ.get("GCE_METADATA_IP") or "metadata.google.internal"


def _metadata(path: str) -> str | None:
    """Return an entry of the machine's metadata server; None if there is no server or entry."""
    url = f"http://{_metadata_host()}/computeMetadata/v1/{path}"
    request = urllib.request.Request(url, headers={"Metadata-Flavor": "Google"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy cannot reach it
    try:
        with direct.open(request, timeout=LIMITS.metadata_s) as response:
            text: str = response.read().decode().strip()
            return text if response.headers.get("Metadata-Flavor") == "Google" else None
    except (OSError, ValueError):  # with URLError and HTTPError: most machines are not in Google Cloud
        return None


def _environment(names: tuple[str, ...]) -> str | None:
    return next(filter(None, map(os.environ.get, names)), None)


def _reason(error: object) -> str:
    """Return the server's answer inside an error that wraps another."""
    while isinstance(error, Exception) and error.args:
        error = error.args[0]
    return plain(" ".join(str(error).split()))[:300]
