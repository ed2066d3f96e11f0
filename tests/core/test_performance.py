"""The step-time model against known truth: sensible where it has not been, honest about it."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsched.core.performance import SeenStep, StepTimeModel, documented_prior

CPU = documented_prior("cpu")


def seen(devices: int, seconds: float, sigma: float = 0.02, communication: float | None = None) -> SeenStep:
    return SeenStep(
        devices=devices, seconds=seconds, sigma_log=sigma, communication_seconds=communication
    )


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
