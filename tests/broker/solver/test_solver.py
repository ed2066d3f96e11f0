"""The solver against integer programming over everything, and its promises about any question."""

from __future__ import annotations

import numpy as np
import pytest
from broker.solver.problems import build, check_division, random_problem
from hypothesis import given, settings
from hypothesis import strategies as st

from selfsched_broker.core.solver import dual
from selfsched_broker.core.solver.dual import evaluate, harm, price
from selfsched_broker.core.solver.exact import Effort, solve_milp
from selfsched_broker.core.solver.laying import place
from selfsched_broker.core.solver.packing import Board, fits, pack
from selfsched_broker.core.solver.payments import solve_without
from selfsched_broker.core.solver.problem import Anchor, Problem
from selfsched_broker.core.solver.solve import solve

EVERYTHING = Effort(milp_seconds=60.0, milp_nodes=10**6)
NO_MILP = Effort(most_columns=0)


def optimum(problem: Problem) -> float:
    """By integer programming over all options: the oracle."""
    chosen, bound = solve_milp(problem, np.ones(len(problem.gain), bool), EVERYTHING)
    assert chosen is not None
    check_division(problem, chosen.tolist())
    assert problem.gain[chosen].sum() == pytest.approx(bound, abs=1e-6)
    return float(problem.gain[chosen].sum())


@pytest.mark.parametrize(
    ("nodes", "models", "jobs", "held"), [(1, 1, 5, 0.0), (4, 2, 12, 0.6), (9, 3, 25, 0.3)]
)
@pytest.mark.parametrize("seed", range(4))
def test_the_optimum_is_found_and_proved(seed: int, nodes: int, models: int, jobs: int, held: float) -> None:
    problem = random_problem(np.random.default_rng(seed), nodes=nodes, models=models, jobs=jobs, held=held)
    solution = solve(problem)
    check_division(problem, solution.chosen.tolist())
    assert solution.gain == pytest.approx(optimum(problem), abs=1e-6)
    assert solution.gap <= 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_without_integer_programming_the_gap_is_small_and_its_bound_true(seed: int) -> None:
    problem = random_problem(np.random.default_rng(seed), nodes=40, models=2, jobs=120, held=0.4)
    quick = solve(problem, NO_MILP)
    check_division(problem, quick.chosen.tolist())
    exact = solve(problem, EVERYTHING)
    assert quick.bound >= exact.gain - 1e-6
    assert quick.gap / problem.jobs < 0.005


def test_bad_prices_still_prove_a_bound() -> None:
    problem = random_problem(np.random.default_rng(1), nodes=3, models=1, jobs=8)
    best = optimum(problem)
    for scale in (0.0, 0.01, 0.3, 5.0):
        values = scale * np.arange(1, problem.width + 1, dtype=float)
        assert evaluate(problem, values).bound >= best - 1e-9


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 6), st.integers(0, 9), st.sampled_from([0.0, 0.7]))
def test_any_division_fits_is_undominated_and_leaves_nothing_to_gain(
    seed: int, nodes: int, jobs: int, held: float
) -> None:
    """Never more than there is; no single job could do better with the rest as it is."""
    rng = np.random.default_rng(seed)
    problem = random_problem(rng, nodes=nodes, models=1 + seed % 2, jobs=jobs, width=4, held=held)
    solution = solve(problem, NO_MILP)
    check_division(problem, solution.chosen.tolist())
    assert solution.bound >= solution.gain - 1e-9
    board = Board(problem)
    for job, option in enumerate(solution.chosen.tolist()):
        board.take(job, option)
    for option in np.flatnonzero(problem.gain > problem.gain[solution.chosen][problem.job] + 1e-9):
        assert not board.try_swap(problem.job_of(int(option)), int(option))


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6))
def test_what_fits_on_counts_can_be_placed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    nodes = [(0, int(free)) for free in rng.integers(1, 9, size=rng.integers(1, 6))]
    sizes = rng.integers(1, 1 + max(free for _, free in nodes), size=rng.integers(1, 12))
    problem = build(nodes, [[(1.0, {(0, int(size)): 1}, None)] for size in sizes])
    board = Board(problem)
    for job in range(problem.jobs):
        board.take(job, job)
    if board.fits():
        check_division(problem, list(range(problem.jobs)))
        assert board.slack().min() >= 0, "the quick test is necessary"


