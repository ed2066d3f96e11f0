"""The wrapped Trainer: how a script that only gained a callback becomes elastic.

`SelfScheduler()` is constructed before `Trainer(callbacks=[...])`, always. So when a launcher
has started this process, its constructor calls `install`, which wraps `Trainer.__init__` (the
devices of this segment instead of those the script names) and `Trainer.fit` (where to go on
from, whose loader, when to leave) of every Lightning package in use. Without a launcher
nothing is wrapped.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any

from selfsched.elastic import lightning_internals as internals
from selfsched.elastic import support
from selfsched.elastic.fit import FitRun
from selfsched.elastic.process import OnLeave, RankProcess
from selfsched.elastic.segment import SegmentSpec
from selfsched.elastic.survey import Asked, has_own_bar
from selfsched.errors import Refused

_ASKED = "_selfsched_asked"
_SHARDED = ("fsdp", "deepspeed", "model_parallel", "xla")


class _Installation:
    """What is wrapped in this process, and for which segment."""

    def __init__(self, process: RankProcess) -> None:
        self.process = process
        self.originals: dict[type[Any], tuple[Callable[..., Any], Callable[..., Any]]] = {}


_installed: _Installation | None = None


def install(spec: SegmentSpec, on_leave: OnLeave = "exit") -> None:
    """Wrap the Trainers of all Lightning packages in use. Idempotent for the same segment.

    Args:
        spec: The segment this process is a rank of.
        on_leave: "exit" ends the process with code 75 when a fit was left (a script);
            "raise" raises `errors.Yielded` or `errors.Stopped` (a worker that catches it).
    """
    global _installed
    if _installed is not None and _installed.process.spec != spec:
        uninstall()
    if _installed is None:
        _installed = _Installation(RankProcess(spec, on_leave))
    for package in internals.loaded_packages():
        trainer_class = sys.modules[package].Trainer
        if trainer_class not in _installed.originals:
            _wrap(trainer_class, package, _installed)


def uninstall() -> None:
    """Put the Trainers back as they were; for processes that outlive a segment."""
    global _installed
    if _installed is None:
        return
    for trainer_class, (init, fit) in _installed.originals.items():
        trainer_class.__init__, trainer_class.fit = init, fit
    _installed.process.close()
    _installed = None


def current() -> RankProcess | None:
    """This process as a rank, for those who measure in it; None without a launcher."""
    return _installed.process if _installed is not None else None


def _wrap(trainer_class: type[Any], package: str, installation: _Installation) -> None:
    init, fit = trainer_class.__init__, trainer_class.fit
    installation.originals[trainer_class] = (init, fit)
    process = installation.process

    @functools.wraps(init)
    def wrapped_init(self: Any, *arguments: Any, **named: Any) -> None:
        asked = _for_this_segment(named, package, process)
        init(self, *arguments, **named)
        setattr(self, _ASKED, asked)

    @functools.wraps(fit)
    def wrapped_fit(self: Any, *arguments: Any, **named: Any) -> Any:
        bound = inspect.signature(fit).bind(self, *arguments, **named)
        return _run_fit(self, fit, dict(bound.arguments), process)

    trainer_class.__init__ = wrapped_init
    trainer_class.fit = wrapped_fit


def _for_this_segment(named: dict[str, Any], package: str, process: RankProcess) -> Asked:
    """Set the Trainer's arguments to this segment's; returns what the script had asked."""
    process.restore_environment()
    spec = process.spec
    asked = Asked.of(named, devices_named(named.get("devices"), named.get("num_nodes")))
    named["strategy"] = _strategy(named.get("strategy", "auto"), process)
    named["devices"], named["num_nodes"] = spec.world_size, 1
    named["accelerator"] = spec.accelerator
    named["use_distributed_sampler"] = False
    if not has_own_bar(named.get("callbacks")):
        named["enable_progress_bar"] = False  # the launcher draws one over all segments
    plugins = named.get("plugins") or []
    plugins = list(plugins) if isinstance(plugins, list | tuple) else [plugins]
    if not any(internals.is_cluster_environment(plugin) for plugin in plugins):
        named["plugins"] = [*plugins, internals.environment_plugin(package)]
    return asked


def devices_named(devices: Any, num_nodes: Any) -> int:
    """Devices a script's Trainer asks for: the reference of its batch size; 1 if it leaves it open."""
    if isinstance(devices, list | tuple):
        count = len(devices)
    elif isinstance(devices, int) and not isinstance(devices, bool):
        count = devices
    elif isinstance(devices, str) and devices.strip().isdigit():
        count = int(devices)
    elif isinstance(devices, str) and "," in devices:
        count = len([part for part in devices.split(",") if part.strip()])
    else:
        count = 1
    return max(1, count) * (num_nodes if isinstance(num_nodes, int) and num_nodes > 0 else 1)


