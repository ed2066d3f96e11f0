"""`maxmin`: the least normalised throughput of a job is made as large as can be; as Gavel does it.

A linear programme finds the part of its time X[j, k] that job j should spend on model k:

    maximise    min over j of  1/(w_j) (size_j / devices) sum over k of  T[j, k] X[j, k] / T_equal[j]
    such that   sum over k of X[j, k] <= 1 for each job,
                sum over j of size_j X[j, k] <= devices of model k

with T the job's rate on its gang, T_equal the rate if all models were shared equally, w its part of
the weight (Narayanan et al., Gavel, OSDI 2020, section 4.1). Ties are broken towards the larger sum.
Then, as in Gavel's rounds (section 5), the gangs run whose target is largest over the part of their
life they have run so far; a policy here keeps nothing between calls, so that part is read from the
work done, and is not told apart by model.

Max-min fair and aware of models. It knows no remaining times: nobody is hurried to its end, and wide
gangs wait where narrow ones fill the round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from selfsched_broker.core.fairness import measured_rows, weight_parts
from selfsched_broker.core.market import Contender, Market
from selfsched_broker.core.policies.queues import Queue, gang_size

_TIE = 1e-3
"""Weight of the mean beside the least."""


class Maxmin(Queue):
    """The least normalised throughput as large as can be."""

    name = "maxmin"

    def places(self, market: Market) -> Mapping[str, float]:
        """Less than 0: the target over what was had, the largest first."""
        known = [c for c in market.contenders if measured_rows(c)]
        targets = _targets(known, market)
        places = dict.fromkeys((c.job for c in market.contenders), -np.inf)
        for contender in known:
            had = _time_run(contender) / max(contender.age_seconds, 1e-9)
            places[contender.job] = -targets[contender.job] / max(had, 1e-6)
        return places


def _devices(market: Market) -> Counter[str]:
    return Counter(seat.model for seat in (*market.seats, *market.kept_seats))


def _rates(contender: Contender, models: Sequence[str]) -> list[float]:
    """Runs per second of its gang on each model; 0 where it bids for none."""
    rows, size = measured_rows(contender), gang_size(contender)
    undone = max(1.0 - contender.fraction_done, 1e-9)
    found = []
    for model in models:
        fitting = [r.remaining_seconds for r in rows if r.devices == size and r.model in (None, model)]
        found.append(undone / max(min(fitting), 1e-6) if fitting else 0.0)
    return found


def _targets(contenders: Sequence[Contender], market: Market) -> dict[str, float]:
    """The part of its time each job should run."""
    devices = _devices(market)
    models = sorted(devices)
    if not contenders or not models:
        return {}
    total, parts = sum(devices.values()), weight_parts(market.contenders)
    jobs, kinds = len(contenders), len(models)
    rates = np.array([_rates(c, models) for c in contenders])
    sizes = np.array([float(gang_size(c)) for c in contenders])
    supply = np.array([float(devices[model]) for model in models])
    equal = np.maximum(rates @ supply / total, 1e-12)
    weights = np.array([parts[c.job] * len(market.contenders) for c in contenders])
    normal = rates / equal[:, None] * sizes[:, None] / np.maximum(weights, 1e-9)[:, None]
    # Variables: X by job and model, then the least.
    cells = np.arange(jobs * kinds)
    job_of, kind_of = cells // kinds, cells % kinds
    rows = np.concatenate([job_of, jobs + kind_of, jobs + kinds + job_of, jobs + kinds + np.arange(jobs)])
    columns = np.concatenate([cells, cells, cells, np.full(jobs, jobs * kinds)])
    values = np.concatenate([np.ones(len(cells)), sizes[job_of], -normal.ravel(), np.ones(jobs)])
    matrix = coo_matrix((values, (rows, columns)), shape=(2 * jobs + kinds, jobs * kinds + 1))
    limits = np.concatenate([np.ones(jobs), supply, np.zeros(jobs)])
    goal = -np.append(_TIE * normal.ravel() / jobs, 1.0)
    fits = np.append((sizes[:, None] <= supply[None, :]).ravel() & (rates > 0).ravel(), True)
    bounds = [(0.0, None if fit else 0.0) for fit in fits]
    answer = linprog(goal, A_ub=matrix.tocsr(), b_ub=limits, bounds=bounds, method="highs")
    if answer.x is None:
        return dict.fromkeys((c.job for c in contenders), 1.0)
    shares = answer.x[:-1].reshape(jobs, kinds).sum(axis=1)
    return {c.job: float(share) for c, share in zip(contenders, shares, strict=True)}


def _time_run(contender: Contender) -> float:
    rows, size = measured_rows(contender), gang_size(contender)
    undone = max(1.0 - contender.fraction_done, 1e-9)
    fitting = [row.remaining_seconds for row in rows if row.devices == size] or [rows[0].remaining_seconds]
    return contender.fraction_done / undone * (sum(fitting) / len(fitting))
