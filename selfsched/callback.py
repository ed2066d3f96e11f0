"""`SelfScheduler`, the one line a user adds to a Lightning Trainer: hooks in, flags out.

Alone it measures its training, models it and says when it will be done: in the trainer's
own loggers, in its progress bar, and in words at the end. Where a broker is set it also
holds leases for the devices that its Trainer sits on, while it fits (`held_fit`). Under a
launcher (`selfsched run`, `selfsched.Trainer`) its constructor, which always runs before
`Trainer(...)`, also makes Trainer elastic, and what it measures goes to the supervisor.

Training never stops or slows for a fault in here: the first one is said once, and measuring
is switched off.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from selfsched.core.durations import parse_duration
from selfsched.core.events import Event, FitFinished, StepsTimed
from selfsched.core.held_facts import facts_of
from selfsched.core.job_model import JobModel
from selfsched.core.progress import Progress
from selfsched.elastic.segment import SegmentSpec, boottime
from selfsched.errors import InvalidSettings, Refused
from selfsched.measure import figures
from selfsched.measure.fit_facts import fit_started
from selfsched.measure.fit_meter import FitMeter
from selfsched.measure.hardware import hardware_name, visible_devices
from selfsched.measure.progress_bar import finish_words, show_in, tell_position
from selfsched.measure.side_thread import SideThread
from selfsched.protocol import Forecast
from selfsched.settings import Settings, load

if TYPE_CHECKING:
    from selfsched.held_fit import HeldFit

FACTS_EVERY_SECONDS = 2.0
"""Between two words to the broker's reporter."""


class MeasuringStopped(UserWarning):
    """Measuring failed and was switched off; training goes on."""


def _callback_base() -> type[Any]:
    """Callback of the package the user imported; `lightning` when both or none are."""
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        from pytorch_lightning import Callback
    else:
        from lightning.pytorch import Callback
    return Callback  # type: ignore[no-any-return]


class KnowledgeLost(UserWarning):
    """What an earlier run had learned could not be used; it is learned anew."""


class NoLease(UserWarning):
    """A broker is set, but this training holds no lease (any more) for the devices it uses."""


def _say_unusable(why: str) -> None:
    warnings.warn(
        f"selfsched: what an earlier run learned cannot be used ({why}). It is learned anew.",
        KnowledgeLost,
        stacklevel=3,
    )


def _samples(told: Any) -> int:
    """Samples seen before, as a checkpoint tells; 0 where it tells nonsense."""
    return told if type(told) is int and 0 <= told < 2**63 else 0


def _settings(speaks: bool) -> Settings:
    """What was set; a rank that speaks says what in it is wrong."""
    try:
        return load(unknown="warn" if speaks else "ignore")
    except InvalidSettings as error:
        # Measuring needs none of them: a wrong one is no reason not to train.
        if speaks:
            warnings.warn(f"selfsched: {error}", NoLease, stacklevel=3)
        return Settings()


def _stated_seconds(stated: str | float | None) -> float | None:
    """The argument `time`, in seconds.

    Raises:
        InvalidSettings: it is no duration.
    """
    if stated is None:
        return None
    if isinstance(stated, bool) or not isinstance(stated, str | int | float):
        raise InvalidSettings(f'SelfScheduler(time={stated!r}): give a duration like "2h", or seconds.')
    try:
        return parse_duration(str(stated), "SelfScheduler(time)")
    except Refused as error:
        raise InvalidSettings(str(error)) from None


