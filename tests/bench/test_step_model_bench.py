"""The bench of the step-time model: on steps made by a known form, it keeps its contract."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest

from bench import step_model
from bench._step_rivals import Point, nearest, perfect, published
from selfsched.core.population import Population, Visited, fit_population
from selfsched.core.step_form import INDEX, TYPICAL, Spot, Spots, log_step

COLUMNS = [
    "application",
    "cluster",
    "hardware",
    "gradient_mb",
    "nodes",
    "replicas",
    "placement",
    "local_batch",
    "step_s",
    "sync_s",
]
PLACEMENTS = ["1", "2", "3", "4", "1+1", "2+2", "4+4", "2+2+2", "4+4+4+4"]
APPLICATIONS = {"one": (50.0, 0.08), "two": (400.0, 0.5), "three": (150.0, 0.2)}
"""Megabytes of gradient and seconds of a pass with eight samples."""
KEYS = {"seen", "nodes", "left_out", "model", "n", "median", "p90", "coverage50", "coverage80", "coverage95"}


def write(path: Path, hardware: dict[str, float]) -> Path:
    """Step times of three applications on hardware with such a network (bytes per second)."""
    rng = np.random.default_rng(5)
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(COLUMNS)
        for name, across in hardware.items():
            parameters = TYPICAL.copy()
            parameters[INDEX["across"]] = math.log(across)
            for application, (megabytes, seconds) in APPLICATIONS.items():
                for batch in (8, 16):
                    for placement in PLACEMENTS:
                        nodes = [int(part) for part in placement.split("+")]
                        spot = Spot(devices=sum(nodes), nodes=len(nodes), fullest=max(nodes))
                        step, sync = log_step(
                            parameters, np.array([math.log(seconds * batch / 8)]), Spots.of([spot]),
                            np.array([math.log(megabytes * 1e6)]),
                        )  # fmt: skip
                        noise = 0.02 * rng.standard_normal()
                        sizes = [megabytes, len(nodes), sum(nodes), placement, batch]
                        values = [math.exp(float(step[0]) + noise), math.exp(float(sync[0]))]
                        table.writerow([application, name, name, *sizes, *values])
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("steps") / "steps.csv", {"slow": 2e8, "fast": 5e9})


def test_seen_placements_are_shown_and_all_others_predicted(data: Path) -> None:
    case = step_model.read_cases(data)[0]
    shown, targets = case.split("1,2,1+1")
    assert [point.per_node for point in shown] == [(1,), (2,), (1, 1)]
    assert len(targets) == len(PLACEMENTS) - 3
    assert not {point.per_node for point in shown} & {point.per_node for point in targets}


@pytest.mark.parametrize("left_out", ["application", "hardware"])
def test_no_prior_has_heard_of_the_application_it_speaks_about(
    data: Path, left_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cases = step_model.read_cases(data)
    told: list[list[Visited]] = []

    def fit(known: list[Visited]) -> Population:
        told.append(known)
        return fit_population(known)

    monkeypatch.setattr(step_model, "fit_population", fit)
    step_model.Priors(cases, left_out).of(cases[0])
    assert {entry.job for entry in told[0]} == {"two", "three"}
    heard = {"slow", "fast"} if left_out == "application" else {"fast"}
    assert {entry.hardware for entry in told[0]} == heard


def test_the_table_keeps_its_contract_and_ours_beats_the_simple_rules(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert step_model.main(["--data", str(data), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert set(printed) == {"classes", "update_ms", "refit_ms", "population_fit_s"}
    rows = {(r["left_out"], r["seen"], r["nodes"], r["model"]): r for r in printed["classes"]}
    assert len(rows) == len(printed["classes"]) == 64
    for row in rows.values():
        assert row.keys() >= KEYS
        assert row["n"] > 0
        assert 0 <= row["median"] <= row["p90"]
        assert (row["coverage80"] is None) == (row["model"] != "ours")
    for seen in step_model.SEEN:
        ours = rows["application", seen, "several", "ours"]
        assert ours["median"] < 0.12
        for rival in ("nearest", "perfect"):
            assert ours["median"] < rows["application", seen, "several", rival]["median"]


def test_the_published_form_finds_its_own_parameters() -> None:
    def step(devices: int) -> tuple[float, float]:
        sync = 0.0 if devices == 1 else 0.1 + 0.02 * (devices - 2)
        return (0.5**3 + sync**3) ** (1 / 3), sync

    points = {k: Point(per_node=(k,), step_s=step(k)[0], sync_s=step(k)[0] - 0.5) for k in (1, 2, 3, 4, 8)}
    predicted = published([points[1], points[2], points[3]], [points[4], points[8]])
    assert predicted == pytest.approx([step(4)[0], step(8)[0]], rel=0.1)


def test_the_simple_rules_are_what_their_names_say() -> None:
    shown = [Point(per_node=(1,), step_s=1.0, sync_s=0.0), Point(per_node=(2,), step_s=1.5, sync_s=0.5)]
    target = Point(per_node=(4,), step_s=2.0, sync_s=1.0)
    assert nearest(shown, [target]) == pytest.approx([1.5])
    assert perfect(shown, [target]) == pytest.approx([1.0])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no rows"),
        ("application,cluster\na,b\n", "hardware"),
        (",".join(COLUMNS) + "\na,c,h,1,1,1,1,8,0,0\n", "a step of 0 s"),
        (",".join(COLUMNS) + "\na,c,h,1,1,1,1,8,nan,0\n", "a step of nan s"),
        (",".join(COLUMNS) + "\na,c,h,1,1,1,1+x,8,1,0\n", "no measured step times"),
    ],
)
def test_a_file_that_holds_no_step_times_is_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    assert step_model.main(["--data", str(path)]) == 2
    assert told in capsys.readouterr().err


def test_a_file_that_is_not_there_is_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert step_model.main(["--data", str(tmp_path / "none.csv")]) == 2
    assert "cannot be read" in capsys.readouterr().err
