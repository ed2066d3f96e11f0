"""What a witness saw, read back: whole steps out of the lines of all ranks."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class WitnessedBatch:
    """One batch of the whole job: the parts of all its ranks together."""

    epoch: int
    batch: int
    """Position within the epoch, from 0."""
    step: int
    """Global step after it."""
    devices: int
    segment: int
    """Ordinal of the stretch, from 0: how often rank 0 began before."""
    seconds: float
    """From its start to its end on the slowest rank."""
    at: float
    """Unix time of its end."""
    loss: float | None
    """Mean over its samples."""
    samples: tuple[str, ...]
    """Digests, sorted: which samples, whatever rank had them."""

    def overlaps(self, start: float, end: float) -> bool:
        """Whether any of it lies between two instants."""
        return self.at > start and self.at - self.seconds < end


@dataclass(frozen=True)
class Record:
    """Everything one fit trained on."""

    batches: tuple[WitnessedBatch, ...]
    dataset: tuple[str, ...]
    """Digests of the train set; empty when it has no length."""

    def samples_seen_once(self) -> bool:
        """Whether each epoch was the whole train set, each sample exactly once."""
        return not self.faults()

    def faults(self) -> list[str]:
        """What is wrong with the samples of an epoch, in words; empty: every sample once."""
        if not self.dataset or not self.batches:
            return ["nothing was seen"]
        wanted = Counter(self.dataset)
        seen: dict[int, Counter[str]] = defaultdict(Counter)
        for batch in self.batches:
            seen[batch.epoch].update(batch.samples)
        found = []
        for epoch, counts in sorted(seen.items()):
            missing, extra = (wanted - counts).total(), (counts - wanted).total()
            if missing or extra:
                found.append(f"epoch {epoch}: {missing} samples never seen, {extra} seen too often")
        return found

    def steady_steps(self, devices: int) -> list[WitnessedBatch]:
        """The full-sized batches on so many devices, the first of each stretch left out."""
        full = max((len(batch.samples) for batch in self.batches), default=0)
        chosen = []
        since_change = 0
        segment = -1
        for batch in self.batches:
            since_change = since_change + 1 if batch.segment == segment else 0
            segment = batch.segment
            if batch.devices == devices and since_change >= 5 and len(batch.samples) == full:
                chosen.append(batch)
        return chosen


def read(directory: Path) -> Record:
    """Read what the witnesses of a run wrote.

    A batch that was trained twice (again from a checkpoint, after a rank was killed) is there
    twice, as it was seen.
    """
    parts: dict[tuple[int, int, int, int], list[dict[str, Any]]] = defaultdict(list)
    times_seen: Counter[tuple[int, int, int, int]] = Counter()
    begun: Counter[str] = Counter()
    for path in sorted(directory.glob("batches-*.jsonl")):
        rank = path.stem.split("-")[2]
        begun[rank] += 1
        for line in _complete_lines(path):
            line["segment"] = begun[rank] - 1
            where = (line["epoch"], line["batch"], line["world"])
            times_seen[*where, line["rank"]] += 1
            parts[*where, times_seen[*where, line["rank"]]].append(line)
    batches = sorted((_assemble(lines) for lines in parts.values()), key=lambda batch: batch.at)
    dataset = directory / "dataset.json"
    return Record(tuple(batches), tuple(json.loads(dataset.read_text())) if dataset.exists() else ())


def _complete_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of one rank; a last one that a kill cut short is left out."""
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def _assemble(parts: list[dict[str, Any]]) -> WitnessedBatch:
    """One batch out of what each of its ranks had of it."""
    first = min(parts, key=lambda part: part["rank"])
    losses = [(part["loss"], len(part["samples"])) for part in parts if part["loss"] is not None]
    weight = sum(count for _, count in losses)
    return WitnessedBatch(
        epoch=first["epoch"],
        batch=first["batch"],
        step=first["step"],
        devices=first["world"],
        segment=first["segment"],
        seconds=max(part["seconds"] for part in parts),
        at=max(part["at"] for part in parts),
        loss=sum(loss * count for loss, count in losses) / weight if weight else None,
        samples=tuple(sorted(sample for part in parts for sample in part["samples"])),
    )
