"""A fit of a plain Trainer that holds leases for the devices it sits on.

What `holding` does with the broker, joined to Lightning: which devices the Trainer uses, the
wait before the first step, cores to run on, the checkpoint and the stop at a step's end when
the lease ends. Rank 0 talks with the broker. The others hear of it by broadcasts at the fit's
start, and leave at the same batch by `elastic.agreement`.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from selfsched.callback import NoLease
from selfsched.core.reporting import JobFacts
from selfsched.core.visible_devices import Seats, gpu_id, gpus_of, processes_named, slots_of
from selfsched.elastic import lightning_internals as internals
from selfsched.elastic.agreement import Agreement, Ranks, Reason, Wish
from selfsched.elastic.job import JobDescription
from selfsched.errors import Refused
from selfsched.holding import Holder, Standing
from selfsched.launch import local_devices
from selfsched.launch.locks import MachineLocks
from selfsched.negotiator import registration
from selfsched.private_broker import find_broker
from selfsched.protocol import MAX_SECONDS, ClusterView, LeasedDevice, Outcome, RegisterJob
from selfsched.settings import Settings

WhenTaken = Literal["wait", "warn", "error"]
ANSWER_SECONDS = 6.0
"""A broker that has not answered for so long at a fit's start is not waited for."""
GRANT_SECONDS = 15.0
"""Devices that are not given within this time, without another job on them, count as taken."""
GIVE_UP_SECONDS = 60.0
"""A wait ends, without a lease, when the broker has been away for so long, or when nothing but
processes that hold no lease has stood on the GPUs for so long."""
_ROUND_SECONDS = 2.0
"""Between two words to the ranks that wait: far below any time-out of a process group."""


@dataclass(frozen=True)
class _Verdict:
    """Rank 0's word to all ranks before the first step."""

    kind: Literal["go", "wait", "refused"]
    words: str = ""
    devices: tuple[LeasedDevice, ...] = ()
    """CPU slots to run on, one for each rank; empty: run where you are."""


