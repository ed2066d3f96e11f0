"""First visits: who comes first, and whose devices they take."""

from __future__ import annotations

from broker.auction.markets import bid, counts, job, market, rule

from selfsched.protocol import Resume
from selfsched_broker.core.market import Contender
from selfsched_broker.core.policies import policy_named

THEMIS = policy_named("themis")


def visitor(name: str, number: int = 9, **fields: object) -> Contender:
    return job(name, None, number, **fields)


def holder(name: str, number: int, devices: tuple[str, ...], **fields: object) -> Contender:
    n = len(devices)
    table = bid({k: 1000 / k for k in range(1, n + 1)}, restart=10, running_on=n)
    return job(name, table, number, **({"at_stake": devices} | fields))


def test_a_free_device_is_taken_before_anybodys() -> None:
    a = holder("a", 1, ("n/0", "n/1"))
    ruling = rule(THEMIS, market([a, visitor("b")], 3, trigger="visit"))
    assert ruling.awards["b"].visit
    assert ruling.awards["b"].devices == ("n/2",)
    assert ruling.awards["a"].devices == ("n/0", "n/1")
    assert ruling.awards["b"].payment is None


def test_a_job_that_is_alone_visits_on_all_it_can_use() -> None:
    alone = visitor("a", allowed_devices=(1, 2, 4))
    assert counts(rule(THEMIS, market([alone], 3, trigger="visit"))) == {"a": 2}
    assert counts(rule(THEMIS, market([alone], 8, trigger="visit"))) == {"a": 4}
    assert counts(rule(THEMIS, market([alone], {"n": 1, "m": 4}, trigger="visit"))) == {"a": 1}
    limited = visitor("a", allowed_devices=(1, 2, 4), quota_left=1)
    assert counts(rule(THEMIS, market([limited], 8, trigger="visit"))) == {"a": 1}
    two = [alone, visitor("b", 10, allowed_devices=(1, 2))]
    assert counts(rule(THEMIS, market(two, 4, trigger="visit"))) == {"a": 1, "b": 1}


def test_the_holder_furthest_above_its_share_gives() -> None:
    a, b = holder("a", 1, ("n/0", "n/1", "n/2")), holder("b", 2, ("n/3", "n/4"))
    ruling = rule(THEMIS, market([a, b, visitor("c")], 5, trigger="visit"))
    assert counts(ruling) == {"a": 2, "b": 2, "c": 1}
    assert "c makes a first visit" in ruling.awards["a"].reason
    assert "n/3" in ruling.awards["b"].devices


def test_who_has_not_repaid_or_is_not_above_its_share_gives_nothing() -> None:
    a = holder("a", 1, ("n/0", "n/1"), may_move=False)
    assert counts(rule(THEMIS, market([a, visitor("b")], 2, trigger="visit"))) == {"a": 2, "b": 0}
    modest = holder("a", 1, ("n/0",), account_weight=9.0)
    assert counts(rule(THEMIS, market([modest, visitor("b")], 1, trigger="visit", total=2))) == {
        "a": 1,
        "b": 0,
    }


def test_a_holder_above_a_share_of_less_than_one_gives_its_last() -> None:
    holders = [holder(f"h{i}", i, (f"n/{i}",)) for i in range(2)]
    ruling = rule(THEMIS, market([*holders, visitor("v")], 2, trigger="visit"))
    assert counts(ruling)["v"] == 1
    assert sorted(counts(ruling).values()) == [0, 1, 1]


def test_accounts_that_hold_less_of_their_share_come_first_then_older_jobs() -> None:
    rich = holder("rich", 1, ("n/0", "n/1"), account="rich", may_move=False)
    mine = visitor("mine", 2, account="rich")
    young, old = visitor("young", 4, account="poor"), visitor("old", 3, account="poor")
    ruling = rule(THEMIS, market([rich, mine, young, old], 3))
    assert {name for name, award in ruling.awards.items() if award.visit} == {"old"}


def test_a_gang_takes_from_several_holders_on_one_node() -> None:
    holders = [holder(f"h{i}", i, (f"n/{i}",)) for i in range(4)]
    wide = visitor("wide", 9, allowed_devices=(3,))
    ruling = rule(THEMIS, market([*holders, wide], 4, trigger="visit"))
    assert counts(ruling)["wide"] == 3
    spread = [holder(f"h{i}", i, (f"{node}/0",)) for i, node in enumerate("ab")]
    apart = rule(THEMIS, market([*spread, visitor("wide", 9, allowed_devices=(2,))], {"a": 1, "b": 1}))
    assert counts(apart)["wide"] == 0


def test_what_a_giver_cannot_use_goes_to_the_others() -> None:
    """Allowed 1 or 4: giving one device means giving three; two of them are free for the auction."""
    table = bid({1: 1000, 4: 250}, restart=1, running_on=4)
    a = job("a", table, 1, at_stake=tuple(f"n/{i}" for i in range(4)))
    b = job("b", bid({2: 500}), 2)
    ruling = rule(THEMIS, market([a, b, visitor("c")], 4))
    assert counts(ruling) == {"a": 1, "b": 2, "c": 1}


