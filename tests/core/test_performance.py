"""The step-time model against known truth: sensible where it has not been, honest about it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfsched.core.performance import (
    EVIDENCE,
    Z_LEVELS,
    SeenStep,
    StepTimeModel,
    documented_prior,
    form_of,
    refusal,
)
from selfsched.core.step_form import HIGH, LOW, Spot, Spots, log_step
from selfsched.protocol import FormFigure

CPU = documented_prior("cpu")


def seen(devices: int, seconds: float, sigma: float = 0.02, communication: float | None = None) -> SeenStep:
    return SeenStep(devices=devices, seconds=seconds, sigma_log=sigma, communication_seconds=communication)


def model(*steps: SeenStep, gradient_bytes: int = 4_000_000, serial_share: float = 0.0) -> StepTimeModel:
    return StepTimeModel(steps, prior=CPU, gradient_bytes=gradient_bytes, serial_share=serial_share)


def test_without_a_measurement_there_is_no_model() -> None:
    with pytest.raises(ValueError, match="needs a measured"):
        StepTimeModel([], prior=CPU)


def test_a_seen_count_answers_from_its_own_steps() -> None:
    step = model(seen(1, 0.1), seen(2, 0.07)).at(2)
    assert step.measured
    assert step.seconds == 0.07
    assert step.sigma_log < 0.05


def test_a_hardly_measured_count_is_drawn_to_what_the_others_make_expect() -> None:
    expected = model(seen(1, 0.1)).at(2)
    drawn = model(seen(1, 0.1), seen(2, 0.3, sigma=0.8)).at(2)
    trusted = model(seen(1, 0.1), seen(2, 0.3, sigma=0.02)).at(2)
    assert expected.seconds < drawn.seconds < 0.12
    assert drawn.quantile(-1) < 0.1 < drawn.quantile(2)  # it may yet be a job that crowds badly
    assert trusted.seconds == 0.3


def test_one_count_predicts_a_speed_up_with_a_wide_interval() -> None:
    two, eight = model(seen(1, 0.1)).at(2), model(seen(1, 0.1)).at(8)
    assert not two.measured
    assert 0.05 < two.seconds < 0.08
    assert two.sigma_log > 0.1
    assert eight.sigma_log > two.sigma_log


@pytest.mark.parametrize(("share", "expected"), [(0.02, 0.0270), (0.30, 0.0475)])
def test_two_counts_tell_what_does_not_scale(share: float, expected: float) -> None:
    def truth(devices: int) -> float:
        return 0.1 * (share + (1 - share) / devices)

    four = model(seen(1, truth(1), 0.01), seen(2, truth(2), 0.01), gradient_bytes=1000).at(4)
    assert expected == pytest.approx(truth(4), rel=0.03)
    assert abs(math.log(four.seconds / truth(4))) < 0.15
    assert four.quantile(-2) < truth(4) < four.quantile(2)


def test_between_two_seen_counts_the_model_interpolates() -> None:
    three = model(seen(2, 0.06), seen(4, 0.04)).at(3)
    assert 0.04 < three.seconds < 0.06
    assert three.sigma_log < model(seen(2, 0.06)).at(3).sigma_log


def test_a_job_that_scales_backwards_is_seen_as_such() -> None:
    curve = model(seen(1, 0.1), seen(2, 0.18)).curve((1, 2, 4))
    assert curve[1].seconds > curve[0].seconds
    assert curve[2].seconds > 0.1


def test_measured_communication_tells_what_one_device_would_take() -> None:
    quiet = model(seen(2, 0.06)).at(1)
    busy = model(seen(2, 0.06, communication=0.03)).at(1)
    assert busy.seconds < 0.8 * quiet.seconds


def test_a_step_that_is_mostly_gap_is_not_expected_to_scale() -> None:
    assert model(seen(1, 0.1), serial_share=0.8).at(4).seconds > model(seen(1, 0.1)).at(4).seconds * 1.5


def test_unknown_gradient_bytes_widen_the_interval() -> None:
    known, unknown = model(seen(1, 0.01)), model(seen(1, 0.01), gradient_bytes=0)
    assert unknown.at(8).sigma_log > known.at(8).sigma_log


def test_more_evidence_narrows_the_interval() -> None:
    sigmas = [
        model(*steps).at(8).sigma_log
        for steps in (
            [seen(1, 0.1)],
            [seen(1, 0.1), seen(2, 0.055)],
            [seen(1, 0.1), seen(2, 0.055), seen(4, 0.032)],
        )
    ]
    assert sigmas == sorted(sigmas, reverse=True)


def test_documents_tell_a_fast_link_from_a_slow_one() -> None:
    fast, slow = documented_prior("NVIDIA-H100-80GB-HBM3"), documented_prior("Tesla-T4")
    assert fast.bandwidth_bytes_per_second > 5 * slow.bandwidth_bytes_per_second
    assert documented_prior("cpu").jobs == 0


@given(
    st.dictionaries(st.integers(1, 64), st.floats(1e-7, 1e8), min_size=1, max_size=6),
    st.floats(0, 3),
    st.integers(0, 10**12),
    st.floats(0, 1),
)
def test_whatever_was_measured_predictions_are_finite_and_positive(
    times: dict[int, float], sigma: float, gradient_bytes: int, serial_share: float
) -> None:
    steps = [seen(devices, seconds, sigma) for devices, seconds in times.items()]
    fitted = model(*steps, gradient_bytes=gradient_bytes, serial_share=serial_share)
    for step in fitted.curve((1, 2, 3, 8, 64, 1000)):
        assert math.isfinite(step.seconds)
        assert step.seconds > 0
        assert 0 <= step.sigma_log <= 3.1
        assert 0 < step.quantile(-1.3) <= step.quantile(1.3) < math.inf


# --- any placement, and priors ------------------------------------------------------------

T4 = documented_prior("Tesla-T4")


def visit(devices: int, seconds: float, *, nodes: int = 1) -> SeenStep:
    """A weak-scaling visit: every device keeps its samples."""
    spot = Spot(devices=devices, nodes=nodes)
    return SeenStep(devices=devices, seconds=seconds, sigma_log=0.01, spot=spot)


def test_a_visit_across_nodes_tells_more_of_other_nodes_than_one_on_a_node() -> None:
    def sigma(*seen: SeenStep) -> float:
        model = StepTimeModel(seen, prior=T4, gradient_bytes=400_000_000)
        return model.on(Spot(devices=8, nodes=4)).sigma_log

    alone, inside = sigma(visit(1, 0.1)), sigma(visit(1, 0.1), visit(2, 0.11))
    across = sigma(visit(1, 0.1), visit(2, 0.5, nodes=2))
    assert across < 0.6 * inside
    assert across < 0.6 * alone


def test_nodes_cost_more_than_one_node_where_the_network_is_slow() -> None:
    fitted = StepTimeModel([visit(1, 0.1)], prior=T4, gradient_bytes=400_000_000)
    inside, across = fitted.on(Spot(devices=4)), fitted.on(Spot(devices=4, nodes=2))
    assert across.seconds > 1.5 * inside.seconds
    assert across.sigma_log > inside.sigma_log


def test_accumulation_passes_cost_compute_and_communicate_once() -> None:
    fitted = StepTimeModel([visit(1, 0.1)], prior=T4, gradient_bytes=100_000_000)
    once, thrice = fitted.on(Spot(devices=2)), fitted.on(Spot(devices=2, passes=3))
    assert 2.5 * once.seconds < thrice.seconds < 3 * once.seconds


@given(st.integers(0, 10**6), st.sampled_from([(1,), (1, 2), (2, 4)]))
@settings(max_examples=25, deadline=None)
def test_the_truth_drawn_from_the_prior_lies_within_the_interval_s_tails(
    seed: int, visited: tuple[int, ...]
) -> None:
    figures = form_of(T4).figures
    rng = np.random.default_rng(seed)
    # Within two standard deviations, where a 99.99 % interval must hold whatever the draw.
    own = np.array([f.mean + f.sigma * np.clip(rng.standard_normal(), -2, 2) for f in figures])
    own = np.clip(own, LOW, HIGH)
    places = [Spot(devices=n) for n in (*visited, 3, 8)]
    log_bytes = np.array([math.log(10**8)])
    logs = log_step(own, np.array([math.log(0.2)]), Spots.of(places), log_bytes)[0]
    seen_steps = [visit(n, math.exp(y)) for n, y in zip(visited, logs, strict=False)]
    fitted = StepTimeModel(seen_steps, prior=T4, gradient_bytes=10**8)
    low, high = fitted.quantiles(places[len(visited) :], (-3.7, 3.7))
    for index, y in enumerate(logs[len(visited) :]):
        assert math.log(low[index]) - 0.15 < y < math.log(high[index]) + 0.15


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ({"figures": form_of(T4).figures[:-1]}, "other parameters"),
        (
            {"figures": (FormFigure(name="crowd", mean=50.0, sigma=1.0), *form_of(T4).figures[1:])},
            "absurd figure for crowd",
        ),
        ({"widths": (1.0, 2.0)}, "has 2 widths"),
    ],
)
def test_a_prior_that_cannot_be_used_is_refused_in_words_and_the_built_in_one_used(
    damage: dict[str, object], words: str
) -> None:
    bad = T4.model_copy(update={"form": form_of(T4).model_copy(update=damage)})
    refused = StepTimeModel([visit(1, 0.1)], prior=bad, gradient_bytes=10**8)
    assert words in (refusal(bad) or "")
    built_in = StepTimeModel([visit(1, 0.1)], prior=T4, gradient_bytes=10**8)
    assert refused.on(Spot(devices=4)) == built_in.on(Spot(devices=4))


def test_widths_of_the_prior_widen_the_interval_and_leave_the_median() -> None:
    widths = (2.0,) * (len(EVIDENCE) * len(Z_LEVELS))
    wide_prior = T4.model_copy(update={"form": form_of(T4).model_copy(update={"widths": widths})})
    plain = StepTimeModel([visit(1, 0.1)], prior=T4, gradient_bytes=10**8).on(Spot(devices=4))
    wide = StepTimeModel([visit(1, 0.1)], prior=wide_prior, gradient_bytes=10**8).on(Spot(devices=4))
    assert wide.seconds == pytest.approx(plain.seconds)
    assert wide.sigma_log > 1.8 * plain.sigma_log


def test_a_placement_without_devices_is_none() -> None:
    with pytest.raises(ValueError, match="no placement"):
        Spot(devices=1, nodes=2)
