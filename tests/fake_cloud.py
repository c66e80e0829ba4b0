"""A Google Cloud of one machine and some TPUs, on loopback: its metadata server, its Cloud TPU API, workers."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources

import grpc

TOKEN = "token-of-the-machine"


class FakeCloud:
    """Responds over HTTP like a metadata server and the Cloud TPU API.

    `nodes` maps (version of the API, full name) of each TPU to its response, or to the HTTP status of a refusal.
    `metadata` maps paths of the metadata server to texts. Both may change at any time; `asked` lists the requested
    paths.
    """

    def __init__(self):
        self.nodes = {}
        self.metadata = {
            "project/project-id": "lab",
            "instance/zone": "projects/123/zones/here-a",
            "instance/service-accounts/default/": '{"email": "robot@lab.test", "scopes": [], "aliases": ["default"]}',
            "instance/service-accounts/default/token": json.dumps({"access_token": TOKEN, "expires_in": 3600}),
        }
        self.asked = []
        cloud = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                path = self.path.partition("?")[0]
                cloud.asked.append(path)
                status, text = cloud.answer(path, self.headers)
                body = text.encode()
                self.send_response(status)
                self.send_header("Metadata-Flavor", "Google")
                self.send_header("Content-Type", "application/json" if body[:1] == b"{" else "application/text")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=[0.01], daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def environment(self):
        """The variables by which a program takes this for the cloud it runs in."""
        return {
            "GCE_METADATA_HOST": self.host,
            "GCE_METADATA_IP": self.host,
            "TPU_API_DISCOVERY_URL": f"http://{self.host}/discovery/{{api}}/{{apiVersion}}",
        }

    def add(self, name, *, version="v1", **says):
        """Add a TPU that is ready, in zone here-a of project lab."""
        self.nodes[version, f"projects/lab/locations/here-a/nodes/{name}"] = {"name": name, "state": "READY", **says}

    def answer(self, path, headers):
        if path == "/":
            return 200, "computeMetadata/"
        if path.startswith("/computeMetadata/v1/"):
            by_name = path.removeprefix("/computeMetadata/v1/")
            told = self.metadata.get(by_name.replace("robot@lab.test", "default"))
            return (404, "not found") if told is None or headers["Metadata-Flavor"] != "Google" else (200, told)
        if path.startswith("/discovery/tpu/"):
            return 200, self._discovery(path.rpartition("/")[2])
        if headers["Authorization"] != f"Bearer {TOKEN}":
            return self._refusal(401)
        _, version, full_name = path.split("/", 2)
        node = self.nodes.get((version, full_name), 404)
        return self._refusal(node) if isinstance(node, int) else (200, json.dumps(node))

    def _refusal(self, status):
        return status, json.dumps({"error": {"code": status, "message": f"refused with {status}"}})

    def _discovery(self, version):
        """The document that describes the API, as it ships with its client, of an API that is here."""
        documents = resources.files("googleapiclient") / "discovery_cache" / "documents"
        document = json.loads((documents / f"tpu.{version}.json").read_text())
        return json.dumps({**document, "rootUrl": f"http://{self.host}/", "baseUrl": f"http://{self.host}/"})


@contextmanager
def worker(address, xspace):
    """Answer every window at an address, which may be any of 127.0.0.0/8, with these bytes; less than 128."""

    class Service(grpc.GenericRpcHandler):
        def service(self, details):
            return grpc.unary_unary_rpc_method_handler(lambda *_: b"\x42" + bytes([len(xspace)]) + xspace)

    server = grpc.server(ThreadPoolExecutor(2), handlers=[Service()], options=[("grpc.so_reuseport", 0)])
    server.add_insecure_port(address)
    server.start()
    try:
        yield
    finally:
        server.stop(0).wait()
