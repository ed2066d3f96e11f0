"""Every private name of Lightning and torch that the elastic part uses, and nowhere else.

Seen in Lightning 2.4.0 and 2.6.6 of both packages, torchmetrics 1.9, torch 2.13; the tests
of the cut pass on both. What each is for, and what happens without it:

- `utilities.exceptions._TunerExitException`: leave `fit` with status FINISHED and no further
  hook. Without it `LeaveFit`, which is caught outside of `fit`.
- `fit_loop.epoch_loop.advance`, `.on_advance_end`, `._should_check_val_fx`: the instants between
  two batches and before a validation: the cut. Required, there is no cut without them.
- `epoch_loop.batch_progress`, `fit_loop.epoch_progress`: where the run stands. Required.
- `epoch_loop._should_accumulate`: are gradients half accumulated. Without it: own count.
- `epoch_loop._results`, `_ResultMetric`, `_Metadata`, `_Sync`, `_logger_connector._callback_metrics`
  and its neighbours: means over an epoch and monitored values. Required.
- `_signal_connector.register_signal_handlers`: Lightning's SIGTERM handler broadcasts inside the
  handler and can hang. Without it ours is composed into Lightning's.
- `logger._version`, `._experiment`, `._wandb_init`, `metrics_keys` of the CSV writer: one log over
  all segments. Without them one log a segment.
- `ModelCheckpoint._last_global_step_saved` and two more: not to save a step twice, nor to forget a
  save. Without them it may do so at a cut.
- `_accelerator_connector.use_distributed_sampler`: who splits a loader over ranks. Required.
- `DDPStrategy._start_method`: an object that wants to spawn. Without it it is taken as it is.
- torchmetrics `_defaults`, `_reductions`, `_update_count`, `_computed`, `_to_sync`: states of metrics. What
  lacks them is no metric to us.

`trainer`, `logger` and their like are `Any`: Lightning comes in two packages, whose classes
differ, and neither need be installed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, Literal

import torch

from selfsched.core.lightning_classes import is_lightnings

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


class LeaveFit(Exception):
    """The way out of `fit` where Lightning offers none of its own."""


def loaded_packages() -> list[str]:
    """The Lightning packages that this process has imported."""
    return [name for name in PACKAGES if name in sys.modules]


def package_of(trainer: Any) -> str:
    """The package whose Trainer this is, also for subclasses of users."""
    for cls in type(trainer).__mro__:
        for name in PACKAGES:
            if cls.__module__.startswith(name + "."):
                return name
    raise TypeError(f"{type(trainer).__name__} is no Trainer of {' or '.join(PACKAGES)}")


def exit_exception(package: str) -> type[BaseException]:
    """What to raise inside `fit` of this package's Trainer to leave it at once."""
    module = import_module(f"{package}.utilities.exceptions")
    return getattr(module, "_TunerExitException", LeaveFit)


def environment_plugin(package: str) -> Any:
    """A LightningEnvironment, so that a surrounding Slurm or torchrun is not consulted."""
    return import_module(f"{package}.plugins.environments").LightningEnvironment()


def is_cluster_environment(plugin: Any) -> bool:
    """Whether a Trainer plugin already says where ranks come from."""
    return is_lightnings(plugin, "ClusterEnvironment")


# --- the loops ----------------------------------------------------------------------------


def before_each_batch(trainer: Any, hook: Callable[[], bool]) -> None:
    """Call `hook` before each training batch is fetched: between two batches.

    All that belongs to the previous batch is done by then: every callback's and the
    module's hooks, logging, the validation that was due, the schedulers of a plateau.
    Where the hook returns False no batch is fetched, and Lightning goes straight on to
    what follows a batch.
    """
    loop = trainer.fit_loop.epoch_loop
    advance = loop.advance

    def advance_after_hook(*arguments: Any, **named: Any) -> Any:
        return advance(*arguments, **named) if hook() else None

    loop.advance = advance_after_hook


