"""What a contender may get in an auction, and what each of it would be worth.

The value of a placement is v = 1 / rho, the job's part of the weight its exponent; T_alone
is the same for all placements of a job and is left out, so the welfare of a choice is
-weight x log T_shared. Two rules enter the times and with them the sum that is maximised:

* a move counts with `move_gain` times its restart, so that nobody moves for less than that
  and a division once reached is the best one afterwards too (its own moves are paid, those
  to any other are not);
* a job that would be left worse than it is *entitled* to weighs more than any welfare. It is
  entitled to the best it could have on at most its share of devices (a part of each model,
  where there are several: `entitled_welfare`); where the share is less
  than its smallest count, to that count once it has been passed over for as many ticks as
  the share needs to add up to it, a gang (a wide job) after the first. Waiting is valued at
  one term only, so without this a job with a long way to go would win every term from a
  shorter one: it is the bound on how long a share can be withheld.

Ties: who stays where it is, then a node without a sick device, then who has its own or last
devices there, then who has waited longer, then a hash of (auction, job), then the node that
fits tightest.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from selfsched.protocol import Resume
from selfsched_broker.core.allocation import Choice
from selfsched_broker.core.fairness import Row, held_row, rate, restart_cost, shared_seconds
from selfsched_broker.core.market import Contender, Market, Seat
from selfsched_broker.core.merit import Merit

# Ways to lie on the nodes that are tried for one row: complete for gangs packed on one of so many.
MOST_SPLITS = 256
# Weight of a tie-breaker in log value: far below what any measurement can tell.
TIE = 1e-8
_WHOLE = 1e-9


Floats = NDArray[np.float64]
Worth = Callable[[Row | None, bool], float]
"""What a placement is worth to a job, given whether it has to move there; None: nothing for a term."""


class Valuation(NamedTuple):
    """What placements are worth to a job by a policy, and by what, for the words of its award."""

    worth: Worth
    merit: Merit | None = None


@dataclass(frozen=True, slots=True)
class Standing:
    """A contender as the auction sees it."""

    contender: Contender
    rows: tuple[Row, ...]
    weight: float
    """Exponent of its value; the mean of all contenders is 1."""
    owed: float
    """Its share right now, in devices."""
    at_stake: tuple[str, ...]
    """Of its devices, those it may win again (first visits have taken theirs)."""
    retains: int = 0
    """Devices it cannot be brought below in this auction."""
    tie: float = 0.0
    """Rank by waiting and hash, in (0, 1]; the larger comes first."""
    worth: Worth | None = None
    """What is summed for this job; None: the logarithm of its value, as in Themis."""
    merit: Merit | None = None
    """What speaks for it, where the policy says so."""

    @property
    def job(self) -> str:
        return self.contender.job

    @property
    def held(self) -> int:
        """Devices it has before the auction."""
        return len(self.contender.kept) + len(self.contender.at_stake)

    @property
    def has_all(self) -> bool:
        return len(self.at_stake) == len(self.contender.at_stake)

    @property
    def allowed(self) -> tuple[int, ...]:
        """Counts it may have: what cannot be resized goes on at its size."""
        contender = self.contender
        size = self.held or len(contender.last_devices)
        if contender.resume is not Resume.ELASTIC and size in contender.allowed_devices:
            return (size,)
        return contender.allowed_devices


@dataclass(frozen=True, slots=True)
class Ground:
    """Where devices lie: seats by node, and the node of every device that is known."""

    devices: frozenset[str]
    """The seats."""
    seats: Mapping[str, int]
    """How many there are by node."""
    model_of: Mapping[str, str]
    node_of: Mapping[str, str]
    model_part: Mapping[str, float]
    """Of all devices in sight, the part that each model has."""
    doubtful: frozenset[str] = frozenset()
    """Nodes with a sick device."""


def survey(seats: Iterable[Seat], market: Market) -> Ground:
    """Count the seats by node."""
    seats = list(seats)
    known = [*market.seats, *market.kept_seats]
    model_of = {seat.node: seat.model for seat in known}
    node_of = {seat.device: seat.node for seat in known}
    only = next(iter(model_of), "")
    for contender in market.contenders:
        for device in contender.kept:
            node_of.setdefault(device, only)
    devices = frozenset(seat.device for seat in seats)
    models = Counter(seat.model for seat in known)
    parts = {model: count / len(known) for model, count in models.items()}
    doubtful = frozenset(seat.node for seat in seats if seat.doubtful)
    return Ground(devices, dict(Counter(seat.node for seat in seats)), model_of, node_of, parts, doubtful)


def rank_ties(number: int, contenders: Sequence[Contender]) -> dict[str, float]:
    """Longer waiting first, then a hash of (auction, job), in (0, 1]."""

    def place(contender: Contender) -> tuple[float, str]:
        return -contender.waiting_seconds, hashlib.sha256(f"{number}:{contender.job}".encode()).hexdigest()

    ordered = sorted(contenders, key=place)
    return {c.job: (len(ordered) - at) / len(ordered) for at, c in enumerate(ordered)}


def entitled_devices(standing: Standing) -> int:
    """How many devices its claim goes up to; 0: it has none (yet).

    Its share, or where that is less than its smallest count, that count once it has been
    passed over often enough.
    """
    limit = math.floor(standing.owed + _WHOLE)
    smallest = standing.allowed[0]
    if limit >= smallest:
        return limit
    passed = standing.contender.passed_over
    due = passed * standing.owed >= smallest - _WHOLE or (smallest > 1 and passed >= 1)
    return smallest if due and not standing.held else 0


def entitled_welfare(best: Floats, parts: Floats, idle: Floats, weight: Floats) -> Floats:
    """What jobs must not be left worse than, as weight x log value.

    On one model the best it could have on its share. On several its share is a part of each of
    them, so the mean of the values it would have there; not everybody can have the fastest.

    Args:
        best: (jobs, models) the largest welfare on at most its share; -inf: none.
        parts: by model its part of all devices.
        idle: by job, welfare with nothing: where a model is of no use to it.
        weight: by job, exponent of its value.
    """
    highest = best.max(axis=1)
    if len(parts) <= 1:
        return np.asarray(highest)
    worth = np.where(np.isfinite(best), best, idle[:, None])
    top = np.maximum(highest, idle)
    mean = np.exp((worth - top[:, None]) / weight[:, None]) @ parts
    return np.asarray(np.minimum(top + weight * np.log(mean), highest))


def entitled_choice(standing: Standing, drafts: Sequence[Choice], ground: Ground) -> tuple[float, int] | None:
    """(welfare, devices) that it must not be left below while there is a way; None: no claim (yet)."""
    limit = entitled_devices(standing)
    within = [choice for choice in drafts if 0 < choice.devices <= limit]
    if not within:
        return None
    models = {model: at for at, model in enumerate(ground.model_part)}
    best = np.full((1, len(models)), -np.inf)
    for choice in within:
        node = next(iter(choice.draws), None) or ground.node_of[standing.contender.kept[0]]
        at = models[ground.model_of[node]]
        best[0, at] = max(best[0, at], choice.welfare)
    idle = max((choice.welfare for choice in drafts if not choice.taken), default=-math.inf)
    first = max(within, key=lambda choice: (choice.welfare, -choice.devices))
    parts = np.array(list(ground.model_part.values()))
    least = entitled_welfare(best, parts, np.array([idle]), np.array([standing.weight]))
    return float(least[0]), first.devices


def write_choices(
    standings: Sequence[Standing], ground: Ground, market: Market, *, entitles: bool = True
) -> dict[str, list[Choice]]:
    """All choices of all contenders, their gains complete; `entitles`: entitlements come first."""
    drafts = {s.job: _drafts(s, ground, market) for s in standings}
    spans = (max(c.welfare for c in choices) - min(c.welfare for c in choices) for choices in drafts.values())
    above_all = 1.0 + sum(spans)
    return {s.job: _complete(s, drafts[s.job], ground, above_all if entitles else 0.0) for s in standings}


def _complete(standing: Standing, drafts: Sequence[Choice], ground: Ground, above_all: float) -> list[Choice]:
    entitled = entitled_choice(standing, drafts, ground)
    urgency = 0.0
    if entitled is not None:
        urgency = entitled[1] * (1 + min(standing.contender.passed_over, 20)) * above_all
    complete = []
    for choice in drafts:
        enough = entitled is not None and choice.welfare >= entitled[0]
        tie = TIE * _preference(standing, choice, ground)
        complete.append(replace(choice, gain=choice.welfare + (urgency if enough else 0.0) + tie))
    idle = max((c.gain for c in complete if not c.taken), default=-math.inf)
    return [c for c in complete if not c.taken or c.gain > idle]


def _preference(standing: Standing, choice: Choice, ground: Ground) -> float:
    if not choice.taken:
        return 0.0
    own = Counter(ground.node_of[d] for d in standing.at_stake)
    last = Counter(ground.node_of[d] for d in standing.contender.last_devices if d in ground.node_of)
    overlap = sum(min(n, own[node]) for node, n in choice.draws.items()) / choice.taken
    memory = sum(min(n, last[node]) for node, n in choice.draws.items()) / choice.taken
    tight = sum(n / ground.seats[node] for node, n in choice.draws.items()) / len(choice.draws)
    doubt = sum(n for node, n in choice.draws.items() if node in ground.doubtful) / choice.taken
    return 8.0 * choice.stays + 4.0 * overlap + 2.0 * memory - 6.0 * doubt + standing.tie + 0.001 * tight


def _drafts(standing: Standing, ground: Ground, market: Market) -> list[Choice]:
    choices = list(_stay(standing, ground, market))
    choices += _nothing_more(standing, ground, market)
    choices += _placements(standing, ground, market)
    return choices


def welfare(standing: Standing, placement: Row | None, moves: bool, market: Market) -> float:
    """-weight x log T_shared, a move counted `move_gain` times; or what the policy says it is worth."""
    if standing.worth is not None:
        return standing.worth(placement, moves)
    contender, options = standing.contender, market.options
    if placement is not None:
        cost = options.move_gain * restart_cost(standing.rows, placement)
        placement = placement._replace(restart_seconds=cost)
    seconds = shared_seconds(
        contender, standing.rows, placement, moves=moves, term_seconds=options.term_seconds
    )
    return -standing.weight * math.log(max(seconds, 1e-6))


def row_for(standing: Standing, devices: Iterable[str], ground: Ground) -> Row:
    """The row of a set of devices; interpolated where the bid has none for their count."""
    held = list(devices)
    nodes = {ground.node_of[d] for d in held}
    model = ground.model_of.get(next(iter(nodes)), None) if nodes else None
    row = held_row(standing.rows, len(held), len(nodes), model)
    if row is not None:
        return row
    undone = max(1.0 - standing.contender.fraction_done, 1e-9)
    remaining = undone / rate(standing.rows, standing.contender.fraction_done, len(held))
    return Row(len(held), len(nodes), model, remaining, standing.rows[0].restart_seconds)


def _stay(standing: Standing, ground: Ground, market: Market) -> Iterator[Choice]:
    if not standing.at_stake or not standing.has_all or not ground.devices.issuperset(standing.at_stake):
        return
    devices = (*standing.contender.kept, *standing.at_stake)
    value = welfare(standing, row_for(standing, devices, ground), False, market)
    draws = dict(Counter(ground.node_of[d] for d in standing.at_stake))
    exactly = frozenset(standing.at_stake)
    yield Choice(standing.job, len(devices), draws, value, value, exactly, stays=True)


def _nothing_more(standing: Standing, ground: Ground, market: Market) -> Iterator[Choice]:
    """Only what it keeps anyway (who cannot run on that is settled before the auction)."""
    kept = standing.contender.kept
    if standing.at_stake and len(kept) < standing.retains:
        return
    row = row_for(standing, kept, ground) if kept else None
    yield _choice(standing, row, len(kept), {}, len(kept) < standing.held or not kept, market)


def _choice(
    standing: Standing, row: Row | None, devices: int, draws: dict[str, int], moves: bool, market: Market
) -> Choice:
    value = welfare(standing, row, moves, market)
    return Choice(standing.job, devices, draws, value, value, stays=devices > 0 and not moves)


def _placements(standing: Standing, ground: Ground, market: Market) -> Iterator[Choice]:
    contender = standing.contender
    if contender.wanted_devices:
        yield from _wanted(standing, ground, market)
        return
    least = max(standing.retains, len(contender.kept))
    ceiling = math.inf if contender.quota_left is None else standing.held + contender.quota_left
    kept = Counter(ground.node_of[d] for d in contender.kept)
    for row in standing.rows:
        if row.devices not in standing.allowed or not least <= row.devices <= ceiling:
            continue
        if row.devices == len(contender.kept):
            continue
        for draws in itertools.islice(_draws(row, kept, ground), MOST_SPLITS):
            yield _choice(standing, row, row.devices, draws, True, market)


def _wanted(standing: Standing, ground: Ground, market: Market) -> Iterator[Choice]:
    missing = [d for d in standing.contender.wanted_devices if d not in standing.contender.kept]
    if not missing or not ground.devices.issuperset(missing):
        return
    nodes = Counter(ground.node_of[d] for d in missing)
    row = row_for(standing, standing.contender.wanted_devices, ground)
    choice = _choice(standing, row, len(standing.contender.wanted_devices), dict(nodes), True, market)
    yield replace(choice, exactly=frozenset(missing))


def _draws(row: Row, kept: Counter[str], ground: Ground) -> Iterator[dict[str, int]]:
    """The ways a row can lie on the seats, what is kept staying where it is."""
    if row.nodes < len(kept):
        return
    models = sorted({model for node, model in ground.model_of.items() if node in kept or not kept})
    for model in models:
        if row.model not in (None, model):
            continue
        nodes = [n for n in ground.seats if ground.model_of[n] == model and n not in kept]
        # The roomiest first: where not all sets of nodes are tried, these have most ways to lie.
        nodes.sort(key=lambda n: (-ground.seats[n], n))
        sets = itertools.combinations(nodes, row.nodes - len(kept))
        for further in itertools.islice(sets, MOST_SPLITS):
            used = [*sorted(kept), *further]
            lowest = [0 if node in kept else 1 for node in used]
            room = [ground.seats.get(node, 0) for node in used]
            for split in splits(row.devices - kept.total(), lowest, room):
                yield {node: n for node, n in zip(used, split, strict=True) if n}


def splits(total: int, lowest: Sequence[int], room: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """All ways to write `total` as a sum within the bounds."""
    if not lowest:
        yield ()
        return
    rest_low, rest_room = sum(lowest[1:]), sum(room[1:])
    for first in range(max(lowest[0], total - rest_room), min(room[0], total - rest_low) + 1):
        for rest in splits(total - first, lowest[1:], room[1:]):
            yield (first, *rest)
