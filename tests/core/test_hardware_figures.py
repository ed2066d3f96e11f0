"""Which figures of a broker can be used, what is said of them, and when they are asked for."""

from __future__ import annotations

import re

import pytest

from selfsched.core.hardware_figures import EVERY_SECONDS, FiguresDue, HardwareFigures, unusable
from selfsched.core.performance import documented_prior, form_of
from selfsched.protocol import FormFigure, FormPrior, HardwarePrior

GOOD = documented_prior("V100").model_copy(update={"jobs": 12})


def formed(**means: float) -> HardwarePrior:
    figures = tuple(
        FormFigure(name=f.name, mean=means.get(f.name, f.mean), sigma=f.sigma) for f in form_of(GOOD).figures
    )
    return GOOD.model_copy(update={"form": FormPrior(figures=figures)})


def test_what_is_learned_and_what_is_documented_can_be_used() -> None:
    for prior in (GOOD, formed(), documented_prior("V100")):
        assert unusable(prior, "V100") is None


@pytest.mark.parametrize(
    ("prior", "words"),
    [
        (GOOD.model_copy(update={"bandwidth_bytes_per_second": 1e300}), r"bandwidth of 1e\+300"),
        (GOOD.model_copy(update={"bandwidth_bytes_per_second": 1e-9}), "bandwidth of 1e-09"),
        (GOOD.model_copy(update={"bandwidth_bytes_per_second": float("nan")}), "bandwidth of nan"),
        (GOOD.model_copy(update={"latency_seconds": 3e9}), "latency of 3e"),
        (GOOD.model_copy(update={"hardware": "A100"}), "for A100, not for V100"),
        (formed(inside=900.0), "absurd figure for inside"),
        (GOOD.model_copy(update={"form": FormPrior(figures=form_of(GOOD).figures[:2])}), "other parameters"),
    ],
)
def test_what_is_absurd_is_refused_in_words(prior: HardwarePrior, words: str) -> None:
    found = unusable(prior, "V100")
    assert found is not None
    assert re.search(words, found)


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        (HardwareFigures(hardware="cpu", prior=GOOD), "cpu: hardware figures learned from 12 jobs"),
        (
            HardwareFigures(hardware="cpu", prior=GOOD.model_copy(update={"jobs": 1})),
            "cpu: hardware figures learned from 1 job",
        ),
        (
            HardwareFigures(hardware="cpu", prior=documented_prior("cpu")),
            "cpu: documented figures; nobody else's runs yet",
        ),
        (HardwareFigures(hardware="cpu"), "cpu: documented figures"),
        (
            HardwareFigures(hardware="cpu", refused="cut short"),
            "cpu: documented figures; the broker's figures were refused, the documented ones are used: "
            "cut short",
        ),
        (
            HardwareFigures(hardware="cpu", prior=GOOD, refused="cut short"),
            "cpu: hardware figures learned from 12 jobs; the broker's figures were refused, those of before "
            "are used: cut short",
        ),
    ],
)
def test_the_source_is_said_in_words(figures: HardwareFigures, words: str) -> None:
    assert figures.words == words


def test_figures_are_asked_for_when_devices_change_and_from_time_to_time() -> None:
    due, one, two = FiguresDue(), frozenset({"a"}), frozenset({"a", "b"})
    assert due.ask(one, 100.0)
    assert not due.ask(one, 100.0 + EVERY_SECONDS - 1)
    assert due.ask(one, 100.0 + EVERY_SECONDS)
    assert not due.ask(two, 101.0 + EVERY_SECONDS)  # a moment after the last
    assert due.ask(two, 103.0 + EVERY_SECONDS)


def test_a_failure_is_tried_again_ever_more_slowly_and_said_at_the_third() -> None:
    due, now, said = FiguresDue(), 0.0, []
    gaps = []
    for _ in range(12):
        asked = now
        while not due.ask(frozenset({"a"}), now):
            now += 1.0
        gaps.append(now - asked)
        said.append(due.failed(now))
    assert said == [False, False, *[True] * 10]
    assert gaps == sorted(gaps)
    assert gaps[-1] <= EVERY_SECONDS
    due.came()
    assert not due.failed(now)
