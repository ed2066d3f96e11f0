"""The auction against all assignments of devices there are, by an evaluation of its own."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from broker.auction.markets import bid, counts, job, market, rule

from selfsched.protocol import Resume
from selfsched_broker.core.market import Contender, Market, Ruling
from selfsched_broker.core.policies import policy_named

THEMIS = policy_named("themis")
pytestmark = pytest.mark.usefixtures("way")
Sets = dict[str, frozenset[str]]


def random_market(seed: int, *, spread: bool = False) -> Market:
    """Two to four jobs on four or five devices; some hold devices, some have gangs and odd tables."""
    rng = np.random.default_rng(seed)
    layout = {"a": 2, "b": int(rng.integers(2, 4))} if spread else {"a": int(rng.integers(3, 6))}
    devices = [f"{node}/{i}" for node, n in layout.items() for i in range(n)]
    rng.shuffle(devices)
    contenders = []
    for number in range(int(rng.integers(2, 4 + (not spread)))):
        sizes = sorted({int(n) for n in rng.choice([1, 1, 2, 3, 4], size=rng.integers(1, 4))})
        work = rng.uniform(100, 3000)
        table = {n: float(work / n ** rng.uniform(-0.2, 1.0)) for n in sizes}
        wide = {(n, 2): seconds * 1.3 for n, seconds in table.items() if n > 1} if spread else {}
        held: tuple[str, ...] = ()
        packable = [d for d in devices if d.startswith("a")]
        if rng.random() < 0.5 and len(packable) >= sizes[0]:
            held = tuple(packable[: sizes[0]])
            devices = [d for d in devices if d not in held]
        contenders.append(
            job(
                f"j{number}",
                bid(table, spread=wide, restart=float(rng.uniform(0, 60))),
                number,
                account=f"u{rng.integers(0, 3)}",
                priority=float(rng.choice([1.0, 2.0])),
                age_seconds=float(rng.uniform(0, 2000)),
                fraction_done=float(rng.uniform(0, 0.9)),
                share=float(rng.uniform(0.3, 3)),
                at_stake=held,
                waiting_seconds=0.0 if held else float(rng.uniform(0, 500)),
                passed_over=0 if held else int(rng.integers(0, 3)),
            )
        )
    return market(contenders, layout)


def worth(c: Contender, held: frozenset[str], question: Market) -> float | None:
    """Seconds of the whole run, moves at 1.2 times their cost; None: it cannot run like that."""
    options, table = question.options, c.bid
    assert table is not None
    rows = {
        (row.placement.devices, row.placement.nodes): (row.remaining_seconds or 0.0, row.restart_seconds)
        for row in table.rows
    }
    if not held:
        remaining, restart = rows[min(rows)]
        return c.age_seconds + options.term_seconds + remaining + restart
    key = (len(held), len({device.split("/")[0] for device in held}))
    if key not in rows:
        return None
    moves = held != frozenset(c.at_stake)
    return c.age_seconds + rows[key][0] + (options.move_gain * rows[key][1] if moves else 0.0)


def entitled(c: Contender, question: Market) -> tuple[float, int]:
    """(seconds it must not exceed, devices they take); (inf, 0): it has no claim yet."""
    accounts = {o.account: o.account_weight for o in question.contenders}
    priorities = sum(o.priority for o in question.contenders if o.account == c.account)
    owed = question.total_devices * c.account_weight / sum(accounts.values()) * c.priority / priorities
    limit, smallest = math.floor(owed + 1e-9), c.allowed_devices[0]
    if limit < smallest:
        due = c.passed_over * owed >= smallest - 1e-9 or (smallest > 1 and c.passed_over >= 1)
        if c.at_stake or not due:
            return math.inf, 0
        limit = smallest
    devices = [seat.device for seat in question.seats]
    found = [
        (seconds, n)
        for n in c.allowed_devices
        if n <= limit
        for chosen in itertools.combinations(devices, n)
        if (seconds := worth(c, frozenset(chosen), question)) is not None
    ]
    return min(found, default=(math.inf, 0))


def weight(c: Contender, question: Market) -> float:
    accounts = {o.account: o.account_weight for o in question.contenders}
    priorities = sum(o.priority for o in question.contenders if o.account == c.account)
    part = c.account_weight / sum(accounts.values()) * c.priority / priorities
    return part * len(question.contenders)


def score(
    sets: Sets, question: Market, claims: dict[str, tuple[float, int]], only: set[str] | None = None
) -> tuple[float, float] | None:
    """(entitlements kept, log of the product of values): compared in this order."""
    kept = logs = 0.0
    for c in question.contenders:
        if only is not None and c.job not in only:
            continue
        seconds = worth(c, sets[c.job], question)
        if seconds is None:
            return None
        most, need = claims[c.job]
        if need and seconds <= most:
            kept += need * (1 + c.passed_over)
        logs -= weight(c, question) * math.log(seconds)
    return kept, logs


def best_score(question: Market, only: set[str] | None = None) -> tuple[float, float]:
    """Every way to give each device to one job or to none."""
    names = [c.job for c in question.contenders if only is None or c.job in only]
    devices = [seat.device for seat in question.seats]
    best, claims = (-1.0, -math.inf), claims_of(question)
    for owners in itertools.product([None, *names], repeat=len(devices)):
        sets = {
            name: frozenset(d for d, o in zip(devices, owners, strict=True) if o == name) for name in names
        }
        found = score(sets, question, claims, only)
        if found is not None and found > best:
            best = found
    return best


def claims_of(question: Market) -> dict[str, tuple[float, int]]:
    return {c.job: entitled(c, question) for c in question.contenders}


def sets_of(ruling: Ruling) -> Sets:
    return {name: frozenset(award.devices) for name, award in ruling.awards.items()}


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_no_assignment_of_devices_has_a_larger_product_of_values(seed: int, spread: bool) -> None:
    question = random_market(seed, spread=spread)
    ruling = rule(THEMIS, question)
    reached = score(sets_of(ruling), question, claims_of(question))
    assert reached is not None
    kept, logs = best_score(question)
    assert reached[0] == pytest.approx(kept)
    assert reached[1] == pytest.approx(logs, abs=1e-6)
    assert ruling.gap == 0.0


@pytest.mark.parametrize("seed", range(8))
def test_payments_are_those_of_solving_again_without_the_winner(seed: int) -> None:
    question = random_market(seed)
    ruling = rule(THEMIS, question)
    settled = dict(ruling.settle()) if ruling.settle is not None else {}
    everybody = {c.job for c in question.contenders}
    paid = 0
    for c in question.contenders:
        payment = settled.get(c.job, ruling.awards[c.job].payment)
        if not set(ruling.awards[c.job].devices):
            assert payment is None
            continue
        others = everybody - {c.job}
        with_it = score(sets_of(ruling), question, claims_of(question), others)
        assert with_it is not None
        harm = best_score(question, others)[1] - with_it[1]
        assert payment == pytest.approx(math.exp(-max(0.0, harm) / weight(c, question)), abs=1e-5)
        paid += 1
    assert paid


@pytest.mark.parametrize("seed", range(20))
def test_the_order_of_the_contenders_does_not_matter(seed: int) -> None:
    question = random_market(seed, spread=seed % 2 == 0)
    turned = replace(question, contenders=question.contenders[::-1], seats=question.seats[::-1])
    assert rule(THEMIS, question).awards == rule(THEMIS, turned).awards


def settled(question: Market, ruling: Ruling, number: int = 2) -> Market:
    """The market after the ruling has come true: nobody has moved since, rows cost from there."""
    after = []
    for c in question.contenders:
        assert c.bid is not None
        got = ruling.awards[c.job].devices
        rows = tuple(
            row.model_copy(update={"restart_seconds": 0.0})
            if row.placement.devices == len(got) and set(got) == {*c.kept, *c.at_stake}
            else row
            for row in c.bid.rows
        )
        after.append(
            replace(c, at_stake=got, kept=(), bid=c.bid.model_copy(update={"rows": rows}), passed_over=0)
        )
    held = {device: c.job for c in after for device in c.at_stake}
    seats = tuple(replace(seat, holder=held.get(seat.device)) for seat in question.seats)
    return replace(question, contenders=tuple(after), seats=seats, number=number)


@pytest.mark.parametrize("seed", range(30))
def test_an_unchanged_market_moves_nobody(seed: int) -> None:
    """T18: what was best stays best, since only the moves to it have been paid."""
    question = settled(
        random_market(seed, spread=seed % 2 == 0), rule(THEMIS, random_market(seed, spread=seed % 2 == 0))
    )
    first = rule(THEMIS, question)
    again = rule(THEMIS, settled(question, first, number=3))
    assert sets_of(again) == sets_of(first)


@pytest.mark.parametrize("seed", range(30))
def test_no_device_idles_that_somebody_would_gain_from(seed: int) -> None:
    question = random_market(seed)
    ruling = rule(THEMIS, question)
    given = sets_of(ruling)
    idle = {seat.device for seat in question.seats} - set().union(*given.values())
    for c in question.contenders:
        now = worth(c, given[c.job], question)
        assert now is not None
        for n in c.allowed_devices:
            extra = n - len(given[c.job])
            if 0 < extra <= len(idle):
                then = worth(c, given[c.job] | frozenset(sorted(idle)[:extra]), question)
                assert then is not None
                assert then >= now - 1e-6


@pytest.mark.parametrize("seed", range(15))
def test_more_weight_never_makes_a_job_worse_off(seed: int) -> None:
    question = random_market(seed)
    seconds = []
    for factor in (1.0, 1.7, 4.0):
        first = question.contenders[0]
        heavier = tuple(
            replace(c, account="first", account_weight=factor) if c.job == first.job else c
            for c in question.contenders
        )
        changed = replace(question, contenders=heavier)
        got = sets_of(rule(THEMIS, changed))[first.job]
        seconds.append(worth(heavier[0], got, changed))
    assert seconds == sorted(seconds, key=lambda s: -(s or 0.0))


def test_splitting_a_job_in_ten_gains_nothing() -> None:
    """An account's part of the weight is divided among its jobs."""
    table = {1: 1000, 2: 500, 3: 340, 4: 260}
    one = [job("a", bid(table), 1), job("b", bid(table), 2)]
    ten = [job(f"a{i}", bid({1: 1000}), i, account="a", share=0.2) for i in range(10)]
    assert counts(rule(THEMIS, market(one, 4))) == {"a": 2, "b": 2}
    split = counts(rule(THEMIS, market([*ten, job("b", bid(table), 11, share=2.0)], 4)))
    assert split["b"] >= 2


