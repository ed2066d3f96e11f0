"""What a job makes of a broker's answer on its hardware, over a real port."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from negotiator.scripted_broker import Bench, ScriptedBroker, until

from selfsched.core.hardware_figures import HardwareFigures
from selfsched.core.performance import documented_prior
from selfsched.protocol import ForecastScores, HardwarePrior, JobRegistered

PRIOR = documented_prior("cpu").model_copy(update={"jobs": 12})
PLAIN = json.loads(PRIOR.to_json())


class RawServer:
    """Sends the same bytes to whoever connects."""

    def __init__(self, head: str, body: bytes) -> None:
        length = f"Content-Length: {len(body)}\r\n" if "Content-Length" not in head else ""
        self.bytes = (
            f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n{head}{length}\r\n"
        ).encode() + body
        self.asked: list[str] = []
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                connection, _ = self._socket.accept()
                with connection:
                    self.asked.append(connection.recv(65_536).decode().split(" ")[1])
                    connection.sendall(self.bytes)

    def close(self) -> None:
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(10)


class PriorsElsewhere(httpx.BaseTransport):
    """A scripted broker whose hardware figures come over a real port."""

    def __init__(self, broker: ScriptedBroker, port: int) -> None:
        self._broker = broker
        self._port = port
        self._http = httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if not request.url.path.endswith("/prior"):
            request.read()
            return self._broker(request)
        there = request.url.copy_with(scheme="http", host="127.0.0.1", port=self._port)
        return self._http.handle_request(httpx.Request("GET", there, headers={"Host": "broker"}))

    def close(self) -> None:
        self._http.close()


@pytest.fixture
def broker() -> ScriptedBroker:
    return ScriptedBroker()


@pytest.fixture
def benches() -> Iterator[list[Bench]]:
    made: list[Bench] = []
    yield made
    for bench in made:
        bench.close()
        bench.client.close()


def run_against(
    tmp_path: Path, broker: ScriptedBroker, benches: list[Bench], head: str, body: bytes
) -> tuple[Bench, RawServer]:
    server = RawServer(head, body)
    bench = Bench(tmp_path, broker, transport=PriorsElsewhere(broker, server.port))
    benches.append(bench)
    bench.start()
    broker.grant("a")
    bench.run("a")
    return bench, server


def figures_of(bench: Bench) -> HardwareFigures | None:
    return bench.negotiator._record.history.figures


def ask_until(broker: ScriptedBroker, condition: Callable[[], Any]) -> None:
    """Have reports answered with news, each an occasion to ask for figures, until it is so."""

    def is_so() -> Any:
        broker.say("go_on")
        return condition()

    until(is_so)


@pytest.mark.parametrize(
    ("head", "body", "words"),
    [
        ("", PRIOR.to_json().encode()[:-20], "no selfsched broker of this version"),
        ("", json.dumps(PLAIN | {"version": 99}).encode(), "version: Input should be 1"),
        (
            "", json.dumps(PLAIN | {"bandwidth_bytes_per_second": 1e300}).encode(),
            r"bandwidth of 1e+300 bytes per second is absurd",
        ),
        ("", json.dumps(PLAIN | {"bandwidth_bytes_per_second": float("nan")}).encode(), "bandwidth"),
        ("", json.dumps(PLAIN | {"hardware": "H100"}).encode(), "they are for H100, not for cpu"),
        ("Content-Length: 9999\r\n", PRIOR.to_json().encode(), "no answer from the broker"),
    ],
    ids=["cut short", "another version", "absurd", "no number", "other hardware", "cut connection"],
)  # fmt: skip
def test_figures_that_cannot_be_used_are_refused_once_in_words(
    tmp_path: Path, broker: ScriptedBroker, benches: list[Bench], monkeypatch: pytest.MonkeyPatch,
    head: str, body: bytes, words: str,
) -> None:  # fmt: skip
    monkeypatch.setattr("selfsched.core.hardware_figures.LEAST_SECONDS", 0.01)
    monkeypatch.setattr("selfsched.core.hardware_figures.EVERY_SECONDS", 0.01)
    bench, server = run_against(tmp_path, broker, benches, head, body)
    try:
        ask_until(broker, lambda: figures_of(bench))
        said = [*until(bench.negotiator.news)]
        asked = len(server.asked)  # it is asked and refused again, and not said again
        ask_until(broker, lambda: len(server.asked) > asked + 2)
        said += bench.negotiator.news()
    finally:
        server.close()
    assert len(said) == 1
    assert words in said[0]
    assert said[0].startswith("the broker's figures were refused, the documented ones are used")
    told = figures_of(bench)
    assert told is not None
    assert told.prior is None
    assert words in told.words
    assert bench.negotiator._record._model.prior == documented_prior("cpu")


def test_good_figures_are_used_from_the_first_segment_and_asked_for_as_this_job(
    tmp_path: Path, broker: ScriptedBroker, benches: list[Bench]
) -> None:
    bench, server = run_against(tmp_path, broker, benches, "", PRIOR.to_json().encode())
    record = bench.negotiator._record
    try:
        until(lambda: record._model.prior == PRIOR and record._model.devices == 1)
    finally:
        server.close()
    assert server.asked[0] == "/v1/hardware/cpu/prior?job=job-1"
    assert bench.negotiator.news() == ()
    until(lambda: bench.history()["figures"])
    assert HardwarePrior.model_validate_json(json.dumps(bench.history()["figures"]["prior"])) == PRIOR


def test_how_the_accounts_forecasts_came_out_is_told_at_the_registration(
    tmp_path: Path, broker: ScriptedBroker, benches: list[Bench]
) -> None:
    scores = ForecastScores(made=3, held=2, jobs=1, runs=((0.5, -1.0, 2.0),))

    def registered(request: httpx.Request) -> httpx.Response:
        broker.jobs = 1
        answer = JobRegistered(job="job-1", instructions=broker.instructions(), forecast_scores=scores)
        return httpx.Response(200, content=answer.to_json(), headers={"content-type": "application/json"})

    broker.fault["jobs"] = registered
    bench = Bench(tmp_path, broker)
    benches.append(bench)
    bench.start()
    broker.grant("a")
    bench.run("a")  # on hardware it did not know yet: what it was told stays with it
    model = until(lambda: (found := bench.negotiator._record._model).devices and found)
    assert model.calibration.runs == [[0.5, 1.0, 2.0]]
