"""The contract with Lightning and torch for measuring: each private name is there, and what is without it."""

from __future__ import annotations

import inspect
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from selfsched.measure import lightning_names as names

PLAIN = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "accelerator": "cpu"}


@pytest.fixture(params=["lightning.pytorch", "pytorch_lightning"])
def trainer(request: pytest.FixtureRequest) -> Any:
    return import_module(request.param).Trainer(**PLAIN, enable_model_summary=False)


def test_lightning_calls_around_each_fetch_what_is_watched(trainer: Any) -> None:
    loop = trainer.fit_loop.epoch_loop
    theirs = loop._on_before_fetch, loop._on_after_fetch
    source = inspect.getsource(type(loop))
    assert "_on_before_fetch" in source
    assert "_on_after_fetch" in source
    heard: list[str] = []
    assert names.watch_fetching(trainer, lambda: heard.append("before"), lambda: heard.append("after"))
    loop._on_before_fetch()
    loop._on_after_fetch()
    assert heard == ["before", "after"]
    names.unwatch_fetching(trainer)
    assert (loop._on_before_fetch, loop._on_after_fetch) == theirs


def test_without_those_hooks_nothing_is_watched() -> None:
    bare = SimpleNamespace(fit_loop=SimpleNamespace(epoch_loop=SimpleNamespace()))
    for trainer in (bare, SimpleNamespace()):
        assert not names.watch_fetching(trainer, lambda: None, lambda: None)
        names.unwatch_fetching(trainer)


def test_ddp_has_the_logger_that_is_sampled() -> None:
    assert callable(DistributedDataParallel._set_ddp_runtime_logging_sample_rate)
    assert callable(DistributedDataParallel._get_ddp_logging_data)


def test_without_that_logger_nothing_is_sampled() -> None:
    assert not names.sample_ddp_logging(torch.nn.Linear(1, 1), 10)
