"""What an administrator does to an account, what its jobs are told of it, and what is kept of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from broker.driver import Driver, bid

from selfsched.protocol import SetAccount
from selfsched_broker.core import arbiter
from selfsched_broker.core.books import Token
from selfsched_broker.core.leases import LeaseOptions, Refusal
from selfsched_broker.store.memory import MemoryDisk, MemoryStore


@pytest.fixture
def driver() -> Driver:
    driver = Driver(options=LeaseOptions(term_seconds=60.0), store=MemoryStore(MemoryDisk()))
    driver.node(devices=2)
    return driver


def test_a_disabled_account_leaves_its_devices_and_registers_nothing(driver: Driver) -> None:
    job = driver.register("ann")
    driver.report(job, step=5, steady_steps=5, bid=bid(1000.0, 600.0))
    driver.live(40.0)
    second = driver.register("ann")
    driver.do(arbiter.set_account, "ann", SetAccount(disabled=True), by="root")
    words = "account ann was disabled by root, so it may hold no device: ask root"
    assert driver.report(job).reasons[-1] == words
    driver.live(30.0)
    assert driver.held(job) == []
    for told in (job, second):
        assert driver.books.jobs[told].reasons[-1] == words, "also once it has left, and if it only waits"
    with pytest.raises(Refusal, match="disabled"):
        driver.register("ann")
    driver.do(arbiter.set_account, "ann", SetAccount(disabled=False, max_devices=1), by="root")
    assert driver.books.jobs[job].reasons[-1] == "its account is enabled again"
    driver.live(30.0)
    assert driver.held(job) or driver.held(second)


def test_the_audit_says_what_was_changed_of_an_account(driver: Driver) -> None:
    for message in (
        SetAccount(),
        SetAccount(weight=2.5, max_devices=4),
        SetAccount(weight=2.5, lift_max_devices=True, disabled=True),
        SetAccount(disabled=True),
    ):
        driver.do(arbiter.set_account, "eva", message, by="root")
    details = [audit.detail for audit in driver.books.audits.values() if audit.subject == "eva"]
    assert details == [
        "made: weight 1, max_devices no limit, admin no, disabled no",
        "weight 1 -> 2.5, max_devices no limit -> 4",
        "max_devices 4 -> no limit, disabled no -> yes",
        "nothing changed",
    ]


def test_tokens_are_recorded_once_and_revoked(driver: Driver) -> None:
    token = Token(token_id="t1", account="dora", secret_hash="00")
    with pytest.raises(Refusal, match="users add dora"):
        driver.do(arbiter.record_token, token, by="root")
    driver.do(arbiter.set_account, "dora", SetAccount(), by="root")
    driver.do(arbiter.record_token, token, by="root")
    with pytest.raises(Refusal):
        driver.do(arbiter.record_token, token, by="root")
    driver.do(arbiter.revoke_token, "t1", by="root")
    assert driver.books.tokens["t1"] == replace(token, revoked=True)
    with pytest.raises(Refusal):
        driver.do(arbiter.revoke_token, "t9", by="root")
