"""Run by Alembic, on the connection and in the transaction of `streams.metadata.schema`."""

from alembic import context

from streams.metadata.tables import METADATA

context.configure(connection=context.config.attributes["connection"], target_metadata=METADATA)
with context.begin_transaction():
    context.run_migrations()
