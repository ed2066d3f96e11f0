"""A run that never gets a device: its exit code and its words, as the table in docs/training.md has them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from supervisor.runs import Runs

from selfsched.protocol import Problem

pytestmark = pytest.mark.slow


@contextmanager
def refusing_broker(code: str, status: int, words: str) -> Iterator[str]:
    """The address of a broker that answers every call with this problem."""
    body = Problem(code=code, title=code, status=status, detail=words).to_json().encode()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(status)
            self.send_header("Content-Type", "application/problem+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def test_a_token_that_is_not_accepted_is_wrong_use(runs: Runs) -> None:
    with refusing_broker("not_authenticated", 401, "this token is not known") as address:
        run = runs.start(["true"], broker=address)
        assert run.finish() == 2
    assert "this token is not known (the broker is http://127.0.0.1" in run.output()
    assert not run.events("segment_began")


def test_more_devices_than_there_are_is_said_in_the_word_that_was_typed(runs: Runs) -> None:
    words = "the job needs 4 devices at once, the cluster has 2: lower min_devices"
    with refusing_broker("impossible_request", 422, words) as address:
        run = runs.start(["true"], broker=address, min_devices=4, max_devices=4)
        assert run.finish() == 2
    assert "the cluster has 2: lower --devices" in run.output()
    assert "min_devices" not in run.output()


def test_an_address_at_which_there_will_never_be_a_broker_is_wrong_use(runs: Runs, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    run = runs.start(["true"], broker=f"unix:{tmp_path}/notes.txt")
    assert run.finish() == 2
    assert "notes.txt is no socket: check SELFSCHED_BROKER" in run.output()


def test_a_broker_that_is_away_is_a_reason_to_try_again_later(runs: Runs, tmp_path: Path) -> None:
    run = runs.start(["true"], broker=f"unix:{tmp_path}/absent.sock", wait_seconds=0.0)
    assert run.finish() == 75
    assert "no broker listens at" in run.output()
