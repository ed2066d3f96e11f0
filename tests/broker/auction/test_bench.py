"""`bench.auction`: its JSON contract, on a size that takes a moment."""

from __future__ import annotations

import json

import pytest

from bench import auction


def test_the_bench_prints_its_contract(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auction, "SMALL_INSTANCES", 6)
    assert auction.main(["--gpus", "8", "--nodes", "2", "--jobs", "6", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) == {
        "gpus", "jobs", "seconds", "compile_s", "with_payments", "proved_gap", "peak_mib", "small",
        "payment_error",
    }  # fmt: skip
    assert answer["with_payments"] is True
    assert answer["proved_gap"] == 0
    assert answer["small"]["gap_p99"] == pytest.approx(0, abs=1e-6)
    assert answer["small"]["proved_fraction"] == 1
    assert answer["payment_error"][0]["max"] == pytest.approx(0, abs=1e-5)


def test_the_quick_table_and_sizes_it_is_not_made_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert auction.main(["--gpus", "4", "--nodes", "1", "--jobs", "3", "--quick"]) == 0
    assert "auction of 4 devices among 3 jobs" in capsys.readouterr().out
    with pytest.raises(SystemExit) as stop:
        auction.main(["--gpus", "10000", "--nodes", "1250", "--jobs", "2500"])
    assert stop.value.code == 2
    assert "not supported yet" in capsys.readouterr().err