def before_each_validation(trainer: Any, hook: Callable[[], None]) -> None:
    """Call `hook` after a batch, its hooks and its logging, where a validation is due next."""
    loop = trainer.fit_loop.epoch_loop
    advance_end = loop.on_advance_end

    def advance_end_after_hook(data_fetcher: Any, *arguments: Any, **named: Any) -> Any:
        if loop._should_check_val_fx(data_fetcher):
            hook()
        return advance_end(data_fetcher, *arguments, **named)

    loop.on_advance_end = advance_end_after_hook


def forget_hooks(trainer: Any) -> None:
    """Undo `before_each_batch` and `before_each_validation`."""
    for name in ("advance", "on_advance_end"):
        trainer.fit_loop.epoch_loop.__dict__.pop(name, None)


def position(trainer: Any) -> tuple[int, int]:
    """(epoch, batches of it that are done), valid from an epoch's start on."""
    loop = trainer.fit_loop
    return int(loop.epoch_progress.current.processed), int(loop.epoch_loop.batch_progress.current.ready)


def position_at_start(trainer: Any) -> tuple[int, int] | None:
    """(epoch, batches of it that are done) as of `on_train_start`; None where that is not told.

    As the loops will make it when they begin: a checkpoint of the middle of an epoch goes on there,
    unless the loader has no batch left for it; then the epoch begins anew.
    """
    try:
        loop = trainer.fit_loop
        epoch, inner = int(loop.epoch_progress.current.processed), loop.epoch_loop
        if not inner.restarting:
            return epoch, 0
        batch = int(inner.batch_progress.current.completed)
        if inner.restarted_on_train_batch_end:  # Lightning 2.5.1 and later
            batch += 1
            if batch >= trainer.num_training_batches:
                batch = 0
        return epoch, batch
    except (AttributeError, TypeError):
        return None


def position_within(trainer: Any) -> tuple[int, int] | None:
    """(epoch, batches of it that are done) once the loops have begun; None where that is not told."""
    try:
        loop = trainer.fit_loop
        batches = loop.epoch_loop.batch_progress.current
        return int(loop.epoch_progress.current.processed), int(batches.completed)
    except (AttributeError, TypeError):
        return None


def timer_holds(timer: Any) -> Literal["step", "epoch"]:
    """At the end of what Lightning's Timer looks at its clock (`_interval`, 1.3-2.6)."""
    return "epoch" if getattr(timer, "_interval", "step") == "epoch" else "step"


def half_accumulated(trainer: Any) -> bool:
    """Between two batches: whether gradients wait for more batches before the step."""
    loop = trainer.fit_loop.epoch_loop
    if loop.batch_progress.current.ready == 0:
        return False
    try:
        return bool(loop._should_accumulate())
    except AttributeError:
        return bool(loop.batch_progress.current.ready % trainer.accumulate_grad_batches)


def step_here(trainer: Any) -> None:
    """Go on from this very batch boundary.

    Lightning takes a restart for one in the middle of a batch or of a validation and skips
    or repeats accordingly. Our cuts lie between batches, with every validation done.
    """
    trainer.fit_loop.epoch_loop.restarting = False


def stop_before_training(trainer: Any) -> Callable[[], None]:
    """For a fit that is over already: go through set-up and restore, train nothing.

    Returns:
        What lets the trainer train again.
    """
    sanity_steps = trainer.num_sanity_val_steps
    trainer.should_stop = True
    trainer.num_sanity_val_steps = 0

    def as_before() -> None:
        trainer.should_stop = False
        trainer.num_sanity_val_steps = sanity_steps

    return as_before


def set_fit_status(trainer: Any, status: Literal["FINISHED", "INTERRUPTED"]) -> None:
    """Let a Trainer say that its fit has ended, and how: `trainer.state`, `trainer.interrupted`."""
    states = import_module(f"{package_of(trainer)}.trainer.states")
    trainer.state.fn = states.TrainerFn.FITTING
    trainer.state.status = states.TrainerStatus[status]


