"""One `fit` in one segment: where it comes in, when it leaves, what it leaves behind.

The cut lies between two batches: after everything that belongs to the last one (all hooks,
logging, a validation that was due), before the next one is fetched. Only half accumulated
gradients put it off. There the position is two whole numbers, and Lightning's own resume
goes on from them.
"""

from __future__ import annotations

import os
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from selfsched.core.events import (
    CheckpointSaved,
    FitFinished,
    Left,
    RankRaised,
    StretchTimed,
)
from selfsched.elastic import carried, loggers
from selfsched.elastic import lightning_internals as internals
from selfsched.elastic.agreement import Agreement, Ranks, Reason, Wish
from selfsched.elastic.checkpoints import Checkpoint, CheckpointStore, ensure_private, free_bytes
from selfsched.elastic.data import FitData
from selfsched.elastic.fit_record import FitRecord, fit_started
from selfsched.elastic.noise import random_states, restore_random_states, seed_all
from selfsched.elastic.process import RankProcess, Termination
from selfsched.elastic.segment import Order, boottime
from selfsched.elastic.weights import weigh
from selfsched.errors import CheckpointUnusable

CHECKPOINT_SECONDS = 300.0
"""Between two periodic restart checkpoints."""
_LEFT_AS = {
    Reason.PLANNED: "planned", Reason.ORDERED: "ordered", Reason.DEADLINE: "deadline", Reason.STOPPED: "stopped",
}  # fmt: skip
_MARGIN_SECONDS = 0.5
_QUIET = (
    "It is recommended to use `self.log",  # validation is whole, training means are merged
    "Checkpoint directory .* exists and is not empty",  # it is the run's own, from an earlier segment
    "Experiment logs directory .* exists and is not empty",
)


