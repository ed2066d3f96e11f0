"""Means and metrics over a change of the world size, and what the ranks agree on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from elastic.tiny import loader

from selfsched.elastic.agreement import Agreement, Ranks, Reason, Wish, stride_for
from selfsched.elastic.carried import merge_accumulators, merged
from selfsched.elastic.loaders import sharded_loader
from selfsched.elastic.weights import weigh


def part(results: dict[str, Any], metrics: dict[str, Any]) -> dict[str, Any]:
    logged = {"results": results, "callback_metrics": {}, "first_loop_iter": False, "current_fx": None}
    return {"logged": logged, "metrics": metrics, "attributes": {}}


def accumulator(reduction: str, **state: float) -> dict[str, Any]:
    tensors = {name: torch.tensor(value) for name, value in state.items()}
    return {"is_tensor": True, "reduce_fx": reduction, "state": tensors}


def metric(updates: int, **states: tuple[str | None, Any]) -> dict[str, Any]:
    return {
        "updates": updates,
        "reductions": {name: reduction for name, (reduction, _) in states.items()},
        "state": {name: value for name, (_, value) in states.items()},
    }


@pytest.mark.parametrize(
    ("reduction", "expected", "empty"),
    [("mean", 7.0, 0.0), ("sum", 7.0, 0.0), ("max", 4.0, float("-inf")), ("min", 3.0, float("inf"))],
)
def test_rank_0_gets_the_whole_of_a_mean_and_the_others_nothing(
    reduction: str, expected: float, empty: float
) -> None:
    parts = [part({"loss": accumulator(reduction, value=value)}, {}) for value in (3.0, 4.0)]
    values = [merged(parts, rank)[0]["logged"]["results"]["loss"]["state"]["value"] for rank in range(3)]
    assert [float(value) for value in values] == [expected, empty, empty]


def test_a_key_that_only_one_rank_logged_is_kept() -> None:
    parts = [part({}, {}), part({"rare": accumulator("sum", value=2.0)}, {})]
    assert float(merged(parts, 0)[0]["logged"]["results"]["rare"]["state"]["value"]) == 2.0


def test_metrics_are_merged_by_their_own_reduction() -> None:
    ranks = [
        metric(2, total=("sum", torch.tensor(3.0)), top=("max", torch.tensor(5.0)),
               seen=("cat", [torch.tensor([1.0])]), flat=("cat", torch.tensor([1.0]))),
        metric(1, total=("sum", torch.tensor(4.0)), top=("max", torch.tensor(2.0)),
               seen=("cat", [torch.tensor([2.0])]), flat=("cat", torch.tensor([2.0]))),
    ]  # fmt: skip
    parts = [part({}, {"acc": each}) for each in ranks]
    whole = merged(parts, 0)[0]["metrics"]["acc"]
    assert (float(whole["state"]["total"]), float(whole["state"]["top"])) == (7.0, 5.0)
    assert torch.cat(whole["state"]["seen"]).tolist() == whole["state"]["flat"].tolist() == [1.0, 2.0]
    assert whole["updates"] == 3
    assert merged(parts, 1)[0]["metrics"] == {}


def test_a_metric_that_is_a_mean_of_ranks_is_the_same_on_all() -> None:
    ranks = [metric(3, value=("mean", torch.tensor(1.0))), metric(1, value=("mean", torch.tensor(5.0)))]
    parts = [part({}, {"acc": each}) for each in ranks]
    for rank in range(2):
        assert float(merged(parts, rank)[0]["metrics"]["acc"]["state"]["value"]) == 2.0
    unused = [part({}, {"acc": metric(0, value=("mean", torch.tensor(0.0)))})] * 2
    assert float(merged(unused, 0)[0]["metrics"]["acc"]["state"]["value"]) == 0.0


def test_a_metric_without_a_reduction_goes_on_from_rank_0_and_is_named() -> None:
    parts = [part({}, {"own": metric(1, value=(None, torch.tensor(float(rank))))}) for rank in range(2)]
    for rank in range(2):
        found, unmergeable = merged(parts, rank)
        assert unmergeable == ["own"]
        assert float(found["metrics"]["own"]["state"]["value"]) == 0.0


def test_accumulators_of_ranks_are_summed_or_compared() -> None:
    states = [
        {"value": torch.tensor(value), "count": torch.tensor(count)} for value, count in ((2.0, 1), (6.0, 3))
    ]
    whole = merge_accumulators("mean", states)
    assert (float(whole["value"]), int(whole["count"])) == (8.0, 4)


def test_a_loss_is_weighted_in_its_gradient_alone() -> None:
    for weight, expected in ((1.0, 2.0), (0.5, 1.0), (0.0, 0.0)):
        parameter = torch.tensor(3.0, requires_grad=True)
        loss = 2 * parameter
        weigh(loss, weight)
        loss.backward()
        assert float(loss.detach()) == 6.0
        assert float(parameter.grad) == expected  # type: ignore[arg-type]


def test_a_loss_without_a_gradient_is_left_alone() -> None:
    weigh(torch.tensor(1.0), 0.5)


class Together(Ranks):
    """Rank 0 of two; the other one's wishes are given."""

    def __init__(self, other: list[int]) -> None:
        super().__init__(world_size=2, rank=0)
        self.other = other
        self.exchanges = 0

    @property
    def alone(self) -> bool:
        return False

    def maximum(self, values: list[int]) -> list[int]:
        self.exchanges += 1
        return [max(pair) for pair in zip(values, [*self.other, 0], strict=True)]


