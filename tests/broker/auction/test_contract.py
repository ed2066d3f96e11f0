"""Whatever the market, a ruling keeps the contract: the arbiter would put it aside whole otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from broker.auction.markets import bid, check_contract, job, market, rule

from selfsched.protocol import Resume, StandingBid
from selfsched_broker.core.market import Contender, Market, Policy
from selfsched_broker.core.policies import POLICIES, policy_named
from selfsched_broker.core.rulings import find_faults

TRIGGERS = ("tick", "device_free", "arrival", "visit")


def random_bid(
    rng: np.random.Generator, counts: list[int], running_on: int, nodes: int
) -> StandingBid | None:
    if rng.random() < 0.2:
        return None if rng.random() < 0.5 else bid(dict.fromkeys(counts))
    work = float(rng.lognormal(6, 1))
    rows: dict[int, float | None] = {n: work / n ** rng.uniform(-0.3, 1.0) for n in counts}
    if rng.random() < 0.2:
        rows[counts[-1]] = None if len(counts) > 1 else rows[counts[-1]]
    spread = {(n, 2): work / n**0.4 for n in counts if n > 1 and nodes > 1 and rng.random() < 0.5}
    return bid(rows, spread=spread, restart=float(rng.uniform(0, 40)), running_on=running_on)


def random_market(seed: int) -> Market:
    """Anything an arbiter may ask: what is kept and at stake, quotas, gangs, visitors, the immovable."""
    rng = np.random.default_rng(seed)
    nodes = {name: int(rng.integers(1, 5)) for name in "abc"[: rng.integers(1, 4)]}
    devices = [f"{node}/{i}" for node, count in nodes.items() for i in range(count)]
    free = list(devices)
    trigger = TRIGGERS[rng.integers(4)]
    quota = {f"u{i}": int(rng.integers(0, 4)) if rng.random() < 0.3 else None for i in range(3)}
    contenders = [
        random_job(rng, number, nodes, free, trigger, quota) for number in range(rng.integers(1, 9))
    ]
    reserve = {contenders[0].job: contenders[0].allowed_devices[0]} if rng.random() < 0.2 else {}
    return market(contenders, nodes, trigger=trigger, number=seed, reserved_for=reserve)  # type: ignore[arg-type]


def random_job(
    rng: np.random.Generator,
    number: int,
    nodes: dict[str, int],
    free: list[str],
    trigger: str,
    quota: dict[str, int | None],
) -> Contender:
    counts = sorted({int(n) for n in rng.choice([1, 2, 3, 4], size=rng.integers(1, 4))})
    fields: dict[str, Any] = {"allowed_devices": counts, "account": f"u{rng.integers(0, 3)}"}
    fields["quota_left"] = quota[fields["account"]]
    held: list[str] = []
    size = int(rng.choice(counts))
    node = str(rng.choice(sorted(nodes)))
    local = [device for device in free if device.startswith(node)]
    if rng.random() < 0.6 and len(local) >= size:
        held = local[:size]
        free[:] = [device for device in free if device not in held]
        at_stake = {"tick": size, "device_free": 0}.get(trigger, int(rng.integers(0, size + 1)))
        fields |= {"kept": tuple(held[at_stake:]), "at_stake": tuple(held[:at_stake])}
        fields["may_move"] = bool(rng.random() < 0.7)
    else:
        fields |= {"passed_over": int(rng.integers(0, 3)), "waiting_seconds": float(rng.uniform(0, 900))}
        if rng.random() < 0.15:
            device = f"{node}/{rng.integers(0, nodes[node])}"
            fields |= {"wanted_devices": (device,), "allowed_devices": [1]}
            counts = [1]
    fields["resume"] = Resume.ELASTIC if rng.random() < 0.8 else Resume.SAME_SIZE
    table = random_bid(rng, counts, len(held), len(nodes))
    return job(
        f"j{number}",
        table,
        number,
        age_seconds=float(rng.uniform(0, 3000)),
        fraction_done=float(rng.uniform(0, 1)),
        share=float(rng.uniform(0, 3)),
        **fields,
    )


@pytest.mark.parametrize("policy", [policy_named(name) for name in POLICIES], ids=lambda p: p.name)
@pytest.mark.parametrize("block", range(8))
def test_rulings_on_any_market_keep_the_contract(policy: Policy, block: int) -> None:
    for seed in range(block * 40, block * 40 + 40):
        question = random_market(seed)
        ruling = rule(policy, question)
        check_contract(question, ruling)
        assert find_faults(question, ruling) == [], f"seed {seed}"
        assert ruling == rule(policy, question), "the same market gives the same ruling"
