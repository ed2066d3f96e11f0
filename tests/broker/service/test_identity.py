"""Tokens and Unix accounts."""

from __future__ import annotations

import os

import pytest

from selfsched.protocol import ProblemCode
from selfsched_broker.core.books import Account, Books, Broker
from selfsched_broker.core.leases import Refusal
from selfsched_broker.identity import (
    account_of_uid,
    caller_by_token,
    caller_by_uid,
    issue_token,
)


def books_with(*records: object) -> Books:
    books = Books(broker=Broker(incarnation=1))
    books.apply(records)  # type: ignore[arg-type]  # records of several kinds
    return books


def test_a_token_names_its_account() -> None:
    issued = issue_token("ada", node=None, now=0.0)
    books = books_with(Account(name="ada"), issued.record)
    assert caller_by_token(books, f"Bearer {issued.text}").account == "ada"
    assert caller_by_token(books, f"bearer {issued.text}").admin is False


def test_an_administrators_token_administers_until_the_account_is_disabled() -> None:
    issued = issue_token("ada", node=None, now=0.0)
    books = books_with(Account(name="ada", admin=True), issued.record)
    assert caller_by_token(books, f"Bearer {issued.text}").admin
    books.apply([Account(name="ada", admin=True, disabled=True)])
    assert not caller_by_token(books, f"Bearer {issued.text}").admin


def test_a_nodes_token_of_an_administrator_administers_nothing() -> None:
    issued = issue_token("ada", node="n1", now=0.0)
    caller = caller_by_token(
        books_with(Account(name="ada", admin=True), issued.record), f"Bearer {issued.text}"
    )
    assert (caller.admin, caller.node) == (False, "n1")
    assert not caller.may_see("ada")


@pytest.mark.parametrize("change", ["", "x", "Basic ", "other secret", "other id"])
def test_whatever_is_wrong_the_words_are_the_same(change: str) -> None:
    issued = issue_token("ada", node=None, now=0.0)
    other = issue_token("ada", node=None, now=0.0)
    books = books_with(issued.record, other.record)
    header = {
        "": "",
        "x": f"Bearer {issued.text}x",
        "Basic ": f"Basic {issued.text}",
        "other secret": f"Bearer ss_{issued.record.token_id}_{other.secret}",
        "other id": f"Bearer ss_{'0' * 12}_{issued.secret}",
    }[change]
    with pytest.raises(Refusal) as refused:
        caller_by_token(books, header)
    assert refused.value.code is ProblemCode.NOT_AUTHENTICATED
    assert refused.value.message == "a valid token is needed: Authorization: Bearer ss_..."


def test_a_secret_is_long_random_and_not_shown() -> None:
    first, second = issue_token("ada", node=None, now=0.0), issue_token("ada", node=None, now=0.0)
    assert first.secret != second.secret
    assert len(first.secret) == 43
    assert first.secret not in repr(first)
    assert first.secret not in repr(first.record)


def test_root_and_the_brokers_own_user_administer() -> None:
    books = books_with()
    assert caller_by_uid(books, 0).admin
    assert caller_by_uid(books, os.geteuid()).admin
    assert not caller_by_uid(books, 54_321).admin


def test_a_uid_without_a_name_has_an_account_all_the_same() -> None:
    assert account_of_uid(54_321) == "uid-54321"
    assert account_of_uid(0) == "root"
