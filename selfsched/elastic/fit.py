"""One `fit` in one segment: where it comes in, when it leaves, what it leaves behind.

The cut lies between two batches: after everything that belongs to the last one (all hooks,
logging, a validation that was due), before the next one is fetched. Only half accumulated
gradients put it off. There the position is two whole numbers, and Lightning's own resume
goes on from them.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NoReturn

from selfsched.core.events import FitFinished, Left
from selfsched.elastic import attributes, carried, loggers
from selfsched.elastic import lightning_internals as internals
from selfsched.elastic.agreement import Agreement, Ranks, Reason, Wish
from selfsched.elastic.checkpoints import Checkpoint, CheckpointStore, ensure_private
from selfsched.elastic.data import FitData
from selfsched.elastic.fit_record import FitRecord, fit_started
from selfsched.elastic.noise import restore_random_states, seed_all
from selfsched.elastic.process import RankProcess, Termination
from selfsched.elastic.raised import to_tell
from selfsched.elastic.saver import Saver
from selfsched.elastic.segment import Order, boottime
from selfsched.elastic.survey import Asked, survey, without_finders
from selfsched.elastic.thawed import ThawedParameters
from selfsched.elastic.weights import weigh
from selfsched.errors import CheckpointUnusable

CHECKPOINT_SECONDS = 300.0
"""Between two periodic restart checkpoints."""
_LEFT_AS: dict[Reason, Literal["ordered", "planned", "deadline", "stopped"]] = {
    Reason.PLANNED: "planned",
    Reason.ORDERED: "ordered",
    Reason.DEADLINE: "deadline",
    Reason.STOPPED: "stopped",
}
_NOTHING, _SAVE = Wish(), Wish(save=True)  # made once: this is asked at every step
_MARGIN_SECONDS = 0.5
_QUIET = (
    "It is recommended to use `self.log",  # validation is whole, training means are merged
    "Checkpoint directory .* exists and is not empty",  # it is the run's own, from an earlier segment
    "Experiment logs directory .* exists and is not empty",
    "find_unused_parameters=True was specified",  # by us: see `hooks`
)


class FitRun:
    """The course of one `fit` call.

    Args:
        process: This rank.
        trainer: The Trainer whose fit it is.
        asked: What the script asked of it.
    """

    def __init__(self, process: RankProcess, trainer: Any, asked: Asked) -> None:
        process.fits += 1
        self.ordinal = process.fits
        self.left: Reason | None = None
        self.callback: Any = None
        """The callback that forwards its hooks here."""
        self._asked = asked
        self._process = process
        self._trainer = trainer
        self._directory = process.spec.run_directory / "fits" / str(self.ordinal)
        self._store = CheckpointStore(self._directory)
        self._ranks = Ranks(trainer.world_size, trainer.global_rank)
        self._agreement = Agreement(self._ranks)
        self._thawed: ThawedParameters | None = None
        self._termination = Termination()
        self._checkpoint: Checkpoint | None = None
        self._own: dict[str, Any] = {}
        self._record: FitRecord | None = None
        self.data = FitData(process, trainer, self._ranks, asked)
        self._saver = Saver(process, trainer, self._ranks, self.data, self._store)
        self._weight = 1.0
        self._untouched: dict[str, Any] | None = None
        self._ask_again: Callable[[], None] = lambda: None
        self._as_before: Callable[[], None] = lambda: None
        self._validation_at = 0.0
        self._validation_seconds = 0.0
        self._entered = False
        self._load_seconds = 0.0
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
            trainer.callbacks[:] = without_finders(trainer.callbacks)
            arguments["ckpt_path"] = str(self._checkpoint.lightning_path)
            self._time_load()
        self.data.attach(arguments, self._own.get("data"))
        internals.before_each_batch(trainer, self._between_batches)
        internals.before_each_validation(trainer, self._before_validation)
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
            self._saver.last_bytes = self._checkpoint.size_bytes if self._checkpoint else 0
            self._saver.last_step = self._checkpoint.step if self._checkpoint else None
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
        found = FitRecord.of(self._trainer)
        if self._record is not None and self._record.model != found.model:
            self._process.refuse(
                f"fit {self.ordinal} of this script trained a {self._record.model} in an earlier segment and "
                f"a {found.model} now: a script must do the same fits in the same order each time"
            )
        if self._record is None:
            self._record = found
            if self._trainer.is_global_zero:
                self._record.write(self._directory)
        if self.replayed:
            self._as_before = internals.stop_before_training(self._trainer)

    def on_train_epoch_start(self) -> None:
        """Before the module's own hook: know its attributes as they are when training begins."""
        if self._saver.attributes_at_start is None:
            module = self._trainer.lightning_module
            self._saver.attributes_at_start = attributes.fingerprints(module)

    def on_train_batch_start(self, batch: int) -> None:
        """Know what this rank's share of the batch weighs."""
        layout = self.data.layout
        self._weight = layout.weight(batch) if layout is not None else 1.0
        if self._weight == 0.0:
            internals.count_no_sample(self._trainer)
            self._untouched = carried.carry_metrics(self._trainer)

    def on_train_start(self) -> None:
        """DDP has wrapped the module: what it did not count is watched."""
        if not self._ranks.alone:
            self._thawed = ThawedParameters(self._trainer.lightning_module.parameters())

    def on_before_backward(self, loss: Any) -> None:
        """Give the gradient that weight."""
        weigh(loss, self._weight)

    def on_after_backward(self) -> None:
        """What DDP does not average is averaged where DDP would: once the gradients are whole."""
        if self._thawed is not None and not internals.half_accumulated(self._trainer):
            self._thawed.average_gradients()

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
        parts = self._ranks.gathered(states)
        for key, metric in accumulators.items():
            reduction = states[key][0]
            whole = carried.merge_accumulators(reduction, [part[key][1] for part in parts if key in part])
            for name, value in whole.items():
                setattr(metric, name, value.to(self._trainer.strategy.root_device))
            internals.forget_computed(metric)

    # --- between two batches ----------------------------------------------------------------------

    def _between_batches(self) -> bool:
        """Leave or save, if it is time; False: do the validation that is owed, no batch yet."""
        trainer = self._trainer
        if self.callback not in trainer.callbacks:  # a finder's trial, not the training
            return True
        if not self._entered and not self._enter():
            return False
        if internals.half_accumulated(trainer):
            return True
        self._note_step()
        fit, step = self._process.spec.cut_at or (0, 0)
        if fit == self.ordinal and trainer.global_step >= step:
            self._leave(Reason.PLANNED)
        if self._agreement.due():
            wish = self._agreement.exchange(self._wish(), self._step_seconds)
            if wish.leave:
                self._leave(wish.leave)
            if wish.save:
                self._saver.save()
        return True

    def _before_validation(self) -> None:
        """Leave before a validation that would not be over in time; it is owed to the next segment."""
        order, leave_by, _ = self._process.orders()
        if not self._entered or internals.half_accumulated(self._trainer):
            return
        needed = self._validation_seconds + self._saver.seconds + _MARGIN_SECONDS
        late = order is not Order.GO_ON and boottime() + needed > leave_by
        reason = Reason.STOPPED if order is Order.STOP else Reason.DEADLINE
        if not self._ranks.maximum([int(late)])[0]:
            return
        self._leave(reason if late else Reason.DEADLINE, validation_owed=True)

    def on_validation_start(self) -> None:
        """A validation begins: where it is whole, each rank's metrics are whole too."""
        self._validation_at = time.perf_counter()
        if not self._ranks.alone and self._process.spec.validation == "whole":
            self._ask_again = internals.keep_to_their_rank(self._trainer.lightning_module)

    def on_validation_end(self) -> None:
        """Know how long a validation takes."""
        self._ask_again()
        if not self._ranks.alone and self._process.spec.validation == "whole":
            for name in internals.summed_in_validation(self._trainer):
                self._process.warn("validation_sums", f"{name!r}, a sum over ranks in validation")
        if self._entered:
            self._validation_seconds = time.perf_counter() - self._validation_at

    def _wish(self) -> Wish:
        order, _, lease_ends_at = self._process.orders()
        now = boottime()
        if order is Order.STOP:
            return Wish(Reason.STOPPED)
        if now >= lease_ends_at - self._margin_seconds():
            return Wish(Reason.DEADLINE)
        if order is Order.YIELD or self._termination.requested:
            return Wish(Reason.ORDERED)
        return _SAVE if now - self._saver.saved_at >= CHECKPOINT_SECONDS else _NOTHING

    def _margin_seconds(self) -> float:
        """What leaving may take: the steps until ranks next exchange, and a save."""
        steps = self._agreement.stride * (self._step_seconds or 0.0)
        return min(_MARGIN_SECONDS + steps + self._saver.seconds, 10.0)

    def _note_step(self) -> None:
        now = time.perf_counter()
        if self._step_at is not None:
            took = now - self._step_at
            # A smoothed minimum: validations and checkpoints in between are no step.
            known = self._step_seconds
            self._step_seconds = took if known is None else min(took, 0.9 * known + 0.1 * took)
        self._step_at = now

    def _enter(self) -> bool:
        """Before the segment's first batch is fetched: be where the last segment left off.

        Returns:
            False if that was before a validation, which comes first.
        """
        self._entered = True
        self.on_train_epoch_start()  # Lightning does not say so in the middle of an epoch
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
            self._saver.send_stretch("start", _seconds_since_process_start(), None)
            if self._checkpoint is not None:
                self._saver.send_stretch("checkpoint_load", self._load_seconds, self._checkpoint.size_bytes)
        self.data.announce()
        survey(trainer, self._asked, self.ordinal, self._process)
        return not self._own.get("validation_owed", False)

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
        if names := part["attributes"]:
            self._process.warn("module_attributes", f"attributes of the module ({', '.join(names)})")
        seed_all(self.data.seed, self.ordinal, trainer.global_step, rank)

    # --- saving and leaving -----------------------------------------------------------------------

    def _leave(self, reason: Reason, *, validation_owed: bool = False) -> NoReturn:
        saved = self._saver.save(validation_owed=validation_owed)
        if saved is None and self._trainer.is_global_zero:
            self._process.notice("left_unsaved", self._unsaved())
        self.left = reason
        step = self._trainer.global_step
        self._process.send(Left(rank=self._process.rank, step=step, reason=_LEFT_AS[reason]))
        raise internals.exit_exception(internals.package_of(self._trainer))()

    def _unsaved(self) -> str:
        last = self._saver.last_step
        back = "the start of the fit" if last is None else f"the checkpoint at step {last}"
        return f"left at step {self._trainer.global_step} without a checkpoint: it goes on from {back}"

    # --- after ------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The fit came to its own end, now or (replayed) in an earlier segment."""
        trainer = self._trainer
        if self.replayed:
            self._as_before()
            internals.write_monitored(trainer, self._own["ranks"][0]["logged"])
            return
        saved = self._saver.save(finished=True)
        if trainer.is_global_zero:
            best = getattr(trainer.checkpoint_callback, "best_model_path", "") or ""
            final = saved.lightning_path if saved else None
            self._process.send(
                FitFinished(
                    fit=self.ordinal, step=trainer.global_step, epoch=trainer.current_epoch,
                    metrics={key: float(value) for key, value in trainer.callback_metrics.items()},
                    best_model_path=best, final_path=final,
                )
            )  # fmt: skip
            self._process.writer.flush()

    def raised(self, error: Exception) -> None:
        """The user's code raised: tell the supervisor, with the traceback."""
        told = to_tell(error, self._process.rank, fit=self.ordinal)
        if told is not None:
            self._process.send(told)
            self._process.writer.flush()

    def cleanup(self) -> None:
        """Take every hook out again."""
        self._termination.remove()
        internals.forget_hooks(self._trainer)
        self._trainer.strategy.__dict__.pop("load_checkpoint", None)
        self.data.detach()
        self._process.restore_environment()

    @property
    def deferred(self) -> BaseException | None:
        """What an earlier SIGTERM handler raised."""
        return self._termination.deferred


def _seconds_since_process_start() -> float:
    """How long ago this process was started or forked, by the kernel's own record."""
    try:
        fields = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
        return max(0.0, boottime() - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return 0.0