class HeldFit:
    """One fit and its leases. Made on every rank, with the same arguments.

    Args:
        settings: with a broker.
        stated_seconds: how long the training says it needs; None: as long as the policy allows.
        when_taken: what to do while others hold the devices.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        stated_seconds: float | None = None,
        when_taken: WhenTaken = "wait",
    ) -> None:
        self._settings, self._stated_seconds, self._when_taken = settings, stated_seconds, when_taken
        self._holder: Holder | None = None
        self._agreement: Agreement | None = None
        self._batch_at: float | None = None
        self._step_seconds: float | None = None
        self._undo: list[Callable[[], None]] = []
        self._left: tuple[str, int] | None = None

    # --- before the first step ---------------------------------------------------------

    def begin(self, trainer: Any) -> None:
        """Ask for the devices of this Trainer and, where it is to be so, wait for them.

        Raises:
            Refused: they are taken and `when_taken` is "error", or can never be given.
        """
        if int(trainer.num_nodes) > 1:
            self._warn(trainer, "several machines: a plain Trainer leases devices of one machine only")
            return
        if trainer.is_global_zero:
            self._ask(trainer)
        began_at, said = time.monotonic(), ""
        while True:
            verdict = self._verdict(began_at, said) if trainer.is_global_zero else None
            if trainer.world_size > 1:
                verdict = trainer.strategy.broadcast(verdict, src=0)
            assert verdict is not None
            if verdict.kind == "wait":
                said = verdict.words
                continue
            self._follow(trainer, verdict)
            return

    def _ask(self, trainer: Any) -> None:
        find = seats_of(trainer)
        self._holder = Holder(
            find_broker(self._settings),
            seats=find,
            registration=lambda seats: self._registration(trainer, seats),
            locks=MachineLocks(self._settings.lock_dir),
            margin_seconds=self._settings.margin_seconds,
        )
        atexit.register(self._at_exit)
        self._holder.start()

    def _registration(self, trainer: Any, seats: Seats) -> RegisterJob:
        job = JobDescription(
            run_directory=Path(trainer.default_root_dir).absolute(),
            program="command",
            working_directory=Path.cwd(),
            min_devices=seats.count,
            max_devices=seats.count,
            fixed=True,
            # The broker cuts it to what its policy allows.
            stated_seconds=self._stated_seconds or MAX_SECONDS,
        )
        return registration(job, self._settings).model_copy(update={"wanted_devices": seats.exactly})

    def _verdict(self, began_at: float, said: str) -> _Verdict:
        """Rank 0: what is known after a round; prints why it waits, once for each change."""
        assert self._holder is not None
        waited = time.monotonic() - began_at
        in_time = min(max(ANSWER_SECONDS - waited, 0.0) or _ROUND_SECONDS, _ROUND_SECONDS)
        standing = self._holder.wait(
            lambda at: at.phase not in ("asking", "waiting") or self._stands_different(at, said), in_time
        )
        self.tell()
        waited = time.monotonic() - began_at
        match standing.phase:
            case "held":
                return _Verdict("go", devices=standing.devices if standing.confine else ())
            case "nothing":
                return _Verdict("go", standing.words)
            case "refused" if self._when_taken != "warn":
                return _Verdict("refused", standing.words)
            case "refused":
                return _Verdict("go", f"{standing.words}. Training begins and holds no lease.")
            case "away":
                return _Verdict("go")  # it is said already
            case "asking":
                if waited < ANSWER_SECONDS:
                    return _Verdict("wait", said)
                words = f"the broker has not answered in {ANSWER_SECONDS:.0f} s"
                return _Verdict("go", f"{words}. Training begins and holds no lease; it is asked again.")
        return self._while_waiting(standing, waited, said)

    def _stands_different(self, standing: Standing, said: str) -> bool:
        if standing.phase != "waiting":
            return False
        return self._when_taken != "wait" or _reason(standing) != said

    def _while_waiting(self, standing: Standing, waited: float, said: str) -> _Verdict:
        assert self._holder is not None
        is_taken = bool(standing.held_by) or waited >= GRANT_SECONDS
        who = standing.held_by or standing.detail or standing.words
        if self._when_taken == "error" and is_taken:
            return _Verdict(
                "refused",
                f"the devices of this Trainer are taken ({who}). Wait for them with "
                'SelfScheduler(when_taken="wait"), or choose others; `selfsched status` shows who has what',
            )
        if self._when_taken == "warn" and is_taken:
            words = f"the devices of this Trainer are taken ({who}). It trains on them and holds no lease"
            return _Verdict("go", words)
        if self._when_taken != "wait":
            time.sleep(0.05)  # a grant takes moments
            return _Verdict("wait", said)
        if self._holder.away_seconds() > GIVE_UP_SECONDS:
            return _Verdict(
                "go", "the broker is away. Training begins and holds no lease; it is asked again."
            )
        if not standing.held_by and _is_all_ours(processes_named(standing.detail)) and is_taken:
            # Lightning makes a CUDA context before any callback is called: the broker gives the
            # device to whose process it is, unless a limit of the account is in the way.
            words = "the broker takes this training's own process on its GPU for a stranger"
            return _Verdict("go", f"{words}. Training begins and holds no lease; it is asked again.")
        if not standing.held_by and standing.detail and waited > GIVE_UP_SECONDS:
            return _Verdict(
                "go", f"{standing.detail}. Training begins and holds no lease; it is asked again."
            )
        reason = _reason(standing)
        if reason != said and waited > 1.0:  # most are served at once
            print(f"selfsched: waiting: {reason}", flush=True)
            return _Verdict("wait", reason)
        if waited <= 1.0:
            time.sleep(0.02)
        return _Verdict("wait", said)

    def _follow(self, trainer: Any, verdict: _Verdict) -> None:
        if verdict.kind == "refused":
            self.end(Outcome.CANCELLED, "refused before training")
            raise Refused(f"selfsched: {verdict.words}")
        if verdict.words:
            self._warn(trainer, verdict.words)
        self._pin(trainer, verdict.devices)

    def _pin(self, trainer: Any, devices: tuple[LeasedDevice, ...]) -> None:
        rank = int(trainer.local_rank)
        if rank < len(devices) and devices[rank].cores:
            slot = devices[rank]
            self._undo.append(pin(slot.cores))
            cores = ", ".join(map(str, slot.cores))
            print(f"selfsched: rank {rank} runs on {slot.id} (core {cores})", flush=True)

    # --- while it trains -----------------------------------------------------------------

    def watch(self, trainer: Any) -> None:
        """From the training's start on: be asked between two batches."""
        if trainer.world_size > 1:
            self._agreement = Agreement(Ranks(int(trainer.world_size), int(trainer.global_rank)))
        elif self._holder is None:
            return
        internals.before_each_batch(trainer, lambda: self._between_batches(trainer))
        self._undo.append(lambda: internals.forget_hooks(trainer))

    def learn(self, facts: JobFacts) -> None:
        """What the broker may know of the training."""
        if self._holder is not None:
            self._holder.learn(facts)

    def tell(self) -> None:
        """Print what happened meanwhile, on the training's own thread."""
        while self._holder is not None and self._holder.news:
            news = self._holder.news.popleft()
            if news.is_warning:
                warnings.warn(f"selfsched: {news.words}", NoLease, stacklevel=2)
            else:
                print(f"selfsched: {news.words}", flush=True)

    def _between_batches(self, trainer: Any) -> bool:
        holder = self._holder
        if holder is not None and holder.news:
            self.tell()
        if self._agreement is None:
            if holder is None or holder.leave is None or internals.half_accumulated(trainer):
                return True
            self._leave(trainer, holder.leave)
        self._note_step()
        if internals.half_accumulated(trainer) or not self._agreement_due():
            return True
        wanted = holder is not None and holder.leave is not None
        wish = Wish(Reason.ORDERED if wanted else Reason.NONE)
        assert self._agreement is not None
        if self._agreement.exchange(wish, self._step_seconds).leave:
            self._leave(trainer, holder.leave or "" if holder is not None else "")
        return True

    def _agreement_due(self) -> bool:
        return self._agreement is not None and self._agreement.due()

    def _note_step(self) -> None:
        now = time.perf_counter()
        if self._batch_at is not None:
            took = now - self._batch_at
            known = self._step_seconds
            # A smoothed minimum: validations and checkpoints in between are no step.
            self._step_seconds = took if known is None else min(took, 0.9 * known + 0.1 * took)
        self._batch_at = now

    def _leave(self, trainer: Any, why: str) -> None:
        """Save, and have Lightning end the fit here; between two batches, on all ranks.

        Raises:
            StopIteration: what ends an epoch of Lightning's.
        """
        path = self._checkpoint_path(trainer)
        if trainer.world_size > 1:
            path = trainer.strategy.broadcast(path, src=0)
        temporary = path.with_name(f".{path.name}.saving")
        trainer.save_checkpoint(temporary)
        if trainer.is_global_zero:
            _replace(temporary, path)
        trainer.strategy.barrier("selfsched_checkpoint")
        self._left = (why, int(trainer.global_step))
        if trainer.is_global_zero:
            print(
                f"selfsched: {why}. The training stopped after step {trainer.global_step}, with a checkpoint "
                f"at {path}. To go on: trainer.fit(..., ckpt_path={str(path)!r})",
                flush=True,
            )
        self._undo.append(_stop(trainer))
        raise StopIteration

    def _checkpoint_path(self, trainer: Any) -> Path:
        job = (self._holder.job if self._holder is not None else None) or "job"
        root = str(trainer.default_root_dir)
        # A remote root cannot be renamed in: the checkpoint is kept here.
        directory = Path.cwd() if "://" in root else Path(root).absolute()
        directory.mkdir(parents=True, exist_ok=True)
        return directory / f"selfsched-{re.sub(r'[^A-Za-z0-9._-]', '-', job)}.ckpt"

    # --- the end -------------------------------------------------------------------------

    def finish(self) -> None:
        """The fit has come to its end, or was left as ordered."""
        if self._left is not None:
            why, step = self._left
            self.end(Outcome.CANCELLED, f"left with a checkpoint: {why}", step)
        else:
            self.end(Outcome.FINISHED, "the fit came to its end")

    def fail(self, error: BaseException) -> None:
        """The fit was ended by an exception."""
        on_purpose = isinstance(error, KeyboardInterrupt | SystemExit)
        words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        self.end(Outcome.CANCELLED if on_purpose else Outcome.FAILED, words)

    def end(self, outcome: Outcome, reason: str, checkpoint_step: int | None = None) -> None:
        """Give back devices and cores and end the job; said twice, it counts once."""
        while self._undo:
            self._undo.pop()()
        if self._holder is not None:
            self.tell()
            atexit.unregister(self._at_exit)
            self._holder.close(outcome, reason, checkpoint_step)
            self._holder = None

    def _at_exit(self) -> None:
        self.end(Outcome.CANCELLED, "its process ended")

    def _warn(self, trainer: Any, words: str) -> None:
        if trainer.is_global_zero:
            warnings.warn(f"selfsched: {words}", NoLease, stacklevel=2)


