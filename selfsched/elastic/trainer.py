"""`selfsched.Trainer`: Lightning's Trainer on whatever devices the job is given.

`fit` hands its arguments to a supervisor, a process of its own, and returns when the training
is done, however often it changed devices meanwhile. This process, a notebook's kernel or a
script, trains nothing and is never forked, so what it has done before (threads, CUDA, a
process group) does not matter. Afterwards its own module has the trained weights.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, cast

from selfsched import settings
from selfsched.elastic import channel
from selfsched.elastic.attach import AttachedRun, detached_words
from selfsched.elastic.fit_end import raise_as_ended
from selfsched.elastic.found_runs import going_on_of, runs_of
from selfsched.elastic.job import JobDescription, installed_version, working_directory
from selfsched.elastic.payload import PYTHON_VERSION, Payload, cell_sources, write_payload
from selfsched.elastic.plain_errors import plainly
from selfsched.elastic.program import Package, installed_package
from selfsched.elastic.run import check_devices
from selfsched.elastic.run_directory import (
    RunDirectory,
    RunOutcome,
    open_run,
    released_on_failure,
    reopen_run,
)
from selfsched.elastic.segment import SEGMENT_VARIABLE
from selfsched.errors import CheckpointUnusable, InvalidSettings

_OURS = ("devices", "num_nodes")


class Trainer:
    """Lightning's Trainer, elastic.

    `test`, `validate` and `predict`, and whatever else a Trainer has, run in this process on
    a plain Lightning Trainer with one device.

    Args:
        min_devices: The fewest devices to train on, at least 1.
        max_devices: The most devices to train on.
        validation: `whole` on each rank, so that its result does not depend on the devices;
            or `sharded` over them, for modules that log with `sync_dist=True`.
        batch_devices: The devices that the global batch refers to: it is the loader's batch
            times these, on any number of devices. None: 1.
        plan: A fixed list of allocations (`2@0,1@7`) in place of a broker.
        elastic: False trains in this process, on one device, as `SELFSCHED_OFF=1` does.
        name: The same name is the same job: an unfinished run goes on from its checkpoint.
        detach: Runs go on when this process is gone, and are left by Ctrl-C or a notebook's Stop;
            `selfsched.attach` follows them again. None: as the setting `detach` says.
        broker: Address of the broker; None: the one that the settings name.
        without_broker: Train on `max_devices` of this machine and ask nobody.
        wait_seconds: How long to wait for the first devices; None: as long as it takes.
        **lightning_trainer_arguments: All other arguments of Lightning's Trainer.

    Raises:
        Refused: a range that holds no device, a plan that cannot be read, an argument that
            Lightning's Trainer does not have.

    Example:
        >>> trainer = Trainer(min_devices=1, max_devices=2, max_epochs=3)  # doctest: +SKIP
        >>> trainer.fit(model, datamodule=data)  # doctest: +SKIP
    """

    @plainly
    def __init__(
        self,
        min_devices: int = 1,
        max_devices: int = 4,
        *,
        validation: Literal["whole", "sharded"] = "whole",
        batch_devices: int | None = None,
        plan: str | None = None,
        elastic: bool = True,
        name: str | None = None,
        detach: bool | None = None,
        broker: str | None = None,
        without_broker: bool = False,
        wait_seconds: float | None = None,
        **lightning_trainer_arguments: Any,
    ) -> None:
        check_devices(min_devices, max_devices)
        _check_plan(plan)
        if validation not in ("whole", "sharded"):
            raise InvalidSettings(f"validation={validation!r}: give 'whole' or 'sharded'")
        self._settings = settings.load(unknown="warn", name=name, broker=broker)
        self._job = {
            "min_devices": min_devices, "max_devices": max_devices, "validation": validation,
            "batch_devices": batch_devices, "plan": plan, "broker": broker,
            "without_broker": without_broker, "wait_seconds": wait_seconds,
        }  # fmt: skip
        # Within `selfsched run` the launcher's own supervisor already moves this process about.
        self._is_rank = SEGMENT_VARIABLE in os.environ
        self._elastic = elastic and not self._settings.off and not self._is_rank
        self._trains_here = not elastic
        self._check_detach(detach)
        self._detach = self._settings.detach if detach is None else detach
        self._arguments = _checked(lightning_trainer_arguments)
        self._package: Package | None = None
        self._plain: Any = None
        self._model: Any = None
        self._datamodule: Any = None
        self._result: Any = None
        self._unfinished: Path | None = None
        self._directory: RunDirectory | None = None

    # --- training ------------------------------------------------------------------------

    @plainly
    def fit(
        self,
        model: Any,
        train_dataloaders: Any = None,
        val_dataloaders: Any = None,
        datamodule: Any = None,
        ckpt_path: str | Path | None = None,
        *,
        detach: bool | None = None,
    ) -> None:
        """Train to the end, on changing devices. Arguments as Lightning's, but for `detach`.

        After a Stop, or when its devices were taken for good, calling it again on the same
        Trainer goes on from the checkpoint.

        Args:
            detach: As the Trainer's own, for this run; None: as that one says.

        Raises:
            Stopped: the user stopped it; there is a checkpoint, and the module has its weights.
            Detached: the user left a detached run, which goes on.
            Yielded: its devices are gone; as above.
            RankFailed: a rank raised (its traceback is shown), died or ran out of memory.
            Refused: this training cannot be run the way it was asked for.
        """
        self._check_detach(detach)
        self._model, self._datamodule = model, datamodule
        self._package = _package_of(model)
        if not self._elastic:
            self._plain_trainer().fit(model, train_dataloaders, val_dataloaders, datamodule, ckpt_path)
            return
        arguments = {**self._arguments, "callbacks": _as_list(self._arguments.get("callbacks"))}
        path = None if ckpt_path is None else str(ckpt_path)
        payload = Payload(
            model, datamodule, train_dataloaders, val_dataloaders, path, arguments, cell_sources()
        )
        outcome = self._run(payload, self._detach if detach is None else detach)
        self._take_over(outcome)
        raise_as_ended(outcome, self._run_directory.path)

    def _check_detach(self, asked: bool | None) -> None:
        if asked and self._trains_here:
            raise InvalidSettings(
                "elastic=False trains in this process, and detach=True is to outlive it: choose one"
            )

    def _run(self, payload: Payload, detach: bool) -> RunOutcome:
        from selfsched.elastic.views import shows_bar, view_for_here

        others = going_on_of(this_notebook(), runs_of(self._settings)) if detach else ()
        if self._unfinished is not None and self._unfinished.exists():
            directory, lock = reopen_run(self._unfinished)
        else:
            directory, lock = open_run(self._settings.name, parent=self._settings.runs_dir)
        self._directory = directory
        self._unfinished = directory.path
        try:
            directory.result.unlink(missing_ok=True)
            write_payload(payload, directory.payload)
            job = self._describe(directory, detach)
            view = view_for_here(job, bar=shows_bar(self._arguments))
        except BaseException:  # an interrupt too: nothing has been started yet
            os.close(lock)
            directory.payload.unlink(missing_ok=True)
            raise
        try:
            with released_on_failure(lock):
                if detach:
                    view.show(channel.Said(text=detached_words(job)))
                for other in others:
                    view.show(channel.Said(text=f"the run {other} of this notebook goes on as well"))
            return AttachedRun(job, lock).follow(view)
        finally:
            if not detach:
                directory.payload.unlink(missing_ok=True)

    def _describe(self, directory: RunDirectory, detach: bool) -> JobDescription:
        here = working_directory()
        return JobDescription(
            run_directory=directory.path, name=self._settings.name, program="payload",
            package=cast(Package, self._package), working_directory=here,
            import_path=tuple(entry or str(here) for entry in sys.path),
            accelerator=_accelerator(self._arguments.get("accelerator")), detached=detach,
            notebook=this_notebook(), kernel_id=this_kernel(), started_at_unix=time.time(),
            python_version=PYTHON_VERSION, selfsched_version=installed_version(),
            **self._job,  # type: ignore[arg-type]
        )

    def _take_over(self, outcome: RunOutcome) -> None:
        """Bring this process's objects to where the training ended."""
        if outcome.outcome in ("finished", "stopped", "yielded"):
            self._take_state(finished=outcome.outcome == "finished")

    def _take_state(self, *, finished: bool) -> None:
        from selfsched.elastic import results

        directory = self._run_directory
        if finished:
            self._unfinished = None
            self._result = results.result_at_end(directory.result)
        else:
            self._result = results.result_so_far(directory.path)
        self._plain = None
        trainer = self._plain_trainer()
        if self._result is not None:
            results.restore(self._result, self._model, trainer)
        results.show_end(directory.path, trainer, finished=finished)

    @property
    def _run_directory(self) -> RunDirectory:
        assert self._directory is not None
        return self._directory

    # --- afterwards ----------------------------------------------------------------------

    @property
    def callback_metrics(self) -> dict[str, Any]:
        """The newest logged values, of whatever ran last."""
        return self._newest_metrics("callback_metrics")

    @property
    def logged_metrics(self) -> dict[str, Any]:
        """As Lightning's."""
        return self._newest_metrics("logged_metrics")

    @property
    def progress_bar_metrics(self) -> dict[str, Any]:
        """As Lightning's."""
        return self._newest_metrics("progress_bar_metrics")

    def _newest_metrics(self, name: str) -> dict[str, Any]:
        if self._result is not None:
            return dict(getattr(self._result, name))
        return dict(getattr(self._plain_trainer(), name))

    def test(self, model: Any = None, dataloaders: Any = None, ckpt_path: Any = None, **named: Any) -> Any:
        """As Lightning's, in this process; without a model the one that `fit` trained."""
        return self._evaluate("test", model, dataloaders, ckpt_path, named)

    def validate(
        self, model: Any = None, dataloaders: Any = None, ckpt_path: Any = None, **named: Any
    ) -> Any:
        """As Lightning's, in this process; without a model the one that `fit` trained."""
        return self._evaluate("validate", model, dataloaders, ckpt_path, named)

    def predict(self, model: Any = None, dataloaders: Any = None, ckpt_path: Any = None, **named: Any) -> Any:
        """As Lightning's, in this process; without a model the one that `fit` trained."""
        return self._evaluate("predict", model, dataloaders, ckpt_path, named)

    def _evaluate(
        self, what: str, model: Any, dataloaders: Any, ckpt_path: Any, named: dict[str, Any]
    ) -> Any:
        trainer = self._plain_trainer()
        if model is None and self._model is not None:
            model = self._model
            best = getattr(trainer.checkpoint_callback, "best_model_path", "")
            ckpt_path = ckpt_path or best or None
        if dataloaders is None and named.get("datamodule") is None and self._datamodule is not None:
            named["datamodule"] = self._datamodule
        self._result = None  # from here on the plain Trainer's metrics are the newest
        return getattr(trainer, what)(model, dataloaders, ckpt_path=ckpt_path, **named)

    def save_checkpoint(self, filepath: str | Path, weights_only: bool = False, **named: Any) -> None:
        """As Lightning's: after `fit`, the state in which the training ended."""
        from selfsched.elastic import results

        if self._directory is None:
            self._plain_trainer().save_checkpoint(filepath, weights_only, **named)
        else:
            results.copy_checkpoint(self._directory.path, Path(filepath), weights_only=weights_only)

    def _plain_trainer(self) -> Any:
        if self._plain is None:
            package = importlib.import_module(self._package or _loaded_package())
            arguments = {**self._arguments, "devices": 1, "num_nodes": 1}
            arguments.pop("strategy", None)  # of several processes; here is one
            if self._elastic or self._is_rank:
                arguments["callbacks"] = _with_our_callback(arguments.get("callbacks"))
            self._plain = package.Trainer(**arguments)
        return self._plain

    def __getattr__(self, name: str) -> Any:
        # Only what is not found above: everything else that Lightning's Trainer has.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._plain_trainer(), name)


