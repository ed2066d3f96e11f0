"""What many jobs teach about the step-time form: the broker's fit, and the prior it hands out.

For each kind of hardware three things are learned from the mean step times that jobs report:

- the **means** of the form's parameters, where the error of predicting every placement of a job
  from its smallest one is least, by a Student-t likelihood of log seconds, so that the few jobs
  unlike the rest do not pull (iteratively reweighted Gauss-Newton: e.g. Huber and Ronchetti,
  "Robust Statistics", chapter 7). A job counts once for one node and once for several, however
  many placements and local batches it visited. Hardware with few jobs is drawn to the documented
  figures, moved by what other hardware was off from its own documents;
- the **spread of jobs** around them, the same for all hardware: each job's own parameters by a
  Gaussian approximation around its mode, spread and means in turn (expectation maximisation),
  starting from, and drawn to, `Parameter.job_sigma`;
- the **widths**: each job in turn is left out, predicted from a few of its placements with the
  prior learned without it, and the factors kept that would have made the intervals hold.

No owner's part in any of them is large, however many jobs it has (`owner_parts`): jobs weigh so
little in the means that it counts as the median owner does; spread and widths are the middle of
what three groups of owners say; in the offset an owner's part is shared among its hardware.

What leaves the broker is a `FormPrior` of numbers: no job's name, account or time is in it.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from selfsched.core.job_spread import spread_between
from selfsched.core.owner_parts import groups_of, job_weights, jobs_of_owners, middle
from selfsched.core.performance import (
    EVIDENCE,
    Z_LEVELS,
    SeenStep,
    StepTimeModel,
    documented_prior,
    form_of,
)
from selfsched.core.step_form import (
    HARDWARE_SIGMA,
    HIGH,
    INDEX,
    LOW,
    NAMES,
    Array,
    Spots,
    log_step_rows,
    solve_log_compute,
)
from selfsched.core.visited import Visited, visited_of, weights_by_job
from selfsched.protocol import FormFigure, FormPrior, HardwarePrior

__all__ = ["Population", "Visited", "fit_population", "visited_of"]

RESIDUAL_SCALE = 0.06
RESIDUAL_DEGREES = 3.0
JOB_WORTH = 6.0
"""A job's placements of one class count as so many independent ones."""
WIDTH_GROUPS = 2.0
"""So many jobs' worth of doubt that a factor on widths is 1."""
FITTED_ENTRIES = 5
"""Entries (local batches) of a job on one hardware that means and spread are learned from."""
CALIBRATION_CASES = 3
"""And the widths; each stands for its part of all of them."""
MOST_JOBS = 400


@dataclass(frozen=True, kw_only=True)
class Population:
    """What was learned; `prior` answers for any hardware."""

    jobs: Mapping[str, int]
    """Jobs behind each kind of hardware, and ..."""
    weights: Mapping[str, float]
    """... as how many they count, no owner's part being too large."""
    means: Mapping[str, Array]
    offset: Array
    """By how much hardware is off from its documents on the whole."""
    spread: Array
    """Standard deviation between jobs."""
    widths: tuple[float, ...] = ()

    def prior(self, hardware: str) -> HardwarePrior:
        """For a new job on `hardware`; documented figures, widely, where nobody has run."""
        jobs, widths = self.jobs.get(hardware, 0), self.widths
        if jobs:
            means = self.means[hardware]
            doubt = 1 / (1 / HARDWARE_SIGMA**2 + self.weights[hardware] / self.spread**2)
        else:
            means = _documented_means(hardware) + self.offset
            widths = tuple(max(width, 1.0) for width in widths)  # learned where more was known
            doubt = HARDWARE_SIGMA**2 * (1 + 1 / (1 + len(self.means)))
        sigmas = np.sqrt(self.spread**2 + doubt)
        means = np.clip(means, LOW, HIGH)
        form = FormPrior(
            figures=tuple(
                FormFigure(name=name, mean=float(mean), sigma=float(sigma))
                for name, mean, sigma in zip(NAMES, means, sigmas, strict=True)
            ),
            widths=widths,
        )
        return documented_prior(hardware).model_copy(
            update={
                "jobs": jobs,
                "form": form,
                "bandwidth_bytes_per_second": math.exp(means[INDEX["inside"]]),
                "latency_seconds": math.exp(means[INDEX["inside_latency"]]),
                "contention": min(math.exp(means[INDEX["contention"]]), 10.0),
                "sigma_log": min(float(sigmas[INDEX["inside"]]), 5.0),
            }
        )


