"""The elastic sampler: the same batches on any number of devices.

The order of an epoch depends on (seed, epoch) alone. Global batch k is the slice
`order[kG:(k+1)G]`, whatever the world size; a rank takes its even share of that slice. So
steps, epochs and schedules are those of one device, a cut between two batches loses and
repeats nothing, and "where were we" is two numbers that Lightning counts anyway: the epoch,
and how many batches of it are done.

The last batch of an epoch may be ragged. Its R samples are split as evenly as they go; with
DDP's mean over ranks the gradient is that of one device when each rank's loss is weighted
`n_rank * world / R` (see `weights`). A rank that gets no sample at all repeats the first
one of the batch with weight 0, so that all ranks take part in the same collectives.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from selfsched.elastic.noise import mixed_seed, seeded
from selfsched.errors import Unsupported


@dataclass(frozen=True)
class BatchLayout:
    """How an epoch of `samples` is laid out in global batches, and these over ranks."""

    samples: int
    global_batch: int
    world_size: int
    rank: int
    drop_last: bool = False

    @property
    def batches(self) -> int:
        """Global batches in one epoch."""
        whole, rest = divmod(self.samples, self.global_batch)
        return whole + (1 if rest and not self.drop_last else 0)

    def bounds(self, batch: int) -> tuple[int, int]:
        """[first, last) positions in the epoch's order of global batch `batch`."""
        first = batch * self.global_batch
        return first, min(first + self.global_batch, self.samples)

    def share(self, batch: int) -> tuple[int, int]:
        """[first, last) positions of this rank's share; empty where none is left for it."""
        first, last = self.bounds(batch)
        each, extra = divmod(last - first, self.world_size)
        mine = first + self.rank * each + min(self.rank, extra)
        return mine, mine + each + (1 if self.rank < extra else 0)

    def weight(self, batch: int) -> float:
        """What this rank's mean loss counts in `batch`: n_rank * world / R; 1 if even."""
        first, last = self.bounds(batch)
        mine, end = self.share(batch)
        return (end - mine) * self.world_size / (last - first)


class EpochOrder(Protocol):
    """The order of the samples in one epoch, the same on every rank and at every time."""

    def __len__(self) -> int: ...

    def order(self, epoch: int) -> torch.Tensor:
        """Indices of the dataset, shape (len,), int64."""
        ...


@dataclass(frozen=True)
class InOrder:
    """`shuffle=False`: the dataset's own order, at every world size."""

    samples: int

    def __len__(self) -> int:
        return self.samples

    def order(self, epoch: int) -> torch.Tensor:
        return torch.arange(self.samples)


@dataclass(frozen=True)
class Shuffled:
    """`shuffle=True`: a permutation from (seed, epoch)."""

    samples: int
    seed: int

    def __len__(self) -> int:
        return self.samples

    def order(self, epoch: int) -> torch.Tensor:
        generator = torch.Generator()
        generator.manual_seed(mixed_seed(self.seed, epoch))
        return torch.randperm(self.samples, generator=generator)


class Drawn:
    """The order of a user's own sampler, drawn whole, once an epoch, under a fixed seed.

    Raises:
        Unsupported: two draws for the same epoch differ, so it cannot be found again.
    """

    def __init__(self, sampler: Any, seed: int) -> None:
        self._sampler = sampler
        self._seed = seed
        first, second = self._draw(0), self._draw(0)
        if not torch.equal(first, second):
            raise Unsupported(
                f"the order of {type(sampler).__name__} is not reproducible: two draws for the same epoch "
                "differ. Use DataLoader(shuffle=True), or draw from torch's global generator or from "
                "set_epoch(epoch) only."
            )
        self._samples = len(first)

    def __len__(self) -> int:
        return self._samples

    def order(self, epoch: int) -> torch.Tensor:
        drawn = self._draw(epoch)
        if len(drawn) != self._samples:
            raise Unsupported(
                f"{type(self._sampler).__name__} gives {len(drawn)} samples in epoch {epoch}, "
                f"{self._samples} in epoch 0: the steps of an epoch would change."
            )
        return drawn

    def _draw(self, epoch: int) -> torch.Tensor:
        with seeded(self._seed, epoch):
            generator = getattr(self._sampler, "generator", None)
            if isinstance(generator, torch.Generator):
                generator.manual_seed(mixed_seed(self._seed, epoch))
            if callable(set_epoch := getattr(self._sampler, "set_epoch", None)):
                set_epoch(epoch)
            return torch.tensor([int(index) for index in self._sampler], dtype=torch.int64)


def order_hash(order: torch.Tensor) -> str:
    """A short fingerprint of an epoch's order, kept in the checkpoint."""
    return hashlib.sha256(order.numpy().tobytes()).hexdigest()[:16]


Position = Callable[[], tuple[int, int]]
"""Asks the trainer for (epoch, batches of it that are done)."""


class ElasticSampler:
    """A batch sampler: this rank's share of each global batch, from where the run stands.

    It has no position of its own: each new iterator asks `position`, and only when its
    first batch is wanted. Lightning makes the first iterator of a fit before it has told
    which epoch it is, and sometimes before it has loaded the checkpoint.

    `set_epoch` is there for those who look for it; Lightning looks for it at
    `batch_sampler.sampler`, hence the reference to itself.
    """

    def __init__(self, order: EpochOrder, layout: BatchLayout, position: Position) -> None:
        self._order = order
        self._position = position
        self.layout = layout
        self.sampler = self
        self.epoch = 0

    def __len__(self) -> int:
        """Global batches of a whole epoch, also in the middle of one."""
        return self.layout.batches

    def set_epoch(self, epoch: int) -> None:
        """Noted only: the truth is in the trainer's own progress."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[list[int]]:
        epoch, done = self._position()
        order = self._order.order(epoch)
        for batch in range(done, len(self)):
            first, last = self.layout.share(batch)
            if first == last:  # nothing left for this rank: weight 0, see the module's head
                first = self.layout.bounds(batch)[0]
                last = first + 1
            yield order[first:last].tolist()

    def fingerprint(self, epoch: int) -> str:
        """Hash of the order of `epoch`."""
        return order_hash(self._order.order(epoch))
