"""Auctions between ticks, wide jobs, moves that do not pay, and the reasons people read."""

from __future__ import annotations

from dataclasses import replace

import pytest
from broker.auction.markets import RNG, bid, counts, job, market, rule

from selfsched.errors import Refused
from selfsched.protocol import Resume
from selfsched_broker.core.market import FairnessOptions
from selfsched_broker.core.policies import policy_named

THEMIS = policy_named("themis")
pytestmark = pytest.mark.usefixtures("way")


def test_an_arrival_takes_what_is_beyond_the_share_and_no_more() -> None:
    a = job("a", bid({n: 9000 / n for n in range(1, 5)}, restart=5, running_on=4), 1)
    a_holds = {"kept": ("n/0", "n/1"), "at_stake": ("n/2", "n/3")}
    b = job("b", bid({n: 50_000 / n for n in range(1, 5)}, restart=5), 2)
    ruling = rule(THEMIS, market([replace(a, **a_holds), b], 4, trigger="arrival"))  # type: ignore[arg-type]
    assert counts(ruling) == {"a": 2, "b": 2}
    all_up = replace(a, at_stake=("n/0", "n/1", "n/2", "n/3"))
    assert counts(rule(THEMIS, market([all_up, b], 4, trigger="arrival"))) == {"a": 2, "b": 2}


def test_a_gang_that_cannot_shrink_keeps_its_devices_between_ticks() -> None:
    a = job("a", bid({4: 900}, running_on=4), 1, at_stake=("n/0", "n/1", "n/2", "n/3"))
    b = job("b", bid({1: 50}), 2)
    assert counts(rule(THEMIS, market([a, b], 4, trigger="arrival"))) == {"a": 4, "b": 0}


def test_what_is_kept_stays_even_on_a_count_that_is_not_allowed() -> None:
    a = job("a", bid({1: 900, 3: 400}, restart=5, running_on=3), 1, kept=("n/0", "n/1"), at_stake=("n/2",))
    b = job("b", bid({1: 5000}), 2)
    assert counts(rule(THEMIS, market([a, b], 3, trigger="arrival"))) == {"a": 3, "b": 0}
    odd = job("a", bid({1: 900, 3: 400}, restart=500), 1, kept=("n/0", "n/1"))
    assert counts(rule(THEMIS, market([odd], 3, trigger="device_free"))) == {"a": 2}
    grows = job("a", bid({1: 900, 3: 400}, restart=5), 1, kept=("n/0", "n/1"))
    assert counts(rule(THEMIS, market([grows], 3, trigger="device_free"))) == {"a": 3}


@pytest.mark.parametrize(("saved", "expected"), [(11.9, 1), (12.1, 2)])
def test_a_move_must_gain_more_than_1_2_times_its_cost(saved: float, expected: int) -> None:
    """T18, and the reason is recorded."""
    table = bid({1: 100, 2: 100 - saved}, restart=10, running_on=1)
    for fields in ({"kept": ("n/0",)}, {"at_stake": ("n/0",)}):
        question = market([job("a", table, 1, **fields)], 2, trigger="tick")
        ruling = rule(THEMIS, question)
        assert counts(ruling) == {"a": expected}
        if expected == 1:
            words = "1 of 2 devices: 2 would save 12 s, less than 1.2 times the 10 s the move costs"
            assert ruling.awards["a"].reason == words


def test_who_has_not_repaid_keeps_what_it_has_and_grows_not() -> None:
    table = bid({1: 1000, 2: 400}, restart=1, running_on=1)
    a = job("a", table, 1, at_stake=("n/0",), may_move=False)
    ruling = rule(THEMIS, market([a, job("b", bid({2: 10}), 2)], 2))
    assert ruling.awards["a"].devices == ("n/0",)
    assert "not repaid" in ruling.awards["a"].reason


def test_a_wide_job_passed_over_wins_at_the_second_tick() -> None:
    """U14: four on one device each, and one that needs four."""
    narrow = [job(f"n{i}", bid({1: 500}, restart=5, running_on=1), i, at_stake=(f"n/{i}",)) for i in range(4)]
    wide = job("wide", bid({4: 5000}), 9)
    assert counts(rule(THEMIS, market([*narrow, wide], 4)))["wide"] == 0
    passed = job("wide", bid({4: 5000}), 9, passed_over=1)
    assert counts(rule(THEMIS, market([*narrow, passed], 4)))["wide"] == 4


def test_a_wide_job_whose_turn_has_come_is_considered_whatever_its_rho() -> None:
    crowd = [job(f"n{i:02}", bid({1: 500}), i, age_seconds=9000, fraction_done=0.9) for i in range(20)]
    wide = job("wide", bid({4: 5000}), 99, passed_over=1, share=0.2)
    ruling = rule(THEMIS, market([*crowd, wide], 4))
    assert ruling.awards["wide"].considered
    assert counts(ruling)["wide"] == 4