def test_a_quota_holds_for_all_jobs_of_an_account_together() -> None:
    table = {1: 1000, 2: 400, 3: 200}
    jobs = [job(f"a{i}", bid(table), i, account="a", quota_left=3) for i in range(3)]
    ruling = rule(THEMIS, market(jobs, 8))
    assert sum(counts(ruling).values()) == 3


def test_who_wants_very_devices_gets_these_or_nothing() -> None:
    picky = job("picky", bid({2: 100}), 1, wanted_devices=("n/1", "n/3"))
    other = job("other", bid({1: 500, 2: 250}), 2)
    ruling = rule(THEMIS, market([picky, other], 4))
    assert ruling.awards["picky"].devices == ("n/1", "n/3")
    assert ruling.awards["other"].devices == ("n/0", "n/2")
    same = job("same", bid({2: 100}), 3, wanted_devices=("n/1", "n/2"))
    both = rule(THEMIS, market([picky, same], 4))
    assert sorted(counts(both).values()) == [0, 2]


def test_what_cannot_be_resized_keeps_its_size_or_stops() -> None:
    rigid = job("rigid", bid({1: 900, 2: 500, 4: 300}), 1, resume=Resume.SAME_SIZE, at_stake=("n/0", "n/1"))
    for rival in ({1: 100}, {4: 10_000}):
        got = counts(rule(THEMIS, market([rigid, job("rival", bid(rival), 2)], 4)))["rigid"]
        assert got in (0, 2)


