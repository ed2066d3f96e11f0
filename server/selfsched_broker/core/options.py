"""What contenders may get on a large cluster: one option for each bag of pieces, not for each node.

The same times, welfare and entitlements as in `choices`, written as the arrays of `solver`: a row
"n devices on k nodes" becomes the ways to write n as k pieces (near-equal ones first, then
the most packed, at most `MOST_BAGS`), on every model it may run on. What is tied to places,
staying, growing around devices that are kept, very devices, becomes an anchored option.

Among options of equal welfare the one that stays is preferred, then who has waited longer, then
a hash of (auction, job); which of two equal nodes a job gets is decided when pieces are placed.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from selfsched_broker.core.choices import (
    TIE,
    Ground,
    Standing,
    entitled_devices,
    entitled_welfare,
    row_for,
    splits,
)
from selfsched_broker.core.fairness import Row
from selfsched_broker.core.market import Market
from selfsched_broker.core.solver.problem import Anchor, Bools, Floats, Ints, Problem

MOST_BAGS = 8
"""Ways to cut a row's devices into pieces that are tried."""
WIDEST_NODE = 128
"""Devices of a node beyond which prices by size would cost more than they tell."""
# An entitlement weighs more than so many jobs together could gain by anything else.
_OUTWEIGHED = 16


@dataclass(frozen=True, slots=True)
class Options:
    """The question of a division, and what its options mean."""

    problem: Problem
    """Gains are welfare and tie-breakers; `urgency` comes on top."""
    standings: tuple[Standing, ...]
    """By job of the problem."""
    nodes: tuple[str, ...]
    """By node of the problem."""
    welfare: Floats
    stays: Bools
    enough: Bools
    """By option: it keeps its job's entitlement."""
    urgency: Floats
    """By job: what an option that keeps the entitlement adds to the gain."""
    incumbent: Ints
    """By job: the option that changes nothing."""
    homes: tuple[tuple[int, ...], ...]
    """By job: nodes where it has devices or had its last."""
    avoided: frozenset[int]
    """Nodes with a sick device."""
    others: Mapping[int, int]
    """By node, seats whose holders are not among the jobs."""


@dataclass(slots=True)
class _Pages:
    """Rows while they are written: what a placement is worth, whatever pieces it is cut into."""

    job: list[int] = field(default_factory=list)
    worth: list[float] = field(default_factory=list)
    """What the policy says it is worth; not a number: the logarithm of its value."""
    seconds: list[float] = field(default_factory=list)
    """What is left on it, restarts apart."""
    restart: list[float] = field(default_factory=list)
    """What the move to it counts."""
    devices: list[int] = field(default_factory=list)
    stays: list[bool] = field(default_factory=list)
    ways: list[_Ways] = field(default_factory=list)


# (bundle, loose bundle, anchor, model) of each option that a row makes.
_Ways = Sequence[tuple[int, int, int, int]]


def write_options(
    standings: Sequence[Standing],
    ground: Ground,
    market: Market,
    limits: Sequence[tuple[frozenset[str], int]] = (),
    *,
    entitles: bool = True,
) -> Options:
    """All options of all contenders.

    Args:
        standings: those who take part, in order of registration.
        ground: the seats.
        market: the question.
        limits: groups of jobs and the devices they may hold together.
        entitles: whether a share is guaranteed.
    """
    options = _Writer(standings, ground, market).write(limits)
    return options if entitles else replace(options, urgency=np.zeros(len(options.standings)))


