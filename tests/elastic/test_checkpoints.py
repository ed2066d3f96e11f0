"""Restart checkpoints: complete or not there, bounded, ours alone (T7, T8)."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from elastic.nasty import Seen
from elastic.tiny import loader, play_tiny

from selfsched.elastic import checkpoints, fit
from selfsched.elastic.checkpoints import CheckpointStore, ensure_private
from selfsched.errors import CheckpointUnusable


def save(store: CheckpointStore, step: int, *, finished: bool = False) -> Any:
    store.make_room(step)
    (store.begin(step) / "lightning.ckpt").write_bytes(b"weights" * 100)
    return store.complete(step, {"note": step}, finished=finished)


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path / "fits" / "1")


def test_the_newest_and_the_one_before_it_are_kept(store: CheckpointStore) -> None:
    for step in (3, 7, 11, 110):
        save(store, step)
    kept = sorted(path.name for path in store.directory.iterdir())
    assert kept == ["step-000000000011", "step-000000000110"]
    newest = store.newest()
    assert newest is not None
    assert (newest.step, newest.finished, newest.own_fields()["note"]) == (110, False, 110)


def test_a_finished_fit_leaves_its_last_state_alone(store: CheckpointStore) -> None:
    save(store, 3)
    save(store, 5, finished=True)
    assert [path.name for path in store.directory.iterdir()] == ["finished"]
    newest = store.newest()
    assert newest is not None
    assert newest.finished


def test_a_program_that_shares_what_it_writes_still_finds_its_own_checkpoints(store: CheckpointStore) -> None:
    before = os.umask(0)
    try:
        save(store, 3)
    finally:
        os.umask(before)
    newest = store.newest()
    assert newest is not None
    modes = {path.stat().st_mode & 0o777 for path in (newest.path, store.directory, store.directory.parent)}
    assert modes == {0o700}


def test_nothing_saved_is_no_checkpoint(store: CheckpointStore) -> None:
    assert store.newest() is None


@pytest.mark.parametrize("file", ["lightning.ckpt", "selfsched.pt", "manifest.json"])
def test_a_truncated_one_is_skipped_for_the_one_before(store: CheckpointStore, file: str) -> None:
    save(store, 3)
    path = save(store, 7).path / file
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.warns(UserWarning, match=r"step-000000000007.*taking the one before it"):
        newest = store.newest()
    assert newest is not None
    assert newest.step == 3


@pytest.mark.parametrize("file", ["lightning.ckpt", "selfsched.pt", "manifest.json"])
def test_one_that_lacks_a_file_is_skipped(store: CheckpointStore, file: str) -> None:
    save(store, 3)
    (save(store, 7).path / file).unlink()
    with pytest.warns(UserWarning, match="taking the one before it"):
        assert store.newest().step == 3  # type: ignore[union-attr]


def test_a_kill_in_the_middle_of_a_write_leaves_the_one_before(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, 3)

    class Killed(BaseException):
        pass

    for survived in range(5):  # each fsync is a place to die; the rename comes before the last
        left = [None] * survived

        def die(path: Path, left: list[None] = left) -> None:
            if not left:
                raise Killed
            left.pop()

        monkeypatch.setattr(checkpoints, "_sync", die)
        with pytest.raises(Killed):
            save(store, 7)
        newest = store.newest()
        assert newest is not None
        assert newest.step == (3 if survived < 4 else 7)
    monkeypatch.undo()
    save(store, 9)
    assert not list(store.directory.glob(".saving-*"))


def test_a_link_is_not_followed(store: CheckpointStore, tmp_path: Path) -> None:
    saved = save(store, 3)
    elsewhere = tmp_path / "elsewhere"
    saved.path.rename(elsewhere)
    saved.path.symlink_to(elsewhere)
    with pytest.warns(UserWarning, match="symbolic link"):
        assert store.newest() is None
    saved.path.unlink()
    elsewhere.rename(saved.path)
    (saved.path / "lightning.ckpt").rename(elsewhere)
    (saved.path / "lightning.ckpt").symlink_to(elsewhere)
    with pytest.warns(UserWarning, match="no plain file"):
        assert store.newest() is None


def test_own_fields_of_another_format_are_not_guessed(store: CheckpointStore) -> None:
    saved = save(store, 3)
    torch.save({"version": 99}, saved.path / "selfsched.pt")
    manifest = json.loads((saved.path / "manifest.json").read_text())
    manifest["sizes"]["selfsched.pt"] = (saved.path / "selfsched.pt").stat().st_size
    (saved.path / "manifest.json").write_text(json.dumps(manifest))
    newest = store.newest()
    assert newest is not None
    with pytest.raises(CheckpointUnusable, match="format 99"):
        newest.own_fields()


def test_own_fields_hold_no_code(store: CheckpointStore, tmp_path: Path) -> None:
    class Harmful:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "ran"),))

    saved = save(store, 3)
    torch.save({"version": 1, "x": Harmful()}, saved.path / "selfsched.pt")
    with pytest.raises(CheckpointUnusable, match="cannot be read"):
        saved.own_fields()
    assert not (tmp_path / "ran").exists()


def test_only_a_private_directory_of_ours_is_trusted(tmp_path: Path) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    ensure_private(private)
    private.chmod(0o750)
    with pytest.raises(CheckpointUnusable, match=r"mode 0750.*chmod 700"):
        ensure_private(private)
    private.chmod(0o700)
    (tmp_path / "link").symlink_to(private)
    with pytest.raises(CheckpointUnusable, match="no directory"):
        ensure_private(tmp_path / "link")


def test_a_directory_of_someone_else_is_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(CheckpointUnusable, match="belongs to uid"):
        ensure_private(private)


def test_a_run_whose_directory_others_may_write_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    play_tiny(tmp_path, spec={"cut_at": (1, 5)})
    (tmp_path / "run").chmod(0o777)
    left = play_tiny(tmp_path, 1).left
    assert isinstance(left, SystemExit)
    assert left.code == 2
    assert "mode 0777, so that others could have changed it" in capsys.readouterr().err


def test_a_run_goes_on_from_the_one_before_where_the_newest_is_truncated(tmp_path: Path) -> None:
    seen = Seen()
    play_tiny(tmp_path, spec={"cut_at": (1, 5)}, seen=seen)
    play_tiny(tmp_path, 1, spec={"cut_at": (1, 9)})
    path = CheckpointStore(tmp_path / "run" / "fits" / "1").newest().lightning_path  # type: ignore[union-attr]
    path.write_bytes(path.read_bytes()[:-100])
    last = play_tiny(tmp_path, 2, seen=seen)
    assert last.said("truncated")
    assert last.trainer.global_step == 16
    assert len(seen.samples) == len(set(seen.samples)) == 32


def test_no_room_is_said_and_the_training_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CheckpointStore, "free_bytes", lambda self: 10)
    played = play_tiny(tmp_path)
    assert played.said("no room for a checkpoint")
    assert played.left is None
    assert played.trainer.global_step == 16


def test_the_size_of_the_last_checkpoint_says_what_the_next_one_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    play_tiny(tmp_path, spec={"cut_at": (1, 5)})
    size = CheckpointStore(tmp_path / "run" / "fits" / "1").newest().size_bytes  # type: ignore[union-attr]
    monkeypatch.setattr(CheckpointStore, "free_bytes", lambda self: size)
    assert play_tiny(tmp_path, 1, train=loader()).said("no room")


@contextmanager
def files_no_larger_than(size_bytes: int) -> Iterator[Callable[[Any], None]]:
    """An act from which on no file grows beyond a size: as on a full disk, without one."""
    earlier = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        yield lambda trainer: resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, earlier[1]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, earlier)


def test_a_disk_that_fills_up_loses_a_yield_its_checkpoint_and_keeps_the_one_before(tmp_path: Path) -> None:
    play_tiny(tmp_path, spec={"cut_at": (1, 5)})
    with files_no_larger_than(1000) as fill_up:
        cut = play_tiny(tmp_path, 1, acts={8: fill_up}, spec={"cut_at": (1, 10)})
    assert isinstance(cut.left, SystemExit)
    assert cut.said("no checkpoint could be written")
    assert cut.said("File too large")
    assert cut.said("left at step 10 without a checkpoint: it goes on from the checkpoint at step 5")
    kept = CheckpointStore(tmp_path / "run" / "fits" / "1")
    assert kept.newest().step == 5  # type: ignore[union-attr]
    assert not list(kept.directory.glob(".saving-*")), "nothing half written takes up room"
    last = play_tiny(tmp_path, 2)
    assert (last.left, last.trainer.global_step) == (None, 16)


@pytest.mark.parametrize("size_bytes", [1000, 10_000], ids=["weights", "own fields"])
def test_on_a_full_disk_training_goes_on_without_its_periodic_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    monkeypatch.setattr(fit, "CHECKPOINT_SECONDS", 0.0)
    with files_no_larger_than(size_bytes) as fill_up:
        played = play_tiny(tmp_path, acts={3: fill_up})
    assert (played.left, played.trainer.global_step) == (None, 16)
    assert sum("no checkpoint could be written" in text for text in played.warnings) == 1
    assert CheckpointStore(tmp_path / "run" / "fits" / "1").newest().step == 2  # type: ignore[union-attr]