def fit_population(visited: Iterable[Visited], *, calibrate: bool = True) -> Population:
    """Learn from what jobs visited.

    Args:
        visited: entries with at least two placements; the others say nothing and are ignored.
            The newest `MOST_JOBS` jobs (the last in order) are used.
        calibrate: learn the widths too, which takes a fit without each job in turn (jobs are
            left out in at most twelve groups).
    """
    usable = [entry.ordered() for entry in visited if len(entry.steps) > 1 and entry.gradient_bytes > 0]
    newest = set(list(dict.fromkeys(entry.job for entry in reversed(usable)))[:MOST_JOBS])
    usable = [entry for entry in usable if entry.job in newest]
    population = _fit(usable)
    if not calibrate or len(newest) < 2:
        return population
    return replace(population, widths=_widths(usable))


# --- means --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rows:
    """Everything seen on one kind of hardware, a row for each placement but a job's first."""

    reference: Spots
    reference_y: Array
    reference_bytes: Array
    owner: np.ndarray[tuple[int], np.dtype[np.int64]]
    """Which reference a row belongs to."""
    spots: Spots
    y: Array
    weights: Array

    def predict(self, parameters: Array) -> Array:
        """Log seconds of each row from its job's reference."""
        own = solve_log_compute(parameters[:, None], self.reference_y, self.reference, self.reference_bytes)
        return log_step_rows(parameters, own[self.owner], self.spots, self.reference_bytes[self.owner])


def _rows(visited: Sequence[Visited]) -> _Rows:
    weights = weights_by_job(visited)
    counts: Counter[tuple[str, bool]] = Counter()
    for entry in visited:
        counts.update((entry.job, spot.nodes > 1) for spot, _ in entry.steps[1:])
    flat = [(n, entry.job, spot, y) for n, entry in enumerate(visited) for spot, y in entry.steps[1:]]
    return _Rows(
        reference=Spots.of([entry.steps[0][0] for entry in visited]),
        reference_y=np.array([entry.steps[0][1] for entry in visited]),
        reference_bytes=np.log([float(entry.gradient_bytes) for entry in visited]),
        owner=np.array([row[0] for row in flat], dtype=np.int64),
        spots=Spots.of([row[2] for row in flat]),
        y=np.array([row[3] for row in flat]),
        weights=np.array([JOB_WORTH * weights[row[1]] / counts[row[1], row[2].nodes > 1] for row in flat]),
    )


def _documented_means(hardware: str) -> Array:
    return np.array([figure.mean for figure in form_of(documented_prior(hardware)).figures])


def _thinned(visited: Sequence[Visited]) -> list[Visited]:
    """A few entries of each job on each hardware: more of its local batches tell little."""
    of: dict[tuple[str, str], list[Visited]] = defaultdict(list)
    for entry in visited:
        of[entry.job, entry.hardware].append(entry)
    return [entry for entries in of.values() for entry in _spaced(entries, FITTED_ENTRIES)]


def _spaced(entries: Sequence[Visited], count: int) -> list[Visited]:
    few = min(len(entries), count)
    return [entries[index] for index in np.linspace(0, len(entries) - 1, few).round().astype(int)]


