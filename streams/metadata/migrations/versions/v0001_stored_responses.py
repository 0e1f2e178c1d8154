"""Stored responses."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_TABLE = "stored_responses"


def upgrade() -> None:
    op.create_table(
        _TABLE,
        sa.Column("response_id", sa.Text, nullable=False),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("previous_response_id", sa.Text),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger, nullable=False),
        sa.Column("look_at_ms", sa.BigInteger),
        sa.Column("deleted_at_ms", sa.BigInteger),
        sa.Column("input", sa.LargeBinary, nullable=False),
        sa.Column("told", sa.LargeBinary),
        sa.Column("carried_bytes", sa.BigInteger, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("response_id", name="pk_stored_responses"),
    )
    op.create_index("ix_stored_responses_expires_at_ms", _TABLE, ["expires_at_ms"])
    op.create_index("ix_stored_responses_look_at_ms", _TABLE, ["look_at_ms"])
    counted = ["tenant_id", "deleted_at_ms", "created_at_ms", "response_id", "size_bytes"]
    op.create_index("ix_stored_responses_tenant_id", _TABLE, counted)


def downgrade() -> None:
    op.drop_table(_TABLE)
