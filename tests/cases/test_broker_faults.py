"""Hazards at the seam of broker and job: orders and kills in the middle of a save, slow clients."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from broker.live_broker import live_broker, refs, register, report, until_leased
from elastic.nasty import Seen
from elastic.tiny import Tiny, make_block, order, play_tiny

from selfsched.core.events import CheckpointSaved, Left
from selfsched.elastic import fit, process
from selfsched.elastic.checkpoints import CheckpointStore
from selfsched.elastic.segment import Order

SLOW_CLIENTS = 200


@pytest.mark.slow
def test_d24_two_hundred_clients_that_trickle_cost_nobody_a_lease(tmp_path: Path) -> None:
    with live_broker(tmp_path / "state") as broker, ExitStack() as closing:
        url = httpx.URL(broker.url)
        ada = broker.as_account("ada")
        job = register(ada)
        told, last = until_leased(ada, job)
        slow = [
            closing.enter_context(socket.create_connection((url.host, url.port or 0), timeout=30))
            for _ in range(SLOW_CLIENTS)
        ]
        text = b"POST /v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{"
        for number, sent in enumerate(range(0, len(text), 4), start=last + 1):
            for client in slow:
                client.sendall(text[sent : sent + 4])
            answer = report(ada, job, number, leases=refs(told))
            assert answer.status_code == 200
            assert answer.json()["leases"][0]["fence"] == told.leases[0].fence
        assert broker.anonymous().get("/healthz").status_code == 200


@pytest.mark.parametrize("death", [2, 5])
def test_d19_a_real_kill_in_the_middle_of_a_save_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, death: int
) -> None:
    monkeypatch.setattr(fit, "CHECKPOINT_SECONDS", 0.0)  # one at every step

    class Dying(Tiny):
        saves = 0

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            self.saves += 1
            if self.saves == death and os.getpid() != parent:
                os.kill(os.getpid(), signal.SIGKILL)

    parent = os.getpid()
    child = os.fork()
    if child == 0:
        try:
            play_tiny(tmp_path, module=Dying)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    store = CheckpointStore(tmp_path / "run" / "fits" / "1")
    assert list(store.directory.glob(".saving-*")), "it died in the middle of one"
    newest = store.newest()
    assert newest is not None
    seen = Seen()
    last = play_tiny(tmp_path, 1, module=Dying, seen=seen)
    assert last.trainer.global_step == 16
    assert len(seen.samples) == 2 * (16 - newest.step), "it goes on from the complete one"
    assert not list(store.directory.glob(".saving-*"))


def test_d18_an_order_during_a_save_is_obeyed_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fit, "CHECKPOINT_SECONDS", 0.0)  # one at every step
    events: list[Any] = []
    monkeypatch.setattr(process.EventWriter, "send", lambda self, event: events.append(event) or True)
    make_block(tmp_path)
    began: list[int] = []

    class Ordered(Tiny):
        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            began.append(self.trainer.global_step)
            if self.trainer.global_step == 3:
                order(tmp_path, Order.YIELD)(self.trainer)
                assert not saved_at(3), "the save is under way"

    def saved_at(step: int) -> list[CheckpointSaved]:
        return [e for e in events if isinstance(e, CheckpointSaved) and e.step == step]

    left = play_tiny(tmp_path, module=Ordered)
    assert isinstance(left.left, SystemExit)
    (gone,) = [event for event in events if isinstance(event, Left)]
    assert began == list(range(gone.step + 1)), "one save at each step, none within another"
    (last,) = saved_at(gone.step)
    assert events.index(last) < events.index(gone), "it says that it leaves when the file is complete"
