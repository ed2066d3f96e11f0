"""Why, under `selfsched`: in numbers and words, to each its own figures and nobody else's bid."""

from __future__ import annotations

import re

import pytest
from broker.auction.markets import bid, job, market, rule
from broker.driver import Driver
from broker.driver import bid as driver_bid

from selfsched_broker.core import arbiter
from selfsched_broker.core.leases import LeaseOptions
from selfsched_broker.core.market import Contender
from selfsched_broker.core.merit import Merit, against, because
from selfsched_broker.core.policies import policy_named
from selfsched_broker.core.rulings import VISIT_IS_OVER

OURS = policy_named("selfsched")


def gang(name: str, remaining: float, number: int = 0, size: int = 1, **fields: object) -> Contender:
    return job(name, bid({size: remaining}, restart=10), number, **fields)


def reasons(contenders: list[Contender], devices: int) -> dict[str, str]:
    awards = rule(OURS, market(contenders, devices)).awards
    return {name: award.reason for name, award in awards.items()}


# A job that runs, and decides when all is done: the others are not on the critical path.
LONGEST = gang("longest", 90_000, 9, kept=("n/0",))


def test_the_shorter_job_is_told_so_and_the_longer_too() -> None:
    said = reasons([gang("short", 1000, 1), gang("middle", 4567, 2), LONGEST], 2)
    assert said["short"] == (
        "gets 1 of 2 devices: short jobs first: 1,000 s remain, the shortest of 3; your share is 0.67"
    )
    assert said["middle"] == (
        "waits for 1 device: the job of short is shorter: of yours 4,567 s remain, the 2nd shortest of 3"
    )


def test_a_job_that_could_use_more_is_told_who_has_it() -> None:
    rows = {1: 1000.0, 2: 600.0}
    said = reasons([job(name, bid(rows, restart=10), n) for n, name in enumerate(("ann", "bob"))], 2)
    assert said["ann"].endswith("; your share is 1; bob has 1")
    assert said["bob"].endswith("; your share is 1; ann has 1")


def test_a_late_job_is_told_so_and_who_waits_for_it_too() -> None:
    crowd = [gang(f"long-{n}", 100_000, n) for n in (2, 3)]
    late = gang("late", 2000, 1, age_seconds=40_000.0)
    said = reasons([late, gang("short", 1000, 4), *crowd], 1)
    found = re.fullmatch(
        r"gets 1 of 1 device: late: it will have taken (\d+\.\d\d) times its fair time, and from 1\.3 on"
        r" lateness comes first; your share is 0\.25",
        said["late"],
    )
    assert found, said["late"]
    assert float(found[1]) > 1.3
    told = rf"waits for 1 device: late is late: it will have taken {found[1]} times its fair time, yours \d"
    assert re.match(told, said["short"]), said["short"]


def test_what_decides_when_all_is_done_is_told_so_and_who_waits_for_it_too() -> None:
    said = reasons([gang("critical", 5000, 1), *(gang(f"short-{n}", 600, n) for n in (2, 3, 4))], 2)
    assert said["critical"] == (
        "gets 1 of 2 devices: when all work is done depends on yours: 5,000 s remain; your share is 0.5"
    )
    waiting = [words for words in said.values() if words.startswith("waits")]
    assert waiting == 2 * [
        "waits for 1 device: when all work is done depends on the job of critical; of yours 600 s remain"
    ]


def test_who_shrinks_is_told_why() -> None:
    wide = job("wide", bid({1: 9000, 2: 8000}, restart=5, running_on=2), 1, at_stake=("n/0", "n/1"))
    said = reasons([wide, gang("short", 500, 2)], 2)
    assert said["wide"].startswith("shrinks to 1 of 2: ")
    assert "short" in said["wide"]
    assert re.search(r"of yours [\d,]+ s remain", said["wide"])


def test_nobody_is_told_a_time_that_another_bid() -> None:
    """Every number in a reason is the reader's own figure, a place, a count or a lateness."""
    own = {"a": 1234.0, "b": 5678.0, "c": 23_456.0, "d": 79_843.0}
    ages = {"a": 0.0, "b": 30_000.0, "c": 10.0, "d": 0.0}
    jobs = [gang(name, seconds, n, age_seconds=ages[name]) for n, (name, seconds) in enumerate(own.items())]
    for devices in (1, 2, 3):
        for reader, words in reasons(jobs, devices).items():
            others = {f"{seconds:,.0f}" for name, seconds in own.items() if name != reader}
            assert not any(other in words for other in others), words


MERIT = {"remaining_seconds": 900.0, "jobs": 30, "lateness": 0.5, "late_from": 1.3}


@pytest.mark.parametrize(
    ("place", "words"),
    [(1, "the shortest of 30"), (2, "the 2nd shortest of 30"), (3, "the 3rd shortest of 30"),
     (11, "the 11th shortest of 30"), (21, "the 21st shortest of 30"), (30, "the longest of 30")],
)  # fmt: skip
def test_places_in_words(place: int, words: str) -> None:
    merit = Merit(kind="short", place=place, **MERIT)  # type: ignore[arg-type]
    assert because(merit).startswith(f"short jobs first: 900 s remain, {words}")


def test_where_no_figure_alone_decides_all_of_ones_own_are_told() -> None:
    """The rival is longer and not late: what it has comes of the sum over all, and the words say that."""
    ours = Merit(kind="short", place=1, **MERIT)  # type: ignore[arg-type]
    theirs = Merit(kind="short", place=5, **MERIT)  # type: ignore[arg-type]
    words = against(ours, theirs, "bob")
    assert words.startswith("all jobs together make more of the devices like this; of yours 900 s remain")
    assert "bob" not in words
    only = Merit(kind="short", place=1, **(MERIT | {"jobs": 1, "remaining_seconds": 3.0}))  # type: ignore[arg-type]
    assert because(only) == "short jobs first: less than 10 s remain, the only job"


def test_a_lone_job_is_told_after_its_visit_why_it_has_its_devices() -> None:
    """Nothing moves when its visit ends, perhaps for days: it must not stay "first visit" for ever."""
    driver = Driver(policy=OURS, options=LeaseOptions(term_seconds=60.0))
    driver.node(devices=2)
    lone = driver.register()
    assert driver.held(lone) == ["cpu0", "cpu1"]
    assert driver.books.jobs[lone].reasons[-1].startswith("first visit on 2 devices")
    driver.report(lone, step=5, steady_steps=5, bid=driver_bid(1000.0, 600.0))
    told = arbiter.instructions(driver.books, driver.ctx, lone)
    assert driver.held(lone) == ["cpu0", "cpu1"]
    assert not told.visit
    assert told.reasons[-2:] == (VISIT_IS_OVER, "2 of 2 devices: nobody else wants them")
    driver.live(200.0)
    assert driver.books.jobs[lone].reasons == told.reasons, "it is said once, not at each tick"
