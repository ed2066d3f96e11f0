"""The tables, with the constraints that forbid what must never happen.

A row is a record: `body` holds all of it as JSON, the other columns repeat what constraints,
foreign keys and people's queries need. The two partial unique indexes are the promise of the
broker in the database's own words: a device has one live holding and one open claim.

`migrations/versions` makes exactly this; a test compares them.
"""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import (
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    text,
)

from selfsched_broker.core.books import (
    Account,
    Answer,
    Auction,
    Audit,
    Broker,
    Claim,
    Device,
    Holding,
    Job,
    JobEvidence,
    LearnedPrior,
    Lease,
    PastForecast,
    Record,
    Token,
)

metadata = MetaData()


def _body() -> Column[str]:
    return Column("body", Text, nullable=False)


broker = Table(
    "broker",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("incarnation", Integer, nullable=False),
    Column("next_fence", Integer, nullable=False),
    Column("clock", Float, nullable=False),
    _body(),
    CheckConstraint("id = 1", name="one_broker"),
)
accounts = Table("accounts", metadata, Column("key", Text, primary_key=True), _body())
tokens = Table(
    "tokens",
    metadata,
    Column("key", Text, primary_key=True),
    Column("account", Text, ForeignKey("accounts.key"), nullable=False),
    _body(),
)
devices = Table(
    "devices", metadata, Column("key", Text, primary_key=True), Column("node", Text, nullable=False), _body()
)
jobs = Table(
    "jobs",
    metadata,
    Column("key", Text, primary_key=True),
    Column("number", Integer, nullable=False, unique=True),
    Column("account", Text, ForeignKey("accounts.key"), nullable=False),
    Column("state", Text, nullable=False),
    Column("ended_at", Float),
    _body(),
    CheckConstraint(
        "state in ('waiting', 'starting', 'running', 'yielding', 'paused', 'ended')", name="job_state"
    ),
    CheckConstraint("(state = 'ended') = (ended_at is not null)", name="job_ended_at"),
)
leases = Table(
    "leases",
    metadata,
    Column("key", Text, primary_key=True),
    Column("job", Text, ForeignKey("jobs.key"), nullable=False),
    Column("fence", Integer, nullable=False, unique=True),
    Column("ended_at", Float),
    _body(),
    CheckConstraint("fence > 0", name="lease_fence"),
)
holdings = Table(
    "holdings",
    metadata,
    Column("key", Text, primary_key=True),
    Column("lease", Text, ForeignKey("leases.key"), nullable=False),
    Column("device", Text, ForeignKey("devices.key"), nullable=False),
    Column("state", Text, nullable=False),
    _body(),
    CheckConstraint("state in ('held', 'yielding', 'quarantined', 'ended')", name="holding_state"),
)
Index(
    "one_live_holding",
    holdings.c.device,
    unique=True,
    sqlite_where=text("state in ('held', 'yielding', 'quarantined')"),
    postgresql_where=text("state in ('held', 'yielding', 'quarantined')"),
)
claims = Table(
    "claims",
    metadata,
    Column("key", Text, primary_key=True),
    Column("auction", Integer, nullable=False),
    Column("job", Text, ForeignKey("jobs.key"), nullable=False),
    Column("device", Text, ForeignKey("devices.key"), nullable=False),
    Column("state", Text, nullable=False),
    _body(),
    CheckConstraint("state in ('open', 'granted', 'dead')", name="claim_state"),
)
Index(
    "one_open_claim",
    claims.c.device,
    unique=True,
    sqlite_where=text("state = 'open'"),
    postgresql_where=text("state = 'open'"),
)
auctions = Table(
    "auctions",
    metadata,
    Column("key", Text, primary_key=True),
    Column("number", Integer, nullable=False, unique=True),
    Column("at", Float, nullable=False),
    _body(),
)
answers = Table(
    "answers",
    metadata,
    Column("key", Text, primary_key=True),
    Column("account", Text, nullable=False),
    Column("at", Float, nullable=False),
    _body(),
)
audits = Table(
    "audits",
    metadata,
    Column("key", Text, primary_key=True),
    Column("number", Integer, nullable=False, unique=True),
    Column("at", Float, nullable=False),
    Column("account", Text),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    _body(),
)

forecasts = Table(
    "forecasts",
    metadata,
    Column("key", Text, primary_key=True),
    Column("job", Text, ForeignKey("jobs.key"), nullable=False),
    Column("account", Text, ForeignKey("accounts.key"), nullable=False),
    Column("made_at", Float, nullable=False),
    Column("actual_seconds", Float),
    _body(),
)
evidence = Table(
    "evidence",
    metadata,
    Column("key", Text, primary_key=True),
    Column("account", Text, ForeignKey("accounts.key"), nullable=False),
    Column("at", Float, nullable=False),
    _body(),
)
priors = Table(
    "priors",
    metadata,
    Column("key", Text, primary_key=True),
    Column("hardware", Text, nullable=False),
    Column("at", Float, nullable=False),
    _body(),
)

TABLE_OF: dict[type[Record], Table] = {
    Account: accounts,
    Token: tokens,
    Device: devices,
    Job: jobs,
    Lease: leases,
    Holding: holdings,
    Claim: claims,
    Auction: auctions,
    Answer: answers,
    Audit: audits,
    PastForecast: forecasts,
    JobEvidence: evidence,
    LearnedPrior: priors,
}
"""In the order in which rows must be written so that their references stand."""


def _adapter(kind: type[Record]) -> TypeAdapter[Any]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


_ADAPTERS: dict[type[Record], TypeAdapter[Any]] = {}
"""Made on first use: nothing is built at import."""


def to_row(record: Record) -> dict[str, object]:
    """A record as the columns of its table."""
    body = _adapter(type(record)).dump_json(record).decode()
    if isinstance(record, Broker):
        columns: dict[str, object] = {
            "id": 1,
            "incarnation": record.incarnation,
            "next_fence": record.next_fence,
            "clock": record.clock,
        }
        return columns | {"body": body}
    table = TABLE_OF[type(record)]
    names = [column.name for column in table.columns if column.name not in ("key", "body")]
    return {"key": record.key, "body": body} | {name: getattr(record, name) for name in names}


def from_body(kind: type[Record], body: str) -> Record:
    """The record of a row.

    Raises:
        ValueError: the body is not what this release writes.
    """
    record: Record = _adapter(kind).validate_json(body)
    return record
