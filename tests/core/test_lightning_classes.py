"""Lightning's classes are told from a user's of the same name."""

from __future__ import annotations

from typing import Any

import pytest
from lightning.pytorch.callbacks import EarlyStopping as Early
from lightning.pytorch.callbacks import Timer as LightningTimer
from pytorch_lightning.callbacks import Timer as OtherTimer

from selfsched.core.lightning_classes import is_lightnings


class Timer:
    """A user's own."""


class Slower(LightningTimer):
    """A user's, made from Lightning's."""


@pytest.mark.parametrize(
    ("thing", "answer"),
    [(Timer(), False), (LightningTimer(), True), (OtherTimer(), True), (Slower(), True), (Early("x"), False)],
)
def test_a_timer_is_lightnings_own(thing: Any, answer: bool) -> None:
    assert is_lightnings(thing, "Timer") is answer
