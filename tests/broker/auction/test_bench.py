"""`bench.auction`: its JSON contract, on sizes that take a moment."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import auction
from bench._auction_markets import Size

TINY = ["--gpus", "16", "--nodes", "2", "--models", "2", "--jobs", "6"]


def test_the_bench_prints_its_contract(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auction, "SMALL_INSTANCES", 2)
    monkeypatch.setattr(auction, "LADDER", (Size(8, 1, 1, 4),))
    monkeypatch.setattr(auction, "PAYMENTS", ((Size(16, 2, 1, 6), 3),))
    assert auction.main([*TINY, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert set(answer) == {
        "gpus", "jobs", "seconds", "compile_s", "with_payments", "proved_gap", "peak_mib", "small",
        "payment_error", "runs",
    }  # fmt: skip
    assert answer["with_payments"] is True
    assert answer["proved_gap"] == pytest.approx(0, abs=1e-6)
    assert answer["small"]["gap_p99"] == pytest.approx(0, abs=1e-6)
    assert answer["small"]["proved_fraction"] == 1
    assert answer["payment_error"][0]["max"] == pytest.approx(0, abs=1e-5)
    assert [run["gpus"] for run in answer["runs"]] == [16, 8]
    assert all(run["milp_gap"] == pytest.approx(0, abs=1e-6) for run in answer["runs"])
    assert all(run["greedy_loss"] >= -1e-9 for run in answer["runs"])


def test_the_quick_table_and_the_picture(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "cost.svg"
    assert auction.main([*TINY, "--quick", "--picture", str(picture)]) == 0
    assert "proved gap" in capsys.readouterr().out
    assert "<svg" in picture.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--jobs", "0"], "at least 1"), (["--nodes", "4"], "128 on a node"), (["--models", "9"], "no model")],
)
def test_sizes_it_cannot_measure(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as stop:
        auction.main(["--gpus", "1024", "--nodes", "8", "--quick", *arguments])
    assert stop.value.code == 2
    assert words in capsys.readouterr().err
