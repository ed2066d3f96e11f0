"""The population's fit against known truth: what made the synthetic jobs is found again."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfsched.core.performance import EVIDENCE, Z_LEVELS, SeenStep, StepTimeModel, documented_prior, refusal
from selfsched.core.population import Population, Visited, fit_population, visited_of
from selfsched.core.step_form import INDEX, JOB_SIGMA, NAMES, TYPICAL, Array, Spot, Spots, log_step
from selfsched.protocol import HardwarePrior, Moments, Placement, StepStatistics, parse

HARDWARE = "Tesla-T4"
SPOTS = [
    *(Spot(devices=k) for k in (1, 2, 3, 4)),
    *(Spot(devices=n * k, nodes=n) for n in (2, 3, 4) for k in (1, 2, 4)),
]


def truth(**changed: float) -> Array:
    parameters = TYPICAL.copy()
    for name, value in changed.items():
        parameters[INDEX[name]] = value
    return parameters


def jobs(
    parameters: Array, count: int, *, seed: int, hardware: str = HARDWARE, spread: float = 0.5
) -> list[Visited]:
    """Jobs of several sizes whose own parameters lie around `parameters`."""
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        own = parameters + spread * JOB_SIGMA * rng.standard_normal(len(NAMES))
        gradient_bytes = int(10 ** rng.uniform(7, 8.7))
        log_compute = np.array([rng.uniform(math.log(0.03), math.log(0.5))])
        logs = log_step(own, log_compute, Spots.of(SPOTS), np.array([math.log(gradient_bytes)]))[0]
        logs = logs + 0.02 * rng.standard_normal(len(SPOTS))
        steps = tuple((spot, float(y)) for spot, y in zip(SPOTS, logs, strict=True))
        made.append(
            Visited(job=f"{hardware}-{number}", hardware=hardware, gradient_bytes=gradient_bytes, steps=steps)
        )
    return made


@pytest.fixture(scope="module")
def learned() -> tuple[Array, Population]:
    parameters = truth(inside=math.log(4e9), across=math.log(5e8), crowd=-0.05, more=0.4)
    return parameters, fit_population(jobs(parameters, 8, seed=1))


@pytest.mark.parametrize("name", ["inside", "across", "crowd", "more"])
def test_the_means_that_made_the_jobs_are_found_within_their_uncertainty(
    learned: tuple[Array, Population], name: str
) -> None:
    parameters, population = learned
    form = population.prior(HARDWARE).form
    assert form is not None
    figure = form.figures[INDEX[name]]
    assert figure.name == name
    assert abs(figure.mean - parameters[INDEX[name]]) < 2 * figure.sigma
    # And it was learned: the truth is nearer than where the fit began, or within a few per cent.
    assert abs(figure.mean - parameters[INDEX[name]]) < max(
        0.15, 0.7 * abs(TYPICAL[INDEX[name]] - parameters[INDEX[name]])
    )


def test_a_new_job_is_predicted_better_than_from_documents(learned: tuple[Array, Population]) -> None:
    parameters, population = learned
    errors: dict[str, list[float]] = {"learned": [], "documents": []}
    held = []
    for job in jobs(parameters, 20, seed=7):
        seen = [SeenStep(devices=1, seconds=math.exp(job.steps[0][1]), sigma_log=0.0, spot=job.steps[0][0])]
        targets = [spot for spot, _ in job.steps[1:]]
        y = np.array([log_seconds for _, log_seconds in job.steps[1:]])
        for name, prior in (
            ("learned", population.prior(HARDWARE)),
            ("documents", documented_prior(HARDWARE)),
        ):
            model = StepTimeModel(seen, prior=prior, gradient_bytes=job.gradient_bytes)
            low, middle, high = np.log(model.quantiles(targets, (-Z_LEVELS[1], 0.0, Z_LEVELS[1])))
            errors[name] += list(np.abs(y - middle))
            if name == "learned":
                held += list((low <= y) & (y <= high))
    assert np.median(errors["learned"]) < 0.6 * np.median(errors["documents"])
    assert np.mean(held) > 0.7


def test_a_job_unlike_all_others_moves_the_means_little() -> None:
    usual = jobs(truth(), 6, seed=3)
    odd = jobs(truth(contention=0.8), 1, seed=4)[0]
    odd = Visited(job="odd", hardware=HARDWARE, gradient_bytes=odd.gradient_bytes, steps=odd.steps)
    without = fit_population(usual, calibrate=False).means[HARDWARE]
    with_it = fit_population([*usual, odd], calibrate=False).means[HARDWARE]
    contention = INDEX["contention"]
    assert np.exp(with_it[contention]) - np.exp(without[contention]) < 0.15
    others = [index for index in range(len(NAMES)) if index != contention]
    assert np.max(np.abs(with_it - without)[others]) < 0.5


def owned(jobs_of_many: list[Visited], owners: int) -> list[Visited]:
    return [replace(job, owner=f"o{n % owners}") for n, job in enumerate(jobs_of_many)]


def lies(count: int, seconds: Callable[[int], float], *, hardware: str = HARDWARE) -> list[Visited]:
    """Jobs of one owner that all say the same of so many devices."""
    steps = tuple((Spot(devices=k), math.log(seconds(k))) for k in (1, 2, 4, 8))
    return [
        Visited(job=f"lie-{n}", owner="liar", hardware=hardware, gradient_bytes=10**8, steps=steps)
        for n in range(count)
    ]


def sigma_on_four(population: Population) -> float:
    model = StepTimeModel(
        [SeenStep(devices=1, seconds=1.0, sigma_log=0.01)],
        prior=population.prior(HARDWARE), gradient_bytes=10**8,
    )  # fmt: skip
    return model.at(4).sigma_log


@pytest.fixture(scope="module")
def of_six_owners() -> tuple[list[Visited], Population]:
    honest = owned(jobs(truth(), 12, seed=5), 6)
    return honest, fit_population(honest)


LIES: dict[str, Callable[[int], float]] = {
    "slow": lambda devices: min(40.0, devices**1.7),
    "fast": lambda devices: 1.0 / devices / (1.9 if devices > 1 else 1.0),
    "a jump": lambda devices: 1.0 if devices < 8 else 40.0,
}


@pytest.mark.parametrize("hardware", [HARDWARE, "Tesla-V100"], ids=["on the same", "on other hardware"])
@pytest.mark.parametrize("lie", LIES, ids=str)
def test_one_owner_that_lies_by_the_dozen_moves_nothing_much(
    of_six_owners: tuple[list[Visited], Population], lie: str, hardware: str
) -> None:
    honest, known = of_six_owners
    found = fit_population([*honest, *lies(24, LIES[lie], hardware=hardware)])
    assert np.max(np.abs(np.log(found.spread / known.spread))) < math.log(1.35)
    assert np.max(np.abs(np.log(np.divide(found.widths, known.widths)))) < math.log(1.6)
    assert abs(math.log(sigma_on_four(found) / sigma_on_four(known))) < math.log(1.3)
    assert found.prior("NVIDIA-H100").form is not None
    assert np.max(np.abs(found.offset - known.offset)) < 0.7


def test_two_owners_who_differ_are_drawn_to_what_is_built_in() -> None:
    honest = owned(jobs(truth(), 4, seed=5), 1)
    found = fit_population([*honest, *lies(12, LIES["slow"])])
    assert sigma_on_four(found) < 2 * sigma_on_four(fit_population([]))


@pytest.mark.parametrize("owners", [1, 2])
def test_a_lab_of_one_or_two_learns_as_if_nobody_had_a_name(owners: int) -> None:
    parameters = truth(inside=math.log(4e9), across=math.log(5e8))
    many = jobs(parameters, 8, seed=1)
    population = fit_population(owned(many, owners), calibrate=False)
    for name in ("inside", "across"):
        assert abs(population.means[HARDWARE][INDEX[name]] - parameters[INDEX[name]]) < 0.3
    assert population.weights[HARDWARE] == pytest.approx(8.0)
    nameless = fit_population(many, calibrate=False)
    assert np.max(np.abs(np.log(population.spread / nameless.spread))) < math.log(1.5)


def test_what_is_common_to_hardware_is_no_owners_alone() -> None:
    fair = owned(jobs(truth(), 6, seed=3), 3)
    odd = jobs(truth(inside=math.log(1e9)), 3, seed=4, hardware="Tesla-V100")
    odd = [replace(job, owner="liar") for job in odd]
    equal = [replace(job, owner="") for job in (*fair, *odd)]
    inside = INDEX["inside"]
    alone = fit_population(fair, calibrate=False).offset[inside]
    bounded = fit_population([*fair, *odd], calibrate=False).offset[inside] - alone
    unbounded = fit_population(equal, calibrate=False).offset[inside] - alone
    assert abs(bounded) < 0.75 * abs(unbounded)


def test_hardware_nobody_ran_on_gets_documents_and_wide_intervals(learned: tuple[Array, Population]) -> None:
    population = learned[1]
    unseen, seen = population.prior("NVIDIA-H100"), population.prior(HARDWARE)
    assert unseen.jobs == 0
    assert seen.jobs == 8
    assert unseen.form is not None
    assert seen.form is not None
    assert unseen.form.figures[INDEX["inside"]].mean > seen.form.figures[INDEX["inside"]].mean
    for wide, narrow in zip(unseen.form.figures, seen.form.figures, strict=True):
        assert wide.sigma >= narrow.sigma
    assert min(unseen.form.widths) >= 1.0


def test_without_any_job_there_is_the_built_in_prior() -> None:
    population = fit_population([])
    prior = population.prior("cpu")
    assert prior.jobs == 0
    assert prior.form is not None
    assert prior.form.widths == ()
    model = StepTimeModel([SeenStep(devices=1, seconds=0.1, sigma_log=0.02)], prior=prior)
    assert 0 < model.at(4).seconds < 1


def test_a_prior_survives_the_wire_and_names_no_job(learned: tuple[Array, Population]) -> None:
    prior = learned[1].prior(HARDWARE)
    text = prior.to_json()
    assert parse(HardwarePrior, text) == prior
    assert f"{HARDWARE}-0" not in text
    assert refusal(prior) is None
    assert prior.form is not None
    assert len(prior.form.widths) == len(EVIDENCE) * len(Z_LEVELS)


def test_reports_become_visits_and_what_says_nothing_is_left_out() -> None:
    def entry(devices: int, mean: float, *, count: int = 30, gradient_bytes: int = 10**8) -> StepStatistics:
        return StepStatistics(
            hardware=HARDWARE, placement=Placement(devices=devices), local_samples=64 // devices,
            gradient_bytes=gradient_bytes, log_step=Moments(count=count, mean=mean, m2=0.1),
        )  # fmt: skip

    found = visited_of("a", [entry(4, -3.2), entry(1, -2.0), entry(2, 99.0), entry(8, -4.0, count=0)])
    assert [(spot.devices, spot.share, y) for spot, y in found[0].steps] == [(1, 1.0, -2.0), (4, 0.25, -3.2)]
    assert visited_of("a", [entry(1, -2.0, gradient_bytes=0)]) == []


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.lists(st.tuples(st.sampled_from(SPOTS), st.floats(-17, 19)), min_size=1, max_size=5),
        min_size=1, max_size=4,
    ),
    st.integers(1, 10**13),
)  # fmt: skip
def test_whatever_jobs_report_the_prior_is_legal(
    reports: list[list[tuple[Spot, float]]], gradient_bytes: int
) -> None:
    visited = [
        Visited(
            job=str(number),
            hardware=HARDWARE,
            gradient_bytes=gradient_bytes,
            steps=tuple(dict(steps).items()),
        )
        for number, steps in enumerate(reports)
    ]
    prior = fit_population(visited, calibrate=False).prior(HARDWARE)
    assert refusal(prior) is None