def test_devices_that_free_are_kept_for_it_where_terms_still_run() -> None:
    """Two are free, two are not repaid: nobody else gets the two, a first visit neither."""
    bound = [job(f"h{i}", bid({1: 500}), i, kept=(f"n/{i}",), may_move=False) for i in range(2)]
    narrow, visitor = job("narrow", bid({1: 50}), 3), job("new", None, 4)
    wide = job("wide", bid({4: 5000}), 9, passed_over=1, waiting_seconds=300)
    for trigger in ("tick", "device_free", "visit"):
        ruling = rule(THEMIS, market([*bound, narrow, visitor, wide], 4, trigger=trigger))  # type: ignore[arg-type]
        assert counts(ruling) == {"h0": 1, "h1": 1, "narrow": 0, "new": 0, "wide": 0}
        assert ruling.reserve == {"wide": 4}
        assert "kept for you until there are 4" in ruling.awards["wide"].reason
    free_now = rule(THEMIS, market([narrow, visitor, wide], 4, trigger="device_free"))
    assert counts(free_now)["wide"] in (0, 4)


def test_a_reservation_of_the_market_is_kept_and_a_visit_of_the_wide_job_itself_served() -> None:
    holder = job("h", bid({1: 500}), 1, kept=("n/0",))
    wide = job("wide", None, 2, allowed_devices=(2,))
    ruling = rule(
        THEMIS,
        market([holder, wide, job("x", bid({1: 5}), 3)], 2, trigger="device_free", reserved_for={"wide": 2}),
    )
    assert counts(ruling) == {"h": 1, "wide": 0, "x": 0}
    served = rule(THEMIS, market([wide, job("y", None, 1)], 2, trigger="visit", reserved_for={"wide": 2}))
    assert counts(served) == {"wide": 2, "y": 0}


def test_a_wide_job_that_may_spread_counts_devices_of_all_nodes() -> None:
    wide = job("wide", bid({}, spread={(2, 2): 100}), 1, passed_over=1)
    ruling = rule(THEMIS, market([wide, job("b", bid({1: 5}), 2)], {"x": 1, "y": 1}))
    assert counts(ruling)["wide"] == 2


def test_reasons_say_who_has_what_in_numbers() -> None:
    alone = rule(THEMIS, market([job("a", bid({1: 100, 2: 50}), 1)], 2))
    assert alone.awards["a"].reason == "gets 2 of 2 devices: nobody else wants them"
    settled = job("a", bid({1: 100, 2: 50}, restart=5, running_on=2), 1, at_stake=("n/0", "n/1"))
    assert rule(THEMIS, market([settled], 2)).awards["a"].reason == "2 of 2 devices: nobody else wants them"
    script = job("b", bid({1: 600}), 2, account="script", age_seconds=500, share=1.0)
    reason = rule(THEMIS, market([settled, script], 2)).awards["a"].reason
    assert reason.startswith("shrinks to 1 of 2: script holds its share of 1, and its rho ")
    assert " is worse than yours, " in reason


def test_reasons_of_waiting() -> None:
    def reason(*, number: int = 2, devices: int = 1, **fields: object) -> str:
        needs = job("w", bid({fields.pop("need", 1): 500}), number, **fields)  # type: ignore[dict-item]
        rival = job("r", bid({1: 50}), 1, kept=("n/0",), account="w" if fields.get("account") else "r")
        return rule(THEMIS, market([rival, needs], devices, trigger="device_free")).awards["w"].reason

    assert reason() == "waits for 1 device: r holds 1 device, its share is 0.5"
    assert reason(account="w").startswith("waits for 1 device: another job of yours holds")
    assert reason(quota_left=0) == "waits: your account may hold 0 devices more, you need 1"
    assert reason(need=3) == "waits: you need 3 devices, there are 1"
    empty = rule(THEMIS, market([job("w", bid({2: 5}), 1)], {"x": 1, "y": 1}))
    assert empty.awards["w"].reason == "waits: no 2 devices free for you now"


def test_a_shrink_or_a_move_that_nobody_gains_from_is_explained() -> None:
    """Its bid says now that less is faster; and a device somebody insists on moves its holder."""
    slower = job("a", bid({1: 50, 2: 90}, restart=1, running_on=2), 1, at_stake=("n/0", "n/1"))
    award = rule(THEMIS, market([slower], 2)).awards["a"]
    assert len(award.devices) == 1
    assert award.reason == (
        "shrinks to 1 of 2: by its own figures it runs faster there, and is done 39 s sooner"
    )
    settled = job("a", bid({1: 500}, restart=1), 1, at_stake=("n/0",))
    picky = job("p", bid({1: 500}), 2, wanted_devices=("n/0",))
    ruling = rule(THEMIS, market([settled, picky], 2))
    assert ruling.awards["p"].devices == ("n/0",)
    assert ruling.awards["a"].devices == ("n/1",)
    assert "other ones than before" in ruling.awards["a"].reason


