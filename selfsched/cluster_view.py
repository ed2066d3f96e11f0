"""`selfsched.show()`: the cluster as a rich object, for any cell and any terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from selfsched.commands.connection import connect
from selfsched.commands.words import forecast_words
from selfsched.core.bidding import devices_words, duration_words
from selfsched.core.memory import gib_words
from selfsched.core.run_ends import job_state_words
from selfsched.protocol import ClusterView, DeviceProcess, DeviceState, DeviceView, JobState, JobView

MOST_ROWS = 100
_IN_USE = (DeviceState.FREE, DeviceState.HELD, DeviceState.YIELDING)
_MIG_NUMBERS = 100
"""Its node numbers the instances of GPU n from 100 n on."""
NO_DEVICES = (
    "no machine has reported a device to the broker; one without a GPU is offered as CPU slots, so it is not "
    "for want of one: the machine that trains does not report, or has just begun. `selfsched doctor` says "
    "what it finds there"
)
NOT_TAKEN_OVER = (
    "What was started without selfsched is left alone, and cannot be taken over: its owner ends it and "
    "starts it again, with `selfsched run --fixed --time 2h -- COMMAND`."
)


@dataclass(frozen=True)
class Shown:
    """Who holds how many devices, my jobs, what is on my devices, and what is left out of offers, and why.

    A notebook shows it as tables, a terminal as lines.
    """

    account: str
    cluster: ClusterView
    jobs: tuple[JobView, ...]

    @property
    def summary(self) -> str:
        """The cluster in one line."""
        cluster = self.cluster
        if not cluster.devices:
            return f"{NO_DEVICES}; {cluster.waiting_jobs} waiting"
        free = sum(device.state is DeviceState.FREE for device in cluster.devices)
        return (
            f"{free} of {devices_words(len(cluster.devices))} free; {cluster.running_jobs} running, "
            f"{cluster.waiting_jobs} waiting; next auction in {duration_words(cluster.next_tick_seconds)}"
        )

    def holders(self) -> list[tuple[str, int]]:
        """Accounts with the devices they hold, the largest first."""
        held = Counter(device.account for device in self.cluster.devices if device.account is not None)
        return sorted(held.items(), key=lambda item: (-item[1], item[0]))

    def on_mine(self) -> list[tuple[str, str, str]]:
        """Each device of mine, the job that has it, and what is on it: memory, and every process."""
        jobs = {device.id: job.name for job in self.jobs for device in job.devices}
        mine = [device for device in self.cluster.devices if device.account == self.account]
        return [(device_words(d), jobs.get(d.id, ""), load_words(d)) for d in mine[:MOST_ROWS]]

    def left_out(self) -> list[tuple[str, str, str]]:
        """Each device that is not offered: since when, why and who is on it, and what frees it."""
        out = [d for d in self.cluster.devices if d.state not in _IN_USE or (not d.account and d.free_when)]
        return [
            (device_words(d), f"{_state_words(d)}; {_why(d)}".rstrip("; "), d.free_when)
            for d in out[:MOST_ROWS]
        ]

    @property
    def has_strangers(self) -> bool:
        """Whether somebody is on a device without a lease."""
        return any(device.strangers for device in self.cluster.devices)

    def job_rows(self) -> list[tuple[str, str, str, str, str]]:
        """Name, state or end, devices, part done and finish of each of my jobs; live ones first."""
        ordered = sorted(self.jobs, key=lambda job: job.state is JobState.ENDED)
        return [
            (
                job.name, job_state_words(job), str(len(job.devices)), f"{job.fraction_done:.0%}",
                _finish_words(job),
            )
            for job in ordered[:MOST_ROWS]
        ]  # fmt: skip

    def __repr__(self) -> str:
        lines = [self.summary]
        lines += [f"  {account}: {devices_words(count)}" for account, count in self.holders()]
        lines += [f"  {' | '.join(row)}" for row in self.job_rows()]
        lines += [f"  {device}: {words}" for device, _, words in self.on_mine() if words]
        lines += [
            f"  {device}: {why}" + (f"; offered again when: {when}" if when else "")
            for device, why, when in self.left_out()
        ]
        return "\n".join([*lines, NOT_TAKEN_OVER] if self.has_strangers else lines)

    def _repr_html_(self) -> str:
        parts = [f"<p>{escape(self.summary)}</p>"]
        parts.append(_table("Who holds how many", ("account", "devices"), self.holders()))
        jobs = ("job", "state", "devices", "done", "finished in")
        parts.append(_table("My jobs", jobs, self.job_rows()))
        on_mine = [row for row in self.on_mine() if row[2]]
        parts.append(_table("On my devices", ("device", "job", "in use"), on_mine))
        out = ("device", "why", "offered again when")
        parts.append(_table("Left out of offers", out, self.left_out()))
        if self.has_strangers:
            parts.append(f"<p>{escape(NOT_TAKEN_OVER)}</p>")
        return "".join(parts)


def show(broker: str | None = None) -> Shown:
    """The cluster as it is now.

    Args:
        broker: its address; None: the one that is set, the lab's, or your private one.

    Raises:
        Refused: no broker is running.
        BrokerUnreachable: it does not answer.
    """
    with connect(broker) as client:
        return Shown(client.account().account, client.cluster(), client.jobs())


def _finish_words(job: JobView) -> str:
    """When it will be done; of what has ended nothing."""
    if job.state is JobState.ENDED:
        return ""
    ends = job.ends or job.forecast
    return "not known yet" if ends is None else forecast_words(ends)


def device_words(device: DeviceView) -> str:
    """A device by the number that nvidia-smi counts, its node, model and the beginning of its UUID."""
    if device.kind == "cpu":
        return device.id
    short = "-".join(device.id.split("-")[:2])
    name = f"GPU {device.index}"
    if device.id.startswith("MIG-"):
        name = f"GPU {device.index // _MIG_NUMBERS}, part {device.index % _MIG_NUMBERS} (MIG)"
    return f"{name} on {device.node} ({device.model}, {short})"


def load_words(device: DeviceView) -> str:
    """What is on a device: its memory, how busy it is, and every process with its owner."""
    parts = []
    if device.memory_used_bytes is not None:
        total = f" of {gib_words(device.memory_bytes)}" if device.memory_bytes is not None else ""
        parts.append(f"{gib_words(device.memory_used_bytes)}{total} of memory in use")
    if device.utilisation is not None:
        parts.append(f"{device.utilisation:.0%} busy")
    taken = sum(p.used_bytes or 0 for p in device.processes if p.pid in device.strangers)
    if device.account is not None and taken:
        parts.append(f"{gib_words(taken)} of it is taken by who has no lease of it")
    return "; ".join([*parts, *_processes(device)])


def _state_words(device: DeviceView) -> str:
    if device.state is DeviceState.DRAINED or device.since_seconds < 1:
        return str(device.state)
    return f"{device.state} for {duration_words(device.since_seconds)}"


def _why(device: DeviceView) -> str:
    """Who is on it, or else the broker's own words."""
    if device.strangers:
        return f"in use without a lease: {load_words(device)}"
    return "; ".join(filter(None, [device.detail, *_processes(device)]))


def _processes(device: DeviceView) -> list[str]:
    return [_process_words(process, device) for process in device.processes]


def _process_words(process: DeviceProcess, device: DeviceView) -> str:
    command = f" ({process.command})" if process.command else ""
    used = "" if process.used_bytes is None else f", {gib_words(process.used_bytes)}"
    outside = ", without a lease" if device.account is not None and process.pid in device.strangers else ""
    return f"process {process.pid}{command} of {process.account or 'somebody unknown'}{used}{outside}"


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    cells = ["".join(f"<td>{escape(str(value))}</td>" for value in row) for row in rows]
    if not cells:
        return ""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    caption = f"<caption>{escape(title)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