class _Writer:
    def __init__(self, standings: Sequence[Standing], ground: Ground, market: Market) -> None:
        self._standings = sorted(standings, key=lambda s: s.job)
        self._ground, self._market = ground, market
        self._nodes = tuple(sorted(ground.seats))
        self._node_at = {node: at for at, node in enumerate(self._nodes)}
        self._models = sorted(set(ground.model_of.values())) or [""]
        self._model_at = {model: at for at, model in enumerate(self._models)}
        self._roomiest = dict.fromkeys(self._models, 0)
        self._count = Counter(ground.model_of[node] for node in self._nodes)
        for node, seats in ground.seats.items():
            model = ground.model_of[node]
            self._roomiest[model] = max(self._roomiest[model], seats)
        self._width = max(self._roomiest.values(), default=0) or 1
        self._bundles: dict[tuple[tuple[int, int, int], ...], int] = {(): 0}
        self._anchors: list[Anchor] = []
        self._of_row: dict[tuple[int, int, str | None], list[tuple[int, int, int, int]]] = {}
        self._pages = _Pages()

    def write(self, limits: Sequence[tuple[frozenset[str], int]]) -> Options:
        incumbent = []
        for at, standing in enumerate(self._standings):
            incumbent.append(self._write_job(at, standing))
        return self._bind(np.array(incumbent, np.int64), limits)

    # --- one job ---------------------------------------------------------------------

    def _write_job(self, at: int, standing: Standing) -> int:
        """Its options, those first that change nothing; which of them is the way things are."""
        self._dearest = max(row.restart_seconds for row in standing.rows)
        contender = standing.contender
        kept = contender.kept
        if not standing.at_stake or len(kept) >= standing.retains:
            row = row_for(standing, kept, self._ground) if kept else None
            at_home = self._model_at.get(self._model_of_kept(standing), 0) if kept else -1
            ways = ((0, 0, -1, at_home),)
            self._add(at, standing, row, len(kept), ways, moves=len(kept) < standing.held)
        self._stay(at, standing)
        incumbent = len(self._pages.job) - 1
        self._placements(at, standing)
        return incumbent

    def _add(
        self, job: int, standing: Standing, row: Row | None, devices: int, ways: _Ways, *, moves: bool
    ) -> None:
        pages = self._pages
        pages.job.append(job)
        pages.worth.append(math.nan if standing.worth is None else standing.worth(row, moves))
        if row is None:
            smallest = standing.rows[0]
            waits = self._market.options.term_seconds + smallest.restart_seconds
            pages.seconds.append(waits + smallest.remaining_seconds)
            pages.restart.append(0.0)
        else:
            pages.seconds.append(row.remaining_seconds)
            pages.restart.append((row.restart_seconds or self._dearest) if moves else 0.0)
        pages.devices.append(devices)
        pages.stays.append(devices > 0 and not moves)
        pages.ways.append(ways)

    def _stay(self, job: int, standing: Standing) -> None:
        there = standing.has_all and self._ground.devices.issuperset(standing.at_stake)
        if not standing.at_stake or not there:
            return
        devices = (*standing.contender.kept, *standing.at_stake)
        row = row_for(standing, devices, self._ground)
        self._add(job, standing, row, len(devices), (self._exactly(standing.at_stake),), moves=False)

    def _exactly(self, devices: Sequence[str]) -> tuple[int, int, int, int]:
        draws = Counter(self._ground.node_of[device] for device in devices)
        return self._anchored(draws, (), frozenset(devices))

    def _anchored(
        self, draws: Counter[str], loose: tuple[tuple[int, int, int], ...], exactly: frozenset[str]
    ) -> tuple[int, int, int, int]:
        """A way that draws from named nodes, and may have loose pieces besides."""
        pieces = Counter({(model, size): count for model, size, count in loose})
        for node, count in draws.items():
            pieces[self._model_at[self._ground.model_of[node]], count] += 1
        bag = tuple(sorted((model, size, count) for (model, size), count in pieces.items()))
        fixed = tuple(sorted((self._node_at[node], n) for node, n in draws.items()))
        self._anchors.append(Anchor(fixed, exactly))
        return self._bundle(bag), self._bundle(loose), len(self._anchors) - 1, bag[0][0] if bag else -1

    def _model_of_kept(self, standing: Standing) -> str:
        node = self._ground.node_of[standing.contender.kept[0]]
        return self._ground.model_of.get(node, "")

    def _bundle(self, bag: tuple[tuple[int, int, int], ...]) -> int:
        return self._bundles.setdefault(bag, len(self._bundles))

    def _placements(self, job: int, standing: Standing) -> None:
        contender = standing.contender
        if contender.wanted_devices:
            self._wanted(job, standing)
            return
        least = max(standing.retains, len(contender.kept))
        most = math.inf if contender.quota_left is None else standing.held + contender.quota_left
        allowed = set(standing.allowed)
        rows = [
            row
            for row in standing.rows
            if row.devices in allowed and least <= row.devices <= most and row.devices != len(contender.kept)
        ]
        if contender.kept:
            for row in rows:
                self._grow(job, standing, row)
            return
        for row in rows:
            if ways := self._bags_of(row):
                self._add(job, standing, row, row.devices, ways, moves=True)

    def _wanted(self, job: int, standing: Standing) -> None:
        wanted = standing.contender.wanted_devices
        missing = [device for device in wanted if device not in standing.contender.kept]
        if missing and self._ground.devices.issuperset(missing):
            row = row_for(standing, wanted, self._ground)
            self._add(job, standing, row, len(wanted), (self._exactly(missing),), moves=True)

    def _bags_of(self, row: Row) -> _Ways:
        """Every way a row can lie, where nothing is kept."""
        key = (row.devices, row.nodes, row.model)
        found = self._of_row.get(key)
        if found is None:
            found = []
            for model in self._models if row.model is None else [row.model]:
                if self._count.get(model, 0) >= row.nodes:
                    at = self._model_at[model]
                    for pieces in partitions(row.devices, row.nodes, self._roomiest[model]):
                        bundle = self._bundle(_bag(at, pieces))
                        found.append((bundle, bundle, -1, at))
            self._of_row[key] = found
        return found

    def _grow(self, job: int, standing: Standing, row: Row) -> None:
        """Around what is kept: further seats there, and pieces on further nodes of that model."""
        kept = Counter(self._ground.node_of[device] for device in standing.contender.kept)
        models = {self._ground.model_of[node] for node in kept}
        model = min(models)
        if row.nodes < len(kept) or len(models) > 1 or row.model not in (None, model):
            return
        at = self._model_at[model]
        ways = [
            self._anchored(draws, _bag(at, pieces), frozenset())
            for draws, pieces in itertools.islice(self._ways_to_grow(row, kept, model), MOST_BAGS)
        ]
        if ways:
            self._add(job, standing, row, row.devices, ways, moves=True)

    def _ways_to_grow(
        self, row: Row, kept: Counter[str], model: str
    ) -> Iterator[tuple[Counter[str], tuple[int, ...]]]:
        nodes = [node for node in sorted(kept) if node in self._node_at]
        room = [self._ground.seats[node] for node in nodes]
        extra, further = row.devices - kept.total(), row.nodes - len(kept)
        for here in range(min(extra - further, sum(room)), -1, -1):
            if (further == 0) != (here == extra):
                continue
            for split in itertools.islice(splits(here, [0] * len(nodes), room), MOST_BAGS):
                draws = Counter({node: n for node, n in zip(nodes, split, strict=True) if n})
                for pieces in partitions(extra - here, further, self._roomiest[model]):
                    yield draws, pieces

    # --- all together ------------------------------------------------------------------

    def _bind(self, incumbent: Ints, limits: Sequence[tuple[frozenset[str], int]]) -> Options:
        pages, standings = self._pages, self._standings
        job = np.array(pages.job, np.int64)
        age = np.array([s.contender.age_seconds for s in standings], float)
        weight = np.array([s.weight for s in standings], float)
        seconds = age[job] + pages.seconds + self._market.options.move_gain * np.array(pages.restart)
        worth = np.array(pages.worth, float)
        worth = np.where(np.isnan(worth), -weight[job] * np.log(np.maximum(seconds, 1e-6)), worth)
        # From rows to options: every way to lie is one.
        row = np.repeat(np.arange(len(job)), [len(ways) for ways in pages.ways])
        ways = np.array(list(itertools.chain.from_iterable(pages.ways)), np.int64).reshape(-1, 4)
        first = np.searchsorted(job[row], np.arange(len(standings) + 1))
        incumbent = np.searchsorted(row, incumbent)
        welfare, devices, stays = worth[row], np.array(pages.devices)[row], np.array(pages.stays)[row]
        tie = np.array([s.tie for s in standings], float)[job[row]]
        gain = welfare + TIE * np.where(ways[:, 0] > 0, tie + 14.0 * stays, 0.0)
        urgency, enough = self._entitlements(first, welfare, devices, ways[:, 3])
        group, most = self._groups(limits, devices[incumbent])
        problem = Problem(
            node_model=np.array([self._model_at[self._ground.model_of[n]] for n in self._nodes], np.int64),
            node_free=np.array([self._ground.seats[node] for node in self._nodes], np.int64),
            first=first,
            gain=gain,
            bundle=ways[:, 0],
            loose=ways[:, 1],
            anchor=ways[:, 2],
            bundles=self._bundle_table(),
            width=self._width,
            devices=devices,
            anchors=self._anchors,
            group=group,
            limits=most,
        )
        return Options(
            problem=problem,
            standings=tuple(standings),
            nodes=self._nodes,
            welfare=welfare,
            stays=stays,
            enough=enough,
            urgency=urgency,
            incumbent=incumbent,
            homes=tuple(self._homes(standing) for standing in standings),
            others=self._others(),
            avoided=frozenset(at for at, node in enumerate(self._nodes) if node in self._ground.doubtful),
        )

    def _bundle_table(self) -> Ints:
        table = np.zeros((len(self._bundles), len(self._models) * self._width), np.int64)
        for row, bag in enumerate(self._bundles):
            for model, size, count in bag:
                table[row, model * self._width + size - 1] += count
        return table

    def _homes(self, standing: Standing) -> tuple[int, ...]:
        contender = standing.contender
        devices = (*standing.at_stake, *contender.last_devices)
        nodes = (self._ground.node_of.get(device) for device in devices)
        return tuple(dict.fromkeys(self._node_at[node] for node in nodes if node in self._node_at))

    def _others(self) -> dict[int, int]:
        jobs = {standing.job for standing in self._standings}
        return Counter(
            self._node_at[seat.node]
            for seat in self._market.seats
            if seat.holder is not None and seat.holder not in jobs and seat.device in self._ground.devices
        )

    def _entitlements(self, first: Ints, welfare: Floats, devices: Ints, model: Ints) -> tuple[Floats, Bools]:
        """By job what its entitlement weighs, by option whether it is kept."""
        standings = self._standings
        limit = np.array([entitled_devices(standing) for standing in standings], np.int64)
        job = np.repeat(np.arange(len(standings)), np.diff(first))
        within = np.flatnonzero((devices > 0) & (devices <= limit[job]))
        urgency, enough = np.zeros(len(standings)), np.zeros(len(welfare), bool)
        if not len(within):
            return urgency, enough
        best = np.full((len(standings), len(self._models)), -np.inf)
        np.maximum.at(best, (job[within], model[within]), welfare[within])
        weight = np.array([s.weight for s in standings], float)
        parts = np.array([self._ground.model_part.get(name, 0.0) for name in self._models])
        least = entitled_welfare(best, parts, welfare[first[:-1]], weight)
        ranked = within[np.lexsort((devices[within], -welfare[within], job[within]))]
        entitled, foremost = np.unique(job[ranked], return_index=True)
        span = np.maximum.reduceat(welfare, first[:-1]) - np.minimum.reduceat(welfare, first[:-1])
        above_all = 1.0 + np.sort(span)[-_OUTWEIGHED:].sum()
        passed = np.array([1 + min(s.contender.passed_over, 20) for s in standings], float)
        urgency[entitled] = devices[ranked[foremost]] * passed[entitled] * above_all
        enough = (urgency[job] > 0) & (welfare >= least[job])
        return urgency, enough

    def _groups(self, limits: Sequence[tuple[frozenset[str], int]], held: Ints) -> tuple[Ints, Ints]:
        """Limits that could bind. Nobody need give up what it holds for one that was lowered."""
        group = np.full(len(self._standings), -1, np.int64)
        at = {standing.job: number for number, standing in enumerate(self._standings)}
        most: list[int] = []
        for members, limit in limits:
            own = np.array(sorted(at[job] for job in members if job in at), np.int64)
            wanted = sum(max(self._standings[j].allowed[-1], int(held[j])) for j in own)
            if len(own) and wanted > limit:
                group[own] = len(most)
                most.append(max(limit, int(held[own].sum())))
        return (group, np.array(most, np.int64)) if most else (group[:0], np.zeros(0, np.int64))


def _bag(model: int, pieces: Sequence[int]) -> tuple[tuple[int, int, int], ...]:
    return tuple((model, size, count) for size, count in sorted(Counter(pieces).items()))


@lru_cache(maxsize=10_000)
def partitions(devices: int, nodes: int, most: int) -> tuple[tuple[int, ...], ...]:
    """Ways to write devices as one piece on each of so many nodes, at most `MOST_BAGS`.

    The near-equal one first, as most programs are started, then the most packed ones.
    """
    if nodes == 0:
        return ((),) if devices == 0 else ()
    if not nodes <= devices <= nodes * most:
        return ()
    low, more = divmod(devices, nodes)
    equal = (low + 1,) * more + (low,) * (nodes - more)
    others = (pieces for pieces in _descending(devices, nodes, most) if pieces != equal)
    return (equal, *itertools.islice(others, MOST_BAGS - 1))


def _descending(devices: int, nodes: int, most: int) -> Iterator[tuple[int, ...]]:
    if nodes == 0:
        yield ()
        return
    for largest in range(min(most, devices - nodes + 1), -(-devices // nodes) - 1, -1):
        for rest in _descending(devices - largest, nodes - 1, largest):
            yield (largest, *rest)
