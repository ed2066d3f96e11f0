"""The bench of a restart measures what it says: its parts are the whole."""

from __future__ import annotations

import pytest

from bench.restart import PARTS, measure


@pytest.mark.slow
def test_the_parts_of_a_move_add_up_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    measured = measure(1, without_zygote=False)
    assert sum(measured[part] for part in PARTS) == pytest.approx(measured["whole"], abs=0.001)
    assert all(measured[part] > 0 for part in PARTS)
