"""Idempotency keys."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_TABLE = "idempotency_keys"


def upgrade() -> None:
    op.create_table(
        _TABLE,
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("idempotency_key", sa.Text, nullable=False),
        sa.Column("digest", sa.LargeBinary, nullable=False),
        sa.Column("response_id", sa.Text, nullable=False),
        sa.Column("began_at_ms", sa.BigInteger, nullable=False),
        sa.Column("tried_at_ms", sa.BigInteger, nullable=False),
        sa.Column("expires_at_ms", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "idempotency_key", name="pk_idempotency_keys"),
    )
    op.create_index("ix_idempotency_keys_expires_at_ms", _TABLE, ["expires_at_ms"])
    op.create_index("ix_idempotency_keys_tenant_id", _TABLE, ["tenant_id", "began_at_ms", "idempotency_key"])


def downgrade() -> None:
    op.drop_table(_TABLE)