class FitRun:
    """The course of one `fit` call.

    Args:
        process: This rank.
        trainer: The Trainer whose fit it is.
        reference_devices: Devices the script's batch size refers to.
    """

    def __init__(self, process: RankProcess, trainer: Any, reference_devices: int) -> None:
        process.fits += 1
        self.ordinal = process.fits
        self.left: Reason | None = None
        self._process = process
        self._trainer = trainer
        self._directory = process.spec.run_directory / "fits" / str(self.ordinal)
        self._store = CheckpointStore(self._directory)
        self._ranks = Ranks(trainer.world_size, trainer.global_rank)
        self._agreement = Agreement(self._ranks)
        self._termination = Termination()
        self._checkpoint: Checkpoint | None = None
        self._own: dict[str, Any] = {}
        self._record: FitRecord | None = None
        self.data = FitData(process, trainer, self._ranks, reference_devices)
        self._weight = 1.0
        self._untouched: dict[str, Any] | None = None
        self._entered = False
        self._load_seconds = 0.0
        self._save_seconds = 0.0
        self._saved_at = boottime()
        self._step_at: float | None = None
        self._step_seconds: float | None = None

    # --- before -----------------------------------------------------------------------------

    def prepare(self, arguments: dict[str, Any]) -> None:
        """Arrange everything for the call; changes the checkpoint path among its arguments."""
        self._find_checkpoint()
        trainer = self._trainer
        loggers.pin_wandb(trainer.loggers, f"{self._directory}")
        if self._record is not None:
            self._record.pin(trainer)
            if trainer.is_global_zero:
                loggers.continue_csv(trainer.loggers, self._own.get("csv_rows", ()))
        if self._checkpoint is not None:
            arguments["ckpt_path"] = str(self._checkpoint.lightning_path)
            self._time_load()
        self.data.attach(arguments, self._own.get("data"))
        internals.before_each_batch(trainer, self._between_batches)
        self._termination.install()
        internals.after_signal_handlers(trainer, self._termination.install)
        for message in _QUIET:
            warnings.filterwarnings("ignore", message=message)

    def _find_checkpoint(self) -> None:
        spec = self._process.spec
        if not spec.resume or not self._directory.exists():
            return
        try:
            ensure_private(spec.run_directory)
            self._checkpoint = self._store.newest()
            self._own = self._checkpoint.own_fields() if self._checkpoint else {}
        except CheckpointUnusable as unusable:
            self._process.refuse(str(unusable))
        self._record = FitRecord.read(self._directory)

    def _time_load(self) -> None:
        strategy = self._trainer.strategy
        load = strategy.load_checkpoint

        def timed(*arguments: Any, **named: Any) -> Any:
            started = time.perf_counter()
            loaded = load(*arguments, **named)
            self._load_seconds += time.perf_counter() - started
            return loaded

        strategy.load_checkpoint = timed

    @property
    def resumes(self) -> bool:
        """Whether it goes on from a checkpoint of ours."""
        return self._checkpoint is not None

    @property
    def stopped(self) -> bool:
        """Whether it was left because the user pressed Stop."""
        return self.left is Reason.STOPPED

    @property
    def replayed(self) -> bool:
        """Whether this fit was over in an earlier segment."""
        return self._checkpoint is not None and self._checkpoint.finished

    # --- hooks that the callback forwards -------------------------------------------------------

    def on_fit_start(self) -> None:
        """Directories are known by now: keep them. A fit that is over already must not train."""
        if self._record is None:
            self._record = FitRecord.of(self._trainer)
            if self._trainer.is_global_zero:
                self._record.write(self._directory)
        if self.replayed:
            internals.stop_before_training(self._trainer)

    def on_train_batch_start(self, batch: int) -> None:
        """Know what this rank's share of the batch weighs."""
        layout = self.data.layout
        self._weight = layout.weight(batch) if layout is not None else 1.0
        if self._weight == 0.0:
            internals.count_no_sample(self._trainer)
            self._untouched = carried.carry_metrics(self._trainer)

    def on_before_backward(self, loss: Any) -> None:
        """Give the gradient that weight."""
        weigh(loss, self._weight)

    def on_train_batch_end(self) -> None:
        """A repeated sample of weight 0 leaves no trace in metrics."""
        if self._untouched is not None:
            carried.put_metrics_back(self._trainer, self._untouched)
            self._untouched = None

    def on_train_epoch_end(self) -> None:
        """Before anyone reads them: means of the epoch over all ranks."""
        if self._ranks.alone:
            return
        accumulators = internals.epoch_accumulators(self._trainer)
        states = {key: internals.accumulator_state(metric) for key, metric in accumulators.items()}
        parts = self._ranks.gathered(
            {key: (name, {k: v.detach().cpu() for k, v in state.items()}) for key, (name, state) in states.items()}
        )
        for key, metric in accumulators.items():
            reduction = states[key][0]
            whole = carried.merge_accumulators(reduction, [part[key][1] for part in parts if key in part])
            for name, value in whole.items():
                setattr(metric, name, value.to(self._trainer.strategy.root_device))
            internals.forget_computed(metric)

    # --- between two batches ----------------------------------------------------------------------

    def _between_batches(self) -> None:
        trainer = self._trainer
        if not self._entered:
            self._enter()
        if internals.half_accumulated(trainer):
            return
        self._note_step()
        spec = self._process.spec
        if spec.cut_at is not None and spec.cut_at[0] == self.ordinal and trainer.global_step >= spec.cut_at[1]:
            self._leave(Reason.PLANNED)
        if not self._agreement.due():
            return
        wish = self._agreement.exchange(self._wish(), self._step_seconds)
        if wish.leave:
            self._leave(wish.leave)
        if wish.save:
            self._save()

    def _wish(self) -> Wish:
        order, _, lease_ends_at = self._process.orders()
        now = boottime()
        if order is Order.STOP:
            return Wish(Reason.STOPPED)
        if now >= lease_ends_at - self._margin_seconds():
            return Wish(Reason.DEADLINE)
        if order is Order.YIELD or self._termination.requested:
            return Wish(Reason.ORDERED)
        return Wish(save=now - self._saved_at >= CHECKPOINT_SECONDS)

    def _margin_seconds(self) -> float:
        """What leaving may take: the steps until ranks next exchange, and a save."""
        steps = self._agreement.stride * (self._step_seconds or 0.0)
        return min(_MARGIN_SECONDS + steps + self._save_seconds, 10.0)

    def _note_step(self) -> None:
        now = time.perf_counter()
        if self._step_at is not None:
            took = now - self._step_at
            # A smoothed minimum: validations and checkpoints in between are no step.
            known = self._step_seconds
            self._step_seconds = took if known is None else min(took, 0.9 * known + 0.1 * took)
        self._step_at = now

    def _enter(self) -> None:
        """Before the segment's first batch is fetched: be where the last segment left off."""
        self._entered = True
        trainer = self._trainer
        seed = self.data.seed
        if self._own:
            internals.step_here(trainer)
            self._take_up(self._own["ranks"])
        elif self._checkpoint is None:
            seed_all(seed, self.ordinal, trainer.global_step, trainer.global_rank)
        if trainer.is_global_zero:
            started = fit_started(trainer, self.data, self.ordinal, self._process.spec)
            self._process.send(started)
            self._send_stretch("start", _seconds_since_process_start(), None)
            if self._checkpoint is not None:
                self._send_stretch("checkpoint_load", self._load_seconds, self._checkpoint.size_bytes)
        self.data.announce()

    def _take_up(self, parts: list[dict[str, Any]]) -> None:
        trainer = self._trainer
        rank = trainer.global_rank
        if len(parts) == trainer.world_size:
            carried.put_back(trainer, parts[rank])
            restore_random_states(parts[rank]["random"])
            return
        part, unmergeable = carried.merged(parts, rank)
        carried.put_back(trainer, part)
        for name in unmergeable:
            self._process.warn("metric_unmergeable", f"the metric {name!r}")
        seed_all(self.data.seed, self.ordinal, trainer.global_step, rank)

    # --- saving and leaving -----------------------------------------------------------------------

    def _save(self, *, finished: bool = False) -> bool:
        """A restart checkpoint, by all ranks together; False if there is no room for it."""
        trainer = self._trainer
        step = trainer.global_step
        started = time.perf_counter()
        self._saved_at = boottime()
        if not self._room():
            return False
        random = random_states()  # saving must not be seen in the noise
        parts = self._ranks.gathered(carried.carry(trainer))
        if trainer.is_global_zero:
            self._store.make_room(step)
        self._ranks.barrier()
        trainer.save_checkpoint(str(self._store.begin(step) / "lightning.ckpt"))
        if trainer.is_global_zero:
            own = {
                "fit": self.ordinal,
                "ranks": parts,
                "data": self.data.state(),
                "csv_rows": loggers.csv_rows(trainer.loggers),
                "epoch": trainer.current_epoch,
            }
            checkpoint = self._store.complete(step, own, finished=finished)
            self._announce_saved(checkpoint, time.perf_counter() - started)
            self._checkpoint = checkpoint
        self._save_seconds = time.perf_counter() - started
        restore_random_states(random)
        return True

    def _announce_saved(self, checkpoint: Checkpoint, seconds: float) -> None:
        path, size, step = checkpoint.path, checkpoint.size_bytes, checkpoint.step
        self._process.send(
            CheckpointSaved(fit=self.ordinal, step=step, path=path, size_bytes=size, seconds=seconds)
        )
        self._send_stretch("checkpoint_save", seconds, size)

    def _room(self) -> bool:
        """Whether a checkpoint fits on the disk; rank 0 decides for all."""
        if self._trainer.is_global_zero:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            weights = sum(p.numel() * p.element_size() for p in self._trainer.lightning_module.parameters())
            needed = int(1.1 * self._checkpoint.size_bytes) if self._checkpoint else 3 * weights + 1_000_000
            short = needed > free_bytes(self._directory)
            if short:
                self._process.notice(
                    "no_room",
                    f"no room for a checkpoint of {needed / 1e6:.0f} MB in {self._directory}: training goes on, "
                    f"a restart would go back to the last one",
                )
        else:
            short = False
        return not self._ranks.maximum([int(short)])[0]

    def _leave(self, reason: Reason) -> None:
        self._save()
        self.left = reason
        step = self._trainer.global_step
        self._process.send(Left(rank=self._process.rank, step=step, reason=_LEFT_AS[reason]))
        raise internals.exit_exception(internals.package_of(self._trainer))()

    # --- after ------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The fit came to its own end, now or (replayed) in an earlier segment."""
        trainer = self._trainer
        if self.replayed:
            internals.write_monitored(trainer, self._own["ranks"][0]["logged"])
            return
        self._save(finished=True)
        if trainer.is_global_zero:
            best = getattr(trainer.checkpoint_callback, "best_model_path", "") or ""
            final = self._checkpoint.lightning_path if self._checkpoint else None
            self._process.send(
                FitFinished(
                    fit=self.ordinal, step=trainer.global_step, epoch=trainer.current_epoch,
                    metrics={key: float(value) for key, value in trainer.callback_metrics.items()},
                    best_model_path=best, final_path=final,
                )
            )  # fmt: skip

    def raised(self, error: Exception) -> None:
        """The user's code raised: tell the supervisor, with the traceback."""
        self._process.send(
            RankRaised(
                rank=self._process.rank, type=type(error).__name__, message=str(error),
                traceback=traceback.format_exc(), out_of_memory="out of memory" in str(error).lower()
                or isinstance(error, MemoryError),
            )
        )  # fmt: skip
        self._process.writer.flush()

    def cleanup(self) -> None:
        """Take every hook out again."""
        self._termination.remove()
        internals.forget_before_each_batch(self._trainer)
        self._trainer.strategy.__dict__.pop("load_checkpoint", None)
        self.data.detach()
        self._process.restore_environment()

    @property
    def deferred(self) -> BaseException | None:
        """What an earlier SIGTERM handler raised."""
        return self._termination.deferred

    def _send_stretch(self, stretch: Any, seconds: float, size_bytes: int | None) -> None:
        step = self._trainer.global_step
        self._process.send(StretchTimed(stretch=stretch, seconds=seconds, step=step, size_bytes=size_bytes))


def _seconds_since_process_start() -> float:
    """How long ago this process was started or forked, by the kernel's own record."""
    try:
        fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
        return max(0.0, boottime() - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return 0.0