def trainer_of_run(
    job: JobDescription, arguments: Mapping[str, Any], *, model: Any, datamodule: Any, finished: bool
) -> Trainer:
    """A Trainer as the one whose `fit` started the run, in the state in which the run is or was left.

    Args:
        job: the run.
        arguments: of Lightning's Trainer.
        model: gets the run's weights: those of its end, else of its newest checkpoint, if there is one.
        datamodule: what `test` and the like take where they are given none.
        finished: whether it came to its own end; else `fit` goes on with it.

    Raises:
        CheckpointUnusable: there are no weights, or they are of another version.
        Refused: the module does not fit them.
    """
    made = Trainer(
        job.min_devices, job.max_devices, validation=job.validation, batch_devices=job.batch_devices,
        plan=job.plan, name=job.name, detach=job.detached or None, broker=job.broker,
        without_broker=job.without_broker, wait_seconds=job.wait_seconds, **arguments,
    )  # fmt: skip
    made._model, made._datamodule, made._package = model, datamodule, job.package
    made._directory = RunDirectory(job.run_directory)
    made._unfinished = job.run_directory
    made._take_state(finished=finished)
    if made._result is None:
        raise CheckpointUnusable(
            f"the run {job.run_directory.name} has left no checkpoint yet: there are no weights to bring back"
        )
    return made


