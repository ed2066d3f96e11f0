"""Something on a real port that behaves as a test says: like a broker, badly, or not at all."""

from __future__ import annotations

import json
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from selfsched.protocol import AccountView, ClusterView, WhatIfAnswer


@dataclass(frozen=True)
class Said:
    """One answer."""

    status: int = 200
    body: bytes = b"{}"
    media: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    stated_bytes: int | None = None
    """A length that is not the body's: the connection ends before it is reached."""


@dataclass
class Heard:
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: socket.socket

    def is_cut(self) -> bool:
        """Whether who asked has gone."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and self.connection.recv(1, socket.MSG_PEEK) == b""


Behaviour = Callable[[Heard], Said | None]
"""None: the connection is closed without a word."""


def problem(status: int, code: str, detail: str = "", **headers: str) -> Said:
    """A problem document."""
    body = json.dumps({"status": status, "code": code, "title": "No", "detail": detail}).encode()
    named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return Said(status, body, "application/problem+json", named)


def a_cluster(**changes: Any) -> ClusterView:
    values: dict[str, Any] = {
        "policy": "selfsched", "devices": (), "waiting_jobs": 0, "running_jobs": 0, "next_tick_seconds": 10.0,
        "incarnation": 1,
    }  # fmt: skip
    return ClusterView(**(values | changes))


def well_behaved(heard: Heard) -> Said:
    """A broker without jobs."""
    path = heard.path.partition("?")[0]
    if path == "/v1/cluster":
        return Said(body=a_cluster().to_json().encode(), headers=(("ETag", '"c1"'),))
    if path == "/v1/accounts/me":
        return Said(body=AccountView(account="ada").to_json().encode())
    if path == "/v1/forecast":
        return Said(body=WhatIfAnswer(forecasts=()).to_json().encode())
    if heard.method == "POST":
        return Said(body=b'{"detail":"done"}')
    return Said(body=b"[]")


@dataclass
class OddBroker:
    """The address stays; what answers there changes."""

    port: int = 0
    behave: Behaviour = well_behaved
    heard: list[Heard] = field(default_factory=list)
    connections: list[socket.socket] = field(default_factory=list)
    _server: ThreadingHTTPServer | None = None
    _thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def asked(self, path: str) -> int:
        """How often something was asked for since the last `reset`."""
        return sum(heard.path.partition("?")[0] == path for heard in self.heard)

    def polled(self) -> int:
        """How many long polls began since the last `reset`."""
        return sum("If-None-Match" in heard.headers for heard in self.heard)

    def reset(self, behave: Behaviour = well_behaved) -> None:
        """Behave so from now on, and forget what was heard."""
        self.behave = behave
        self.heard.clear()

    def start(self) -> None:
        """Listen."""
        self._server = _server(self)
        self.port = self._server.server_port
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Be away: connections are refused, those that were open are cut."""
        assert self._server is not None
        assert self._thread is not None
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        for connection in self.connections:
            with suppress(OSError):  # it has ended by itself
                connection.shutdown(socket.SHUT_RDWR)
        self.connections.clear()


def _server(broker: OddBroker) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            heard = Heard(self.command, self.path, dict(self.headers), body, self.connection)
            broker.heard.append(heard)
            said = broker.behave(heard)
            if said is None:
                self.close_connection = True
                return
            self.send_response(said.status)
            self.send_header("Content-Type", said.media)
            length = said.stated_bytes if said.stated_bytes is not None else len(said.body)
            if said.status != 304:
                self.send_header("Content-Length", str(length))
            for name, value in said.headers:
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(said.body)
            self.close_connection = said.stated_bytes is not None

        do_POST = do_GET

        def log_message(self, *arguments: Any) -> None:
            """Say nothing."""

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        allow_reuse_address = True

        def process_request(self, request: Any, client_address: Any) -> None:
            broker.connections.append(request)
            super().process_request(request, client_address)

        def handle_error(self, *arguments: Any) -> None:
            """Say nothing: many requests here end half-way on purpose."""

    return Server(("127.0.0.1", broker.port), Handler)


@contextmanager
def odd_broker() -> Iterator[OddBroker]:
    """Run one."""
    broker = OddBroker()
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()
