"""A record is put together from all ranks and says what is wrong with an epoch's samples."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from selfsched.witness import record


def write(
    directory: Path, rank: int, lines: list[dict[str, object]], *, begun: int = 1, tail: str = ""
) -> None:
    """One rank's file of one segment, perhaps with the beginning of a line that a kill cut off."""
    text = "".join(json.dumps(line) + "\n" for line in lines) + tail
    (directory / f"batches-{begun}-{rank}-77.jsonl").write_text(text)


def line(batch: int, samples: str, *, rank: int = 0, world: int = 1, **changes: object) -> dict[str, object]:
    values = {"epoch": 0, "batch": batch, "step": batch + 1, "rank": rank, "world": world, "seconds": 0.1,
              "at": float(batch), "loss": 1.0, "samples": list(samples)}  # fmt: skip
    return values | changes


def dataset(directory: Path, samples: str) -> None:
    (directory / "dataset.json").write_text(json.dumps(list(samples)))


def test_the_parts_of_a_batch_are_joined_over_its_ranks(tmp_path: Path) -> None:
    dataset(tmp_path, "abcd")
    write(tmp_path, 0, [line(0, "ca", world=2, loss=1.0, seconds=0.2)])
    write(tmp_path, 1, [line(0, "b", rank=1, world=2, loss=4.0, seconds=0.3)])
    (batch,) = record.read(tmp_path).batches
    assert batch.samples == ("a", "b", "c")
    assert batch.loss == pytest.approx(2.0)
    assert batch.seconds == 0.3
    assert batch.devices == 2


def test_every_sample_once_over_a_change_of_devices(tmp_path: Path) -> None:
    dataset(tmp_path, "abcdd")
    write(tmp_path, 0, [line(0, "da", world=2)])
    write(tmp_path, 1, [line(0, "c", rank=1, world=2)])
    write(tmp_path, 0, [line(1, "db")], begun=2)
    found = record.read(tmp_path)
    assert found.samples_seen_once()
    assert found.faults() == []


@pytest.mark.parametrize(
    ("seen", "words"), [("abc", "1 samples never seen, 0 seen"), ("abcdd", "0 samples never seen, 1 seen")]
)
def test_a_sample_lost_or_seen_twice_is_told_with_its_epoch(seen: str, words: str, tmp_path: Path) -> None:
    dataset(tmp_path, "abcd")
    write(tmp_path, 0, [line(0, seen, epoch=3)])
    assert record.read(tmp_path).faults() == [f"epoch 3: {words} too often"]


def test_a_batch_trained_again_after_a_kill_counts_twice(tmp_path: Path) -> None:
    dataset(tmp_path, "ab")
    write(tmp_path, 0, [line(0, "ab")], tail='{"epoch": 0, "ba')
    write(tmp_path, 0, [line(0, "ab", at=9.0)], begun=2)
    assert len(record.read(tmp_path).batches) == 2
    assert not record.read(tmp_path).samples_seen_once()


def test_nothing_seen_is_no_proof_of_anything(tmp_path: Path) -> None:
    assert not record.read(tmp_path).samples_seen_once()


def test_step_times_leave_out_the_first_of_each_stretch_and_ragged_batches(tmp_path: Path) -> None:
    lines = [line(n, "ab", seconds=9.0 if n < 5 else 0.1) for n in range(8)] + [line(8, "a", seconds=0.05)]
    write(tmp_path, 0, lines)
    assert [step.seconds for step in record.read(tmp_path).steady_steps(1)] == [0.1, 0.1, 0.1]
    assert record.read(tmp_path).steady_steps(2) == []