# --- what was logged ----------------------------------------------------------------------

_META_FIELDS = (
    "fx", "name", "prog_bar", "logger", "on_step", "on_epoch", "enable_graph",
    "add_dataloader_idx", "dataloader_idx", "metric_attribute",
)  # fmt: skip


def read_logged(trainer: Any) -> dict[str, Any]:
    """The state of everything logged so far in this epoch, in plain types and tensors."""
    connector = trainer._logger_connector
    metrics = trainer.fit_loop.epoch_loop._results
    return {
        "results": {key: _read_result(metric) for key, metric in metrics.items() if not metric.has_reset},
        "first_loop_iter": connector._first_loop_iter,
        "current_fx": connector._current_fx,
        **{name: _plain(getattr(connector, f"_{name}")) for name in _LOGGED},
    }


_LOGGED = ("callback_metrics", "logged_metrics", "progress_bar_metrics")


def write_logged(trainer: Any, state: dict[str, Any]) -> None:
    """Put back what `read_logged` returned."""
    connector = trainer._logger_connector
    results = trainer.fit_loop.epoch_loop._results
    for key, saved in state["results"].items():
        metric = _result_metric(trainer, saved)
        if metric is not None:
            results[key] = metric
    connector._first_loop_iter = state["first_loop_iter"]
    connector._current_fx = state["current_fx"]
    write_monitored(trainer, state)


def write_monitored(trainer: Any, state: dict[str, Any]) -> None:
    """Put back the newest values only: `trainer.callback_metrics` and its like."""
    for name in _LOGGED:
        device = trainer.strategy.root_device
        values = {
            key: value.to(device) if isinstance(value, torch.Tensor) else value
            for key, value in state[name].items()
        }
        getattr(trainer._logger_connector, f"_{name}").update(values)


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value
        for key, value in values.items()
    }


def _read_result(metric: Any) -> dict[str, Any]:
    meta = metric.meta
    saved: dict[str, Any] = {name: getattr(meta, name) for name in _META_FIELDS}
    saved["reduce_fx"] = meta.reduce_fx.__name__
    saved["sync_should"] = meta.sync.should
    saved["sync_rank_zero_only"] = meta.sync.rank_zero_only
    saved["sync_default_group"] = meta.sync.group is None
    saved["is_tensor"] = metric.is_tensor
    saved["updates"] = metric._update_count
    if metric.is_tensor:
        saved["state"] = _plain({name: getattr(metric, name) for name in metric._defaults})
    cache = metric._forward_cache
    saved["cache"] = cache.detach().cpu().clone() if isinstance(cache, torch.Tensor) else None
    return saved


def _result_metric(trainer: Any, saved: dict[str, Any]) -> Any:
    """A `_ResultMetric` as it was, or None where it cannot be built again."""
    module = import_module(f"{package_of(trainer)}.trainer.connectors.logger_connector.result")
    meta = _adopting(module._Metadata)(
        **{name: saved[name] for name in _META_FIELDS}, reduce_fx=getattr(torch, saved["reduce_fx"])
    )
    if not saved["sync_default_group"]:
        return None  # a process group of the user's own cannot be found again
    meta.sync = module._Sync(
        fn=trainer.strategy.reduce, _should=saved["sync_should"], _group=None,
        rank_zero_only=saved["sync_rank_zero_only"],
    )  # fmt: skip
    device = trainer.strategy.root_device
    metric = module._ResultMetric(meta, saved["is_tensor"])
    metric._update_count = saved["updates"]
    if saved["is_tensor"]:
        for name, value in saved["state"].items():
            setattr(metric, name, value.to(device))
    else:
        metric.value = trainer.lightning_module.get_submodule(saved["metric_attribute"])
    if saved["cache"] is not None:
        metric._forward_cache = saved["cache"].to(device)
    return metric