def test_best_fit_decreasing_by_hand() -> None:
    assert fits([0, 0, 2, 0, 1], [0, 0, 0, 0, 2])
    assert not fits([0, 0, 0, 2, 0], [0, 0, 0, 1, 0])
    assert fits([0, 2, 3, 0, 0], [0, 0, 0, 0, 2])
    assert not fits([0, 0, 4, 0, 0], [0, 1, 1, 0, 1])


def test_a_node_one_was_on_is_taken_where_it_fits_as_well() -> None:
    table = [(1.0, {(0, 2): 1}, None)]
    problem = build([(0, 4), (0, 4), (0, 2)], [table, table])
    assert place(problem, [0, 1], [(), ()]) == [{2: 2}, {0: 2}]
    assert place(problem, [0, 1], [(), (2,)]) == [{0: 2}, {2: 2}]
    spread = build([(0, 2), (0, 2)], [[(1.0, {(0, 1): 2}, None)], [(1.0, {(0, 1): 2}, None)]])
    assert place(spread, [0, 1], [(), ()]) == [{0: 1, 1: 1}, {0: 1, 1: 1}]


def test_a_node_with_a_sick_device_is_left_where_another_has_room() -> None:
    problem = build([(0, 2), (0, 4)], [[(1.0, {(0, 2): 1}, None)], [(1.0, {(0, 2): 1}, None)]])
    assert place(problem, [0], [()], avoided={0}) == [{1: 2}]
    assert place(problem, [0, 1], [(), ()], avoided={0}) == [{1: 2}, {1: 2}]
    assert place(problem, [0], [()], avoided={0, 1}) == [{0: 2}]
    full = build([(0, 2), (0, 1)], [[(1.0, {(0, 2): 1}, None)]])
    assert place(full, [0], [()], avoided={0}) == [{0: 2}]


def test_nodes_of_others_who_would_have_to_move_come_last() -> None:
    problem = build([(0, 4), (0, 4), (0, 4)], [[(1.0, {(0, 2): 1}, None)], [(1.0, {(0, 4): 1}, None)]])
    assert place(problem, [0, 1], [(), ()], others={0: 3, 1: 1}) == [{1: 2}, {2: 4}]


def test_a_limit_of_a_group_holds_and_its_price_enters_the_bound() -> None:
    rng = np.random.default_rng(3)
    tables = [
        [
            (0.0, {}, None),
            *((float(np.log1p(n * rng.uniform(0.8, 1.2))), {(0, n): 1}, None) for n in (1, 2, 4)),
        ]
        for _ in range(6)
    ]
    problem = build([(0, 8), (0, 8)], tables, groups=[0, 0, 0, 1, -1, -1], limits=[4, 1])
    solution = solve(problem)
    check_division(problem, solution.chosen.tolist())
    assert solution.gain == pytest.approx(optimum(problem), abs=1e-6)
    held = problem.devices[solution.chosen]
    assert held[:3].sum() == 4
    assert held[3] == 1


def test_two_who_insist_on_one_device_do_not_both_get_it() -> None:
    tables = [
        [(0.0, {}, None), (1.0, {}, Anchor(((0, 1),), frozenset({"n/0"})))],
        [(0.0, {}, None), (2.0, {}, Anchor(((0, 2),), frozenset({"n/0", "n/1"})))],
        [(0.0, {}, None), (0.5, {(0, 1): 1}, None)],
    ]
    for effort in (Effort(), NO_MILP):
        solution = solve(build([(0, 3)], tables), effort)
        assert solution.chosen.tolist() == [0, 3, 5]


def test_a_job_that_must_stay_keeps_its_place_until_it_has_a_better_one() -> None:
    """It has no option that draws nothing; the others would pay more for its devices."""
    stay = Anchor(((0, 2),), frozenset({"n/0", "n/1"}))
    rich = [(0.0, {}, None), (9.0, {(0, 2): 1}, None)]
    bound = [(0.1, {}, stay), (0.2, {(0, 2): 1}, None)]
    assert solve(build([(0, 2)], [bound, rich])).chosen[1] == 2
    assert solve(build([(0, 2), (0, 2)], [bound, rich])).gain == pytest.approx(9.2)


@pytest.mark.parametrize("seed", range(3))
def test_without_a_winner_the_others_reach_their_own_optimum(seed: int) -> None:
    problem = random_problem(np.random.default_rng(seed), nodes=4, models=2, jobs=12, held=0.5)
    solution = solve(problem)
    estimated = harm(problem, solution.prices, solution.chosen)
    assert np.all(estimated >= 0)
    for job in np.flatnonzero(problem.devices[solution.chosen])[:5].tolist():
        chosen, rest = solve_without(problem, solution, job, Effort())
        assert chosen[job] == -1
        others = np.delete(chosen, job)
        assert problem.gain[others].sum() == pytest.approx(rest.gain)
        tables_of_others = problem.job != job
        best, _ = solve_milp(problem, tables_of_others | _zero_option(problem, job), EVERYTHING)
        assert best is not None
        assert rest.gain == pytest.approx(float(np.delete(problem.gain[best], job).sum()), abs=1e-6)


