"""One thread, quiet Lightning, no hook left behind."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
import torch

from selfsched.elastic import hooks


@pytest.fixture(autouse=True)
def _one_thread_and_quiet() -> Iterator[None]:
    threads, environment = torch.get_num_threads(), dict(os.environ)
    torch.set_num_threads(1)
    for name in ("lightning", "lightning.pytorch", "pytorch_lightning", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    yield
    hooks.uninstall()
    torch.set_num_threads(threads)
    os.environ.clear()
    os.environ.update(environment)