def seats_of(trainer: Any) -> Callable[[ClusterView], Seats | None]:
    """What a Trainer on this machine asks for, from the broker's devices."""
    if getattr(trainer.strategy.root_device, "type", "cpu") == "cuda":
        names = gpu_names([int(ordinal) for ordinal in trainer.device_ids])
        return lambda cluster: gpus_of(names, cluster)
    cores, ranks = os.sched_getaffinity(0), int(trainer.world_size)
    node = local_devices.node_name()
    return lambda cluster: slots_of(cores, ranks, node, cluster)


def gpu_names(ordinals: list[int]) -> tuple[str, ...]:
    """UUIDs of the CUDA devices with these ordinals, as the driver writes them."""
    import torch

    found = []
    visible = local_devices.gpus()
    for ordinal in ordinals:
        told = getattr(torch.cuda.get_device_properties(ordinal), "uuid", None)
        if told is not None:
            found.append(gpu_id(str(told), os.environ.get("CUDA_VISIBLE_DEVICES")))
        elif ordinal < len(visible):
            found.append(visible[ordinal].id)
    return tuple(found) if len(found) == len(ordinals) else ()


def pin(cores: tuple[int, ...]) -> Callable[[], None]:
    """Run this process's threads on these cores, torch with as many threads; returns the way back."""
    import torch

    before, threads = _affinities(), torch.get_num_threads()
    for thread in before:
        _set_affinity(thread, set(cores))
    torch.set_num_threads(min(threads, len(cores)))

    def undo() -> None:
        torch.set_num_threads(threads)
        usual = before.get(os.getpid(), set(cores))
        for thread in _affinities():
            _set_affinity(thread, before.get(thread, usual))

    return undo


