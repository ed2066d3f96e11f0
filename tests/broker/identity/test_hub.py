"""Users of a JupyterHub: who they are, for how long that is believed, and what a broken Hub changes."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import httpx
import pytest
from broker.identity.hub_stand_in import ACCESS, SERVICE_TOKEN, HubStandIn

from selfsched.errors import InvalidSettings
from selfsched.protocol import ProblemCode
from selfsched_broker import hub_identity
from selfsched_broker.core.leases import Refusal
from selfsched_broker.hub_identity import Hub, account_of
from selfsched_broker.hub_settings import hub_settings
from selfsched_broker.identity import HubUser


@pytest.fixture
def stand_in() -> HubStandIn:
    found = HubStandIn()
    found.add("t-ada", "ada")
    return found


@pytest.fixture
def hub(stand_in: HubStandIn) -> Iterator[Hub]:
    found = Hub(
        stand_in.settings(admin_group="staff"), transport=stand_in.transport(), monotonic=stand_in.clock
    )
    yield found
    found.close()


def refusal(hub: Hub, token: str) -> ProblemCode:
    with pytest.raises(Refusal) as caught:
        hub.ask(token)
    assert token not in caught.value.message
    return caught.value.code


def broken(request: httpx.Request) -> httpx.Response:
    raise httpx.ConnectError("refused", request=request)


def test_a_token_is_its_users_and_the_hub_is_asked_once_a_minute(hub: Hub, stand_in: HubStandIn) -> None:
    assert hub.known("t-ada") is None
    assert hub.ask("t-ada") == HubUser(account="ada")
    asked = len(stand_in.asked)
    stand_in.now += hub_identity.KEPT_SECONDS - 1
    assert hub.known("t-ada") == hub.ask("t-ada") == HubUser(account="ada")
    assert len(stand_in.asked) == asked
    stand_in.now += 2
    assert hub.known("t-ada") is None
    assert hub.ask("t-ada") == HubUser(account="ada")
    assert len(stand_in.asked) > asked


def test_who_has_been_known_is_told_from_a_stranger(hub: Hub, stand_in: HubStandIn) -> None:
    hub.ask("t-ada")
    refusal(hub, "nobodys")
    stand_in.now += 10 * hub_identity.KEPT_SECONDS
    assert hub.has_known("t-ada")
    assert not hub.has_known("nobodys")
    assert not hub.has_known("never-seen")


def test_a_token_that_was_revoked_is_refused_within_a_minute(hub: Hub, stand_in: HubStandIn) -> None:
    hub.ask("t-ada")
    del stand_in.users["t-ada"]
    stand_in.now += hub_identity.KEPT_SECONDS + 1
    assert refusal(hub, "t-ada") is ProblemCode.NOT_AUTHENTICATED


@pytest.mark.parametrize("token", ["nobodys", "", "a b", "x" * 5000, "ä", "t-ada\r\nX: y"])
def test_a_token_that_is_nobodys_is_refused(hub: Hub, token: str) -> None:
    with pytest.raises(Refusal) as caught:
        hub.ask(token)
    assert caught.value.code is ProblemCode.NOT_AUTHENTICATED


def test_a_refused_token_is_not_asked_about_again_and_again(hub: Hub, stand_in: HubStandIn) -> None:
    for _ in range(20):
        assert refusal(hub, "nobodys") is ProblemCode.NOT_AUTHENTICATED
    assert len(stand_in.asked) == 1
    stand_in.add("nobodys", "bob")
    stand_in.now += hub_identity.REFUSED_SECONDS + 1
    assert hub.ask("nobodys").account == "bob"


@pytest.mark.parametrize("scopes", [(), ("read:users!user=ada",), ("access:services!service=other",)])
def test_a_token_that_was_made_for_something_else_opens_nothing(
    hub: Hub, stand_in: HubStandIn, scopes: tuple[str, ...]
) -> None:
    stand_in.add("t-other", "ada", scopes=scopes)
    assert refusal(hub, "t-other") is ProblemCode.FORBIDDEN


def test_a_services_token_is_no_users(hub: Hub, stand_in: HubStandIn) -> None:
    stand_in.add(SERVICE_TOKEN, "broker", kind="service")
    assert refusal(hub, SERVICE_TOKEN) is ProblemCode.NOT_AUTHENTICATED


def test_administrators_of_the_hub_and_a_named_group_administer(hub: Hub, stand_in: HubStandIn) -> None:
    stand_in.admins.add("root-of-the-hub")
    stand_in.add("t-root", "root-of-the-hub")
    stand_in.add("t-staff", "eve", groups=["staff"])
    stand_in.add("t-user", "bob", groups=["students"], admin=True)  # only the service's own word counts
    assert hub.ask("t-root").admin
    assert hub.ask("t-staff").admin
    assert not hub.ask("t-user").admin
    assert not hub.ask("t-ada").admin


def test_without_the_services_token_only_the_group_administers(stand_in: HubStandIn) -> None:
    stand_in.admins.add("ada")
    hub = Hub(stand_in.settings(token=None), transport=stand_in.transport(), monotonic=stand_in.clock)
    assert not hub.ask("t-ada").admin
    hub.close()


def html(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, content=b"<html>")


@pytest.mark.parametrize(
    "instead",
    [
        broken,
        html,
        lambda _: httpx.Response(302, headers={"Location": "http://elsewhere/"}),
        lambda _: httpx.Response(503),
        lambda _: httpx.Response(200, json=["no", "object"]),
    ],
)
def test_a_hub_that_is_away_takes_nothing_from_who_is_known_and_lets_nobody_in(
    hub: Hub, stand_in: HubStandIn, instead: object
) -> None:
    hub.ask("t-ada")
    stand_in.instead = instead  # type: ignore[assignment]
    stand_in.now += hub_identity.KEPT_SECONDS + 1
    assert hub.ask("t-ada") == HubUser(account="ada")
    assert refusal(hub, "t-new") is ProblemCode.UNAVAILABLE
    asked = len(stand_in.asked)
    for _ in range(20):  # it is left alone for a while
        assert hub.known("t-ada") == HubUser(account="ada")
        assert refusal(hub, "t-new") is ProblemCode.UNAVAILABLE
    assert len(stand_in.asked) == asked
    stand_in.now += hub_identity.LONGEST_AWAY_SECONDS
    assert refusal(hub, "t-ada") is ProblemCode.UNAVAILABLE
    stand_in.instead = None
    stand_in.now += hub_identity.AWAY_SECONDS + 1
    assert hub.ask("t-ada") == HubUser(account="ada")


def test_what_is_kept_is_bounded(hub: Hub, stand_in: HubStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_identity, "_MOST_KEPT", 10)
    for number in range(50):
        stand_in.now += 0.001
        refusal(hub, f"guess-{number}")
    assert len(hub._known) <= 10


def test_neither_a_log_nor_a_repr_shows_a_token(
    hub: Hub, stand_in: HubStandIn, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    hub.ask("t-ada")
    shown = caplog.text + repr(stand_in.settings()) + repr(vars(hub)["_known"])
    assert "t-ada" not in shown
    assert SERVICE_TOKEN not in shown


# --- names -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["ada", "Ada.B_c-1", "a" * 64])
def test_a_plain_name_is_the_accounts(name: str) -> None:
    assert account_of(name) == name


@pytest.mark.parametrize("name", ["ada@lab.example", "a b", "é", "../x", "-x", "a" * 65, "漢字", "x<script>"])
def test_any_other_name_becomes_a_readable_account_that_is_no_other_users(name: str) -> None:
    made = account_of(name)
    assert hub_identity._ACCOUNT.fullmatch(made)
    assert made != account_of(name + "x")
    # Who calls himself like the made-up account of another does not become that account.
    assert account_of(made) != made


# --- settings --------------------------------------------------------------------------------


def test_what_the_hub_tells_its_services_is_read() -> None:
    told = {
        "JUPYTERHUB_API_URL": "http://127.0.0.1:8081/hub/api/", "JUPYTERHUB_SERVICE_NAME": "broker",
        "JUPYTERHUB_API_TOKEN": "secret",
    }  # fmt: skip
    found = hub_settings(told, admin_group="staff")
    assert found is not None
    assert (found.api_url, found.service, found.token) == (
        "http://127.0.0.1:8081/hub/api",
        "broker",
        "secret",
    )
    assert hub_settings({}) is None
    with pytest.raises(InvalidSettings):
        hub_settings({**told, "JUPYTERHUB_API_URL": "file:///etc"})


def test_the_scope_is_the_services_own_name(stand_in: HubStandIn) -> None:
    hub = Hub(stand_in.settings(service="gpus"), transport=stand_in.transport(), monotonic=stand_in.clock)
    assert refusal(hub, "t-ada") is ProblemCode.FORBIDDEN
    stand_in.add("t-bob", "bob", scopes=("access:services",))
    stand_in.add("t-eve", "eve", scopes=(ACCESS.replace("broker", "gpus"),))
    assert hub.ask("t-bob").account == "bob"
    assert hub.ask("t-eve").account == "eve"
    hub.close()