def _adopting(metadata: type[Any]) -> type[Any]:
    """Metadata that take over how the next `log` call of their key synchronises.

    Lightning compares the stored metadata with those of each call. Whether `sync_dist=True` means
    anything depends on the strategy, so on the world size, which may have changed.
    """

    class Adopting(metadata):  # type: ignore[misc]
        __hash__ = None  # type: ignore[assignment]

        def __eq__(self, other: object) -> bool:
            if not isinstance(other, metadata):
                return NotImplemented
            self.sync = other.sync
            names = (*_META_FIELDS, "reduce_fx")
            return all(getattr(self, name) == getattr(other, name) for name in names)

    return Adopting


def epoch_accumulators(trainer: Any) -> dict[str, Any]:
    """The running means, sums and extremes of the epoch that are to be taken over all ranks.

    With `sync_dist=True` Lightning does it itself, but takes the mean of the ranks' sample
    counts as an integer: 12 and 11 become 22. A mean that is whole on every rank stays right
    under that, a sum would not.
    """
    return {
        key: metric
        for key, metric in trainer.fit_loop.epoch_loop._results.items()
        if metric.is_tensor and metric.meta.on_epoch and not metric.has_reset
        and not metric.meta.sync.rank_zero_only
        and not (metric.meta.sync.should and metric.meta.is_sum_reduction)
    }  # fmt: skip


def accumulator_state(metric: Any) -> tuple[str, dict[str, torch.Tensor]]:
    """(reduction, state tensors by name) of one accumulator."""
    return metric.meta.reduce_fx.__name__, _plain(
        {name: getattr(metric, name) for name in metric._defaults}
    )


def forget_computed(metric: Any) -> None:
    """Let an accumulator be computed again after its state was changed."""
    metric._computed = None


def count_no_sample(trainer: Any) -> None:
    """This rank's batch is a repeat of weight 0: it must not count in means over the epoch."""
    trainer.fit_loop.epoch_loop._results.batch_size = 0


# --- torchmetrics in the module -------------------------------------------------------------


def module_metrics(module: torch.nn.Module) -> dict[str, Any]:
    """torchmetrics metrics among the module's submodules, by name."""
    return {
        name: child
        for name, child in module.named_modules()
        if all(hasattr(child, needed) for needed in ("_defaults", "_reductions", "_update_count"))
        and hasattr(child, "compute")
    }


def read_metric(metric: Any) -> dict[str, Any]:
    """State, reductions (by name) and update count of one metric."""
    return {
        "state": {name: _copied(getattr(metric, name)) for name in metric._defaults},
        "reductions": {name: _reduction_name(metric._reductions.get(name)) for name in metric._defaults},
        "updates": metric._update_count,
    }


def write_metric(metric: Any, saved: dict[str, Any]) -> None:
    """Put a metric's state back; unknown names are left alone."""
    for name, value in saved["state"].items():
        if name in metric._defaults:
            setattr(metric, name, _moved(value, metric.device))
    metric._update_count = saved["updates"]
    metric._computed = None


def keep_to_their_rank(module: torch.nn.Module) -> Callable[[], None]:
    """Let the module's metrics compute without asking other ranks: each has seen all samples.

    Returns:
        What lets them ask again.
    """
    metrics = module_metrics(module).values()
    asking = [metric for metric in metrics if getattr(metric, "sync_on_compute", False)]

    def ask(others: bool) -> None:
        for metric in asking:
            metric.sync_on_compute = metric._to_sync = others

    ask(False)
    return partial(ask, True)


def summed_in_validation(trainer: Any) -> list[str]:
    """Names logged in validation as a sum over ranks."""
    results = trainer.fit_loop.epoch_loop.val_loop._results
    return [
        metric.meta.name
        for metric in results.values()
        if metric.is_tensor and metric.meta.is_sum_reduction and metric.meta.sync.should
    ]


def _copied(value: Any) -> Any:
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value.detach().cpu().clone() if isinstance(value, torch.Tensor) else value