def _affinities() -> dict[int, set[int]]:
    found = {}
    for name in os.listdir("/proc/self/task"):
        try:
            found[int(name)] = os.sched_getaffinity(int(name))
        except OSError:
            continue  # the thread has ended
    return found


def _set_affinity(thread: int, cores: set[int]) -> None:
    try:
        os.sched_setaffinity(thread, cores)
    except OSError:
        return  # it has ended, or the cores are not this process's: it stays where it is


def _is_all_ours(processes: frozenset[int]) -> bool:
    """Whether there are any, and all are of this training: this one, or started by it."""
    return bool(processes) and all(process == os.getpid() or _is_child(process) for process in processes)


def _is_child(process: int) -> bool:
    try:
        stat = Path(f"/proc/{process}/stat").read_bytes()
    except OSError:
        return False  # it has ended meanwhile
    # After the name in brackets, which may hold anything: state, then the parent.
    return int(stat.rpartition(b")")[2].split()[1]) == os.getpid()


def _reason(standing: Standing) -> str:
    holders = f" ({standing.held_by})" if standing.held_by else ""
    return f"{standing.words}{holders}"


def _replace(temporary: Path, path: Path) -> None:
    """Make a checkpoint durable under its name, in one step: a file, or a sharded directory."""
    if path.is_dir():
        shutil.rmtree(path)
    for file in [temporary, *(temporary.rglob("*") if temporary.is_dir() else ())]:
        _sync(file)
    os.replace(temporary, path)
    _sync(path.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _stop(trainer: Any) -> Callable[[], None]:
    """`should_stop`, heard whatever the least number of epochs and steps is; returns the way back."""
    fit, epoch = trainer.fit_loop, trainer.fit_loop.epoch_loop
    before = fit.min_epochs, epoch.min_steps
    fit.min_epochs = epoch.min_steps = None
    trainer.should_stop = True

    def undo() -> None:
        fit.min_epochs, epoch.min_steps = before

    return undo
