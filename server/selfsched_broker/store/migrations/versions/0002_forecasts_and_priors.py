"""Past forecasts with what came, what jobs said of their steps, and the priors learned from it."""

import sqlalchemy as sa
from alembic import op

revision = "0002_forecasts_and_priors"
down_revision = "0001_first_books"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "forecasts",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("job", sa.Text, sa.ForeignKey("jobs.key"), nullable=False),
        sa.Column("account", sa.Text, sa.ForeignKey("accounts.key"), nullable=False),
        sa.Column("made_at", sa.Float, nullable=False),
        sa.Column("actual_seconds", sa.Float),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "evidence",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("account", sa.Text, sa.ForeignKey("accounts.key"), nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )
    op.create_table(
        "priors",
        sa.Column("key", sa.Text, primary_key=True),
        sa.Column("hardware", sa.Text, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("body", sa.Text, nullable=False),
    )


def downgrade() -> None:
    raise NotImplementedError("books are never taken back: restore the backup made before migrating")