def this_notebook() -> str | None:
    """Path of the notebook whose kernel this process is, as its Jupyter server names it."""
    return os.environ.get("JPY_SESSION_NAME")


def this_kernel() -> str | None:
    """Of the kernel that this process is; None: it is none."""
    kernel = sys.modules.get("ipykernel.kernelapp")
    if kernel is None or not kernel.IPKernelApp.initialized():
        return None
    name = Path(kernel.IPKernelApp.instance().connection_file or "").stem
    return name.removeprefix("kernel-") or None


def _accelerator(asked: Any) -> Literal["cpu", "gpu"] | None:
    if asked == "cpu":
        return "cpu"
    return "gpu" if asked in ("gpu", "cuda") else None


def _with_our_callback(callbacks: Any) -> list[Any]:
    """The callback that trained along, silent: it is part of the checkpoints that are loaded."""
    from selfsched.callback import SelfScheduler

    given = _as_list(callbacks)
    if any(isinstance(callback, SelfScheduler) for callback in given):
        return given
    return [SelfScheduler(log=False, progress_bar=False, explain=False), *given]


def _as_list(callbacks: Any) -> list[Any]:
    if callbacks is None:
        return []
    return list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]


def _check_plan(plan: str | None) -> None:
    if plan is not None:
        from selfsched.elastic.plan import parse_plan

        parse_plan(plan)


def _checked(arguments: dict[str, Any]) -> dict[str, Any]:
    for name in _OURS:
        if name in arguments:
            raise InvalidSettings(
                f"Trainer({name}={arguments[name]!r}): selfsched chooses the devices; give min_devices and "
                "max_devices (and batch_devices, if the batch size was meant for more than one)"
            )
    known = inspect.signature(importlib.import_module(_loaded_package()).Trainer).parameters
    unknown = sorted(set(arguments) - set(known))
    if unknown:
        raise InvalidSettings(f"neither selfsched.Trainer nor Lightning's has an argument {unknown[0]!r}")
    return arguments


def _loaded_package() -> Package:
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        return "pytorch_lightning"
    return installed_package()


def _package_of(model: Any) -> Package:
    """Whose LightningModule it is: the ranks must train it with that package's Trainer."""
    homes = {base.__module__.partition(".")[0] for base in type(model).__mro__}
    return "pytorch_lightning" if "pytorch_lightning" in homes else "lightning.pytorch"
