"""What a lie brings its teller, and what charging costs: `python -m bench.honesty [--json] [--quick]`.

Labs at random (`_labs`, `_honesty_lab`) are simulated from their first to their last job by the broker's own
code, once with one account honest and once with all of its jobs lying, for several seeds. An account's
record, its debts and what was seen of its jobs carry on from auction to auction: a lie is told many
times, not once.

`lies`: the gain of the liar, as the part by which the mean completion of its jobs becomes shorter (negative:
longer), and what the others lose, means over the seeds with their standard errors. Both are differences of
logarithms between the same lab with the lie and without, so each seed is its own control.
`charging`: everybody honest, mean completion and restarts where payments are only recorded and where
they are charged.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

from bench._honesty_lab import LIAR, LIES, NOISE, RESTART_SECONDS, TERM_SECONDS, Lab, lab
from selfsched_broker.core.market import FairnessOptions
from selfsched_broker.core.policies import policy_named
from selfsched_simulator.engine import Simulation
from selfsched_simulator.job import Habits
from selfsched_simulator.options import SimulationOptions

REPORT_SECONDS = 30.0
RULES = (("selfsched", "record"), ("themis", "record"), ("themis", "charge"))
"""Policy and payments; `selfsched` has no payments to charge."""
LIE_SEEDS = {2: 16, 8: 12, 32: 3}
CHARGE_SEEDS = {2: 12, 4: 12, 8: 12, 32: 4, 128: 1}
JOBS = {2: 24, 4: 32, 8: 48, 32: 96, 128: 300}
QUICK_JOBS = 10
Row = TypeVar("Row", bound="LieRow | ChargeRow")


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """One simulation. Times in seconds."""

    liar: float
    """Mean completion of the liar's jobs, from when they could start."""
    others: float
    """Of everybody else's."""
    everybody: float
    restarts: float
    """For each job."""
    debt: float
    """Device-seconds owed in the end, all accounts together."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LieRow:
    """One lie under one rule."""

    lie: str
    policy: str
    payments: str
    devices: int
    seeds: int
    gain: float
    """1 - completion with the lie / without, of the liar's jobs: geometric mean over the seeds."""
    gain_error: float
    """Its standard error."""
    others_loss: float
    """Likewise, by how much everybody else's completion became longer."""
    others_error: float

    @property
    def pays(self) -> bool:
        """Whether it brings its teller more than the noise (two standard errors) may be."""
        return self.gain > 2 * self.gain_error


@dataclass(frozen=True, kw_only=True, slots=True)
class ChargeRow:
    """Charging beside recording, everybody honest, under `themis`."""

    devices: int
    seeds: int
    recorded_completion_s: float
    charged_completion_s: float
    completion_change: float
    """Part by which mean completion becomes longer: geometric mean over the seeds."""
    completion_error: float
    recorded_restarts: float
    charged_restarts: float
    debt_device_s: float
    """Left uncollected in the end, mean."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What `--json` prints."""

    noise: float
    term_s: float
    lies: list[LieRow]
    charging: list[ChargeRow]


def simulate(drawn: Lab, seed: int, policy: str, payments: str) -> Outcome:
    """One lab from its first job to its last."""
    options = SimulationOptions(
        cluster=drawn.cluster,
        habits=Habits(restart_seconds=RESTART_SECONDS, noise=NOISE, seed=seed),
        term_seconds=TERM_SECONDS,
        report_seconds=REPORT_SECONDS,
        fairness=FairnessOptions(payments=payments),  # type: ignore[arg-type]
    )
    simulation = Simulation(drawn.jobs, policy_named(policy), options)
    jobs = simulation.run()
    ends = {job.row.name: job.finished_at or math.inf for job in jobs}
    mine = [max(ends[piece] for piece in job.pieces) - job.arrival_seconds for job in drawn.liars]
    others = [ends[job.row.name] - job.row.arrival_seconds for job in jobs if job.row.account != LIAR]
    return Outcome(
        liar=statistics.fmean(mine),
        others=statistics.fmean(others),
        everybody=statistics.fmean([*mine, *others]),
        restarts=statistics.fmean(max(0, job.starts - 1) for job in jobs),
        debt=sum(account.debt_device_seconds for account in simulation.books.accounts.values()),
    )


class Pairs:
    """Simulations by what is simulated; the honest ones serve several rows."""

    def __init__(self, jobs: Callable[[int], int]) -> None:
        self._jobs = jobs
        self._known: dict[tuple[object, ...], Outcome] = {}

    def outcome(
        self, devices: int, seed: int, rule: tuple[str, str], lie: str | None = None, *, splits: bool = False
    ) -> Outcome:
        """One simulation, the same one only once."""
        key = (devices, seed, rule, lie, splits)
        if key not in self._known:
            drawn = lab(devices, seed, lie, jobs=self._jobs(devices), splits=splits)
            self._known[key] = simulate(drawn, seed, *rule)
        return self._known[key]