def _fit(every: Sequence[Visited]) -> Population:
    visited = _thinned(every)
    by_hardware: dict[str, list[Visited]] = defaultdict(list)
    for entry in visited:
        by_hardware[entry.hardware].append(entry)
    rows = {hardware: _rows(entries) for hardware, entries in by_hardware.items()}
    documented = {hardware: _documented_means(hardware) for hardware in rows}
    parts = _parts(visited)
    offset = np.zeros(len(NAMES))
    means: dict[str, Array] = {}
    for _ in range(3):
        for hardware, data in rows.items():
            centre = np.clip(documented[hardware] + offset, LOW, HIGH)
            means[hardware] = _best_mode(data, centre, means.get(hardware))
        if rows:
            off = np.sum([parts[h] * (means[h] - documented[h]) for h in rows], axis=0)
            offset = off * len(rows) / (1 + len(rows))
    return Population(
        jobs={h: len({entry.job for entry in entries}) for h, entries in by_hardware.items()},
        weights={h: sum(weights_by_job(entries).values()) for h, entries in by_hardware.items()},
        means=means,
        offset=offset,
        spread=spread_between(visited, means),
    )


def _parts(visited: Sequence[Visited]) -> dict[str, float]:
    """Each hardware's part in what is common to all: its owners', each shared among its hardware."""
    jobs = jobs_of_owners((entry.owner, entry.job) for entry in visited)
    weights = job_weights(jobs)
    part = {owner: weights[owner] * len(own) for owner, own in jobs.items()}
    kinds = jobs_of_owners((entry.owner, entry.hardware) for entry in visited)
    parts: dict[str, float] = defaultdict(float)
    for owner, names in kinds.items():
        for hardware in names:
            parts[hardware] += part[owner] / len(names) / sum(part.values())
    return parts


def _best_mode(data: _Rows, centre: Array, last: Array | None) -> Array:
    if last is not None:
        return _mode(data, centre, last)[0]
    found = []
    for contention in (0.02, 0.15):  # little contention is flat: it is looked for from above too
        start = centre.copy()
        start[INDEX["contention"]] = math.log(contention)
        found.append(_mode(data, centre, start))
    return min(found, key=lambda mode: mode[1])[0]


def _mode(data: _Rows, centre: Array, start: Array) -> tuple[Array, float]:
    """Reweighted Gauss-Newton with Levenberg's damping: (parameters, cost)."""
    parameters, damping = start, 1e-2
    cost = _cost(data, centre, parameters)
    for _ in range(40):
        here = data.predict(parameters)
        jacobian = np.stack(
            [(data.predict(parameters + step) - here) / 1e-4 for step in 1e-4 * np.eye(len(NAMES))], axis=1
        )
        misfit = data.y - here
        weights = data.weights * (RESIDUAL_DEGREES + 1)
        weights = weights / (RESIDUAL_DEGREES * RESIDUAL_SCALE**2 + misfit**2)
        hessian = jacobian.T @ (jacobian * weights[:, None]) + np.diag(1 / HARDWARE_SIGMA**2)
        gradient = jacobian.T @ (weights * misfit) + (centre - parameters) / HARDWARE_SIGMA**2
        for _ in range(6):
            step = np.linalg.solve(hessian + damping * np.diag(np.diag(hessian)), gradient)
            candidate = np.clip(parameters + np.clip(step, -1.0, 1.0), LOW, HIGH)
            candidate_cost = _cost(data, centre, candidate)
            if candidate_cost < cost:
                break
            damping *= 5
        else:
            return parameters, cost
        gain, damping = cost - candidate_cost, max(damping / 5, 1e-6)
        parameters, cost = candidate, candidate_cost
        if gain < 1e-4:
            break
    return parameters, cost


def _cost(data: _Rows, centre: Array, parameters: Array) -> float:
    misfit = data.y - data.predict(parameters)
    surprise = np.log1p(misfit**2 / RESIDUAL_DEGREES / RESIDUAL_SCALE**2)
    away = ((parameters - centre) / HARDWARE_SIGMA) ** 2
    return float(0.5 * (RESIDUAL_DEGREES + 1) * (data.weights @ surprise) + 0.5 * away.sum())


# --- widths -------------------------------------------------------------------------------


_Ratios = dict[tuple[int, int], list[tuple[float, float]]]