def _moved(value: Any, device: Any) -> Any:
    if isinstance(value, list):
        return [_moved(item, device) for item in value]
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _reduction_name(reduction: Any) -> str | None:
    """`dim_zero_sum` and its like, by their last word: sum, mean, max, min, cat; else None."""
    word = getattr(reduction, "__name__", "").removeprefix("dim_zero_")
    return word if word in {"sum", "mean", "max", "min", "cat"} else None


# --- what ModelCheckpoint does not keep of itself ------------------------------------------------

_KEEPER_FIELDS = ("_last_global_step_saved", "_defer_save_until_validation", "_last_checkpoint_saved")


def read_keepers(trainer: Any) -> list[dict[str, Any]]:
    """What decides whether a ModelCheckpoint saves again, one dict each."""
    return [
        {name: getattr(keeper, name) for name in _KEEPER_FIELDS if hasattr(keeper, name)}
        for keeper in trainer.checkpoint_callbacks
    ]


def write_keepers(trainer: Any, saved: list[dict[str, Any]]) -> None:
    """Put back what `read_keepers` returned."""
    for keeper, fields in zip(trainer.checkpoint_callbacks, saved, strict=False):
        for name, value in fields.items():
            setattr(keeper, name, value)


# --- signals, loggers, strategies -------------------------------------------------------------


def after_signal_handlers(trainer: Any, hook: Callable[[], None]) -> bool:
    """Call `hook` right after Lightning has set its signal handlers; False if it cannot be."""
    connector: Any = getattr(trainer, "_signal_connector", None)
    if connector is None or not hasattr(connector, "register_signal_handlers"):
        return False
    register = connector.register_signal_handlers

    def register_then_hook() -> None:
        register()
        hook()

    connector.register_signal_handlers = register_then_hook
    return True


def logger_version(logger: Any) -> int | str | None:
    """The version of a file logger (TensorBoard, CSV), the run of an MLflow logger, else None."""
    if not hasattr(logger, "_version") and not _is_mlflow_logger(logger):
        return None
    version = logger.version
    return version if isinstance(version, int | str) else None


def pin_version(logger: Any, version: int | str) -> None:
    """Make a file logger go on in this version's directory, an MLflow logger in this run."""
    if hasattr(logger, "_version"):
        if logger._version != version:
            logger._version = version
            logger._experiment = None
    elif _is_mlflow_logger(logger) and logger._run_id != version:
        logger._run_id, logger._initialized = version, False


def _is_mlflow_logger(logger: Any) -> bool:
    """Whether it is Lightning's MLFlowLogger, with the names it had in 2.0-2.6."""
    named = is_lightnings(logger, "MLFlowLogger")
    return named and hasattr(logger, "_run_id") and hasattr(logger, "_initialized")


def pin_wandb(logger: Any, identifier: str) -> bool:
    """Make a W&B logger of no given id go on with this one; False if it is no such logger."""
    options = getattr(logger, "_wandb_init", None)
    if type(logger).__name__ != "WandbLogger" or not isinstance(options, dict):
        return False
    if options.get("id") is None:
        options.update(id=identifier, resume="allow")
    return True


def is_csv_logger(logger: Any) -> bool:
    """Whether it is Lightning's CSVLogger, of either package, or a subclass."""
    return is_lightnings(logger, "CSVLogger")


def csv_writer(logger: Any) -> Any:
    """The writer behind a CSVLogger (made if need be), or None where it cannot be continued."""
    writer = logger.experiment
    wanted = ("metrics_keys", "metrics_file_path", "metrics")
    return writer if all(hasattr(writer, name) for name in wanted) else None


def let_lightning_split(trainer: Any, wanted: bool) -> None:
    """Let Lightning split loaders that are not ours over the ranks, as it would have."""
    trainer._accelerator_connector.use_distributed_sampler = wanted


def launch_as_ranks(strategy: Any) -> bool:
    """Tell a DDPStrategy object that its processes exist already; False if it cannot be told."""
    if getattr(strategy, "_start_method", "popen") in (None, "popen"):
        return True
    strategy._start_method = "popen"
    return bool(strategy._start_method == "popen")

