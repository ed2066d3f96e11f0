"""The bench of honesty: its labs are the same with and without the lie, its figures hold together."""

from __future__ import annotations

import json
import math
from dataclasses import asdict

import pytest

from bench import honesty
from bench._honesty_lab import LIAR, LIES, lab
from bench.honesty import ChargeRow, LieRow, Outcome, Pairs, Result, lie_row, simulate, table


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_changes_the_liars_jobs_and_nobody_elses(lie: str) -> None:
    splits = lie == "split"
    honest = lab(8, 3, jobs=20, splits=splits)
    lying = lab(8, 3, lie, jobs=20, splits=splits)
    others = [[job for job in drawn.jobs if job.account != LIAR] for drawn in (honest, lying)]
    assert others[0] == others[1]
    assert [o.arrival_seconds for o in honest.liars] == [o.arrival_seconds for o in lying.liars]
    mine = [[job for job in drawn.jobs if job.account == LIAR] for drawn in (honest, lying)]
    assert mine[0] != mine[1]


def test_split_jobs_are_together_as_much_work_and_no_faster() -> None:
    honest, split = lab(8, 3, jobs=20, splits=True), lab(8, 3, "split", jobs=20, splits=True)
    alone = {job.name: job.alone_seconds for job in honest.jobs}
    for before, after in zip(honest.liars, split.liars, strict=True):
        pieces = [job for job in split.jobs if job.name in after.pieces]
        assert len(pieces) > 1
        work = sum(place.devices * s for piece in pieces for place, s in piece.speed.placements.items())
        assert work == pytest.approx(alone[before.pieces[0]])


def test_gains_are_between_the_same_lab_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def pretend(drawn: object, seed: int, policy: str, payments: str) -> Outcome:
        lies = drawn != lab(2, seed, jobs=6)
        seconds = 50.0 if lies else 100.0
        return Outcome(liar=seconds, others=110.0 if lies else 100.0, everybody=1.0, restarts=0.0, debt=0.0)

    monkeypatch.setattr(honesty, "simulate", pretend)
    row = lie_row(Pairs(lambda _: 6), "late", ("themis", "record"), 2, 3)
    assert (row.gain, row.gain_error) == (pytest.approx(0.5), pytest.approx(0.0))
    assert row.others_loss == pytest.approx(0.1)
    assert row.pays


def test_one_small_lab_is_played_to_its_end() -> None:
    outcome = simulate(lab(2, 1, "work_understated", jobs=6), 1, "themis", "charge")
    assert all(math.isfinite(value) and value >= 0 for value in asdict(outcome).values())
    assert outcome == simulate(lab(2, 1, "work_understated", jobs=6), 1, "themis", "charge")


def test_the_table_has_every_row_and_says_what_pays() -> None:
    row = LieRow(
        lie="late", policy="themis", payments="record", devices=2, seeds=3, gain=0.05, gain_error=0.01,
        others_loss=0.0, others_error=0.0,
    )  # fmt: skip
    cost = ChargeRow(
        devices=2, seeds=3, recorded_completion_s=1.0, charged_completion_s=2.0, completion_change=1.0,
        completion_error=0.1, recorded_restarts=1.0, charged_restarts=2.0, debt_device_s=0.0,
    )  # fmt: skip
    words = table(Result(noise=0.1, term_s=300.0, lies=[row], charging=[cost]))
    assert "| late | themis, record | 2 | 3 | +5.0% ± 1.0% | +0.0% ± 0.0% | yes |" in words
    assert "+100.0% ± 10.0%" in words


@pytest.mark.slow
def test_quick_prints_one_object(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(honesty, "QUICK_JOBS", 6)
    monkeypatch.setattr(honesty, "RULES", (("selfsched", "record"),))
    assert honesty.main(["--json", "--quick"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["lie"] for row in found["lies"]} == set(LIES)
    assert [row["devices"] for row in found["charging"]] == [2]
