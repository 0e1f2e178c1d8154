"""Files and batches."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "files",
        sa.Column("file_id", sa.Text, nullable=False),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("begun_at_ms", sa.BigInteger, nullable=False),
        sa.Column("created_at_ms", sa.BigInteger),
        sa.Column("expires_at_ms", sa.BigInteger),
        sa.Column("gone_at_ms", sa.BigInteger),
        sa.Column("purpose", sa.Text, nullable=False, server_default=""),
        sa.Column("filename", sa.Text, nullable=False, server_default=""),
        sa.Column("sha256", sa.Text, nullable=False, server_default=""),
        sa.Column("size_bytes", sa.BigInteger, nullable=False, server_default="0"),
        sa.PrimaryKeyConstraint("file_id", name="pk_files"),
    )
    op.create_index(
        "ix_files_tenant_id", "files", ["tenant_id", "gone_at_ms", "created_at_ms", "file_id", "size_bytes"]
    )
    op.create_index("ix_files_expires_at_ms", "files", ["expires_at_ms"])
    op.create_index("ix_files_gone_at_ms", "files", ["gone_at_ms"])
    op.create_index("ix_files_begun_at_ms", "files", ["created_at_ms", "begun_at_ms"])
    op.create_table(
        "batches",
        sa.Column("batch_id", sa.Text, nullable=False),
        sa.Column("tenant_id", sa.Text, nullable=False),
        sa.Column("created_at_ms", sa.BigInteger, nullable=False),
        sa.Column("needs_file_id", sa.Text),
        sa.Column("is_open", sa.BigInteger, nullable=False),
        sa.Column("ended_at_ms", sa.BigInteger),
        sa.Column("epoch", sa.BigInteger, nullable=False),
        sa.Column("leased_until_ms", sa.BigInteger, nullable=False),
        sa.Column("batch", sa.LargeBinary, nullable=False),
        sa.Column("progress", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("batch_id", name="pk_batches"),
    )
    op.create_index("ix_batches_tenant_id", "batches", ["tenant_id", "created_at_ms", "batch_id"])
    op.create_index("ix_batches_is_open", "batches", ["is_open", "tenant_id", "created_at_ms"])
    op.create_index("ix_batches_needs_file_id", "batches", ["needs_file_id"])
    op.create_index("ix_batches_ended_at_ms", "batches", ["ended_at_ms"])


def downgrade() -> None:
    op.drop_table("batches")
    op.drop_table("files")
