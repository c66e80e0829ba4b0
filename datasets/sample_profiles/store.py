"""An object store whose answers take 6 ms, on a free port, which it prints."""

import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PICTURE = bytes(range(256)) * 12


class Answer(BaseHTTPRequestHandler):
    """A picture, after 6 ms."""

    def do_GET(self) -> None:
        """Answer."""
        time.sleep(0.006)
        self.send_response(200)
        self.send_header("Content-Length", str(len(PICTURE)))
        self.end_headers()
        self.wfile.write(PICTURE)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


if __name__ == "__main__":
    store = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    print(store.server_address[1], flush=True)
    store.serve_forever()