def lie_row(pairs: Pairs, lie: str, rule: tuple[str, str], devices: int, seeds: int) -> LieRow:
    """One lie under one rule over all seeds."""
    gains, losses = [], []
    for seed in range(1, seeds + 1):
        splits = lie == "split"
        honest = pairs.outcome(devices, seed, rule, splits=splits)
        lying = pairs.outcome(devices, seed, rule, lie, splits=splits)
        gains.append(math.log(lying.liar / honest.liar))
        losses.append(math.log(lying.others / honest.others))
    return LieRow(
        lie=lie,
        policy=rule[0],
        payments=rule[1],
        devices=devices,
        seeds=seeds,
        gain=-math.expm1(statistics.fmean(gains)),
        gain_error=_error(gains),
        others_loss=math.expm1(statistics.fmean(losses)),
        others_error=_error(losses),
    )


def charge_row(pairs: Pairs, devices: int, seeds: int) -> ChargeRow:
    """What charging costs on so many devices."""
    recorded = [pairs.outcome(devices, seed, ("themis", "record")) for seed in range(1, seeds + 1)]
    charged = [pairs.outcome(devices, seed, ("themis", "charge")) for seed in range(1, seeds + 1)]
    both = zip(charged, recorded, strict=True)
    changes = [math.log(one.everybody / other.everybody) for one, other in both]
    return ChargeRow(
        devices=devices,
        seeds=seeds,
        recorded_completion_s=statistics.fmean(o.everybody for o in recorded),
        charged_completion_s=statistics.fmean(o.everybody for o in charged),
        completion_change=math.expm1(statistics.fmean(changes)),
        completion_error=_error(changes),
        recorded_restarts=statistics.fmean(o.restarts for o in recorded),
        charged_restarts=statistics.fmean(o.restarts for o in charged),
        debt_device_s=statistics.fmean(o.debt for o in charged),
    )


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def run(*, quick: bool) -> Result:
    """Everything; `quick`: two devices, two seeds and few jobs, to see that it runs."""
    pairs = Pairs((lambda _: QUICK_JOBS) if quick else (lambda devices: JOBS[devices]))
    lie_seeds, charge_seeds = ({2: 2}, {2: 2}) if quick else (LIE_SEEDS, CHARGE_SEEDS)
    charging = [_said(charge_row(pairs, devices, seeds)) for devices, seeds in charge_seeds.items()]
    lies = [_said(lie_row(pairs, *cell)) for cell in _cells(lie_seeds)]
    return Result(noise=NOISE, term_s=TERM_SECONDS, lies=lies, charging=charging)


def _cells(seeds: dict[int, int]) -> Iterator[tuple[str, tuple[str, str], int, int]]:
    for devices, count in seeds.items():
        for rule in RULES:
            yield from ((lie, rule, devices, count) for lie in LIES)


def _said(row: Row) -> Row:
    print(row, file=sys.stderr, flush=True)
    return row


def table(result: Result) -> str:
    """What people read."""
    lines = ["| lie | policy, payments | devices | seeds | gain of the liar | loss of the others | pays |"]
    lines.append("|---|---|---|---|---|---|---|")
    for row in result.lies:
        lines.append(
            f"| {row.lie} | {row.policy}, {row.payments} | {row.devices} | {row.seeds}"
            f" | {row.gain:+.1%} ± {row.gain_error:.1%} | {row.others_loss:+.1%} ± {row.others_error:.1%}"
            f" | {'yes' if row.pays else 'no'} |"
        )
    lines += ["", "| devices | seeds | completion recorded | charged | change | restarts a job | charged |"]
    lines.append("|---|---|---|---|---|---|---|")
    for cost in result.charging:
        lines.append(
            f"| {cost.devices} | {cost.seeds} | {cost.recorded_completion_s:,.0f} s"
            f" | {cost.charged_completion_s:,.0f} s"
            f" | {cost.completion_change:+.1%} ± {cost.completion_error:.1%}"
            f" | {cost.recorded_restarts:.2f} | {cost.charged_restarts:.2f} |"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table, or with `--json` one object; rows go to stderr as they come."""
    parser = argparse.ArgumentParser(prog="python -m bench.honesty", description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object, nothing else")
    parser.add_argument("--quick", action="store_true", help="a few small labs, to see that it runs")
    options = parser.parse_args(arguments)
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 100)  # books are full of what stays
    try:
        result = run(quick=options.quick)
    finally:
        gc.set_threshold(*before)
    print(json.dumps(asdict(result)) if options.json else table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