def test_without_the_only_job_there_is_nothing_to_divide() -> None:
    problem = build([(0, 2)], [[(0.0, {}, None), (1.0, {(0, 1): 1}, None)]])
    chosen, rest = solve_without(problem, solve(problem), 0, Effort())
    assert chosen.tolist() == [-1]
    assert rest.gain == 0.0


def _zero_option(problem: Problem, job: int) -> np.ndarray:
    marked = np.zeros(len(problem.gain), bool)
    marked[problem.first[job]] = True
    return marked


def test_prices_of_a_similar_question_are_a_good_start() -> None:
    problem = random_problem(np.random.default_rng(5), nodes=30, models=2, jobs=80)
    cold = price(problem)
    warm = price(problem, cold.values * 1.02)
    assert warm.bound == pytest.approx(cold.bound, abs=0.05)


def test_prices_that_break_their_constraints_are_no_worse_a_start() -> None:
    problem = random_problem(np.random.default_rng(6), nodes=10, models=2, jobs=30)
    cold = price(problem)
    for values in (np.zeros_like(cold.values), cold.values[::-1].copy()):
        assert price(problem, values).bound == pytest.approx(cold.bound, abs=0.05)


def test_a_curve_that_bends_the_wrong_way_still_gives_a_direction() -> None:
    """Rounding can do that at the coldest temperature."""
    assert np.all(np.isfinite(dual._solve(-np.eye(2), np.ones(2))))


def test_out_of_time_the_best_found_is_taken_with_its_gap() -> None:
    problem = random_problem(np.random.default_rng(8), nodes=20, models=2, jobs=90)
    late, exact = solve(problem, Effort(milp_seconds=0.0)), solve(problem)
    check_division(problem, late.chosen.tolist())
    assert late.gain <= exact.gain + 1e-9
    assert late.bound >= exact.gain - 1e-9
    assert late.gap > 0


def test_what_does_not_fit_cannot_be_placed() -> None:
    problem = build([(0, 2)], [[(1.0, {(0, 2): 1}, None)], [(1.0, {(0, 2): 1}, None)]])
    with pytest.raises(ValueError, match="2 pieces do not fit"):
        place(problem, [0, 1], [(), ()])


def test_a_packing_that_best_fit_does_not_find_is_found() -> None:
    """Slots of 6 and 4 take 3, 3 and 2, 2; best fit puts the first 3 into the 4."""
    assert not fits([0, 0, 2, 2, 0, 0, 0], [0, 0, 0, 0, 1, 0, 1])
    assert pack([0, 0, 2, 2, 0, 0, 0], [0, 0, 0, 0, 1, 0, 1]) == [(3, 6), (3, 3), (2, 4), (2, 2)]
    assert pack([0, 0, 2, 2, 0, 0, 0], [0, 0, 0, 0, 1, 0, 1], budget=2) is None
    assert pack([0, 501], [0, 501]) is None, "not tried"
    assert pack([0, 0, 0, 2, 0], [0, 0, 1, 0, 1]) is None
    sizes = [3, 3, 2, 2]
    problem = build([(0, 6), (0, 4)], [[(0.0, {}, None), (1.0, {(0, n): 1}, None)] for n in sizes])
    assert optimum_gain(problem) == pytest.approx(4.0)
    solution = solve(problem)
    check_division(problem, solution.chosen.tolist())
    assert solution.gain == pytest.approx(4.0)


def optimum_gain(problem: Problem) -> float:
    """As `optimum`, without placing it."""
    chosen, _ = solve_milp(problem, np.ones(len(problem.gain), bool), EVERYTHING)
    assert chosen is not None
    return float(problem.gain[chosen].sum())


def test_questions_without_an_answer_are_refused() -> None:
    with pytest.raises(ValueError, match="not a finite number"):
        solve(build([(0, 1)], [[(float("nan"), {}, None)]]))
    with pytest.raises(ValueError, match="no option at all"):
        solve(build([(0, 1)], [[]]))
    assert solve(build([(0, 1)], [])).gain == 0.0
