"""Loaders rebuilt around the elastic sampler, and which loaders can be."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from selfsched.elastic.noise import mixed_seed
from selfsched.elastic.sampler import (
    BatchLayout,
    Drawn,
    ElasticSampler,
    EpochOrder,
    InOrder,
    Position,
    Shuffled,
)

# What a DataLoader is made with, besides its samplers; later names exist in newer torch only.
_KEPT = (
    "dataset", "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "prefetch_factor",
    "multiprocessing_context", "persistent_workers", "pin_memory_device", "in_order",
)  # fmt: skip


class LazyIterator(Iterator[Any]):
    """Makes the real iterator when the first batch is wanted.

    Lightning asks for an iterator before it has loaded the checkpoint; workers that
    prefetch would then fetch from the wrong place.
    """

    def __init__(self, loader: ElasticLoader) -> None:
        self._loader = loader
        self._iterator: Iterator[Any] | None = None

    def __next__(self) -> Any:
        if self._iterator is None:
            self._iterator = self._loader.iterate_from_here()
        return next(self._iterator)


class ElasticLoader(DataLoader):  # type: ignore[misc]  # torch is not followed
    """A DataLoader over an `ElasticSampler`."""

    def __init__(self, elastic: ElasticSampler, noise_seed: int, position: Position, **kept: Any) -> None:
        super().__init__(batch_sampler=elastic, **kept)
        self.elastic = elastic
        self._noise_seed = noise_seed
        self._position = position

    def __iter__(self) -> Iterator[Any]:
        return LazyIterator(self)

    def iterate_from_here(self) -> Iterator[Any]:
        """An iterator from where the run stands, its workers seeded by that place."""
        self.generator = torch.Generator()
        self.generator.manual_seed(mixed_seed(self._noise_seed, *self._position(), self.elastic.layout.rank))
        return super().__iter__()  # type: ignore[no-any-return]

    def state_dict(self) -> dict[str, Any]:
        """Lightning then knows that the position in the epoch is exact."""
        return {"global_batch": self.elastic.layout.global_batch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to load: the trainer's progress is the position."""


@dataclass(frozen=True)
class Unfit:
    """Why a loader cannot be made elastic."""

    code: str
    """Row of the support table."""
    found: str
    """What it is."""


def unfit(loader: Any) -> Unfit | None:
    """None if the loader can be rebuilt, else why not."""
    if not isinstance(loader, DataLoader):
        several = isinstance(loader, list | tuple | dict) or type(loader).__name__ == "CombinedLoader"
        return Unfit("several_loaders" if several else "loader_subclass", f"a {type(loader).__name__}")
    if type(loader) is not DataLoader:
        return Unfit("loader_subclass", type(loader).__name__)
    if isinstance(loader.dataset, IterableDataset):
        return Unfit("iterable_dataset", type(loader.dataset).__name__)
    if loader.batch_sampler is None:
        return Unfit("own_batch_sampler", "batch_size=None")
    if type(loader.batch_sampler) is not BatchSampler:
        return Unfit("own_batch_sampler", type(loader.batch_sampler).__name__)
    return None


def is_plain(loader: Any) -> bool:
    """Whether its order is the dataset's own or a plain permutation, so that no sampler is drawn."""
    sampler = loader.batch_sampler.sampler
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == len(loader.dataset)
    return type(sampler) in (SequentialSampler, DistributedSampler)


def epoch_order(loader: Any, seed: int) -> EpochOrder:
    """The order of a loader's samples. Raises Unsupported for a sampler that is not steady."""
    sampler = loader.batch_sampler.sampler
    if not is_plain(loader):
        return Drawn(sampler, seed)
    shuffled = type(sampler) is RandomSampler or (type(sampler) is DistributedSampler and sampler.shuffle)
    samples = len(loader.dataset)
    return Shuffled(samples, seed) if shuffled else InOrder(samples)


def elastic_loader(
    loader: Any, *, seed: int, global_batch: int, world_size: int, rank: int, position: Position
) -> ElasticLoader:
    """`loader` again, giving this rank's share of global batches.

    Args:
        loader: One for which `unfit` is None.
        seed: Of the order, the same on all ranks and in all segments.
        global_batch: Samples in one step over all ranks.
        world_size: Ranks.
        rank: This one.
        position: (epoch, batches done), asked when an iterator's first batch is wanted.
    """
    order = epoch_order(loader, seed)
    layout = BatchLayout(len(order), global_batch, world_size, rank, loader.batch_sampler.drop_last)
    kept = {name: getattr(loader, name) for name in _KEPT if hasattr(loader, name)}
    if not kept.get("pin_memory_device"):
        kept.pop("pin_memory_device", None)
    return ElasticLoader(ElasticSampler(order, layout, position), seed, position, **kept)


def sharded_loader(loader: Any, world_size: int, rank: int) -> Any:
    """A validation loader that gives each rank a part, padded to equal length as Lightning does."""
    if unfit(loader) is not None or world_size == 1:
        return loader
    sampler = DistributedSampler(loader.dataset, num_replicas=world_size, rank=rank, shuffle=False)
    kept = {name: getattr(loader, name) for name in _KEPT if hasattr(loader, name)}
    if not kept.get("pin_memory_device"):
        kept.pop("pin_memory_device", None)
    batches = loader.batch_sampler
    return DataLoader(batch_size=batches.batch_size, drop_last=batches.drop_last, sampler=sampler, **kept)
