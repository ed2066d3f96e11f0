"""Each test starts with no launcher installed in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("_SELFSCHED_SEGMENT", raising=False)
    yield
    hooks = sys.modules.get("selfsched.elastic.hooks")
    if hooks is not None:
        hooks.uninstall()