def test_what_one_rank_wants_all_do() -> None:
    agreement = Agreement(Together([int(Reason.ORDERED), 1]))
    assert agreement.exchange(Wish(), 0.1) == Wish(Reason.ORDERED, save=True)
    stronger = Agreement(Together([int(Reason.ORDERED), 0]))
    assert stronger.exchange(Wish(Reason.STOPPED), 0.1) == Wish(Reason.STOPPED)


@pytest.mark.parametrize(("step_seconds", "stride"), [(0.01, 20), (0.5, 1), (0.0005, 400), (None, 1)])
def test_ranks_talk_so_seldom_that_it_costs_a_thousandth_of_a_step(
    step_seconds: float | None, stride: int
) -> None:
    assert stride_for(0.0002, step_seconds) == stride
    assert stride_for(None, 0.01) == 1


def test_ranks_talk_twice_a_second_however_dear_the_talk() -> None:
    assert stride_for(1.0, 0.1) == 5


def test_one_quick_step_among_slow_ones_does_not_put_the_next_talk_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr("selfsched.elastic.agreement.time.perf_counter", lambda: clock[0])
    agreement = Agreement(Together([0, 0]))
    agreement._cost_seconds = 1.0  # dear: only the longest stride bounds it
    gaps = []
    for _ in range(4):
        began = clock[0]
        for _ in range(agreement.stride):
            clock[0] += 0.05
        gaps.append(clock[0] - began)
        agreement.exchange(Wish(), 0.05)
        agreement._cost_seconds = 1.0
        clock[0] += 0.05
        agreement._stride = 1
        agreement.exchange(Wish(), 0.001)  # the quickest step ever, though the mean is fifty times that
        agreement._cost_seconds = 1.0
    assert max(gaps) <= 0.5 + 1e-9


def test_a_stride_is_kept_between_two_exchanges() -> None:
    ranks = Together([0, 0])
    agreement = Agreement(ranks)
    agreement._stride = 4
    assert [agreement.due() for _ in range(8)] == [False, False, False, True] * 2


def test_one_rank_asks_nobody() -> None:
    agreement = Agreement(Ranks(1, 0))
    assert agreement.due()
    assert agreement.exchange(Wish(Reason.ORDERED), None) == Wish(Reason.ORDERED)
    assert agreement.stride == 1
    assert Ranks(1, 0).gathered("x") == ["x"]
    Ranks(1, 0).barrier()


def test_validation_is_sharded_only_where_that_was_asked_for() -> None:
    whole = loader(10, shuffle=False)
    assert sharded_loader(whole, 1, 0) is whole
    shares = [[int(i) for batch in sharded_loader(whole, 2, rank) for i in batch[0]] for rank in range(2)]
    assert sorted(shares[0] + shares[1]) == list(range(10))
