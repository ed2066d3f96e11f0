"""The first books: every durable record, one live holding and one open claim per device."""

import sqlalchemy as sa
from alembic import op

revision = "0001_first_books"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "broker",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("incarnation", sa.Integer, nullable=False),
        sa.Column("next_fence", sa.Integer, nullable=False),
        sa.Column("clock", sa.Float, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.CheckConstraint("id = 1", name="one_broker"),
    )
    op.create_table(
        "accounts",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "tokens",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("account", sa.Text, sa.ForeignKey("accounts.key"), nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "devices",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("node", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "jobs",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("number", sa.Integer, nullable=False, unique=True),
        sa.Column("account", sa.Text, sa.ForeignKey("accounts.key"), nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("ended_at", sa.Float),
        sa.Column("body", sa.Text, nullable=False),
        sa.CheckConstraint(
            "state in ('waiting', 'starting', 'running', 'yielding', 'paused', 'ended')", name="job_state"
        ),
        sa.CheckConstraint("(state = 'ended') = (ended_at is not null)", name="job_ended_at"),
    )
    op.create_table(
        "leases",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("job", sa.Text, sa.ForeignKey("jobs.key"), nullable=False),
        sa.Column("fence", sa.Integer, nullable=False, unique=True),
        sa.Column("ended_at", sa.Float),
        sa.Column("body", sa.Text, nullable=False),
        sa.CheckConstraint("fence > 0", name="lease_fence"),
    )
    _create_rights()
    _create_history()


def _create_rights() -> None:
    op.create_table(
        "holdings",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("lease", sa.Text, sa.ForeignKey("leases.key"), nullable=False),
        sa.Column("device", sa.Text, sa.ForeignKey("devices.key"), nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.CheckConstraint("state in ('held', 'yielding', 'quarantined', 'ended')", name="holding_state"),
    )
    live = sa.text("state in ('held', 'yielding', 'quarantined')")
    op.create_index(
        "one_live_holding", "holdings", ["device"], unique=True, sqlite_where=live, postgresql_where=live
    )
    op.create_table(
        "claims",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("auction", sa.Integer, nullable=False),
        sa.Column("job", sa.Text, sa.ForeignKey("jobs.key"), nullable=False),
        sa.Column("device", sa.Text, sa.ForeignKey("devices.key"), nullable=False),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
        sa.CheckConstraint("state in ('open', 'granted', 'dead')", name="claim_state"),
    )
    still_open = sa.text("state = 'open'")
    op.create_index(
        "one_open_claim",
        "claims",
        ["device"],
        unique=True,
        sqlite_where=still_open,
        postgresql_where=still_open,
    )


def _create_history() -> None:
    op.create_table(
        "auctions",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("number", sa.Integer, nullable=False, unique=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "answers",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("account", sa.Text, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "audits",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("number", sa.Integer, nullable=False, unique=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("account", sa.Text),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )


def downgrade() -> None:
    raise NotImplementedError("books are never taken back: restore the backup made before migrating")
