"""The rules as they are played are the policies' own: what a count is worth is held against the policy."""

from __future__ import annotations

import numpy as np
import pytest
from broker.auction.markets import bid, market
from broker.auction.markets import job as contender_of

from selfsched_broker.core.ahead.cast import make_cast
from selfsched_broker.core.ahead.player import Player
from selfsched_broker.core.ahead.rules import RULES, Worlds, owed_devices
from selfsched_broker.core.choices import Standing
from selfsched_broker.core.fairness import measured_rows
from selfsched_broker.core.market import FairnessOptions
from selfsched_broker.core.policies.selfsched import worths

DEVICES, TERM, RESTART = 8, 300.0, 20.0
COUNTS = ((1, 2, 4), (1,), (4,), (2, 4, 8), (8,), (1, 2, 3, 4, 5, 6, 7, 8))


def random_players(seed: int, usual_seconds: float, jobs: int) -> list[Player]:
    """From long after their fair time to just begun, from far shorter than the others to far longer."""
    rng = np.random.default_rng(seed)
    found = []
    for number in range(1, jobs + 1):
        counts = COUNTS[int(rng.integers(len(COUNTS)))]
        alone, scaling = usual_seconds * float(np.exp(2.5 * rng.standard_normal())), rng.uniform(-0.2, 1.1)
        found.append(
            Player(
                job=f"job-{number}", number=number, account=f"account-{number % 3}", weight=1.0 + number % 2,
                counts=counts, seconds=tuple(alone * (counts[0] / n) ** scaling for n in counts),
                low=0.7, high=1.5, held=counts[0] if number == 1 else 0, restart_seconds=RESTART,
                age_seconds=float(np.exp(rng.uniform(0, 16))), fraction_done=float(rng.uniform(0, 0.9)),
                share=float(rng.uniform(0.1, DEVICES)),
            )
        )  # fmt: skip
    return found


def worths_played(players: list[Player]) -> list[list[float]]:
    cast = make_cast(players, DEVICES, gangs=False)
    live = np.ones((1, len(players)), dtype=bool)
    held = np.array([[p.counts.index(p.held) if p.held else -1 for p in players]])
    worlds = Worlds(
        cast=cast, live=live, ages=cast.ages[None], left=np.ones((1, len(players))), held=held,
        waited=np.zeros((1, len(players))), owed=owed_devices(cast, live, DEVICES), devices=DEVICES,
        term=TERM,
    )  # fmt: skip
    told = RULES["selfsched"].worth(worlds)[0]
    return [list(told[j, : len(player.counts)]) for j, player in enumerate(players)]


def worths_ruled(players: list[Player]) -> list[list[float]]:
    """By the policy."""
    cast = make_cast(players, DEVICES, gangs=False)
    owed = owed_devices(cast, np.ones((1, len(players)), dtype=bool), DEVICES)[0]
    contenders = [
        contender_of(
            p.job, bid(dict(zip(p.counts, p.seconds, strict=True)), restart=RESTART, running_on=p.held),
            p.number, account=p.account, account_weight=p.weight, age_seconds=p.age_seconds,
            fraction_done=p.fraction_done, share=p.share, claim_sigma_log=p.sigma_log,
            kept=tuple(f"n/{n}" for n in range(p.held)),
        )
        for p in players
    ]  # fmt: skip
    standings = {
        c.job: Standing(
            contender=c, rows=measured_rows(c), weight=owed[at] / DEVICES * len(players), owed=owed[at],
            at_stake=(),
        )
        for at, c in enumerate(contenders)
    }  # fmt: skip
    asked = market(contenders, DEVICES, options=FairnessOptions(term_seconds=TERM))
    found = worths(standings, asked)
    return [
        [found[p.job].worth(row, row.devices != p.held) for row in standings[p.job].rows] for p in players
    ]


@pytest.mark.parametrize("jobs", [2, 5, 14])
@pytest.mark.parametrize("usual_seconds", [100.0, 3000.0, 200_000.0])
def test_selfsched_is_played_as_it_decides(usual_seconds: float, jobs: int) -> None:
    for seed in range(6):
        players = random_players(seed, usual_seconds, jobs)
        for played, ruled in zip(worths_played(players), worths_ruled(players), strict=True):
            assert played == pytest.approx(ruled, rel=1e-6)
