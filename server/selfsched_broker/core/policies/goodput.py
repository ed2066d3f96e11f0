"""`goodput`: every round the division with the largest sum of normalised goodputs; as Sia does it.

    maximise  sum over the jobs that run of  [ 1.1 + 1 - (G(n) / G(m))^(-1/2) ]

with G(n) the job's rate on n devices of a model, m its smallest count there (Jayaram Subramanya et al.,
Sia, SOSP 2023, section 3.4, equations 1 to 3: power -1/2, the penalty of 1.1 for who gets nothing).
A changed placement counts with (age - restarts S) / (age + S) in Sia; the number of restarts is not
known to a policy here, so a move counts with age / (age + S), S its restart.

Efficient where jobs scale differently. It looks at one round alone: who has nearly done and who
has just begun are alike to it, and nobody is promised a share.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from selfsched_broker.core.auction import Rule, hold_auction
from selfsched_broker.core.choices import Standing, Valuation, Worth
from selfsched_broker.core.fairness import Row, rate, restart_cost
from selfsched_broker.core.market import Market, Ruling

PENALTY = 1.1
_LEAST_SECONDS = 1e-3


class Goodput:
    """The largest sum of normalised goodputs."""

    name = "goodput"

    def rule(self, market: Market, rng: np.random.Generator) -> Ruling:
        """Divide the seats. The generator is not drawn from."""
        return hold_auction(market, RULE)


def worths(standings: Mapping[str, Standing], market: Market) -> dict[str, Valuation]:
    """What placements are worth to each job of a market."""
    return {job: Valuation(_worth(standing)) for job, standing in standings.items()}


RULE = Rule(worths=worths, considers_all=True, entitles=False, pays=False)


def _worth(standing: Standing) -> Worth:
    contender = standing.contender
    undone = max(1.0 - contender.fraction_done, 1e-9)
    reference = rate(standing.rows, contender.fraction_done, standing.allowed[0])

    def worth(placement: Row | None, moves: bool) -> float:
        if placement is None:
            return 0.0
        gain = undone / max(placement.remaining_seconds, _LEAST_SECONDS) / reference
        if moves and standing.held:
            age = max(contender.age_seconds, 1.0)
            gain *= age / (age + restart_cost(standing.rows, placement))
        return standing.weight * (PENALTY + 1 - 1 / math.sqrt(max(gain, 1e-6)))

    return worth
