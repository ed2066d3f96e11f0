"""A process that answers at a Unix socket as a broker would: `stub_broker.py SOCKET COUNT_FILE`.

It notes each of its starts as a line in COUNT_FILE, and refuses to start where one listens.
"""

from __future__ import annotations

import http.server
import os
import socketserver
import sys

CLUSTER = (
    b'{"policy": "stub", "devices": [], "waiting_jobs": 0, "running_jobs": 0,'
    b' "next_tick_seconds": 1.0, "incarnation": 1}'
)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(CLUSTER)))
        self.end_headers()
        self.wfile.write(CLUSTER)

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True

    def get_request(self):  # type: ignore[no-untyped-def]
        connection, _ = super().get_request()
        return connection, ("peer", 0)


if __name__ == "__main__":
    path, starts = sys.argv[1:3]
    with open(starts, "a") as file:
        file.write(f"{os.getpid()}\n")
    if os.path.exists(path):
        os.unlink(path)
    with Server(path, Handler) as server:
        server.serve_forever()
