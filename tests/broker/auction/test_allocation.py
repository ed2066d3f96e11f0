"""The best division: against every division there is, by both exact ways."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from selfsched_broker.core import allocation
from selfsched_broker.core.allocation import Choice, Division, Question, divide


def brute_force(question: Question) -> float:
    """The largest sum of gains over every combination of choices."""
    best = -np.inf
    for combination in itertools.product(*question.choices.values()):
        used: dict[str, int] = {}
        devices = [d for choice in combination for d in choice.exactly]
        for choice in combination:
            for node, count in choice.draws.items():
                used[node] = used.get(node, 0) + count
        fits = all(used.get(node, 0) <= room for node, room in question.seats.items())
        within = all(
            sum(c.devices for c in combination if c.job in members) <= limit
            for members, limit in question.limits
        )
        if fits and within and len(devices) == len(set(devices)):
            best = max(best, sum(choice.gain for choice in combination))
    return best


def random_question(rng: np.random.Generator, *, limits: bool = False, exact: bool = False) -> Question:
    nodes = {f"n{i}": int(rng.integers(0, 5)) for i in range(rng.integers(1, 4))}
    choices: dict[str, list[Choice]] = {}
    for j in range(rng.integers(1, 5)):
        job = f"j{j}"
        own = [Choice(job, 0, {}, 0.0, 0.0)]
        for _ in range(rng.integers(0, 5)):
            picked = rng.choice(sorted(nodes), size=min(len(nodes), int(rng.integers(1, 3))), replace=False)
            draws = {str(node): int(rng.integers(1, 4)) for node in picked}
            gain = float(rng.normal(1.0, 1.0))
            pinned = frozenset(f"{node}/0" for node in draws) if exact and rng.random() < 0.5 else frozenset()
            own.append(Choice(job, sum(draws.values()), draws, gain, gain, pinned))
        choices[job] = own
    groups = [(frozenset(list(choices)[:2]), int(rng.integers(0, 6)))] if limits else []
    return Question(nodes, choices, groups)


def check_feasible(question: Question, chosen: dict[str, Choice]) -> float:
    for node, room in question.seats.items():
        assert sum(choice.draws.get(node, 0) for choice in chosen.values()) <= room
    return sum(choice.gain for choice in chosen.values())


@pytest.mark.parametrize("seed", range(40))
def test_counts_find_the_optimum_and_the_optimum_without_each_job(seed: int) -> None:
    question = random_question(np.random.default_rng(seed))
    division = divide(question)
    assert division.method == "counts"
    assert check_feasible(question, dict(division.chosen)) == pytest.approx(division.gain)
    assert division.gain == pytest.approx(brute_force(question))
    assert division.bound == division.gain
    for job, others in division.without.items():
        rest = {name: own for name, own in question.choices.items() if name != job}
        alone = Question(question.seats, rest)
        assert check_feasible(alone, dict(others)) == pytest.approx(brute_force(alone))


@pytest.mark.parametrize("seed", range(25))
def test_milp_finds_the_same_optimum(seed: int) -> None:
    question = random_question(np.random.default_rng(seed))
    by_counts = divide(question)
    by_milp = divide(question, method="milp")
    assert by_milp.method == "milp"
    assert by_milp.gain == pytest.approx(by_counts.gain)
    assert by_milp.bound == pytest.approx(by_milp.gain)
    assert by_milp.without.keys() == by_counts.without.keys()
    for job, others in by_milp.without.items():
        expected = sum(choice.gain for choice in by_counts.without[job].values())
        assert sum(choice.gain for choice in others.values()) == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize(("limits", "exact"), [(True, False), (False, True), (True, True)])
def test_quotas_and_devices_wanted_by_two_are_kept(seed: int, limits: bool, exact: bool) -> None:
    question = random_question(np.random.default_rng(seed), limits=limits, exact=exact)
    assert divide(question).gain == pytest.approx(brute_force(question))


def test_nothing_to_divide_and_nobody_to_divide_among() -> None:
    idle = Choice("a", 0, {}, -1.0, -1.0)
    assert divide(Question({}, {})).chosen == {}
    division = divide(Question({}, {"a": [idle]}))
    assert division.chosen == {"a": idle}
    assert division.gain == -1.0


@pytest.mark.parametrize(("name", "value"), [("MILP_NODES", 1), ("MILP_SECONDS", 0.0)])
def test_a_solver_that_runs_out_of_nodes_or_time_tells_its_gap(
    monkeypatch: pytest.MonkeyPatch, name: str, value: float
) -> None:
    """Whatever it returns is feasible, and the bound is above the true optimum."""
    rng = np.random.default_rng(5)
    choices = {}
    for j in range(30):
        own = [Choice(f"j{j}", 0, {}, 0.0, 0.0)]
        for node in ("a", "b", "c"):
            for n in (2, 3, 5):
                gain = float(n + rng.normal(0, 0.3))
                own.append(Choice(f"j{j}", n, {node: n}, gain, gain))
        choices[f"j{j}"] = own
    question = Question({"a": 7, "b": 11, "c": 13}, choices)
    exact = divide(question)
    monkeypatch.setattr(allocation, "MOST_RESOLVED", 0)
    monkeypatch.setattr(allocation, name, value)
    division: Division = divide(question, method="milp")
    assert check_feasible(question, dict(division.chosen)) == pytest.approx(division.gain)
    assert division.gain <= exact.gain + 1e-6
    assert division.bound >= exact.gain - 1e-6
    assert division.without == {}
    if name == "MILP_SECONDS":
        assert division.bound > division.gain, "nothing found: everything stays as it is"


def test_the_only_job_pays_by_milp_what_it_pays_by_counts() -> None:
    own = [Choice("a", 0, {}, 0.0, 0.0), Choice("a", 1, {"n": 1}, 1.0, 1.0)]
    assert divide(Question({"n": 1}, {"a": own}), method="milp").without == {"a": {}}
