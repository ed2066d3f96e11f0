"""Which devices a process asks for, and the cores it is confined to."""

from __future__ import annotations

import subprocess
import sys

import pytest

from selfsched.core.visible_devices import (
    Seats,
    gpu_id,
    gpus_of,
    processes_named,
    slots_of,
    taken,
    who_holds,
    why_not_free,
)
from selfsched.errors import Refused
from selfsched.protocol import ClusterView, DeviceState, DeviceView

UUID = "7ed82b7e-1c2d-4f1a-9a7c-0f5d1b2c3d4e"


def device(name: str, *cores: int, state: DeviceState = DeviceState.FREE, node: str = "hera",
           account: str | None = None, detail: str = "") -> DeviceView:  # fmt: skip
    return DeviceView(
        id=name, node=node, index=cores[0] if cores else 0, model="m", kind="cpu" if cores else "gpu",
        cores=cores, state=state, since_seconds=0.0, account=account, detail=detail,
    )  # fmt: skip


def cluster(*devices: DeviceView) -> ClusterView:
    return ClusterView(
        policy="themis", devices=devices, waiting_jobs=0, running_jobs=0, next_tick_seconds=0.0, incarnation=1
    )


TWO = cluster(device("c0", 0), device("c1", 1))
WIDE = cluster(device("c0", 0, 1), device("c1", 2, 3))


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        (None, f"GPU-{UUID}"),
        ("", f"GPU-{UUID}"),
        ("0", f"GPU-{UUID}"),
        (" 1 , 0", f"GPU-{UUID}"),
        (f"GPU-{UUID}", f"GPU-{UUID}"),
        ("GPU-7ed8", f"GPU-{UUID}"),
        (f"MIG-{UUID}", f"MIG-{UUID}"),
        (f"0, MIG-{UUID[:8]} ", f"MIG-{UUID}"),
        ("MIG-00000000", f"GPU-{UUID}"),
        ("0,banana,1", f"GPU-{UUID}"),
    ],
)
def test_a_gpu_has_the_drivers_name_whatever_made_it_visible(setting: str | None, name: str) -> None:
    assert gpu_id(UUID, setting) == name
    assert gpu_id(name, setting) == name


def test_exactly_the_gpus_in_use_are_asked_for() -> None:
    view = cluster(device("GPU-a"), device("GPU-b"))
    assert gpus_of(["GPU-b"], view) == Seats(count=1, exactly=("GPU-b",))
    with pytest.raises(Refused, match="GPU-z"):
        gpus_of(["GPU-b", "GPU-z"], view)
    with pytest.raises(Refused, match="the GPU of this training"):
        gpus_of([], view)


@pytest.mark.parametrize(
    ("usable", "ranks", "view", "seats"),
    [
        # It may run anywhere: any slot will do, and it is confined to it.
        ({0, 1}, 1, TWO, Seats(count=1, confine=True)),
        ({0, 1, 2, 3}, 1, WIDE, Seats(count=1, confine=True)),
        # As many ranks as slots.
        ({0, 1}, 2, TWO, Seats(count=2, exactly=("c0", "c1"), confine=True)),
        # More ranks than slots share them all.
        ({0, 1}, 3, TWO, Seats(count=2, exactly=("c0", "c1"))),
        # It was confined: exactly what it sits on.
        ({1}, 1, TWO, Seats(count=1, exactly=("c1",), confine=True)),
        ({2, 3}, 1, WIDE, Seats(count=1, exactly=("c1",), confine=True)),
        # To less than a slot: the slot is in use all the same.
        ({3}, 1, WIDE, Seats(count=1, exactly=("c1",), confine=True)),
        ({1, 2}, 1, WIDE, Seats(count=2, exactly=("c0", "c1"))),
        # To cores that no slot has: all are kept.
        ({9}, 1, TWO, Seats(count=2, exactly=("c0", "c1"))),
        # The broker has more than this machine: free ones of it are named.
        (
            {0, 1, 2},
            1,
            cluster(
                device("c0", 0, state=DeviceState.HELD), device("c1", 1, state=DeviceState.QUARANTINED),
                device("c2", 2), device("x0", 0, node="zeus"),
            ),
            Seats(count=1, exactly=("c2",), confine=True),
        ),
        ({0, 1}, 1, cluster(device("GPU-a")), None),
        ({0, 1}, 1, cluster(device("x0", 0, node="zeus")), None),
    ],
)  # fmt: skip
def test_cpu_slots(usable: set[int], ranks: int, view: ClusterView, seats: Seats | None) -> None:
    assert slots_of(usable, ranks, "hera", view) == seats


def test_who_holds_what_is_asked_for() -> None:
    view = cluster(
        device("c0", 0, state=DeviceState.HELD, account="anna"),
        device("c1", 1, state=DeviceState.YIELDING),
        device("c2", 2, state=DeviceState.QUARANTINED, detail="in use by ben"),
    )
    assert who_holds(taken(Seats(count=1, exactly=("c1", "c2")), view)) == "c1 by somebody"
    assert taken(Seats(count=1), view) == ()
    assert who_holds(taken(Seats(count=2), view)) == "c0 by anna, c1 by somebody"
    assert why_not_free(Seats(count=1, exactly=("c2",)), view) == "c2: in use by ben"
    assert why_not_free(Seats(count=1, exactly=("c0",)), view) == ""


@pytest.mark.parametrize(
    ("detail", "processes"),
    [
        ("c0: in use without a lease by anna (process 12, 34); c1: in use by ben (process 5)", {5, 12, 34}),
        ("900 MiB are in use by no process that can be seen", set()),
    ],
)
def test_processes_in_the_brokers_words(detail: str, processes: set[int]) -> None:
    assert processes_named(detail) == processes


@pytest.mark.slow
def test_all_threads_of_a_process_run_on_its_slot_until_the_end() -> None:
    # In a process of its own: the cores of this one are everybody's.
    program = """
import os, threading
import torch
from selfsched.held_fit import pin
before, stop = os.sched_getaffinity(0), threading.Event()
other = threading.Thread(target=stop.wait, daemon=True)
other.start()
one = min(before)
undo = pin((one,))
assert os.sched_getaffinity(0) == os.sched_getaffinity(other.native_id) == {one}
assert torch.get_num_threads() == 1
undo()
assert os.sched_getaffinity(0) == os.sched_getaffinity(other.native_id) == before
undo = pin((99999,))  # no core of this machine: it stays where it is
assert os.sched_getaffinity(0) == before
undo()
stop.set()
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("fine")
