"""When a rule will end a fit early: the curve it watches, carried on.

A rule of Lightning's `EarlyStopping` ends a fit when the value it watches has not improved
for `patience` checks, has reached its target, or is no number. When that will be depends on
how the curve goes on, and that is a distribution: a curve that still falls by a little may
improve for long, or be over at the next few checks.

The curve after t checks is taken as

    y(t) = floor + fall g(t) + rise t + noise,      g = exp(-t/tau)  or  (1 + t/tau)^-p

(an exponential and a power law are what learning curves are fitted with: Domhan, Springenberg,
Hutter, IJCAI 2015; `rise` is overfitting). All combinations of some twenty shapes and five
sizes of the noise are kept, with their posterior weights; for each the linear coefficients
have a normal posterior. Curves are drawn from it, carried on with their noise, and the rule
is played over them. The draws have a fixed seed: the same values give the same answer.

What the curve does not say is not made up: where the 10 and the 90 % point of what is left
lie more than a factor `TOO_WIDE` apart, the end counts as unknown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from selfsched.core.events import StoppingRule

Array = NDArray[np.float64]

DRAWS = 256
MAX_AHEAD = 400
"""Checks that a curve is carried on; beyond, the limit is the end."""
POINTS = 16
KEPT_VALUES = 256
"""Values of a curve that are kept; of more, the newest."""
LEAST_VALUES = 3
UNLIKE_SHARE = 0.25
"""So many curves, while there are `FEW_VALUES`, may end anywhere; fewer as values come in."""
FEW_VALUES = 6
TOO_WIDE = 8.0
EXPONENTIAL_TAUS = (1.5, 3.0, 6.0, 12.0, 25.0, 50.0, 100.0)
POWERS = tuple((tau, power) for tau in (1.0, 4.0, 16.0) for power in (0.5, 1.0, 1.5))
NOISES = (0.003, 0.01, 0.03, 0.1, 0.3)
"""Standard deviation of the noise, in units of the range of the values so far."""
RISES = (0.0, 0.003, 0.02)
"""What overfitting may add a check, in the same units."""


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """Checks until the rules end the fit, as a distribution."""

    points: tuple[tuple[float, float], ...]
    """(checks still to come, weight), ascending; weights sum to 1. The limit counts as an end."""
    is_known: bool
    """Whether the curve says enough for a forecast."""


@dataclass
class Watched:
    """One rule and what it has seen."""

    rule: StoppingRule
    values: list[float] = field(default_factory=list)
    count: int = 0
    best: float | None = None
    waited: int = 0
    fired: bool = False

    def check(self, value: float) -> None:
        """The rule looks at a value, as Lightning's does."""
        self.count += 1
        rule = self.rule
        if not math.isfinite(value):
            self.fired = self.fired or rule.finite
            self._wait()
        else:
            self.values = [*self.values[1 - KEPT_VALUES :], value]
            sign = _sign(rule)
            if rule.target is not None and sign * value < sign * rule.target:
                self.fired = True
            if rule.divergence is not None and sign * value > sign * rule.divergence:
                self.fired = True
            if self.best is None or sign * value + rule.min_delta < sign * self.best:
                self.best, self.waited = value, 0
            else:
                self._wait()

    def _wait(self) -> None:
        """A check without improvement: only then does patience end."""
        self.waited += 1
        self.fired = self.fired or self.waited >= self.rule.patience


