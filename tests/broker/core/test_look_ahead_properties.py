"""Whatever scene is played, what comes out is a forecast."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from selfsched.protocol import Forecast
from selfsched_broker.core.ahead.player import Player
from selfsched_broker.core.ahead.rules import RULES
from selfsched_broker.core.ahead.scene import Scene
from selfsched_broker.core.look_ahead import Foreseen, Variant, foresee, foresee_variants


@st.composite
def players(draw: st.DrawFn, number: int, free: int) -> Player:
    counts = tuple(sorted(draw(st.sets(st.integers(1, 8), min_size=1, max_size=4))))
    alone, scaling = draw(st.floats(1e-3, 1e6)), draw(st.floats(0.0, 1.2))
    fitting = [n for n in counts if n <= free]
    return Player(
        job=f"job-{number}", number=number, account=f"account-{draw(st.integers(0, 2))}",
        weight=1.0, priority=draw(st.sampled_from((0.5, 1.0, 4.0))), counts=counts,
        seconds=tuple(alone * (counts[0] / n) ** scaling for n in counts),
        low=draw(st.floats(0.01, 1.0)), high=draw(st.floats(1.0, 100.0)),
        held=draw(st.sampled_from((0, *fitting))), restart_seconds=draw(st.floats(0.0, 300.0)),
        starting_seconds=draw(st.sampled_from((0.0, 20.0))), age_seconds=draw(st.floats(0.0, 1e5)),
        fraction_done=draw(st.floats(0.0, 0.99)), share=draw(st.floats(0.0, 8.0)),
        movable=draw(st.booleans()),
    )  # fmt: skip


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    devices = free = draw(st.integers(1, 8))
    found: list[Player] = []
    for number in range(1, draw(st.integers(1, 6)) + 1):
        player = draw(players(number, free))
        free -= player.held
        found.append(player)
    return Scene(
        players=tuple(found), devices=devices, policy=draw(st.sampled_from(sorted(RULES))),
        term_seconds=draw(st.sampled_from((10.0, 300.0, 3600.0))), tick_seconds=draw(st.floats(0.0, 10.0)),
    )  # fmt: skip


def quantiles(forecast: Forecast) -> tuple[float, float, float]:
    return forecast.p10_seconds, forecast.p50_seconds, forecast.p90_seconds


def check(told: Foreseen) -> None:
    """It is a forecast: numbers in order, and no job ends before it starts."""
    if told.finish is not None:
        assert told.start is not None
    for forecast in (told.start, told.finish):
        if forecast is not None:
            assert all(math.isfinite(seconds) and seconds >= 0 for seconds in quantiles(forecast))
            assert forecast.p10_seconds <= forecast.p50_seconds <= forecast.p90_seconds
    if told.start is not None and told.finish is not None:
        for begun, over in zip(quantiles(told.start), quantiles(told.finish), strict=True):
            assert begun <= over


@settings(max_examples=60, deadline=None)
@given(scenes())
def test_numbers_are_finite_and_in_order_and_the_same_each_time(scene: Scene) -> None:
    told = foresee(scene)
    assert set(told) == {player.job for player in scene.players}
    assert told == foresee(scene)
    for player in scene.players:
        check(told[player.job])
        if player.held:
            start = told[player.job].start
            assert start is not None
            assert quantiles(start) == (0.0, 0.0, 0.0)


@settings(max_examples=40, deadline=None)
@given(scenes())
def test_a_job_that_fits_is_not_left_out(scene: Scene) -> None:
    """Each ends, however late; one that needs more than there is never does, and holds nobody up for ever."""
    gangs = RULES[scene.policy].gangs
    fitting = all(max(player.counts) <= scene.devices for player in scene.players)
    for player, told in zip(scene.players, foresee(scene).values(), strict=True):
        least = max(player.counts) if gangs else min(player.counts)
        if least > scene.devices and not player.held:
            continue  # a gang that fits on no count may be played on what fits
        if fitting or not gangs:
            assert told.finish is not None, player


@st.composite
def far_apart(draw: st.DrawFn) -> Scene:
    """Times from a thousandth of a second to thirty years, all on counts that the cluster has."""
    devices = free = draw(st.sampled_from((1, 2, 4, 8)))
    found: list[Player] = []
    for number in range(1, draw(st.integers(2, 6)) + 1):
        counts = tuple(sorted(draw(st.sets(st.integers(1, devices), min_size=1, max_size=3))))
        alone, scaling = 10 ** draw(st.floats(-3.0, 9.0)), draw(st.floats(0.0, 1.1))
        held = draw(st.sampled_from((0, counts[0]))) if counts[0] <= free else 0
        free -= held
        found.append(
            Player(
                job=f"job-{number}", number=number, account=f"account-{number % 3}", weight=1.0,
                counts=counts, seconds=tuple(alone * (counts[0] / n) ** scaling for n in counts),
                low=0.8, high=1.25, held=held, restart_seconds=draw(st.sampled_from((0.0, 5.0, 60.0))),
                age_seconds=10 ** draw(st.floats(0.0, 6.0)), fraction_done=draw(st.floats(0.0, 0.9)),
                share=devices / 3, movable=draw(st.booleans()),
            )
        )  # fmt: skip
    return Scene(
        players=tuple(found), devices=devices, policy=draw(st.sampled_from(sorted(RULES))),
        term_seconds=draw(st.sampled_from((10.0, 300.0, 3600.0))), tick_seconds=5.0,
    )  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(far_apart())
def test_however_far_apart_bids_are_all_end_before_one_after_the_other_would(scene: Scene) -> None:
    """Also of a what-if: nobody is told "never", nor later than if all ran by turns, each at its slowest."""
    asker = replace(scene.players[0], job="new", number=99, held=0, age_seconds=0.0, fraction_done=0.0)
    variants = [Variant(asker=scene.players[0]), Variant(asker=asker, arrives=True)]
    variants += [
        Variant(asker=replace(asker, counts=(n,), seconds=(s,)))
        for n, s in zip(asker.counts, asker.seconds, strict=True)
    ]
    every = (*scene.players, asker)
    slowest = sum(max(player.seconds) * player.high for player in every)
    moves = len(every) * 2 * (scene.term_seconds + 60.0)
    for told in (*foresee(scene).values(), *foresee_variants(scene, variants)):
        assert told.finish is not None
        assert told.finish.p50_seconds <= slowest + moves


@settings(max_examples=40, deadline=None)
@given(scenes(), st.booleans())
def test_alone_a_job_is_done_as_soon_as_it_can_be(scene: Scene, arrives: bool) -> None:
    """Without all others it is never later than among them by more than what a move may cost it, and no
    sooner than in its least time."""
    asker = scene.players[0]
    others = frozenset(player.job for player in scene.players[1:])
    among, alone = foresee_variants(
        scene,
        [
            Variant(asker=asker, arrives=arrives),
            Variant(asker=asker, without=others, arrives=arrives),
        ],
    )
    for told in (among, alone):
        check(told)
    if alone.finish is None:
        assert among.finish is None
        return
    assert alone.start is not None
    assert quantiles(alone.start) == (0.0, 0.0, 0.0)
    if among.finish is not None:
        assert alone.finish.p50_seconds <= bound(scene, asker, among.finish.p50_seconds)


def bound(scene: Scene, asker: Player, among_seconds: float) -> float:
    """How late it may be without others, by what it is with them: it may move once more, to what it is
    then worth, and a term may pass before it does."""
    return (
        among_seconds * 1.01 + 2 * asker.restart_seconds + asker.starting_seconds + scene.term_seconds + 1.0
    )
