"""A policy that raises, or answers what cannot be checked: the broker goes on, a simulation does not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from broker.driver import Driver, EqualShares

from selfsched_broker.core.leases import LeaseOptions
from selfsched_broker.core.market import Market, Ruling

OPTIONS = LeaseOptions(term_seconds=60.0)


class Moody(EqualShares):
    """Raises, or answers nonsense, while it is told to."""

    trouble: Any = None

    def rule(self, market: Market, rng: np.random.Generator) -> Ruling:
        if isinstance(self.trouble, Exception):
            raise self.trouble
        return super().rule(market, rng) if self.trouble is None else self.trouble


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        (ZeroDivisionError("no devices"), "ZeroDivisionError at test_failing_policy.py"),
        ("no ruling at all", "AttributeError at rulings.py"),
    ],
)
def test_a_policy_that_fails_moves_nobody_and_stops_nothing_else(trouble: object, words: str) -> None:
    policy = Moody()
    driver = Driver(policy=policy, options=OPTIONS, survives_policies=True)
    driver.node(devices=2)
    first, second = driver.register("ann", 1, 1), driver.register("bob", 1, 1)
    driver.live(5.0)
    assert (len(driver.held(first)), len(driver.held(second))) == (1, 1)
    policy.trouble = trouble
    waiting = driver.register("cyd", 1, 1)
    silent_until = driver.now + OPTIONS.ttl_seconds + OPTIONS.grace_seconds + 2 * OPTIONS.term_seconds
    while driver.now < silent_until:
        driver.now += 5.0
        driver.settle()
        for job in (second, waiting):
            driver.obey(job)
        driver.node()
    assert driver.held(first) == [], "a silent job's lease expires all the same"
    assert driver.held(second), "nobody is moved"
    assert driver.held(waiting) == []
    assert "failed" in driver.books.jobs[waiting].reasons[-1]
    told = [audit for audit in driver.books.audits.values() if audit.action == "auction_failed"]
    assert len(told) == 1, "it is said once"
    assert "the policy equal-shares failed, nobody moves: " in told[0].detail
    assert words in told[0].detail
    assert driver.books.agenda.failed_auctions > 1, "and counted"
    driver.end(first)
    policy.trouble = None
    driver.live(OPTIONS.term_seconds + 5.0)
    assert driver.held(waiting), "at the next tick it is tried again"
    assert driver.books.agenda.failure == ""


def test_a_simulation_does_not_go_on_with_a_policy_that_fails() -> None:
    driver = Driver(policy=Moody(), options=OPTIONS)
    driver.node(devices=1)
    driver.policy.trouble = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        driver.report(driver.register("ann"))