def test_the_unconsidered_are_told_so() -> None:
    old = [job(f"o{i:02}", bid({1: 1000}), i, age_seconds=5000, fraction_done=0.5) for i in range(10)]
    ruling = rule(THEMIS, market([*old, job("new", bid({1: 1000}), 99, share=0.3)], 10))
    assert "jobs with a worse one come first" in ruling.awards["new"].reason


def test_what_a_job_holds_without_a_row_is_interpolated() -> None:
    """A report may be older than a grant: two devices held, rows for one and three only."""
    a = job("a", bid({1: 900, 3: 300}, restart=10), 1, at_stake=("n/0", "n/1"), allowed_devices=(1, 2, 3))
    award = rule(THEMIS, market([a], 2)).awards["a"]
    assert len(award.devices) == 2
    assert award.rho_before == pytest.approx(450 / 900)


def test_same_size_jobs_go_on_at_the_size_they_had() -> None:
    parked = job("p", bid({1: 900, 2: 500, 4: 300}), 1, resume=Resume.SAME_SIZE, last_devices=("n/0", "n/1"))
    assert counts(rule(THEMIS, market([parked], 4))) == {"p": 2}


def test_policies_are_found_by_name_and_others_refused() -> None:
    assert policy_named("themis").name == "themis"
    assert policy_named("fifo").name == "fifo"
    known = "fifo, goodput, las, maxmin, selfsched, srtf, themis"
    with pytest.raises(Refused, match=f"no policy 'best'; there are: {known}"):
        policy_named("best")


def test_fifo_by_its_rules() -> None:
    fifo = policy_named("fifo")
    holds = job("holds", bid({1: 9, 2: 5}), 1, kept=("x/0",))
    first = job("first", bid({1: 9, 2: 5}), 2)
    second = job("second", bid({2: 9}), 3)
    third = job("third", bid({1: 9}), 4)
    ruling = rule(fifo, market([third, second, first, holds], {"x": 3, "y": 1}))
    assert counts(ruling) == {"first": 2, "holds": 1, "second": 0, "third": 0}
    assert ruling.awards["first"].devices == ("x/1", "x/2"), "on one node where one has enough"
    assert ruling.awards["second"].reason == "waits: it is the next, asks for 2 devices, 1 are free"
    assert "that came earlier" in ruling.awards["third"].reason
    limited = job("limited", bid({1: 9}), 1, quota_left=0)
    behind = job("behind", bid({3: 9}), 2, quota_left=3)
    ruling = rule(fifo, market([limited, behind], {"x": 2, "y": 1}))
    assert counts(ruling) == {"behind": 3, "limited": 0}
    assert "may hold 0" in ruling.awards["limited"].reason
    picky = job("picky", bid({1: 9}), 1, wanted_devices=("n/1",))
    assert rule(fifo, market([picky], 2)).awards["picky"].devices == ("n/1",)
    taken = job("t", bid({1: 9}), 0, kept=("n/1",))
    assert counts(rule(fifo, market([taken, picky], 2))) == {"picky": 0, "t": 1}


def test_growing_keeps_to_the_nodes_a_row_allows() -> None:
    """Kept on one node: a packed row grows there only; kept on two, a packed row is none."""
    packed = bid({1: 900, 2: 400}, restart=5, running_on=1)
    a = job("a", packed, 1, kept=("x/0",))
    assert counts(rule(THEMIS, market([a], {"x": 1, "y": 2}, trigger="device_free"))) == {"a": 1}
    assert rule(THEMIS, market([a], {"x": 2, "y": 2}, trigger="device_free")).awards["a"].devices == (
        "x/0",
        "x/1",
    )
    table = bid({1: 900, 2: 400, 3: 100}, spread={(2, 2): 500, (3, 2): 300}, restart=5)
    b = job("b", table, 1, kept=("x/0", "y/0"))
    assert rule(THEMIS, market([b], {"x": 1, "y": 2, "z": 3}, trigger="device_free")).awards["b"].devices == (
        "x/0",
        "y/0",
        "y/1",
    )


def test_the_fairness_knob_decides_how_many_are_considered() -> None:
    jobs = [job(f"j{i:02}", bid({1: 1000}), i, age_seconds=float(i)) for i in range(30)]
    for knob, considered in ((0.8, 10), (0.5, 15), (0.0, 30)):
        question = market(jobs, 4, options=FairnessOptions(fairness_knob=knob))
        ruling = THEMIS.rule(question, RNG)
        assert sum(award.considered for award in ruling.awards.values()) == considered


def test_an_auction_in_a_sentence_tells_what_was_at_stake_from_what_all_hold() -> None:
    old = job("old", bid({1: 900.0}), 0, kept=("n/0",), may_move=False)
    new = job("new", bid({1: 900.0}), 1)
    ruling = rule(THEMIS, market([old, new], 2, trigger="device_free"))
    assert ruling.reason == (
        "1 device at stake (1 free, 0 held): 1 given; then 2 of 2 jobs have 2 of the cluster's 2 devices"
    )