def test_a_model_is_only_given_to_whose_row_names_it() -> None:
    fast = bid({1: 100}, model="v100")
    ruling = rule(
        THEMIS,
        market(
            [job("a", fast, 1), job("b", bid({1: 100}), 2)],
            {"x": 1, "y": 1},
            models={"x": "k80", "y": "v100"},
        ),
    )
    assert ruling.awards["a"].devices == ("y/0",)
    assert ruling.awards["b"].devices == ("x/0",)


def test_only_the_worst_are_considered_and_the_others_get_what_is_left() -> None:
    old = [job(f"o{i:02}", bid({1: 1000}), i, age_seconds=5000, fraction_done=0.5) for i in range(10)]
    new = [job(f"n{i:02}", bid({1: 1000}), 10 + i, age_seconds=10, share=0.5) for i in range(10)]
    ruling = rule(THEMIS, market([*new, *old], 12))
    assert {name for name, award in ruling.awards.items() if award.considered} == {c.job for c in old}
    assert all(len(ruling.awards[c.job].devices) == 1 for c in old)
    assert sum(len(ruling.awards[c.job].devices) for c in new) == 2
    assert all(ruling.awards[c.job].payment is None for c in new)


def test_packed_beats_spread_and_the_tightest_node_is_taken() -> None:
    table = bid({2: 100}, spread={(2, 2): 150})
    ruling = rule(THEMIS, market([job("a", table, 1)], {"big": 4, "small": 2}))
    assert ruling.awards["a"].devices == ("small/0", "small/1")
    spread = rule(THEMIS, market([job("a", table, 1)], {"x": 1, "y": 1}))
    assert spread.awards["a"].devices == ("x/0", "y/0")
    packed_only = rule(THEMIS, market([job("a", bid({2: 100}), 1)], {"x": 1, "y": 1}))
    assert packed_only.awards["a"].devices == ()


def test_the_devices_it_had_last_are_preferred() -> None:
    ruling = rule(THEMIS, market([job("a", bid({1: 100}), 1, last_devices=("y/1",))], {"x": 2, "y": 2}))
    assert ruling.awards["a"].devices == ("y/1",)


def test_equal_claims_go_to_who_has_waited_longer_then_by_the_hash_of_the_auction() -> None:
    def contest(number: int, waited: float) -> set[str]:
        twins = [
            job("a", bid({1: 500}), 1, waiting_seconds=0.0),
            job("b", bid({1: 500}), 2, waiting_seconds=waited),
        ]
        ruling = rule(THEMIS, market(twins, 1, number=number))
        return {name for name, award in ruling.awards.items() if award.devices}

    assert all(contest(number, 10.0) == {"b"} for number in range(5))
    assert set().union(*(contest(number, 0.0) for number in range(12))) == {"a", "b"}
