"""The tables, as this release knows them; `migrations/` made them so."""

from sqlalchemy import BigInteger, Column, Index, LargeBinary, MetaData, Table, Text, text

METADATA = MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_name)s", "pk": "pk_%(table_name)s"},
)

STORED_RESPONSES = Table(
    "stored_responses",
    METADATA,
    Column("response_id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("previous_response_id", Text),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("expires_at_ms", BigInteger, nullable=False),
    Column("look_at_ms", BigInteger),  # when to look for its end, while nobody has written what it told
    Column("deleted_at_ms", BigInteger),  # its content is gone; the row says so to who would replay it
    Column("input", LargeBinary, nullable=False),  # JSON of the messages that its client sent in this turn
    Column("told", LargeBinary),  # all of it, as `stored/entries.py` has it
    Column("carried_bytes", BigInteger, nullable=False),  # what a later turn repeats of it
    Column("size_bytes", BigInteger, nullable=False),  # of input and told
    Column("conversation_id", Text),
    Column("turn", BigInteger),  # counts what was ever begun in its conversation
    Column("tokens", BigInteger),  # as they were used, of prompt and answer
    Index("ix_stored_responses_expires_at_ms", "expires_at_ms"),
    Index("ix_stored_responses_look_at_ms", "look_at_ms"),
    # What a tenant has is counted from it alone.
    Index("ix_stored_responses_tenant_id", "tenant_id", "deleted_at_ms", "created_at_ms", "response_id", "size_bytes"),
    # Which turn is the newest, and what all have used, is told from it alone.
    Index(
        "ix_stored_responses_conversation_id", "conversation_id", "turn", "deleted_at_ms", "response_id", "tokens",
        sqlite_where=text("conversation_id IS NOT NULL"), postgresql_where=text("conversation_id IS NOT NULL"),
    ),
)  # fmt: skip
"""One row for each: written by who accepts the request, completed once it has ended."""

CONVERSATIONS = Table(
    "conversations",
    METADATA,
    Column("conversation_id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("owner", Text, nullable=False),  # the pseudonym of an end user; empty: the tenant's own
    Column("title", Text, nullable=False),
    Column("metadata", Text, nullable=False),  # JSON
    Column("created_at_ms", BigInteger, nullable=False),
    Column("updated_at_ms", BigInteger, nullable=False),  # when its last turn began, or it was changed
    Column("turns", BigInteger, nullable=False),  # that were ever begun in it
    Column("deleted_at_ms", BigInteger),
    Column("expires_at_ms", BigInteger),  # of one that is deleted
    Column("opening", LargeBinary, nullable=False),  # JSON of the messages that it was created with
    Column("size_bytes", BigInteger, nullable=False),  # of opening, title and metadata
    Index("ix_conversations_expires_at_ms", "expires_at_ms"),
    # What a tenant has is counted from it alone.
    Index("ix_conversations_tenant_id", "tenant_id", "deleted_at_ms", "updated_at_ms", "conversation_id", "size_bytes"),
    Index("ix_conversations_owner", "tenant_id", "owner", "deleted_at_ms", "updated_at_ms", "conversation_id"),
)
"""One row for each; its turns are stored responses that name it."""

IDEMPOTENCY_KEYS = Table(
    "idempotency_keys",
    METADATA,
    Column("tenant_id", Text, primary_key=True),
    Column("idempotency_key", Text, primary_key=True),
    Column("digest", LargeBinary, nullable=False),  # of what was asked for with it
    Column("response_id", Text, nullable=False),
    Column("began_at_ms", BigInteger, nullable=False),  # when it was given that response id
    Column("tried_at_ms", BigInteger, nullable=False),  # when somebody last set out to write the request to the log
    Column("expires_at_ms", BigInteger, nullable=False),
    Index("ix_idempotency_keys_expires_at_ms", "expires_at_ms"),
    # What a tenant has is counted from it alone.
    Index("ix_idempotency_keys_tenant_id", "tenant_id", "began_at_ms", "idempotency_key"),
)
"""One row for each key: written before its request is on the log."""

FILES = Table(
    "files",
    METADATA,
    Column("file_id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("begun_at_ms", BigInteger, nullable=False),
    Column("created_at_ms", BigInteger),  # when it was there; until then nobody sees it
    Column("expires_at_ms", BigInteger),
    Column("gone_at_ms", BigInteger),  # nobody sees it any more; from then on its blob is deleted
    Column("purpose", Text, nullable=False, server_default=""),
    Column("filename", Text, nullable=False, server_default=""),
    Column("sha256", Text, nullable=False, server_default=""),
    Column("size_bytes", BigInteger, nullable=False, server_default="0"),
    # What a tenant has is counted and listed from it.
    Index("ix_files_tenant_id", "tenant_id", "gone_at_ms", "created_at_ms", "file_id", "size_bytes"),
    Index("ix_files_expires_at_ms", "expires_at_ms"),
    Index("ix_files_gone_at_ms", "gone_at_ms"),
    Index("ix_files_begun_at_ms", "created_at_ms", "begun_at_ms"),
)
"""One row for each: written before its blob is, dropped after that is deleted."""

BATCHES = Table(
    "batches",
    METADATA,
    Column("batch_id", Text, primary_key=True),
    Column("tenant_id", Text, nullable=False),
    Column("created_at_ms", BigInteger, nullable=False),
    Column("needs_file_id", Text),  # while it reads it
    Column("is_open", BigInteger, nullable=False),  # 1: somebody has to do something for it
    Column("ended_at_ms", BigInteger),
    Column("epoch", BigInteger, nullable=False),  # of its lease: who held an earlier one changes nothing
    Column("leased_until_ms", BigInteger, nullable=False),
    Column("batch", LargeBinary, nullable=False),  # JSON, as `batches/core.py` has it
    Column("progress", LargeBinary, nullable=False),  # the same
    Index("ix_batches_tenant_id", "tenant_id", "created_at_ms", "batch_id"),
    Index("ix_batches_is_open", "is_open", "tenant_id", "created_at_ms"),
    Index("ix_batches_needs_file_id", "needs_file_id"),
    Index("ix_batches_ended_at_ms", "ended_at_ms"),
)
"""One row for each, which one gateway at a time holds."""
