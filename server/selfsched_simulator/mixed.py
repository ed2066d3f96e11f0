"""Jobs on mixed models of GPU: their truth is a table of throughputs, one row a model.

`throughput.csv` has the steps per second of a whole job (summed over its GPUs) by `gpu_type`, `model`,
`batch_size`, `num_gpus`, and `consolidated` (1: on one node, 0: spread); 0 steps per second: it does not
run there. A job keeps its GPU count; which model it runs on is what is decided.

T_alone is Gavel's isolated share: with n jobs in the trace, a job has 1/n of the devices of each
model, that is the fraction D_m / (n g) of its time on g devices of the D_m of model m, all fractions
together at most 1 (Narayanan et al., OSDI 2020, section 4.2).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from selfsched.errors import Refused
from selfsched.protocol import Resume
from selfsched_simulator.cluster import Cluster
from selfsched_simulator.speeds import Counts, measured
from selfsched_simulator.tables import Row, number, positive, read_rows, whole
from selfsched_simulator.trace import Common, Trace, TraceJob, in_order, read_common, refuse_wider

MIXED_COLUMNS = ("arrival_s", "model", "batch_size", "num_gpus", "total_steps")
_RATE_COLUMNS = ("gpu_type", "consolidated", "model", "batch_size", "num_gpus", "steps_per_s")
Rates = Mapping[tuple[str, str, int], Mapping[tuple[str, bool], float]]
"""By (model, batch, GPUs): steps per second by (GPU model, on one node)."""


def read_throughput(path: Path) -> Rates:
    """Read a table of throughputs.

    Raises:
        Refused: it cannot be read; the message names line and column.
    """
    rates: dict[tuple[str, str, int], dict[tuple[str, bool], float]] = {}
    for line, row in enumerate(read_rows(path, _RATE_COLUMNS, "the table of throughputs"), start=2):
        steps = number(row, "steps_per_s", line)
        if steps < 0:
            raise Refused(f"line {line}: steps_per_s is {steps:g}, it must not be negative")
        packed = whole(row, "consolidated", line, least=0) == 1
        rates.setdefault(_kind(row, line), {})[(row["gpu_type"] or "").strip(), packed] = steps
    return rates


def _kind(row: Row, line: int) -> tuple[str, str, int]:
    name, batch = (row["model"] or "").strip(), (row["batch_size"] or "").strip()
    return name, batch, whole(row, "num_gpus", line)


def read_mixed(path: Path, cluster: Cluster, rates: Rates) -> Trace:
    """Read a trace of jobs for mixed models of GPU.

    Raises:
        Refused: something is wrong with it; the message names line and column.
    """
    rows = read_rows(path, MIXED_COLUMNS, "the trace")
    jobs = []
    for line, row in enumerate(rows, start=2):
        column = "job" if "job" in row else "job_id"
        jobs.append(_job(row, read_common(row, line, name_column=column), line, cluster, rates, len(rows)))
    return Trace(kind="mixed", jobs=in_order(jobs))


def _job(row: Row, common: Common, line: int, cluster: Cluster, rates: Rates, jobs: int) -> TraceJob:
    kind = _kind(row, line)
    name, batch, gpus = kind
    refuse_wider(common.name, gpus, cluster, line)
    steps = positive(row, "total_steps", line)
    known = rates.get(kind)
    if known is None:
        raise Refused(
            f"line {line}: the table has no throughput of {name!r}, batch {batch or 'none'}, {gpus} GPUs"
        )
    seconds = {
        where: steps / rate
        for model in cluster.models
        for where, rate in _layouts(model, gpus, known, cluster)
    }
    if not seconds:
        raise Refused(
            f"line {line}: {name!r} runs on none of the cluster's models {', '.join(cluster.models)}"
        )
    return TraceJob(
        name=common.name,
        arrival_seconds=common.arrival_seconds,
        account=common.account,
        restart_seconds=common.restart_seconds,
        speed=measured(seconds, several_models=len(cluster.models) > 1),
        gpus=gpus,
        alone_seconds=isolated_seconds(steps, gpus, known, cluster, jobs),
        resume=Resume.ELASTIC,
    )


def _layouts(
    model: str, gpus: int, known: Mapping[tuple[str, bool], float], cluster: Cluster
) -> list[tuple[tuple[str, Counts], float]]:
    """Where it can run on a model, packed and spread, with the steps per second."""
    found: list[tuple[tuple[str, Counts], float]] = []
    rooms = [node.devices for node in cluster.nodes if node.model == model]
    packed, spread = known.get((model, True), 0.0), known.get((model, False), 0.0)
    if packed > 0 and max(rooms) >= gpus:
        found.append(((model, (gpus,)), packed))
    fewest = cluster.fewest_nodes(gpus, model)
    if spread > 0 and fewest is not None and gpus > 1:
        for nodes in range(max(2, fewest), min(len(rooms), gpus) + 1):
            found.append(((model, (1,) * (nodes - 1) + (gpus - nodes + 1,)), spread))
    return found


def isolated_seconds(
    steps: float, gpus: int, known: Mapping[tuple[str, bool], float], cluster: Cluster, jobs: int
) -> float:
    """Seconds of the whole run on 1/n of the devices of each model."""
    parts = {model: devices / (jobs * gpus) for model, devices in cluster.models.items()}
    most = max(1.0, sum(parts.values()))
    rate = sum(part / most * max(known.get((model, True), 0.0), 0.0) for model, part in parts.items())
    if rate <= 0:
        rate = sum(part / most * known.get((model, False), 0.0) for model, part in parts.items())
    return steps / rate
