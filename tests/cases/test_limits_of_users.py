"""U13: a limit is the broker's; no file and no message of its user moves it."""

from __future__ import annotations

from pathlib import Path

import pytest
from broker.live_broker import live_broker, refs, register, report, until_leased

from selfsched import settings
from selfsched.errors import InvalidSettings


@pytest.mark.parametrize("entry", ["max_devices = 8", "weight = 9.0", "admin = true", "slots = 8"])
def test_a_users_config_file_knows_no_limits(tmp_path: Path, entry: str) -> None:
    file = tmp_path / "config.toml"
    file.write_text(entry)
    with pytest.raises(InvalidSettings, match=entry.split()[0]):
        settings.load(environment={}, config_file=file)


def test_a_users_messages_raise_no_limit(tmp_path: Path) -> None:
    with live_broker(tmp_path / "state") as broker:
        broker.admin.put("/v1/admin/accounts/ada", json={"max_devices": 1})
        ada = broker.as_account("ada")
        for number, more in enumerate(({"weight": 9.0}, {"account": "root"}, {"limit": 8})):
            body = {"name": "greedy", "max_devices": 2, **more}
            answer = ada.post("/v1/jobs", json=body, headers={"Idempotency-Key": f"k{number}"})
            assert answer.status_code == 422, more
        first = register(ada, "first", max_devices=2)
        told, last = until_leased(ada, first)
        second = register(ada, "second", max_devices=2)
        report(ada, second, 1)
        report(ada, first, last + 1, leases=refs(told))
        held = [len(broker.books.devices_of(job)) for job in (first, second)]
        assert held == [1, 0]
        assert ada.get("/v1/accounts/me").json()["max_devices"] == 1
