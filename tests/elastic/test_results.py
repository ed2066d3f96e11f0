"""What a fit leaves for its caller, also where its disk is full at the end."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from elastic.tiny import play_tiny

from selfsched.elastic.checkpoints import CheckpointStore
from selfsched.elastic.results import result_at_end, write_result
from selfsched.errors import CheckpointUnusable, SelfschedError


@contextmanager
def full_disk() -> Iterator[None]:
    """No file grows beyond some bytes: as on a full disk, without one."""
    earlier = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, earlier[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, earlier)


def assert_trained(result: Any, played: Any) -> None:
    assert (result.global_step, result.current_epoch) == (16, 2)
    for name, weights in played.module.state_dict().items():
        assert torch.equal(result.weights[name], weights)


def test_a_result_that_finds_no_room_is_taken_from_the_last_checkpoint(tmp_path: Path) -> None:
    played = play_tiny(tmp_path)
    path = tmp_path / "run" / "result.pt"
    with full_disk(), pytest.warns(UserWarning, match=r"result.pt cannot be written: File too large"):
        write_result(played.trainer, played.module, path)
    assert not path.exists()
    assert_trained(result_at_end(path), played)
    write_result(played.trainer, played.module, path)
    assert_trained(result_at_end(path), played)


def test_where_there_is_room_for_neither_it_is_said_where_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play_tiny(tmp_path, spec={"cut_at": (1, 5)})
    monkeypatch.setattr(CheckpointStore, "free_bytes", lambda self: 10)
    played = play_tiny(tmp_path, 1)
    monkeypatch.undo()
    path = tmp_path / "run" / "result.pt"
    words = r"came to its end at step 16, .* File too large.* goes on from the checkpoint at step 5"
    with full_disk(), pytest.raises(SelfschedError, match=words):
        write_result(played.trainer, played.module, path)
    assert [entry.name for entry in (tmp_path / "run").glob(".result*")] == []
    with pytest.raises(CheckpointUnusable, match="finished and has left no result"):
        result_at_end(path)


def test_checkpoints_that_are_needed_no_more_make_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for ordinal, step in enumerate((3, 6)):
        play_tiny(tmp_path, ordinal, spec={"cut_at": (1, step)})
    monkeypatch.setattr(CheckpointStore, "free_bytes", lambda self: 10)
    played = play_tiny(tmp_path, 2)
    older = tmp_path / "run" / "fits" / "1" / "step-000000000003"
    assert older.exists()
    really = torch.save

    def full_until_it_is_gone(*given: Any) -> None:
        if older.exists():
            raise OSError("No space left on device")
        really(*given)

    monkeypatch.setattr(torch, "save", full_until_it_is_gone)
    path = tmp_path / "run" / "result.pt"
    write_result(played.trainer, played.module, path)
    assert_trained(result_at_end(path), played)
