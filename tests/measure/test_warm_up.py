"""Warm-up is recognised by what happens in a step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from selfsched.measure.lightning_names import compilations
from selfsched.measure.warm_up import (
    FIRST_STEPS,
    HABIT_STEPS,
    LONGEST_SECONDS,
    LONGEST_STEPS,
    WINDOW,
    WarmUp,
)


def judged(warm_up: WarmUp, cycles: Sequence[float | None]) -> list[bool]:
    now, flags = 100.0, []
    for cycle in cycles:
        now += cycle or 0.0
        flags.append(warm_up.judge(cycle, now))
    return flags


def test_steps_that_do_not_fall_settle_as_soon_as_that_can_be_seen() -> None:
    flags = judged(WarmUp(), [None, *[0.01] * 30])
    assert flags == sorted(flags, reverse=True)
    assert sum(flags) == FIRST_STEPS + 2 * WINDOW - 1


def test_steps_that_fall_are_warm_up_until_they_stop_to() -> None:
    falling = [0.03 * 0.9**i for i in range(12)]
    flags = judged(WarmUp(), [None, *falling, *[falling[-1]] * 20])
    assert all(flags[: len(falling)])
    assert not any(flags[LONGEST_STEPS:])
    assert flags == sorted(flags, reverse=True)


def test_steps_that_fall_for_ever_are_a_drift_and_no_warm_up() -> None:
    flags = judged(WarmUp(), [None, *[0.1 * 0.9**i for i in range(40)]])
    assert sum(flags) == LONGEST_STEPS
    assert flags == sorted(flags, reverse=True)


def test_long_steps_settle_at_once() -> None:
    flags = judged(WarmUp(), [None, *[1.1 * LONGEST_SECONDS] * 5])
    assert flags == [True] * FIRST_STEPS + [False] * (6 - FIRST_STEPS)


def test_a_minute_of_compilation_in_the_first_step_does_not_use_up_the_warm_up() -> None:
    flags = judged(WarmUp(), [60.0, 0.02, *[0.02 * 0.8**i for i in range(6)], *[0.005] * 20])
    assert all(flags[:8])


def test_a_compilation_in_mid_run_is_warm_up_until_the_steps_have_settled_again() -> None:
    compiled = 0
    warm_up = WarmUp(lambda: compiled)
    judged(warm_up, [None, *[0.01] * 40])
    compiled = 3
    flags = judged(warm_up, [2.0, *[0.01] * 20])
    assert flags == [True] * (2 * WINDOW) + [False] * (21 - 2 * WINDOW)


def test_a_counter_that_was_cleared_is_one_odd_step_and_no_fault() -> None:
    compiled = 7
    warm_up = WarmUp(lambda: compiled)
    judged(warm_up, [None, *[0.01] * 40])
    compiled = 0
    assert sum(judged(warm_up, [0.01] * 40)) == 2 * WINDOW


def test_a_training_that_compiles_in_every_step_has_steps_all_the_same() -> None:
    count = iter(range(10_000))
    flags = judged(WarmUp(lambda: next(count)), [None, *[0.5] * 100])
    assert not any(flags[HABIT_STEPS + 2 * WINDOW + 5 :])


def test_until_ddp_has_its_buckets_steps_are_warm_up() -> None:
    answers = iter([False, False, False, True])
    flags = judged(WarmUp(buckets_settled=lambda: next(answers)), [None, *[6.0] * 9])
    assert flags == [True] * 4 + [False] * 6


def test_buckets_that_are_never_rebuilt_are_not_waited_for_for_ever() -> None:
    flags = judged(WarmUp(buckets_settled=lambda: False), [None, *[6.0] * 40])
    assert sum(flags) == LONGEST_STEPS


def test_the_compiler_tells_what_it_compiled() -> None:
    @torch.compile(backend="eager")
    def double(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    double(torch.ones(3))
    warm_up = WarmUp(compilations)
    judged(warm_up, [None, *[0.01] * 40])
    flags = []
    for size in (3, 3, 5):  # a new shape is compiled anew
        double(torch.ones(size))
        flags += judged(warm_up, [0.01])
    assert flags == [False, False, True]


def test_without_the_compiler_nothing_was_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "torch._dynamo.utils", raising=False)
    assert compilations() == 0
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", torch)  # has no counters
    assert compilations() == 0


RANKS = """
import os, sys, torch
from selfsched.measure.communication import CommunicationMeter

def rank(number, directory):
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{directory}/store", rank=number, world_size=2
    )
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(64, 64)] * 2))
    meter = CommunicationMeter(model, 2)
    told = []
    for _ in range(6):
        model(torch.ones(2, 64)).sum().backward()
        told.append(meter.buckets_settled())
    if number == 0:
        print(json.dumps([told, meter.read_seconds()]))
    torch.distributed.destroy_process_group()

import json
torch.multiprocessing.start_processes(rank, (sys.argv[1],), nprocs=2, start_method="fork")
"""


@pytest.mark.slow
def test_real_ddp_tells_when_its_buckets_are_rebuilt_and_what_its_exchange_takes(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", RANKS, str(tmp_path)],
        capture_output=True, text=True, timeout=120, check=True,
        env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip
    settled, seconds = json.loads(done.stdout)
    assert settled == sorted(settled)
    assert (settled[0], settled[-1]) == (False, True)
    assert seconds > 0
