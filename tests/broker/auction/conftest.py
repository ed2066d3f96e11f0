"""Both ways to divide, for tests of what an auction decides however it is computed."""

from __future__ import annotations

import pytest

from selfsched_broker.core import auction


@pytest.fixture(params=["by_node", "by_pieces"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """`by_node`: as a lab is divided; `by_pieces`: as a large cluster is, whatever the size."""
    if request.param == "by_pieces":
        monkeypatch.setattr(auction, "_MOST_STATES", -1)
    return str(request.param)


@pytest.fixture
def by_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide as a large cluster is divided, whatever the size."""
    monkeypatch.setattr(auction, "_MOST_STATES", -1)