class SelfScheduler(_callback_base()):  # type: ignore[misc]
    """Measures its training, predicts its end and, under a launcher, makes it elastic.

    Works in a Trainer of `lightning` and of `pytorch_lightning`, on any rank (rank 0 speaks).
    Logged, at the Trainer's `log_every_n_steps`, to its own loggers: `selfsched/step_seconds`,
    `remaining_seconds_p50` and more (`measure.figures.LOGGED`), where they are known.

    Args:
        log: whether to log these figures.
        progress_bar: whether to show the predicted finish in the Trainer's bar.
        explain: whether to print at the end what a step cost and what other device counts
            would have brought.
        time: with a broker and no launcher, how long the training needs its devices: "2h",
            "1h30m" or seconds; None: as long as the broker's policy allows.
        when_taken: with a broker and no launcher, what to do while others hold the devices of
            the Trainer: "wait" for them before the first step, "warn" and train, or raise
            an "error".

    Raises:
        InvalidSettings: an argument that is none of these.

    Example:
        >>> trainer = Trainer(max_epochs=10, callbacks=[SelfScheduler()])  # doctest: +SKIP
    """

    def __init__(
        self,
        *,
        log: bool = True,
        progress_bar: bool = True,
        explain: bool = True,
        time: str | float | None = None,
        when_taken: Literal["wait", "warn", "error"] = "wait",
    ) -> None:
        super().__init__()
        for name, value in (("log", log), ("progress_bar", progress_bar), ("explain", explain)):
            if not isinstance(value, bool):
                raise InvalidSettings(f"SelfScheduler({name}={value!r}): give True or False.")
        if when_taken not in ("wait", "warn", "error"):
            raise InvalidSettings(
                f'SelfScheduler(when_taken={when_taken!r}): give "wait", "warn" or "error".'
            )
        self._log, self._progress_bar, self._explain = log, progress_bar, explain
        self._stated_seconds, self._when_taken = _stated_seconds(time), when_taken
        self._settings: Settings | None = None
        self._held: HeldFit | None = None
        self._told_facts_at = 0.0
        self._model: JobModel | None = None
        self._side = SideThread("selfsched-model")
        """Does what the model costs; `_model` is its while it has work."""
        self._meter: FitMeter | None = None
        self._off = False
        self._saved: dict[str, Any] = {}
        self._resumed = False
        self._setup_at = 0.0
        self._first_batch = True
        self._log_every = 0
        self._progress: Progress | None = None
        self._forecast: tuple[float, Forecast | None] = (0.0, None)
        self._words: str | None = None
        self._undo: list[Callable[[], None]] = []
        self.segment = SegmentSpec.from_environment()
        if self.segment is not None:
            from selfsched.elastic import hooks

            hooks.install(self.segment)

    @property
    def model(self) -> JobModel | None:
        """The model of this run, on rank 0 from the first step on. For the training's own thread."""
        self._guarded(self._side.wait)
        return self._model

    # --- set-up and end ----------------------------------------------------------------

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._setup_at = boottime()
        if self._launched() is not None:
            return
        if self._settings is None:
            self._settings = _settings(bool(trainer.is_global_zero))
            self._off = self._settings.off
        if stage == "fit" and self._settings.broker is not None and not self._settings.off:
            self._hold(trainer, self._settings)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        if self._held is not None:
            self._held.watch(trainer)
        if trainer.is_global_zero and not self._off:
            self._guarded(self._start, trainer, pl_module)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self._meter is not None:
            self._guarded(self._finish, trainer)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if self._meter is not None:
            self._guarded(self._leave)
        self._let_go(lambda held: held.fail(exception))

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        if self._meter is not None:
            self._guarded(self._leave)
        self._let_go(lambda held: held.finish())

    def __getstate__(self) -> dict[str, Any]:
        """For ranks that are spawned: they ask anew."""
        return {**self.__dict__, "_held": None, "_settings": None}

    def state_dict(self) -> dict[str, Any]:
        """What was learned, in plain values: it goes on after a resume."""
        if self._model is not None and not self._off:
            self._guarded(self._write_down)
        return self._saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._resumed, self._saved = True, {}
        if not isinstance(state_dict, Mapping):
            _say_unusable(f"it is no mapping but a {type(state_dict).__name__}")
            return
        self._saved = {"samples": _samples(state_dict.get("samples"))}
        if (model := state_dict.get("model")) is not None:
            self._saved["model"] = model

    # --- the loop ----------------------------------------------------------------------

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        if self._meter is not None:
            self._guarded(self._meter.epoch_started)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if (meter := self._meter) is not None:
            gap = meter.stopwatch.batch_started()
            if gap is not None or meter.marks is not None:
                self._guarded(meter.batch_opened, gap)

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        if (meter := self._meter) is not None:
            meter.stopwatch.backward_started()
            if meter.marks is not None:
                self._guarded(meter.marks.forward_ended)

    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        if (meter := self._meter) is not None:
            meter.stopwatch.backward_ended()
            if meter.marks is not None:
                self._guarded(meter.marks.backward_ended)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        if self._meter is not None:
            self._meter.stopwatch.optimiser_started()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if self._meter is not None:
            try:  # as `_guarded` does, without its layer of calls
                self._batch_ended(self._meter, trainer, batch, batch_idx)
            except Exception as error:  # noqa: BLE001  the outermost boundary: training must go on
                self._switch_off(error)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if self._meter is not None:
            self._guarded(self._meter.epoch_ended)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        if self._meter is not None and not trainer.sanity_checking:
            self._guarded(self._meter.stretch_started)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        if self._meter is not None and not trainer.sanity_checking:
            self._guarded(self._meter.validation_ended)

    # --- leases ------------------------------------------------------------------------

    def _hold(self, trainer: Any, settings: Settings) -> None:
        """Ask the broker for the devices of this Trainer; a fault in it does not stop the training.

        Raises:
            Refused: the devices are taken and that is to be an error, or they can never be given.
        """
        from selfsched.held_fit import HeldFit

        self._let_go(lambda held: held.finish())
        self._held = HeldFit(settings, stated_seconds=self._stated_seconds, when_taken=self._when_taken)
        try:
            self._held.begin(trainer)
        except Refused:
            self._held = None
            raise
        except Exception as error:  # noqa: BLE001  the outermost boundary: training must go on
            cause = error
            words = f"selfsched could not ask for a lease: {type(error).__name__}: {error}. Training goes on."
            self._let_go(lambda held: held.fail(cause))
            warnings.warn(words, NoLease, stacklevel=2)

    def _let_go(self, how: Callable[[HeldFit], None]) -> None:
        held, self._held = self._held, None
        if held is None:
            return
        try:
            how(held)
        except Exception as error:  # noqa: BLE001  the outermost boundary: the fit is over
            warnings.warn(
                f"selfsched: giving a lease back failed: {type(error).__name__}: {error}; it ends by itself.",
                NoLease,
                stacklevel=2,
            )

    def _tell_broker(self, model: JobModel, forecast: Forecast | None) -> None:
        """What a report may say of the training, at most once in a while."""
        now, held = boottime(), self._held
        if held is None or now < self._told_facts_at + FACTS_EVERY_SECONDS:
            return
        self._told_facts_at = now
        held.learn(facts_of(model, forecast, now))

    # --- inside ------------------------------------------------------------------------

    def _guarded(self, action: Callable[..., object], *arguments: Any) -> None:
        """Run `action`; a fault in it switches measuring off and is said once."""
        try:
            action(*arguments)
        except Exception as error:  # noqa: BLE001  the outermost boundary: training must go on
            self._switch_off(error)

    def _switch_off(self, error: Exception) -> None:
        self._off, meter, self._meter = True, self._meter, None
        if meter is not None:
            meter.close()
        self._side.close()
        self._take_out()
        warnings.warn(
            f"selfsched stopped measuring after {type(error).__name__}: {error}. Training goes on.",
            MeasuringStopped,
            stacklevel=3,
        )

    def _start(self, trainer: Any, module: Any) -> None:
        now = boottime()
        launched = self._launched()
        model = self._settled()
        if model is None or self._resumed:
            model = self._model = self._new_model(trainer, module)
        begun = model.fit
        fit = max(1, begun) if self._resumed and not model.fit_finished else begun + 1
        if launched is not None:
            fit = launched.fits
        facts = fit_started(trainer, module, fit=fit, at=now, package=type(trainer).__module__.split(".")[0])
        trained = type(module)
        facts = facts.model_copy(update={"module": f"{trained.__module__}.{trained.__qualname__}"})
        samples = _samples(self._saved.get("samples")) if self._resumed else 0
        self._resumed = False
        model.segment_started(int(trainer.world_size), self._setup_at or now)
        model.observe(facts, now)
        self._progress = model.progress(now)
        self._meter = FitMeter(
            trainer, module, facts=facts, samples=samples, send=self._send,
            saved_elsewhere=launched.spec.run_directory if launched else None,
        )  # fmt: skip
        self._first_batch, self._forecast, self._words = True, (0.0, None), None
        self._log_every = int(trainer.log_every_n_steps) if self._log and trainer.loggers else 0
        if self._progress_bar:
            self._undo.append(show_in(trainer.progress_bar_callback, lambda: self._words))

    def _new_model(self, trainer: Any, module: Any) -> JobModel:
        launched, world = self._launched(), int(trainer.world_size)
        smallest, largest = 1, max(world, min(visible_devices(module), 2 * world))
        if launched is not None:
            smallest, largest = launched.spec.min_devices, launched.spec.max_devices
        state = self._saved.pop("model", None)  # what cannot be used is not written again
        model = JobModel(
            hardware=hardware_name(module), min_devices=smallest, max_devices=largest, state=state
        )
        if model.unusable:
            _say_unusable(", ".join(model.unusable))
        return model

    @staticmethod
    def _launched() -> Any:
        """This process as a rank of a launcher's segment, or None."""
        hooks = sys.modules.get("selfsched.elastic.hooks")
        return hooks.current() if hooks is not None else None

    def _send(self, event: Event) -> None:
        self._guarded(self._take, event)

    def _settled(self) -> JobModel | None:
        """The model with all news taken over. Raises what taking them over raised."""
        self._side.wait()
        return self._model

    def _take(self, event: Event) -> None:
        now = boottime()
        if (model := self._model) is not None:
            self._side.put(lambda: self._learn(model, event, now))
        launched = self._launched()
        if launched is not None:
            launched.send(event)

    def _learn(self, model: JobModel, event: Event, now: float) -> None:
        """On the side thread: take the event over, and foresee the end anew."""
        model.observe(event, now)
        if isinstance(event, StepsTimed):
            self._foresee(model, now)

    def _batch_ended(self, meter: FitMeter, trainer: Any, batch: Any, batch_index: int) -> None:
        if self._first_batch:
            self._first_batch = False
            tell_position(trainer.progress_bar_callback, trainer, batch_index)
        step = meter.batch_ended(batch)
        if step is not None and self._log_every and step % self._log_every == 0:
            self._log_figures(trainer, step)

    def _log_figures(self, trainer: Any, step: int) -> None:
        meter, progress, (made_at, forecast) = self._meter, self._progress, self._forecast
        assert meter is not None
        assert progress is not None
        assert meter.newest is not None
        devices = int(trainer.world_size)
        found = {"devices": float(devices)}
        found |= figures.step_figures(meter.newest, meter.communication_seconds, devices)
        found |= figures.end_figures(progress, step, forecast, time.monotonic() - made_at)
        found |= figures.gpu_figures(meter.gpus)
        named = {figures.PREFIX + name: value for name, value in found.items()}
        for logger in trainer.loggers:
            # Lightning's own rows carry the steps done before this one.
            logger.log_metrics(named, step=step - 1)

    def _foresee(self, model: JobModel, now: float) -> None:
        """Make the forecast and its words anew; the bar and the loggers take what is there."""
        forecast = model.forecast(model.devices, now) if model.devices else None
        self._progress = model.progress(now)
        self._forecast = (time.monotonic(), forecast)
        if self._held is not None:
            self._tell_broker(model, forecast)
        self._words = finish_words(forecast, time.time()) if forecast is not None else None

    def _finish(self, trainer: Any) -> None:
        assert self._meter is not None
        now = boottime()
        self._meter.flush({})
        model = self._settled()
        assert model is not None
        step, epoch = int(trainer.global_step), int(trainer.current_epoch)
        model.observe(FitFinished(fit=model.fit, step=step, epoch=epoch, metrics={}), now)
        words, doubt, unseen = list(model.explanation(now).words), self._meter.doubt, self._meter.why_no_step
        if unseen is not None and model.step_time(model.devices) is None:
            words = [f"{unseen}."]
        if doubt is not None:
            words.append(f"It is not certain: {doubt}.")
        self._leave()
        if self._explain and self._launched() is None:
            print("selfsched: " + " ".join(words), flush=True)

    def _write_down(self) -> None:
        model = self._settled()
        assert model is not None
        samples = self._meter.samples if self._meter is not None else self._saved.get("samples", 0)
        self._saved = {"model": model.to_state(), "samples": samples}

    def _leave(self) -> None:
        meter, self._meter = self._meter, None
        if meter is not None:
            self._saved["samples"] = meter.samples
            meter.close()
        if (model := self._settled()) is not None:
            model.segment_ended(boottime())
        self._side.close()
        self._take_out()

    def _take_out(self) -> None:
        while self._undo:
            self._undo.pop()()
