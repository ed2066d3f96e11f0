"""What each policy promises, on markets of a few jobs."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from selfsched.protocol import BidRow, Placement, StandingBid
from selfsched_broker.core.policies import POLICIES, policy_named
from selfsched_broker.core.policies.selfsched import Selfsched, Weights, worths
from tests.broker.auction.markets import bid, counts, job, market, rule

OURS, SRTF, LAS = policy_named("selfsched"), policy_named("srtf"), policy_named("las")


def gang(name: str, size: int, remaining: float, number: int = 0, **fields: object):  # type: ignore[no-untyped-def]
    return job(name, bid({size: remaining}, restart=10), number, **fields)


# --- ours -----------------------------------------------------------------------------------


def test_the_short_run_before_the_long_while_nothing_presses() -> None:
    jobs = [gang("long", 1, 50_000, 1), gang("middle", 1, 20_000, 2), gang("short", 1, 1000, 3)]
    # A far longer job keeps the others off the critical path.
    longest = gang("longest", 1, 200_000, 4, kept=("n/2",))
    assert counts(rule(OURS, market([*jobs, longest], 3))) == {
        "long": 0,
        "middle": 1,
        "short": 1,
        "longest": 1,
    }


def test_what_decides_when_all_is_done_never_waits() -> None:
    jobs = [gang("critical", 1, 5000, 1), *(gang(f"short-{n}", 1, 600, n) for n in range(2, 5))]
    assert counts(rule(OURS, market(jobs, 2)))["critical"] == 1


def test_who_has_waited_beyond_its_fair_time_comes_before_the_shorter() -> None:
    crowd = [gang(f"long-{n}", 1, 100_000, n) for n in range(2, 4)]
    fresh = gang("short", 1, 1000, 4)
    for age, first in ((0.0, "short"), (40_000.0, "late")):
        late = gang("late", 1, 2000, 1, age_seconds=age)
        given = counts(rule(OURS, market([late, fresh, *crowd], 2)))
        assert given[first] == 1, f"at an age of {age:.0f} s"
        assert sum(given.values()) == 2


def test_further_devices_go_where_they_speed_up_more() -> None:
    scales = job("scales", bid({1: 9000, 2: 4600, 4: 2400}))
    does_not = job("does_not", bid({1: 9000, 2: 8700, 4: 8600}), 1)
    assert counts(rule(OURS, market([scales, does_not], 5))) == {"does_not": 1, "scales": 4}


def test_equal_jobs_share_equally() -> None:
    jobs = [job(name, bid({1: 9000, 2: 4600, 4: 2400}), n) for n, name in enumerate("abcd")]
    assert counts(rule(OURS, market(jobs, 8))) == dict.fromkeys("abcd", 2)


def test_further_devices_go_by_the_place_not_by_how_short_a_job_is() -> None:
    """Both speed up alike; the shorter has the second place from the longer, twice as much by the device,
    however short it is (but for its first device)."""
    table = {n: 20_000 / n**0.5 for n in range(1, 13)}
    divided = []
    for part in (0.9, 0.3, 0.1):
        short = job("short", bid({n: part * seconds for n, seconds in table.items()}), 0)
        given = counts(rule(OURS, market([short, job("long", bid(table), 1)], 12)))
        divided.append((given["short"], given["long"]))
        assert sum(divided[-1]) == 12
    assert divided[0] == divided[1] == divided[2]
    assert divided[0][0] > divided[0][1] > 1


def test_what_a_division_is_worth_is_the_same_in_whatever_order_equal_jobs_come() -> None:
    table = bid({1: 9000, 2: 4600, 4: 2400})
    for names in ("abc", "cba"):
        standings = [job(name, table, n) for n, name in enumerate(names)]
        assert counts(rule(OURS, market(standings, 6))) == dict.fromkeys("abc", 2)


def test_nobody_moves_for_less_than_the_move_costs() -> None:
    held = job("held", bid({1: 300, 2: 280}, restart=60, running_on=1), at_stake=("n/0",))
    assert counts(rule(OURS, market([held], 2))) == {"held": 1}
    held = job("held", bid({1: 9000, 2: 4600}, restart=60, running_on=1), at_stake=("n/0",))
    assert counts(rule(OURS, market([held], 2))) == {"held": 2}


def test_more_weight_makes_a_job_worth_more() -> None:
    light, heavy = gang("light", 1, 9000, 1), gang("heavy", 1, 9000, 2, account_weight=3.0)
    assert counts(rule(OURS, market([light, heavy], 1)))["heavy"] == 1


def test_a_claim_that_was_seen_to_be_wrong_is_corrected_before_it_counts() -> None:
    others = [gang("other", 1, 4000, 2), gang("longest", 1, 90_000, 3, kept=("n/1",))]
    liar = gang("liar", 1, 2000, 1)
    assert counts(rule(OURS, market([liar, *others], 2)))["liar"] == 1
    found_out = gang("liar", 1, 2000, 1, claim_factor=4.0, claim_sigma_log=0.05)
    assert counts(rule(OURS, market([found_out, *others], 2)))["liar"] == 0


def test_a_job_that_may_be_later_than_it_thinks_starts_in_time() -> None:
    longest = gang("longest", 1, 10_000, 1, kept=("n/1",))
    short = gang("short", 1, 3000, 2)
    for doubt, first in ((0.0, "short"), (0.3, "doubtful")):
        doubtful = gang("doubtful", 1, 8000, 3, claim_sigma_log=doubt)
        assert counts(rule(OURS, market([longest, short, doubtful], 2)))[first] == 1, f"doubt {doubt}"


def test_nothing_is_worth_nothing_and_every_placement_something() -> None:
    assert worths({}, market([], 1)) == {}


def test_nobody_pays() -> None:
    ruling = rule(OURS, market([gang("a", 1, 100), gang("b", 1, 100, 1)], 1))
    assert all(award.payment is None for award in ruling.awards.values())


# --- queues ---------------------------------------------------------------------------------


def test_srtf_takes_the_gang_that_ends_first_and_fills_up_behind_one_that_does_not_fit() -> None:
    jobs = [gang("long", 2, 9000, 1), gang("wide", 4, 5000, 2), gang("short", 2, 100, 3)]
    assert counts(rule(SRTF, market(jobs, 4))) == {"long": 2, "short": 2, "wide": 0}


def test_srtf_takes_devices_from_a_longer_job_at_a_tick_only() -> None:
    long = gang("long", 2, 9000, 1, at_stake=("n/0", "n/1"))
    short = gang("short", 2, 100, 2)
    assert counts(rule(SRTF, market([long, short], 2))) == {"long": 0, "short": 2}
    assert counts(rule(SRTF, market([long, short], 2, trigger="arrival"))) == {"long": 2, "short": 0}


def test_a_queue_leaves_those_that_go_on_where_they_are() -> None:
    runs = gang("runs", 1, 500, 1, at_stake=("n/1",))
    shorter = gang("shorter", 1, 100, 2)
    ruling = rule(SRTF, market([runs, shorter], 2))
    assert ruling.awards["runs"].devices == ("n/1",)


def test_las_serves_who_has_had_little_by_arrival() -> None:
    had = job("had", bid({1: 100_000}), 1, fraction_done=0.5)
    new = [job("first", bid({1: 9000}), 2), job("second", bid({1: 100}), 3)]
    assert counts(rule(LAS, market([had, *new], 2))) == {"first": 1, "had": 0, "second": 1}


def test_maxmin_counts_what_a_job_had_model_by_model() -> None:
    """Both should spend half their time on each model; whoever had the fast one lets the other to it."""
    maxmin = policy_named("maxmin")
    table = StandingBid(
        rows=tuple(
            BidRow(placement=Placement(devices=1, model=model), remaining_seconds=seconds)
            for model, seconds in (("fast", 500.0), ("slow", 1000.0))
        )
    )

    def placed(had_of_a: dict[str, float], had_of_b: dict[str, float]) -> dict[str, str]:
        a, b = (
            job(name, table, number, age_seconds=1000.0, fraction_done=0.5, ran_device_seconds=had)
            for number, (name, had) in enumerate((("a", had_of_a), ("b", had_of_b)))
        )
        question = market([a, b], {"x": 1, "y": 1}, models={"x": "fast", "y": "slow"})
        return {name: award.devices[0] for name, award in rule(maxmin, question).awards.items()}

    assert placed({"fast": 900.0, "slow": 100.0}, {"fast": 100.0, "slow": 900.0}) == {"a": "y/0", "b": "x/0"}
    assert placed({"fast": 100.0, "slow": 900.0}, {"fast": 900.0, "slow": 100.0}) == {"a": "x/0", "b": "y/0"}


def test_a_queue_keeps_to_quotas_wanted_devices_and_models() -> None:
    jobs = [
        gang("one", 1, 10, 1, account="a", quota_left=1),
        gang("two", 1, 20, 2, account="a", quota_left=1),
        gang("very", 1, 900, 3, wanted_devices=("n/1",)),
    ]
    ruling = rule(SRTF, market(jobs, 3))
    assert counts(ruling) == {"one": 1, "two": 0, "very": 1}
    named = job("named", bid({1: 50}, model="v100"), 4)
    question = market([named], {"m": 1, "n": 1}, models={"m": "k80", "n": "v100"})
    assert rule(SRTF, question).awards["named"].devices == ("n/0",)


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_no_job_and_one_job(name: str) -> None:
    policy = policy_named(name)
    assert rule(policy, market([], 2)).awards == {}
    assert counts(rule(policy, market([job("a", bid({1: 90, 2: 50}))], 2))) == {"a": 2}


def test_a_device_that_is_of_no_use_goes_where_a_visit_is_expected_to_tell_most() -> None:
    table = {1: 20_000.0, 2: 19_900.0}
    for information, given in ((0.0, {"curious": 1, "sure": 1}), (3000.0, {"curious": 2, "sure": 1})):
        plain = bid(table, restart=60, running_on=1)
        rows = tuple(
            row.model_copy(update={"information_seconds": information}) if row.placement.devices == 2 else row
            for row in plain.rows
        )
        curious = job("curious", plain.model_copy(update={"rows": rows}), 1, at_stake=("n/0",))
        sure = job("sure", plain, 2, at_stake=("n/1",))
        assert counts(rule(OURS, market([curious, sure], 3))) == given


def test_a_move_to_measure_says_so() -> None:
    doubtful = bid({1: 21_000.0, 2: 20_000.0}, restart=10, running_on=2)
    rows = tuple(
        row.model_copy(update={"information_seconds": 5000.0}) if row.placement.devices == 1 else row
        for row in doubtful.rows
    )
    alone = job("a", doubtful.model_copy(update={"rows": rows}), 1, at_stake=("n/0", "n/1"))
    award = rule(OURS, market([alone], 2)).awards["a"]
    assert len(award.devices) == 1
    assert "to measure it there, which is expected to save" in award.reason


@pytest.mark.parametrize("policy", sorted(POLICIES))
@pytest.mark.parametrize("remaining", [{1: 0.0}, {1: 0.0, 2: 3e9}, {1: 3e9, 2: 0.0}, {1: 1e-9, 4: 3e9}])
def test_a_bid_of_nothing_or_of_ever_fails_no_auction(policy: str, remaining: dict[int, float]) -> None:
    strange = job("strange", bid(remaining, restart=0.0), 1, at_stake=("n/0",), fraction_done=1.0)
    owed = [
        job("strange", bid(remaining, restart=0.0), 1, at_stake=("n/0",), share=share) for share in (1, 2, 4)
    ]
    for odd in (strange, *owed):
        given = counts(rule(policy_named(policy), market([odd, job("usual", bid({1: 400.0}), 2)], 2)))
        assert 1 <= sum(given.values()) <= 2


def test_what_was_tried_is_not_tried_again_for_what_it_might_tell() -> None:
    doubtful = bid({1: 21_000.0, 2: 20_000.0}, restart=10, running_on=2)
    rows = tuple(row.model_copy(update={"information_seconds": 1e9}) for row in doubtful.rows)
    known = (Placement(devices=1, nodes=1, model="cpu"), 21_000.0)
    for paces, got in (((), 1), ((known,), 2)):
        liar = job(
            "a", doubtful.model_copy(update={"rows": rows}), 1, at_stake=("n/0", "n/1"), claim_paces=paces
        )
        assert len(rule(OURS, market([liar], 2)).awards["a"].devices) == got


@pytest.mark.parametrize("policy", ["selfsched", "themis"])
def test_what_was_kept_for_a_wide_job_is_free_once_it_is_served_from_elsewhere(policy: str) -> None:
    holder = job(
        "holder", bid({1: 900, 3: 400}, restart=20), 0, at_stake=("n0/0", "n0/1", "n0/2"),
        age_seconds=1e4, allowed_devices=(1, 3),
    )  # fmt: skip
    wide = job("wide", None, 1, allowed_devices=(4,), passed_over=3, waiting_seconds=10)
    small = job("small", bid({1: 500}, restart=20), 2, waiting_seconds=5)
    question = market([holder, wide, small], {"n0": 4, "n1": 2}, trigger="arrival")
    given = counts(rule(policy_named(policy), question))
    assert given["wide"] == 4
    assert given["small"] == 1


def test_where_all_is_done_within_some_terms_the_shortest_still_comes_first() -> None:
    """The end of a long one comes within a term (300 s) of that of all: that makes it not critical yet."""
    longer = [gang("long", 1, 150, 1), gang("middle", 1, 100, 2)]
    jobs = [*longer, *(gang(f"short-{n}", 1, 50, n) for n in (3, 4, 5))]
    given = counts(rule(OURS, market(jobs, 1)))
    assert given["long"] == given["middle"] == 0
    only_the_term = Selfsched(Weights(near=1.0))
    given = counts(rule(only_the_term, market(jobs, 1)))
    assert given["long"] + given["middle"] == 1, "the market is too tame to show anything"
    decides = [*longer, gang("other", 1, 240, 6)]
    assert counts(rule(OURS, market(decides, 2)))["other"] == 1, "who does decide the end starts at once"


@pytest.mark.parametrize("policy", ["selfsched", "themis"])
def test_no_worth_is_so_large_that_a_device_stays_idle_beside_it(policy: str, way: str) -> None:
    """Seconds to decades, new and a year late, light and heavy: what a job is worth is never rounding."""
    for seed in range(60):
        rng = np.random.default_rng(seed)
        nodes = {name: int(rng.integers(1, 5)) for name in "abc"[: rng.integers(1, 4)]}
        jobs = []
        for number in range(rng.integers(2, 7)):
            sizes, seconds = ((1,), (2,), (1, 2), (1, 2, 4))[rng.integers(4)], 10 ** rng.uniform(0, 8.5)
            table = bid({n: seconds / n**0.8 for n in sizes}, restart=10)
            fields = {"age_seconds": 10 ** rng.uniform(0, 7.5), "account_weight": 10 ** rng.uniform(-2, 2)}
            jobs.append(job(f"j{number}", table, number, **fields))
        ruling = rule(policy_named(policy), market(jobs, nodes))
        given = {device for award in ruling.awards.values() for device in award.devices}
        free = Counter(f"{node}" for node, n in nodes.items() for i in range(n) if f"{node}/{i}" not in given)
        most = max(free.values(), default=0)
        able = [j.job for j in jobs if not ruling.awards[j.job].devices and j.allowed_devices[0] <= most]
        assert not able, f"seed {seed}, {way}: {most} devices of a node are idle"


def test_a_move_to_another_model_must_repay_its_restart_too() -> None:
    """On the other model it would be done a little sooner; a long restart takes more than that."""
    rows = (
        BidRow(placement=Placement(devices=1, model="v100"), remaining_seconds=900.0, restart_seconds=600.0),
        BidRow(placement=Placement(devices=1, model="k80"), remaining_seconds=1000.0),
    )
    for restart, node in ((600.0, "k"), (0.0, "v")):
        table = StandingBid(rows=(rows[0].model_copy(update={"restart_seconds": restart}), rows[1]))
        held = job("held", table, 1, at_stake=("k/0",))
        question = market([held], {"v": 1, "k": 1}, models={"v": "v100", "k": "k80"})
        assert rule(OURS, question).awards["held"].devices == (f"{node}/0",)
