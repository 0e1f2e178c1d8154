"""Conversations, and which stored responses are their turns."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_TABLE = "conversations"
_TURNS = "stored_responses"
_TURN_INDEX = "ix_stored_responses_conversation_id"


def upgrade() -> None:
    op.create_table(
        _TABLE,
        sa.Column("conversation_id", sa.Text, nullable=False),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("updated_at_ms", sa.BigInteger, nullable=False),
        sa.Column("turns", sa.BigInteger, nullable=False),
        sa.Column("deleted_at_ms", sa.BigInteger),
        sa.Column("expires_at_ms", sa.BigInteger),
        sa.Column("opening", sa.LargeBinary, nullable=False),
        sa.Column("size_bytes", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("conversation_id", name="pk_conversations"),
    )
    op.create_index("ix_conversations_expires_at_ms", _TABLE, ["expires_at_ms"])
    counted = ["tenant_id", "deleted_at_ms", "updated_at_ms", "conversation_id", "size_bytes"]
    op.create_index("ix_conversations_tenant_id", _TABLE, counted)
    listed = ["tenant_id", "owner", "deleted_at_ms", "updated_at_ms", "conversation_id"]
    op.create_index("ix_conversations_owner", _TABLE, listed)
    op.add_column(_TURNS, sa.Column("conversation_id", sa.Text))
    op.add_column(_TURNS, sa.Column("turn", sa.BigInteger))
    op.add_column(_TURNS, sa.Column("tokens", sa.BigInteger))
    of_one = sa.text("conversation_id IS NOT NULL")
    op.create_index(
        _TURN_INDEX, _TURNS, ["conversation_id", "turn", "deleted_at_ms", "response_id", "tokens"],
        sqlite_where=of_one, postgresql_where=of_one,
    )  # fmt: skip


def downgrade() -> None:
    op.drop_index(_TURN_INDEX, _TURNS)
    for column in ("tokens", "turn", "conversation_id"):
        op.drop_column(_TURNS, column)
    op.drop_table(_TABLE)
