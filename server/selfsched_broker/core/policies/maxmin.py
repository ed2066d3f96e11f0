"""`maxmin`: the least normalised throughput of a job is made as large as can be; as Gavel does it.

A linear programme finds the part of its time X[j, k] that job j should spend on model k:

    maximise    min over j of  1/(w_j) (size_j / devices) sum over k of  T[j, k] X[j, k] / T_equal[j]
    such that   sum over k of X[j, k] <= 1 for each job,
                sum over j of size_j X[j, k] <= devices of model k

with T the job's rate on its gang, T_equal the rate if all models were shared equally, w its part of
the weight (Narayanan et al., Gavel, OSDI 2020, section 4.1). Ties are broken towards the larger sum.
Then, as in Gavel's rounds (section 5), turns go to gangs on models by the largest target over the part
of its life that the job has run on that model so far: by its leases where the cluster has several
models, and read from the work done where it has one. What is free then goes to whom it fits.

Max-min fair and aware of models. It knows no remaining times: nobody is hurried to its end, and wide
gangs wait where narrow ones fill the round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import coo_matrix

from selfsched_broker.core.fairness import measured_rows, weight_parts
from selfsched_broker.core.market import Contender, Market
from selfsched_broker.core.policies.queues import Queue, gang_size

Floats = NDArray[np.float64]
_TIE = 1e-3
"""Weight of the mean beside the least."""


class Maxmin(Queue):
    """The least normalised throughput as large as can be."""

    name = "maxmin"

    def places(self, market: Market) -> Mapping[str, float]:
        """Less than 0: the target over what was had, the largest first."""
        places = dict.fromkeys((c.job for c in market.contenders), -np.inf)
        for place, contender, _ in _by_model(market):
            before = places[contender.job]
            places[contender.job] = place if before == -np.inf else min(before, place)
        return places

    def turns(self, ordered: Sequence[Contender], market: Market) -> Iterable[tuple[Contender, str | None]]:
        """First who never ran; then by target and model; then whoever is left, on any."""
        known = _by_model(market)
        named = {contender.job for _, contender, _ in known}
        yield from ((contender, None) for contender in ordered if contender.job not in named)
        for place, contender, model in sorted(known, key=lambda turn: (turn[0], turn[1].number, turn[2])):
            if place < 0:
                yield contender, model
        yield from ((contender, None) for contender in ordered)


def _by_model(market: Market) -> list[tuple[float, Contender, str]]:
    """Of each job that has measured itself, on each model: target over what it had there, negative."""
    known = [c for c in market.contenders if measured_rows(c)]
    models, targets = _targets(known, market)
    found = []
    for contender, row in zip(known, targets, strict=True):
        for model, target in zip(models, row, strict=True):
            had = _time_run(contender, model, len(models)) / max(contender.age_seconds, 1e-9)
            found.append((-float(target) / max(had, 1e-6), contender, model))
    return found


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


def _targets(contenders: Sequence[Contender], market: Market) -> tuple[list[str], Floats]:
    """The models, and the part of its time each job should run on each of them."""
    devices = _devices(market)
    models = sorted(devices)
    if not contenders or not models:
        return models, np.zeros((len(contenders), len(models)))
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
        return models, np.full((jobs, kinds), 1.0 / kinds)
    return models, np.maximum(answer.x[:-1].reshape(jobs, kinds), 0.0)


def _time_run(contender: Contender, model: str, models: int) -> float:
    """Seconds that its whole gang has run on a model."""
    size = gang_size(contender)
    if models > 1:
        return contender.ran_device_seconds.get(model, 0.0) / size
    rows = measured_rows(contender)
    undone = max(1.0 - contender.fraction_done, 1e-9)
    fitting = [row.remaining_seconds for row in rows if row.devices == size] or [rows[0].remaining_seconds]
    return contender.fraction_done / undone * (sum(fitting) / len(fitting))
