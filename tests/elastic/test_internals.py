"""The contract with Lightning and torch: each private name is there, in both packages."""

from __future__ import annotations

import inspect
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torchmetrics import CatMetric, MaxMetric, MeanMetric, MetricCollection

from selfsched.elastic import lightning_internals as internals
from selfsched.elastic.lightning_internals import LeaveFit

PACKAGES = ["lightning.pytorch", "pytorch_lightning"]
PLAIN = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}


@pytest.fixture(params=PACKAGES)
def package(request: pytest.FixtureRequest) -> Any:
    return import_module(request.param)


def a_trainer(package: Any) -> Any:
    return package.Trainer(**PLAIN)


def test_a_trainers_package_is_known_also_of_a_subclass(package: Any) -> None:
    class Mine(package.Trainer):  # type: ignore[misc]
        pass

    made = Mine(**PLAIN)
    assert internals.package_of(made) == package.__name__
    assert package.__name__ in internals.loaded_packages()
    with pytest.raises(TypeError, match="no Trainer"):
        internals.package_of(object())


def test_the_way_out_is_the_packages_own_and_is_caught_in_fit(package: Any) -> None:
    way_out = internals.exit_exception(package.__name__)
    assert way_out.__module__.startswith(package.__name__)
    source = inspect.getsource(import_module(f"{package.__name__}.trainer.call"))
    assert f"except {way_out.__name__}" in source


def test_the_position_at_a_start_is_where_the_loops_go_on(package: Any) -> None:
    trainer = a_trainer(package)
    trainer.fit_loop.epoch_progress.current.processed = 2
    inner = trainer.fit_loop.epoch_loop
    inner.batch_progress.current.completed = 5
    assert internals.position_at_start(trainer) == (2, 0), "a new epoch"
    inner.restarting = True
    assert internals.position_at_start(trainer) == (2, 5)
    assert internals.position_at_start(object()) is None