def _widths(visited: Sequence[Visited]) -> tuple[float, ...]:
    owned = jobs_of_owners((entry.owner, entry.job) for entry in visited)
    group_of, weights = groups_of(owned), weights_by_job(visited)
    ratios: list[_Ratios] = [defaultdict(list) for _ in set(group_of.values())]
    for left_out, population in _left_out(visited):
        for entries in left_out:
            chosen = _spaced(entries, CALIBRATION_CASES)
            for entry in chosen:
                weight = weights[entry.job] * len(entries) / len(chosen)
                _ratios_of(entry, population, weight, ratios[group_of[entry.owner]])
    jobs = [sum(len(owned[o]) for o in owned if group_of[o] == group) for group in range(len(ratios))]
    said = [_factors(found, count) for found, count in zip(ratios, jobs, strict=True)]
    return tuple(float(factor) for factor in middle(said, np.ones(len(said[0]))))


def _left_out(visited: Sequence[Visited]) -> Iterator[tuple[list[list[Visited]], Population]]:
    """Entries of some jobs, by job and hardware, and what is learned without these jobs."""
    jobs = sorted({entry.job for entry in visited})
    parts = min(len(jobs), 12)
    part_of = {job: index % parts for index, job in enumerate(jobs)}
    for part in range(parts):
        left: dict[tuple[str, str], list[Visited]] = defaultdict(list)
        for entry in visited:
            if part_of[entry.job] == part:
                left[entry.job, entry.hardware].append(entry)
        yield list(left.values()), _fit([entry for entry in visited if part_of[entry.job] != part])


def _factors(ratios: _Ratios, jobs: int) -> Array:
    """The factors that would have made the intervals hold, nearer to 1 the fewer jobs say so."""
    trust = jobs / (jobs + WIDTH_GROUPS)
    factors = []
    for kind in range(len(EVIDENCE)):
        for level in range(len(Z_LEVELS)):
            held = _weighted_quantile(ratios[kind, level], (0.5, 0.8, 0.95)[level])
            factors.append(np.clip(math.exp(trust * math.log(max(held, 1e-3))), 0.1, 10.0))
    return np.array(factors)


def _ratios_of(
    entry: Visited,
    population: Population,
    weight: float,
    ratios: _Ratios,
) -> None:
    """How far off predictions of this job were, in units of the interval's own ends."""
    one = [step for step in entry.steps if step[0].nodes == 1]
    across = [step for step in entry.steps if step[0].nodes > 1]
    patterns = [one[:1], one[:2], [*one[:1], *one[1:4:2]]]
    if across:
        patterns.append([*one[:2], across[0]])
    for pattern in {tuple(pattern): None for pattern in patterns if pattern}:
        targets = [step for step in entry.steps if step not in pattern]
        if not targets:
            continue
        model = StepTimeModel(
            [SeenStep(devices=s.devices, seconds=math.exp(y), sigma_log=0.0, spot=s) for s, y in pattern],
            prior=population.prior(entry.hardware),
            gradient_bytes=entry.gradient_bytes,
        )
        z = [0.0, *(sign * level for level in Z_LEVELS for sign in (-1, 1))]
        logs = np.log(model.quantiles([spot for spot, _ in targets], z))
        kinds = model.evidence([spot for spot, _ in targets])
        apart = np.array([y for _, y in targets]) - logs[0]
        for level in range(len(Z_LEVELS)):
            low, high = logs[1 + 2 * level] - logs[0], logs[2 + 2 * level] - logs[0]
            ratio = np.where(apart < 0, apart / np.minimum(low, -1e-6), apart / np.maximum(high, 1e-6))
            for kind, value in zip(kinds, ratio, strict=True):
                ratios[int(kind), level].append((float(value), weight))


def _weighted_quantile(values: Sequence[tuple[float, float]], level: float) -> float:
    if not values:
        return 1.0
    ordered = sorted(values)
    mass = np.cumsum([weight for _, weight in ordered])
    return float(np.interp(level * mass[-1], mass, [value for value, _ in ordered]))
