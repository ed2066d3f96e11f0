"""`selfsched.show()`: the cluster as a rich object, for any cell and any terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from selfsched.commands.connection import connect
from selfsched.commands.words import forecast_words
from selfsched.core.bidding import devices_words, duration_words
from selfsched.protocol import ClusterView, DeviceState, DeviceView, JobView

MOST_ROWS = 100
_GIB = 2**30


@dataclass(frozen=True)
class Shown:
    """Who holds how many devices, what is free, my jobs, and what is on my devices.

    A notebook shows it as tables, a terminal as lines.
    """

    account: str
    cluster: ClusterView
    jobs: tuple[JobView, ...]

    @property
    def summary(self) -> str:
        """The cluster in one line."""
        cluster = self.cluster
        free = sum(device.state is DeviceState.FREE for device in cluster.devices)
        return (
            f"{free} of {devices_words(len(cluster.devices))} free; {cluster.running_jobs} running, "
            f"{cluster.waiting_jobs} waiting; next auction in {duration_words(cluster.next_tick_seconds)}"
        )

    def holders(self) -> list[tuple[str, int]]:
        """Accounts with the devices they hold, the largest first."""
        held = Counter(device.account for device in self.cluster.devices if device.account is not None)
        return sorted(held.items(), key=lambda item: (-item[1], item[0]))

    def on_mine(self) -> list[tuple[str, str]]:
        """What is on each device of mine: memory in use, and every process with its owner."""
        mine = [device for device in self.cluster.devices if device.account == self.account]
        return [(device.id, _load_words(device)) for device in mine[:MOST_ROWS]]

    def job_rows(self) -> list[tuple[str, str, str, str, str]]:
        """Name, state, devices, part done and finish of each of my jobs."""
        return [
            (
                job.name, str(job.state), str(len(job.devices)), f"{job.fraction_done:.0%}",
                forecast_words(job.forecast) if job.forecast is not None else "not known yet",
            )
            for job in self.jobs[:MOST_ROWS]
        ]  # fmt: skip

    def __repr__(self) -> str:
        lines = [self.summary]
        lines += [f"  {account}: {devices_words(count)}" for account, count in self.holders()]
        lines += [f"  {' | '.join(row)}" for row in self.job_rows()]
        lines += [f"  {device}: {words}" for device, words in self.on_mine() if words]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        parts = [f"<p>{escape(self.summary)}</p>"]
        parts.append(_table("Who holds how many", ("account", "devices"), self.holders()))
        jobs = ("job", "state", "devices", "done", "finished in")
        parts.append(_table("My jobs", jobs, self.job_rows()))
        parts.append(_table("On my devices", ("device", "in use"), [row for row in self.on_mine() if row[1]]))
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


def _load_words(device: DeviceView) -> str:
    parts = []
    if device.memory_used_bytes is not None:
        parts.append(f"{device.memory_used_bytes / _GIB:.1f} GiB of memory in use")
    if device.utilisation is not None:
        parts.append(f"{device.utilisation:.0%} busy")
    for process in device.processes:
        used = "" if process.used_bytes is None else f", {process.used_bytes / _GIB:.1f} GiB"
        parts.append(f"process {process.pid} of {process.account or 'somebody unknown'}{used}")
    return "; ".join(parts)


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    cells = ["".join(f"<td>{escape(str(value))}</td>" for value in row) for row in rows]
    if not cells:
        return ""
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    caption = f"<caption>{escape(title)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