def test_without_a_way_out_there_is_our_own(package: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    exceptions = import_module(f"{package.__name__}.utilities.exceptions")
    monkeypatch.delattr(exceptions, "_TunerExitException")
    assert internals.exit_exception(package.__name__) is LeaveFit


def test_the_loops_have_the_places_of_the_cut(package: Any) -> None:
    loop = a_trainer(package).fit_loop.epoch_loop
    source = inspect.getsource(type(loop).run)
    assert "self.advance(" in source
    assert "self.on_advance_end(" in source
    assert callable(loop._should_check_val_fx)
    assert callable(loop._should_accumulate)


def test_hooks_are_put_in_and_taken_out(package: Any) -> None:
    trainer = a_trainer(package)
    loop = trainer.fit_loop.epoch_loop
    loop.advance = lambda: "advanced"
    asked = iter([True, False])
    internals.before_each_batch(trainer, lambda: next(asked))
    assert [loop.advance(), loop.advance()] == ["advanced", None]
    internals.before_each_validation(trainer, lambda: None)
    internals.forget_hooks(trainer)
    assert not {"advance", "on_advance_end"} & set(vars(loop))


def test_the_position_is_epochs_and_batches_that_are_done(package: Any) -> None:
    trainer = a_trainer(package)
    assert internals.position(trainer) == (0, 0)
    trainer.fit_loop.epoch_progress.current.processed = 2
    trainer.fit_loop.epoch_loop.batch_progress.current.ready = 5
    assert internals.position(trainer) == (2, 5)


def test_half_accumulated_has_a_count_of_its_own_to_fall_back_on() -> None:
    def trainer(ready: int) -> Any:
        current = SimpleNamespace(ready=ready)
        loop = SimpleNamespace(batch_progress=SimpleNamespace(current=current))
        return SimpleNamespace(fit_loop=SimpleNamespace(epoch_loop=loop), accumulate_grad_batches=3)

    found = [internals.half_accumulated(trainer(ready)) for ready in range(5)]
    assert found == [False, True, True, False, True]


def test_the_logged_values_have_the_names_we_carry(package: Any) -> None:
    connector = a_trainer(package)._logger_connector
    carried = [f"_{name}" for name in internals._LOGGED]
    for name in ("_first_loop_iter", "_current_fx", *carried):
        assert hasattr(connector, name), name
    result = import_module(f"{package.__name__}.trainer.connectors.logger_connector.result")
    fields = set(inspect.signature(result._Metadata).parameters)
    assert {*internals._META_FIELDS, "reduce_fx"} <= fields
    assert {"fn", "_should", "rank_zero_only", "_group"} <= set(inspect.signature(result._Sync).parameters)


def test_a_handler_set_after_lightnings_own_is_heard(package: Any) -> None:
    trainer = a_trainer(package)
    called: list[str] = []
    trainer._signal_connector.register_signal_handlers = lambda: called.append("Lightning")
    assert internals.after_signal_handlers(trainer, lambda: called.append("ours"))
    trainer._signal_connector.register_signal_handlers()
    assert called == ["Lightning", "ours"]
    assert not internals.after_signal_handlers(SimpleNamespace(), lambda: None)


def test_a_cluster_environment_among_plugins_is_seen(package: Any) -> None:
    environment = internals.environment_plugin(package.__name__)
    assert internals.is_cluster_environment(environment)
    assert not internals.is_cluster_environment(object())


def test_a_ddp_strategy_that_would_spawn_is_told_not_to(package: Any) -> None:
    strategy = package.strategies.DDPStrategy(start_method="spawn")
    assert internals.launch_as_ranks(strategy)
    assert strategy._start_method == "popen"
    assert internals.launch_as_ranks(package.strategies.DDPStrategy())


def test_checkpoint_callbacks_have_what_they_do_not_keep(package: Any) -> None:
    keeper = package.callbacks.ModelCheckpoint()
    trainer = SimpleNamespace(checkpoint_callbacks=[keeper])
    saved = internals.read_keepers(trainer)
    assert "_last_global_step_saved" in saved[0]
    saved[0]["_last_global_step_saved"] = 7
    internals.write_keepers(trainer, saved)
    assert keeper._last_global_step_saved == 7


def test_metrics_of_a_module_are_found_read_and_written_back() -> None:
    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = MeanMetric()
            self.many = MetricCollection({"max": MaxMetric(), "all": CatMetric()})
            self.layer = torch.nn.Linear(1, 1)

    one, other = Module(), Module()
    metrics = internals.module_metrics(one)
    assert set(metrics) == {"mean", "many.max", "many.all"}
    for value in (1.0, 5.0):
        one.mean.update(value)
        one.many.update(torch.tensor(value))
    for name, metric in internals.module_metrics(other).items():
        saved = internals.read_metric(metrics[name])
        internals.write_metric(metric, saved)
    assert float(other.mean.compute()) == 3.0
    assert float(other.many["max"].compute()) == 5.0
    assert other.many["all"].compute().tolist() == [1.0, 5.0]
    one.mean.update(100.0)
    assert float(other.mean.compute()) == 3.0  # a copy, not a view
    reductions = {name: internals.read_metric(metric)["reductions"] for name, metric in metrics.items()}
    assert reductions["mean"] == {"mean_value": "sum", "weight": "sum"}
    assert reductions["many.max"] == {"max_value": "max"}
    assert reductions["many.all"] == {"value": "cat"}


def test_metrics_can_be_kept_to_their_rank_for_a_while() -> None:
    module = torch.nn.Module()
    module.mean, module.alone = MeanMetric(), MeanMetric(sync_on_compute=False)
    asked: list[str] = []
    for name in ("mean", "alone"):
        metric = getattr(module, name)
        metric.distributed_available_fn = lambda: True
        metric.dist_sync_fn = lambda value, group, name=name: asked.append(name) or [value]
    ask_again = internals.keep_to_their_rank(module)
    for expected in (set(), {"mean"}):
        for metric in (module.mean, module.alone):
            metric.update(1.0)
            metric(1.0)
            metric.compute()
        assert set(asked) == expected
        ask_again()


def test_a_wandb_logger_without_an_id_gets_a_lasting_one() -> None:
    class WandbLogger:
        def __init__(self, given: str | None) -> None:
            self._wandb_init: dict[str, Any] = {"id": given, "resume": None}

    fresh, named = WandbLogger(None), WandbLogger("mine")
    assert internals.pin_wandb(fresh, "ours")
    assert internals.pin_wandb(named, "ours")
    assert fresh._wandb_init == {"id": "ours", "resume": "allow"}
    assert named._wandb_init == {"id": "mine", "resume": None}
    assert not internals.pin_wandb(object(), "ours")


def test_an_mlflow_logger_goes_on_in_the_run_of_the_first_segment() -> None:
    class MLFlowLogger:
        __module__ = "lightning.pytorch.loggers.mlflow"

        def __init__(self) -> None:
            self._run_id: str | None = None
            self._initialized = False

        @property
        def version(self) -> str:
            self._run_id, self._initialized = self._run_id or "new", True
            return self._run_id

    first, second = MLFlowLogger(), MLFlowLogger()
    assert internals.logger_version(first) == "new"
    assert second.version == "new"
    internals.pin_version(second, "old")
    assert (second._run_id, second._initialized) == ("old", False)
    internals.pin_version(object(), "old")  # of another kind: left alone


def test_file_loggers_are_pinned_to_a_version(package: Any, tmp_path: Any) -> None:
    for made in (package.loggers.CSVLogger, package.loggers.TensorBoardLogger):
        (tmp_path / made.__name__ / "name" / "version_0").mkdir(parents=True)
        logger = made(tmp_path / made.__name__, name="name")
        assert internals.logger_version(logger) == 1
        internals.pin_version(logger, 0)
        assert internals.logger_version(logger) == 0
        assert str(logger.log_dir).endswith("version_0")
    assert internals.logger_version(object()) is None
    assert internals.is_csv_logger(package.loggers.CSVLogger(tmp_path))
    assert not internals.is_csv_logger(object())