@dataclass
class StoppingWatch:
    """All rules of a fit; the first that holds ends it."""

    watched: dict[str, Watched] = field(default_factory=dict)
    last_step: int = 0
    """Step of the newest check."""
    interval_steps: float | None = None
    """Steps between the last two checks."""
    checks: int = 0
    _cached: tuple[tuple[int, int], Outlook] | None = field(default=None, compare=False)

    def begin(self, rules: Sequence[StoppingRule], *, step: int, anew: bool) -> None:
        """A fit begins, or goes on in a new segment.

        Args:
            rules: as they stand, with what they have seen so far.
            step: global step.
            anew: another fit than the last one.
        """
        if anew:
            self.watched, self.interval_steps, self.checks, self.last_step = {}, None, 0, step
        known = self.watched
        self.watched = {}
        for rule in rules:
            old = known.get(_key(rule))
            self.watched[_key(rule)] = old or Watched(rule=rule, best=rule.best, waited=rule.waited)
        self._cached = None

    def checked(self, step: int, values: Mapping[str, float]) -> None:
        """New values; those that no rule watches are ignored."""
        mine = [watched for watched in self.watched.values() if watched.rule.monitor in values]
        if not mine:
            return
        for watched in mine:
            watched.check(values[watched.rule.monitor])
        if step > self.last_step:
            self.interval_steps = float(step - self.last_step)
            self.last_step = step
        self.checks += 1
        self._cached = None

    @property
    def fired(self) -> bool:
        """Whether a rule has already spoken: the fit ends as soon as its minimum allows."""
        return any(watched.fired for watched in self.watched.values())

    def outlook(self, limit: int) -> Outlook | None:
        """How many checks are still to come.

        Args:
            limit: checks until the limit of the fit, at least 1.

        Returns:
            None when no rule is known.
        """
        if not self.watched:
            return None
        key = (self.checks, limit)
        if self._cached is None or self._cached[0] != key:
            self._cached = key, self._play(max(1, limit))
        return self._cached[1]

    def _play(self, limit: int) -> Outlook:
        if self.fired:
            return Outlook(points=((0.0, 1.0),), is_known=True)
        ends = np.full(DRAWS, float(limit))
        for ordinal, watched in enumerate(self.watched.values()):
            if len(watched.values) < LEAST_VALUES:
                ends = np.minimum(ends, _uninformed(watched, limit))
            else:
                rng = np.random.default_rng([ordinal, watched.count])
                ends = np.minimum(ends, _ends(watched, limit, rng))
        ends.sort()
        middle = ends[((np.arange(POINTS) + 0.5) / POINTS * len(ends)).astype(int)]
        low, high = np.quantile(ends, (0.1, 0.9))
        points = tuple((float(end), 1.0 / POINTS) for end in middle)
        return Outlook(points=points, is_known=bool(high <= TOO_WIDE * max(low, 1.0)))

    # --- state -------------------------------------------------------------------------

    def to_state(self) -> dict[str, Any]:
        """Plain JSON values."""
        watched = []
        for one in self.watched.values():
            state = asdict(one) | {"rule": one.rule.model_dump()}
            watched.append(state)
        return {
            "watched": watched, "last_step": self.last_step, "interval_steps": self.interval_steps,
            "checks": self.checks,
        }  # fmt: skip

    @classmethod
    def from_state(cls, state: Mapping[str, Any]) -> StoppingWatch:
        """What `to_state` gave."""
        watched = {}
        for values in state["watched"]:
            one = Watched(**(values | {"rule": StoppingRule.model_validate(values["rule"])}))
            watched[_key(one.rule)] = one
        rest = {name: state[name] for name in ("last_step", "interval_steps", "checks")}
        return cls(watched=watched, **rest)


def _key(rule: StoppingRule) -> str:
    return f"{rule.monitor}/{rule.mode}/{rule.patience}/{rule.min_delta}/{rule.target}"


def _sign(rule: StoppingRule) -> float:
    """Values times this are better when smaller."""
    return 1.0 if rule.mode == "min" else -1.0


def _uninformed(watched: Watched, limit: int) -> Array:
    """Nothing is known of the curve: anything between the first possible end and the limit."""
    first = max(1, watched.rule.patience - watched.waited) + (watched.best is None)
    if first >= limit:
        return np.full(DRAWS, float(limit))
    return np.geomspace(first, 2.0 * limit, DRAWS).clip(max=limit)


# --- curves -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Members:
    """Shapes of a curve times sizes of its noise."""

    columns: Array
    """(members, checks, 3) over all checks, past and to come."""
    prior: Array
    """(members, 3) variances of floor, fall, rise."""
    noise: Array
    """(members,)"""


