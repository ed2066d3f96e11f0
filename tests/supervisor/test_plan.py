"""Plans: what they say, and how the training's own progress moves them on."""

from __future__ import annotations

import pytest

from selfsched.elastic.allocation import SegmentEnd
from selfsched.elastic.job import JobDescription
from selfsched.elastic.plan import Plan, parse_plan, planned_counts
from selfsched.errors import Refused
from selfsched.launch.local_devices import private_cpu_devices, visible
from selfsched.protocol import LeasedDevice

DEVICES = private_cpu_devices(3)


def ended(reason: str, *, fit: int = 1, step: int = 0) -> SegmentEnd:
    return SegmentEnd(0, DEVICES, DEVICES, reason=reason, fit=fit, step=step)  # type: ignore[arg-type]


def test_a_plan_names_devices_from_steps_on() -> None:
    stretches = parse_plan("2@0, 1@7,3@2:10")
    assert [stretch.devices for stretch in stretches] == [2, 1, 3]
    assert [stretch.start for stretch in stretches] == [(1, 0), (1, 7), (2, 10)]


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ("", "is not DEVICES@STEP"), ("2", "is not DEVICES@STEP"), ("2@x", "is not DEVICES@STEP"),
        ("-1@0", "is not DEVICES@STEP"), ("0@0", "needs 1 to"), ("99999@0", "needs 1 to"),
        ("1@5", "must begin at step 0"), ("1@0,2@7,1@7", "goes back"), ("1@0,2@9,1@3", "goes back"),
    ],
)  # fmt: skip
def test_what_is_no_plan_is_refused_with_what_is_wrong(plan: str, words: str) -> None:
    with pytest.raises(Refused, match=words):
        parse_plan(plan)


def test_the_counts_of_a_plan_are_each_told_once() -> None:
    assert planned_counts("4@0,1@7,4@9,2@2:10") == (1, 2, 4)
    assert planned_counts(None) == ()


def test_a_segment_is_cut_where_the_next_stretch_begins() -> None:
    plan = Plan(parse_plan("2@0,1@7"), DEVICES)
    assert plan.wanted(0.0).devices == DEVICES[:2]
    assert plan.wanted(0.0).cut_at == (1, 7)
    plan.segment_ended(ended("planned", step=7))
    assert plan.wanted(0.0).devices == DEVICES[:1]
    assert plan.wanted(0.0).cut_at is None


def test_a_cut_that_was_put_off_skips_what_it_passed() -> None:
    plan = Plan(parse_plan("2@0,1@7,3@8,2@20"), DEVICES)
    plan.segment_ended(ended("planned", step=9))
    assert plan.wanted(0.0).devices == DEVICES
    assert plan.wanted(0.0).cut_at == (1, 20)


def test_a_fault_does_not_move_it_on() -> None:
    plan = Plan(parse_plan("2@0,1@7"), DEVICES)
    plan.segment_ended(ended("failed", step=30))
    assert plan.wanted(0.0).devices == DEVICES[:2]


def test_more_devices_than_there_are_are_refused() -> None:
    plan = Plan(parse_plan("4@0"), DEVICES)
    with pytest.raises(Refused, match="asks for 4 devices, but this machine has 3"):
        plan.start(JobDescription.model_construct(), lambda: None)


GPUS = tuple(
    LeasedDevice(id=f"GPU-{name}", node="n", index=index, model="a", kind="gpu")
    for index, name in enumerate(("aa11", "ab22", "cc33"))
)


@pytest.mark.parametrize(
    ("setting", "indices"),
    [
        (None, [0, 1, 2]), ("", []), ("2,0", [2, 0]), (" 1 , 2 ", [1, 2]), ("GPU-cc33,0", [2, 0]),
        ("GPU-ab", [1]), ("GPU-a", []), ("0,9,1", [0]), ("0,x,1", [0]), ("-1", []), ("1,1", [1]),
        ("NoDevFiles", []),
    ],
)  # fmt: skip
def test_visible_devices_are_read_as_cuda_reads_them(setting: str | None, indices: list[int]) -> None:
    assert [device.index for device in visible(GPUS, setting)] == indices