def test_what_a_giver_keeps_anyway_limits_what_it_gives() -> None:
    table = bid({2: 500, 4: 250}, restart=1, running_on=4)
    a = job("a", table, 1, kept=("n/0",), at_stake=("n/1", "n/2", "n/3"))
    ruling = rule(THEMIS, market([a, visitor("b")], 4, trigger="visit"))
    assert counts(ruling) == {"a": 2, "b": 1}
    assert "n/0" in ruling.awards["a"].devices
    stuck = job("a", bid({4: 250}, running_on=4), 1, kept=("n/0",), at_stake=("n/1", "n/2", "n/3"))
    assert counts(rule(THEMIS, market([stuck, visitor("b")], 4, trigger="visit"))) == {"a": 4, "b": 0}


def test_a_job_that_is_alone_visits_on_all_it_can_use_of_a_node() -> None:
    alone = visitor("v", allowed_devices=(1, 2, 4))
    assert counts(rule(THEMIS, market([alone], 3))) == {"v": 2}
    assert counts(rule(THEMIS, market([alone], {"x": 2, "y": 1}))) == {"v": 1}, "the tightest node"
    limited = visitor("v", allowed_devices=(1, 2, 4), quota_left=1)
    assert counts(rule(THEMIS, market([limited], 3))) == {"v": 1}
    picky = visitor("v", wanted_devices=("n/2",))
    assert rule(THEMIS, market([picky], 3)).awards["v"].devices == ("n/2",)
    two = [visitor("v", 1, allowed_devices=(1, 2)), visitor("w", 2, allowed_devices=(1, 2))]
    assert counts(rule(THEMIS, market(two, 4))) == {"v": 1, "w": 1}


def test_what_cannot_be_resized_gives_all_or_nothing() -> None:
    rigid = holder("r", 1, ("n/0", "n/1"), resume=Resume.SAME_SIZE)
    assert counts(rule(THEMIS, market([rigid, visitor("v")], 2))) == {"r": 0, "v": 1}
    table = bid({1: 900, 2: 500}, restart=1, running_on=2)
    partly = job("r", table, 1, kept=("n/0",), at_stake=("n/1",), resume=Resume.SAME_SIZE)
    assert counts(rule(THEMIS, market([partly, visitor("v")], 2))) == {"r": 2, "v": 0}


def test_who_gave_and_cannot_run_on_what_it_keeps_goes_on_with_the_rest() -> None:
    """Keeps one, held four, runs on two or four: after giving it has two, and nobody else takes them."""
    table = bid({2: 500, 4: 250}, restart=1, running_on=4)
    a = job("a", table, 1, kept=("n/0",), at_stake=("n/1", "n/2", "n/3"))
    others = [job(f"b{i}", bid({1: 10}), 2 + i) for i in range(3)]
    ruling = rule(THEMIS, market([a, visitor("v"), *others], 4))
    got = counts(ruling)
    assert (got["a"], got["v"]) == (2, 1)
    assert got["b0"] + got["b1"] + got["b2"] == 1


def test_very_devices_are_waited_for_and_last_ones_preferred() -> None:
    picky = visitor("p", 1, allowed_devices=(1,), wanted_devices=("n/1",))
    assert rule(THEMIS, market([picky], 3)).awards["p"].devices == ("n/1",)
    a = holder("a", 2, ("n/1",))
    assert rule(THEMIS, market([picky, a], 2)).awards["p"].devices == ()
    again = visitor("q", 1, last_devices=("y/0",))
    assert rule(THEMIS, market([again], {"x": 1, "y": 1})).awards["q"].devices == ("y/0",)


def test_a_quota_counts_visits_too() -> None:
    twins = [visitor(f"v{i}", i, account="a", quota_left=1) for i in range(2)]
    ruling = rule(THEMIS, market(twins, 4))
    assert counts(ruling) == {"v0": 1, "v1": 0}
    assert "waits" in ruling.awards["v1"].reason


def test_a_newcomer_that_must_wait_is_told_why() -> None:
    settled = holder("a", 2, ("n/0", "n/1"), may_move=False)
    ruling = rule(THEMIS, market([settled, visitor("v", 1)], 2))
    assert ruling.awards["v"].reason.startswith("waits for its first visit: nobody has a device to spare")


def test_a_visit_under_way_is_left_alone() -> None:
    running = job("v", bid({1: None}), 2, at_stake=("n/0",))
    ruling = rule(THEMIS, market([running, job("a", bid({1: 10}), 1)], 1))
    assert ruling.awards["v"].devices == ("n/0",)
    assert "measuring" in ruling.awards["v"].reason


def test_in_a_visits_auction_nobody_else_takes_held_devices() -> None:
    """a has far more than its share and b waits, but only the visitor is served between ticks."""
    a = holder("a", 1, ("n/0", "n/1", "n/2"))
    b = job("b", bid({2: 100}), 2)
    ruling = rule(THEMIS, market([a, b, visitor("c")], 3, trigger="visit"))
    assert counts(ruling) == {"a": 2, "b": 0, "c": 1}
