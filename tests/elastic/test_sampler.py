"""The elastic sampler: every index once an epoch, over any worlds, cuts and lengths (T1, T2)."""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Sampler, WeightedRandomSampler

from selfsched.elastic.noise import mixed_seed
from selfsched.elastic.sampler import BatchLayout, Drawn, ElasticSampler, InOrder, Shuffled
from selfsched.errors import Unsupported


@st.composite
def runs(draw: st.DrawFn) -> dict[str, object]:
    """A dataset, a global batch, and segments: (world size, batches before the cut)."""
    global_batch = draw(st.sampled_from([1, 2, 3, 4, 6, 7, 8, 12]))
    worlds = range(1, 9)  # also such as do not divide the batch
    segment = st.tuples(st.sampled_from(worlds), st.integers(0, 12))
    return {
        "samples": draw(st.integers(1, 60)),
        "global_batch": global_batch,
        "segments": draw(st.lists(segment, min_size=1, max_size=6)),
        "epochs": draw(st.integers(1, 3)),
        "drop_last": draw(st.booleans()),
        "shuffled": draw(st.booleans()),
        "last_world": draw(st.sampled_from(worlds)),
    }


def play(run: dict, epochs: int) -> list[tuple[int, int, list[list[int]]]]:
    """Train as a trainer would: (epoch, batch, indices of each rank), over all segments."""
    order = Shuffled(run["samples"], 5) if run["shuffled"] else InOrder(run["samples"])
    done: list[tuple[int, int, list[list[int]]]] = []
    epoch = batch = 0
    for world, length in [*run["segments"], (run["last_world"], 10_000)]:
        left = length
        while left and epoch < epochs:
            at = (epoch, batch)
            layouts = [
                BatchLayout(run["samples"], run["global_batch"], world, rank, run["drop_last"])
                for rank in range(world)
            ]
            samplers = [ElasticSampler(order, layout, lambda at=at: at) for layout in layouts]
            iterators = [iter(sampler) for sampler in samplers]
            total = len(samplers[0])
            while left and batch < total:
                shares = []
                for iterator, layout in zip(iterators, layouts, strict=True):
                    indices = next(iterator)
                    shares.append(indices if layout.weight(batch) > 0 else [])
                done.append((epoch, batch, shares))
                batch += 1
                left -= 1
            if batch == total:
                for iterator in iterators:
                    assert next(iterator, None) is None
                epoch, batch = epoch + 1, 0
                if total == 0:
                    left -= 1
    return done


@settings(max_examples=300, deadline=None)
@given(runs())
def test_every_index_is_seen_once_an_epoch_whatever_the_worlds_and_the_cuts(run: dict) -> None:
    epochs = run["epochs"]
    seen = Counter(
        (epoch, index) for epoch, _, shares in play(run, epochs) for share in shares for index in share
    )
    whole = run["samples"] - (run["samples"] % run["global_batch"] if run["drop_last"] else 0)
    assert all(count == 1 for count in seen.values())
    for epoch in range(epochs):
        assert sum(1 for at, _ in seen if at == epoch) == whole


@settings(max_examples=100, deadline=None)
@given(runs())
def test_batches_are_those_of_one_device_at_every_world_size(run: dict) -> None:
    alone = {**run, "segments": [], "last_world": 1}
    expected = [(epoch, batch, shares[0]) for epoch, batch, shares in play(alone, run["epochs"])]
    found = [
        (epoch, batch, [index for share in shares for index in share])
        for epoch, batch, shares in play(run, run["epochs"])
    ]
    assert found == expected


SIZES = st.sampled_from([1, 2, 3, 4, 6, 12])


@given(st.integers(1, 40), SIZES, SIZES, st.booleans())
def test_weights_make_the_mean_over_ranks_the_mean_over_samples(
    samples: int, global_batch: int, world: int, drop_last: bool
) -> None:
    layouts = [BatchLayout(samples, global_batch, world, rank, drop_last) for rank in range(world)]
    for batch in range(layouts[0].batches):
        first, last = layouts[0].bounds(batch)
        for layout in layouts:
            mine, end = layout.share(batch)
            if mine == end:
                assert layout.weight(batch) == 0
                continue
            # What one sample counts after the rank's mean and the mean over ranks.
            weight = Fraction(end - mine) * world / (last - first)
            assert layout.weight(batch) == pytest.approx(float(weight))
            assert weight / (end - mine) / world == Fraction(1, last - first)