def _strategy(asked: Any, process: RankProcess) -> Any:
    if isinstance(asked, str):
        if any(word in asked for word in _SHARDED):
            process.refuse(support.message("sharded_strategies", f'strategy="{asked}"'))
        for way in ("_spawn", "_fork", "_notebook"):
            asked = asked.replace(way, "")
        return _several_devices(process) if asked == "auto" else asked
    name = type(asked).__name__
    if any(word in name.lower().replace("modelparallel", "model_parallel") for word in _SHARDED):
        process.refuse(support.message("sharded_strategies", f"the strategy {name}"))
    if name == "DDPStrategy" and internals.launch_as_ranks(asked):
        return asked
    if asked is None:
        return _several_devices(process)
    return process.refuse(support.message("single_device_strategy", f"the strategy {name}"))


def _several_devices(process: RankProcess) -> str:
    """The strategy of a script that left it open.

    Its author may never have met DDP's demand that each parameter gets a gradient in each step.
    """
    return "ddp_find_unused_parameters_true" if process.spec.world_size > 1 else "auto"


def _run_fit(trainer: Any, fit: Callable[..., Any], arguments: dict[str, Any], process: RankProcess) -> Any:
    asked = getattr(trainer, _ASKED, None)
    if asked is None:
        process.refuse(support.message("trainer_first"))
    process.restore_environment()
    arguments.pop("self", None)
    run = FitRun(process, trainer, asked)
    callback = _forwarding_callback(run, internals.package_of(trainer))
    try:
        run.prepare(arguments)
        if "weights_only" in inspect.signature(fit).parameters and run.resumes:
            arguments["weights_only"] = False
        run.callback = callback
        trainer.callbacks.insert(0, callback)
        returned = fit(trainer, **arguments)
    except internals.LeaveFit:
        returned = None
    except Refused as refused:
        process.refuse(str(refused))
    except Exception as error:
        run.raised(error)
        raise
    finally:
        if callback in trainer.callbacks:
            trainer.callbacks.remove(callback)
        run.cleanup()
    if run.left is not None:
        if run.deferred is not None:
            process.writer.flush()
            raise run.deferred
        process.leave(stopped=run.stopped)
    run.finish()
    return returned


def _forwarding_callback(run: FitRun, package: str) -> Any:
    """A callback of the Trainer's own package that hands its hooks to `run`. First in the list."""

    class ElasticHooks(sys.modules[package].Callback):  # type: ignore[misc]
        """Weights ragged batches and merges means; see `FitRun`."""

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            run.on_fit_start()

        def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
            run.on_train_epoch_start()

        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            run.on_train_batch_start(batch_idx)

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            run.on_train_start()

        def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
            run.on_before_backward(loss)

        def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
            run.on_after_backward()

        def on_train_batch_end(
            self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
        ) -> None:
            run.on_train_batch_end()

        def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
            run.on_validation_start()

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            run.on_validation_end()

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            run.on_train_epoch_end()

    return ElasticHooks()