def _members(first: int, last: int) -> _Members:
    t = np.arange(first, last, dtype=float)
    shapes = [np.zeros_like(t), *(np.exp(-t / tau) for tau in EXPONENTIAL_TAUS)]
    shapes += [(1.0 + t / tau) ** -power for tau, power in POWERS]
    columns, prior, noise = [], [], []
    for shape in shapes:
        for rise in RISES:
            for size in NOISES:
                columns.append(np.stack([np.ones_like(t), shape, t], axis=1))
                prior.append((4.0, 4.0, rise**2))
                noise.append(size)
    return _Members(np.array(columns), np.array(prior), np.array(noise))


def _ends(watched: Watched, limit: int, rng: np.random.Generator) -> Array:
    """Checks to come until the rule holds, for each of many curves drawn; `limit` where it does not."""
    rule, sign = watched.rule, _sign(watched.rule)
    values = sign * np.array(watched.values)
    ahead = min(limit, MAX_AHEAD)
    scale = max(float(np.ptp(values)), 1e-9 * float(np.abs(values).max()), 1e-300)
    shift = float(values[-1])
    curves = _carried_on((values - shift) / scale, watched.count, ahead, rng)
    assert watched.best is not None
    ends = _stops(
        curves,
        patience=rule.patience,
        waited=watched.waited,
        best=(sign * watched.best - shift) / scale,
        delta=rule.min_delta / scale,
        target=None if rule.target is None else (sign * rule.target - shift) / scale,
    )
    ends = np.where(np.isinf(ends), float(limit), ends)
    doubt = round(DRAWS * UNLIKE_SHARE * min(1.0, FEW_VALUES / len(values)))
    if doubt:  # the curve may do what none of the shapes does
        ends[:: DRAWS // doubt] = _uninformed(watched, limit)[:: DRAWS // doubt]
    return ends


def _carried_on(y: Array, count: int, ahead: int, rng: np.random.Generator) -> Array:
    """(draws, ahead) curves, noise included.

    Args:
        y: newest values, in units of their range.
        count: values there were in all.
        ahead: checks to carry on.
        rng: what draws.
    """
    members = _members(count - len(y), count + ahead)
    past, future = members.columns[:, : len(y)], members.columns[:, len(y) :]
    scaled = past * np.sqrt(members.prior)[:, None, :]  # coefficients of unit variance
    precision = np.einsum("mtc,mtd->mcd", scaled, scaled) / members.noise[:, None, None] ** 2
    precision += np.eye(3)[None]
    projected = np.einsum("mtc,t->mc", scaled, y) / members.noise[:, None] ** 2
    covariance = np.linalg.inv(precision)
    mean = np.einsum("mcd,md->mc", covariance, projected)
    fit = 0.5 * np.einsum("mc,mc->m", mean, projected) - 0.5 * float(y @ y) / members.noise**2
    evidence = fit - 0.5 * np.linalg.slogdet(precision)[1] - len(y) * np.log(members.noise)
    weights = np.exp(evidence - evidence.max())
    cumulated = np.cumsum(weights) / weights.sum()
    chosen = np.searchsorted(cumulated, (np.arange(DRAWS) + 0.5) / DRAWS).clip(max=len(weights) - 1)
    root = np.linalg.cholesky(covariance)
    kicks = rng.standard_normal((DRAWS, 3))
    drawn = mean[chosen] + np.einsum("dij,dj->di", root[chosen], kicks)
    drawn *= np.sqrt(members.prior[chosen])
    smooth = np.einsum("dtc,dc->dt", future[chosen], drawn)
    noisy: Array = smooth + members.noise[chosen][:, None] * rng.standard_normal(smooth.shape)
    return noisy


def _stops(
    curves: Array, *, patience: int, waited: int, best: float, delta: float, target: float | None
) -> Array:
    """After how many checks the rule holds on each curve; infinite where it does not."""
    ends = np.full(len(curves), math.inf)
    bests, waits = np.full(len(curves), best), np.full(len(curves), waited)
    for check in range(curves.shape[1]):
        value = curves[:, check]
        better = value + delta < bests
        bests = np.where(better, value, bests)
        waits = np.where(better, 0, waits + 1)
        holds = ~better & (waits >= patience)
        if target is not None:
            holds |= value < target
        ends[holds & np.isinf(ends)] = check + 1.0
        if not np.isinf(ends).any():
            break
    return ends