def test_a_full_batch_that_the_world_divides_is_not_weighted() -> None:
    layout = BatchLayout(samples=16, global_batch=8, world_size=4, rank=3)
    assert [layout.weight(batch) for batch in range(2)] == [1.0, 1.0]


def test_a_rank_without_a_sample_repeats_the_first_of_the_batch() -> None:
    layout = BatchLayout(samples=5, global_batch=4, world_size=4, rank=2)
    sampler = ElasticSampler(InOrder(5), layout, lambda: (0, 0))
    assert list(sampler) == [[2], [4]]
    assert layout.weight(1) == 0.0


def test_the_position_is_asked_only_when_the_first_batch_is_wanted() -> None:
    position = [0, 0]
    layout = BatchLayout(samples=8, global_batch=2, world_size=1, rank=0)
    sampler = ElasticSampler(InOrder(8), layout, lambda: (position[0], position[1]))
    iterator = iter(sampler)
    position[:] = [0, 3]
    assert list(iterator) == [[6, 7]]


def test_the_length_is_that_of_the_whole_epoch_in_the_middle_of_one() -> None:
    layout = BatchLayout(samples=9, global_batch=2, world_size=2, rank=1)
    assert len(ElasticSampler(InOrder(9), layout, lambda: (0, 4))) == 5


def test_orders_differ_between_epochs_and_seeds_and_are_found_again() -> None:
    order = Shuffled(50, seed=1)
    assert torch.equal(order.order(3), Shuffled(50, seed=1).order(3))
    assert not torch.equal(order.order(3), order.order(4))
    assert not torch.equal(order.order(3), Shuffled(50, seed=2).order(3))
    assert sorted(order.order(3).tolist()) == list(range(50))


def test_drawing_an_order_leaves_the_random_states_alone() -> None:
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    expected = torch.rand(2).tolist(), np.random.rand(), random.random()
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)
    Drawn(WeightedRandomSampler([1.0, 2.0, 3.0], 30), seed=4).order(2)
    assert (torch.rand(2).tolist(), np.random.rand(), random.random()) == expected


def test_an_own_sampler_is_drawn_the_same_each_time() -> None:
    weights = [float(index + 1) for index in range(20)]
    generator = torch.Generator()
    first = Drawn(WeightedRandomSampler(weights, 40), seed=4)
    second = Drawn(WeightedRandomSampler(weights, 40, generator=generator), seed=4)
    for epoch in range(3):
        assert torch.equal(first.order(epoch), first.order(epoch))
        assert torch.equal(second.order(epoch), second.order(epoch))
    assert not torch.equal(first.order(0), first.order(1))


class Restless(Sampler[int]):
    """Each draw differs, whatever the seed."""

    def __init__(self) -> None:
        self.draws = 0

    def __iter__(self):  # type: ignore[no-untyped-def]
        self.draws += 1
        return iter([self.draws, self.draws + 1])


def test_an_own_sampler_that_cannot_be_drawn_again_is_refused() -> None:
    with pytest.raises(Unsupported, match="Restless is not reproducible"):
        Drawn(Restless(), seed=0)


class Shrinking(Sampler[int]):
    """Fewer samples in each epoch."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(range(10 - self.epoch))


def test_an_own_sampler_whose_length_changes_is_refused() -> None:
    drawn = Drawn(Shrinking(), seed=0)
    assert len(drawn) == 10
    with pytest.raises(Unsupported, match="9 samples in epoch 1, 10 in epoch 0"):
        drawn.order(1)


def test_a_mixed_seed_depends_on_every_part_and_their_order() -> None:
    parts = [(1, 2, 3), (1, 3, 2), (1, 23), (12, 3), (0, 2, 3)]
    seeds = {mixed_seed(*each) for each in parts}
    assert len(seeds) == len(parts)
    assert all(0 <= seed < 2**63 for seed in seeds)
