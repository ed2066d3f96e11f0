"""Work beside the training: in order, bounded, and its faults come back."""

from __future__ import annotations

import os
import pickle
import threading

import pytest

from selfsched.measure.side_thread import LONGEST_QUEUE, SideThread


def test_work_is_done_in_order_and_waited_for() -> None:
    side, done = SideThread("side"), list[int]()
    side.wait()
    for number in range(10):
        side.put(lambda number=number: done.append(number))  # type: ignore[misc]
    side.wait()
    assert done == list(range(10))
    side.close()


def test_it_runs_on_a_thread_of_its_own() -> None:
    side, names = SideThread("side"), list[str]()
    side.put(lambda: names.append(threading.current_thread().name))
    side.wait()
    assert names == ["side"]
    side.close()


def test_a_fault_is_raised_at_the_next_call_and_what_waited_is_left_undone() -> None:
    side, gate, done = SideThread("side"), threading.Event(), list[int]()

    def fault() -> None:
        gate.wait()
        raise ValueError("odd")

    side.put(fault)
    side.put(lambda: done.append(1))
    gate.set()
    with pytest.raises(ValueError, match="odd"):
        side.wait()
    side.wait()
    assert done == []
    side.put(lambda: done.append(2))
    side.wait()
    assert done == [2]
    side.close()


def test_a_queue_that_is_full_is_waited_for() -> None:
    side, gate, done = SideThread("side"), threading.Event(), list[int]()
    side.put(gate.wait)
    for number in range(LONGEST_QUEUE):
        side.put(lambda number=number: done.append(number))  # type: ignore[misc]
        if number == LONGEST_QUEUE - 2:
            assert len(side._work) <= LONGEST_QUEUE
            gate.set()
    side.wait()
    assert done == list(range(LONGEST_QUEUE))
    side.close()


def test_closing_waits_for_nothing_and_a_later_piece_begins_anew() -> None:
    side, gate, done = SideThread("side"), threading.Event(), list[int]()
    side.put(gate.wait)
    side.put(lambda: done.append(1))
    side.close()
    side.wait()
    side.put(lambda: done.append(2))
    side.wait()
    gate.set()
    assert done == [2]
    side.close()


def test_waiting_from_within_returns_at_once() -> None:
    side = SideThread("side")
    side.put(side.wait)
    side.wait()
    side.close()


def test_a_copy_has_nothing_to_do() -> None:
    side = SideThread("side")
    side.put(lambda: None)
    copied = pickle.loads(pickle.dumps(side))
    copied.wait()
    side.close()


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_fork_waits_until_nothing_is_being_done() -> None:
    side, begun, gate = SideThread("side"), threading.Event(), threading.Event()
    done: list[str] = []

    def work() -> None:
        begun.set()
        gate.wait()
        done.append("work")

    side.put(work)
    begun.wait()
    opener = threading.Thread(target=gate.set)
    opener.start()
    child = os.fork()
    if child == 0:
        os._exit(0 if done == ["work"] else 1)
    _, status = os.waitpid(child, 0)
    opener.join()
    assert os.waitstatus_to_exitcode(status) == 0
    side.close()


def test_a_piece_that_takes_for_ever_does_not_hold_up_its_own_forks() -> None:
    side = SideThread("side")
    side.put(side.settle)
    side.wait()
    side.close()
