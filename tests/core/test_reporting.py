"""What is worth telling the broker, how long to wait, and which devices to choose."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfsched.core.device_choice import PATIENCE_SECONDS, Choice, choose
from selfsched.core.held_leases import Safety, largest_allowed
from selfsched.core.reporting import (
    bid_change,
    is_measured,
    retry_seconds,
    unmeasured_bid,
    wait_seconds,
)
from selfsched.protocol import BidRow, LeasedDevice, Placement, StandingBid


def bid(*remaining: float | None, sigma: float = 0.0, restart: float = 0.0) -> StandingBid:
    return StandingBid(
        rows=tuple(
            BidRow(
                placement=Placement(devices=n),
                remaining_seconds=seconds,
                sigma_log=sigma,
                restart_seconds=restart,
            )
            for n, seconds in enumerate(remaining, start=1)
        )
    )


@pytest.mark.parametrize(
    ("told", "new", "elapsed", "change"),
    [
        (None, None, 0.0, 0.0),
        (bid(100.0), None, 0.0, 0.0),
        (None, bid(100.0), 0.0, float("inf")),
        (bid(100.0), bid(100.0), 0.0, 0.0),
        (bid(100.0), bid(90.0), 10.0, 0.0),
        (bid(100.0), bid(99.0), 10.0, 0.1),
        (bid(100.0), bid(100.0, 50.0), 0.0, float("inf")),
        (bid(None), bid(100.0), 0.0, float("inf")),
        (bid(None, None), bid(None, None, sigma=1.0), 0.0, 0.0),
        (bid(100.0), bid(100.0, sigma=0.5), 0.0, 0.5),
        (bid(100.0), bid(100.0, restart=20.0), 0.0, 0.2),
        (bid(1.0), bid(2.0), 0.0, 0.1),
        (bid(5.0), bid(0.0), 100.0, 0.0),
    ],
)
def test_a_bid_differs_by_what_the_broker_would_not_expect(
    told: StandingBid | None, new: StandingBid | None, elapsed: float, change: float
) -> None:
    assert bid_change(told, new, elapsed) == pytest.approx(change)


def test_an_end_that_became_known_is_news() -> None:
    told = bid(100.0).model_copy(update={"end_is_unknown": True})
    assert bid_change(told, bid(100.0), 0.0) == float("inf")


def test_a_bid_of_ignorance_has_a_row_for_each_count_and_is_not_measured() -> None:
    ignorant = unmeasured_bid((1, 2, 4))
    assert [row.placement.devices for row in ignorant.rows] == [1, 2, 4]
    assert not is_measured(ignorant)
    assert not is_measured(None)
    assert is_measured(bid(None, 5.0))


@given(st.floats(0, 100), st.floats(-100, 1e9))
def test_a_wait_leaves_two_thirds_of_the_rest_of_a_ttl(asked: float, rest: float) -> None:
    wait = wait_seconds(asked, rest)
    assert 0 <= wait <= min(asked, 10.0)
    assert wait <= max(0.0, rest / 3)


def test_retries_of_two_jobs_fall_apart() -> None:
    def gaps_of(phase: float) -> list[float]:
        return [retry_seconds(n, longest_seconds=15.0, phase=phase) for n in range(1, 9)]

    gaps = [gaps_of(0.1), gaps_of(0.6)]
    assert all(abs(a - b) > 0.05 for a, b in zip(*gaps, strict=True))
    assert all(a < b * 1.2 for a, b in pairwise(gaps[0][:4]))
    assert max(map(max, gaps)) <= 15.0
    assert retry_seconds(10_000, longest_seconds=15.0, phase=0.0) <= 15.0


@given(st.floats(0.001, 1e6), st.floats(0, 60))
def test_what_is_usable_of_a_ttl_is_less_than_it_and_never_negative(ttl: float, margin: float) -> None:
    usable = Safety(margin_seconds=margin).usable_seconds(ttl)
    assert 0.75 * ttl <= usable + 1e-9
    assert usable <= ttl


# --- choosing devices ---------------------------------------------------------------------


def devices(names: str) -> dict[str, LeasedDevice]:
    return {n: LeasedDevice(id=n, node="n", index=0, model="cpu", kind="cpu") for n in names}


def chosen(usable: str, *, running: str = "", ready: str | None = None, allowed: str = "12345678",
           known: bool = True, waited: float = 0.0) -> tuple[str, str, str]:  # fmt: skip
    choice: Choice = choose(
        devices(usable), running=tuple(running), ready=set(usable if ready is None else ready),
        allowed=tuple(map(int, allowed)), allowed_is_known=known, waited_seconds=waited,
    )  # fmt: skip
    names = "".join(device.id for device in choice.devices)
    return names, "".join(sorted(choice.surplus)), "".join(choice.awaits)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"usable": ""}, ("", "", "")),
        ({"usable": "ab"}, ("ab", "", "")),
        ({"usable": "abc", "allowed": "124"}, ("ab", "c", "")),
        ({"usable": "abc", "allowed": "124", "known": False}, ("ab", "", "")),
        ({"usable": "abc", "allowed": "124", "running": "c"}, ("ac", "b", "")),
        ({"usable": "ab", "allowed": "4"}, ("", "ab", "")),
        ({"usable": "ba", "running": "ab"}, ("ab", "", "")),
        # A grow waits for its further device, a start not for ever.
        ({"usable": "ab", "running": "a", "ready": "a"}, ("a", "", "b")),
        ({"usable": "ab", "ready": "a"}, ("", "", "b")),
        ({"usable": "ab", "ready": "a", "waited": PATIENCE_SECONDS}, ("a", "", "b")),
        # A shrink does not wait for a device that is still locked.
        ({"usable": "bc", "running": "ab", "ready": "ab"}, ("b", "", "c")),
    ],
)
def test_which_devices_are_run_on(arguments: dict[str, object], expected: tuple[str, str, str]) -> None:
    assert chosen(**arguments) == expected  # type: ignore[arg-type]


@given(st.integers(0, 20), st.lists(st.integers(1, 20), max_size=8))
def test_the_largest_allowed_count_that_fits(available: int, allowed: list[int]) -> None:
    count = largest_allowed(available, allowed)
    assert count == 0 or (count in allowed and count <= available)
    assert not any(count < other <= available for other in allowed)
