"""What a job claims about its time, held against the progress that the broker sees.

A job claims how long it still needs; the broker sees its fraction done grow by its own clock.
While a job runs on one set of devices, the time it needs at the pace seen,

    metered = (1 - fraction done) (seconds seen) / (fraction gained in them),

stands beside the time it claimed on that count. The two are joined by their precisions, in
logarithms: the claim is as sure as the bid says, but never surer than `LEAST_CLAIM_SIGMA` (a
claim costs nothing); what is seen gets sure with time and steps. Where they differ by more than
three times their common uncertainty, what is seen counts alone. The quotient corrects all rows
of the bid: a job that is wrong about one count is taken to be as wrong about the others.

A job whose end is unknown claims no time, and is not corrected.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from selfsched.protocol import BidRow, Placement

SEEN_SECONDS = 10.0
"""Seen for s seconds, a pace is known to SEEN_SECONDS / s (log), as long as that is small."""
SEEN_STEPS = 5.0
"""Likewise by steps: the fraction done moves by whole ones."""
SEEN_SIGMA = 0.05
"""How well a pace is known however long it was seen: validations come now and then."""
LEAST_SECONDS, LEAST_FRACTION = 1e-3, 1e-12
"""Less of either tells nothing."""
LEAST_CLAIM_SIGMA = 0.1
CONTRADICTED = 3.0
LARGEST_FACTOR = 10.0
KNOWN_SIGMA = 0.1
"""A pace that is as sure as this is known: claims for that placement count no more."""
MOST_PACES = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Meter:
    """One job's claims and paces, as far as they were compared."""

    devices: tuple[str, ...] = ()
    since: float | None = None
    """Since when it has run on these devices, as the broker saw it; None: it does not run."""
    fraction: float = 0.0
    """Its fraction done then."""
    step: int = 0
    factor: float = 1.0
    """What its claimed times are to be multiplied with."""
    sigma_log: float | None = None
    """How sure the corrected times are (standard deviation of the logarithm); None: nothing was seen."""
    base: float = 1.0
    """The factor before this run on these devices: where it starts from."""
    base_sigma_log: float | None = None
    told: tuple[Placement, float] | None = None
    """The claim that was compared last, in seconds of the whole run."""
    paces: tuple[tuple[Placement, float], ...] = ()
    """Seconds of the whole run on placements where they were seen for long enough: no claim for one of
    them counts any more."""

    def moved_on(
        self, devices: tuple[str, ...], *, running: bool, now: float, fraction: float, step: int
    ) -> Meter:
        """The meter after a report: goes on, or begins anew where the devices changed or it stopped."""
        went_on = self.since is not None and running and devices == self.devices
        if went_on and fraction >= self.fraction and step >= self.step:
            return self
        since = now if running and devices else None
        return Meter(
            devices=devices, since=since, fraction=fraction, step=step,
            factor=self.factor, sigma_log=self.sigma_log, base=self.factor, base_sigma_log=self.sigma_log,
            told=self.told, paces=self.paces,
        )  # fmt: skip

    def interrupted(self) -> Meter:
        """After a restart of the broker: what is known stays, a run on devices is seen anew.

        Broker time stood still meanwhile and the job went on, so that a pace across it would be too quick.
        """
        return replace(
            self, devices=(), since=None, fraction=0.0, step=0, base=self.factor,
            base_sigma_log=self.sigma_log,
        )  # fmt: skip

    def noted(self, here: Placement, claimed_seconds: float, believed_seconds: float) -> Meter:
        """After a comparison: the claim it was about, and the pace where that is known by now.

        Args:
            here: the placement.
            claimed_seconds: of the whole run.
            believed_seconds: the same, as corrected by its account's record.
        """
        meter = replace(self, told=(here, claimed_seconds))
        if self.sigma_log is None or self.sigma_log > KNOWN_SIGMA:
            return meter
        others = tuple(known for known in self.paces if known[0] != here)
        return replace(meter, paces=(*others, (here, believed_seconds * self.factor))[-MOST_PACES:])

    def restated(self, rows: Sequence[BidRow], fraction: float) -> Meter:
        """The meter of a job that does not run and bids anew: what it says without a step is no news.

        The factor is scaled so that the claim that was corrected stays corrected to the same time.
        """
        if self.since is not None or self.told is None or fraction >= 1:
            return self
        placement, before = self.told
        claim = claim_for(placement, rows)
        if claim is None or not claim.remaining_seconds:
            return self
        whole = claim.remaining_seconds / (1 - fraction)
        factor = min(max(self.factor * before / whole, 1 / LARGEST_FACTOR), LARGEST_FACTOR)
        return replace(self, factor=factor, base=factor, told=(placement, whole))

    def compared(
        self,
        claimed_seconds: float,
        sigma_log: float,
        *,
        now: float,
        fraction: float,
        step: int,
        doubt_log: float = 0.0,
    ) -> Meter:
        """The meter with the factor that a claim of this moment gives.

        Args:
            claimed_seconds: time to the end that the job claims on the devices it runs on.
            sigma_log: how sure it says it is.
            now: broker time.
            fraction: its fraction done.
            step: its step.
            doubt_log: standard deviation (log) of what its account claims (`track_record`).
        """
        if self.since is None or not LEAST_SECONDS <= claimed_seconds < math.inf:
            return self
        seconds, gained, steps = now - self.since, fraction - self.fraction, step - self.step
        if seconds < LEAST_SECONDS or gained < LEAST_FRACTION or steps <= 0 or fraction >= 1:
            return self
        seen = math.log((1 - fraction) * seconds / gained / claimed_seconds)
        doubt = math.hypot(SEEN_SECONDS / seconds, SEEN_STEPS / steps, SEEN_SIGMA)
        least = max(sigma_log, LEAST_CLAIM_SIGMA, doubt_log)
        claim = least if self.base_sigma_log is None else self.base_sigma_log
        base = math.log(self.base)
        if abs(seen - base) > CONTRADICTED * math.hypot(claim, doubt):
            trust = 1.0
        else:
            trust = claim**2 / (claim**2 + doubt**2)
        factor = math.exp(base + trust * (seen - base))
        factor = min(max(factor, 1 / LARGEST_FACTOR), LARGEST_FACTOR)
        sure = doubt if trust == 1.0 else claim * doubt / math.hypot(claim, doubt)
        return replace(self, factor=factor, sigma_log=max(sure, SEEN_SIGMA))


def claim_for(here: Placement, rows: Sequence[BidRow]) -> BidRow | None:
    """The row of a bid that speaks of the placement a job runs on: of its count and its model, and as
    near to its number of nodes as there is one."""
    fitting = [
        row
        for row in rows
        if row.remaining_seconds is not None
        and row.placement.devices == here.devices
        and row.placement.model in (None, here.model)
    ]
    return min(fitting, key=lambda row: abs(row.placement.nodes - here.nodes), default=None)
