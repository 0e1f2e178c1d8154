"""The tables' versions: brought up by one command, checked by who uses them."""

from pathlib import Path
from typing import Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from streams.metadata.engine import WRITES, engine_of
from streams.metadata.unavailable import MetadataUnavailable
from streams.settings import MetadataSettings, SettingsError

MIGRATIONS: Final = Path(__file__).parent / "migrations"
MIGRATION_TIMEOUT_MS: Final = 600_000
_TIMEOUTS: Final = ("statement_timeout_ms", "busy_timeout_ms")
_LOCK: Final = 7_310_579_621
"""Of Postgres: one migration at a time. SQLite has but one writer anyway."""


def _config(connection: Connection | None = None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def migrate(settings: MetadataSettings, data_dir: Path) -> bool:
    """Brings the tables to this release, in one transaction. Whether there was something to do.

    Raises MetadataUnavailable, and SettingsError where the tables are of a later release.
    """
    patient = settings.model_copy(update=dict.fromkeys(_TIMEOUTS, MIGRATION_TIMEOUT_MS))
    engine = engine_of(patient, data_dir)
    try:
        with engine.connect() as connection:
            connection = connection.execution_options(**{WRITES: True})
            with connection.begin():
                if connection.dialect.name == "postgresql":
                    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
                if is_outdated := not _is_current(connection):
                    command.upgrade(_config(connection), "head")
                return is_outdated
    except DBAPIError as error:
        raise MetadataUnavailable(f"metadata: {str(error.orig)[:200]}") from None
    finally:
        engine.dispose()


def upgrade(connection: Connection, revision: str) -> None:
    """Brings tables up to a revision of this release's, `head` being its own, in the connection's transaction."""
    command.upgrade(_config(connection), revision)


def revision_of(connection: Connection) -> str | None:
    """Of the tables; None where there are none. Raises SettingsError where they are of a later release."""
    _is_current(connection)
    return MigrationContext.configure(connection).get_current_revision()


def is_known(revision: str) -> bool:
    """Whether this release has made, or can bring up, tables of that revision."""
    return revision in {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}


def is_head(revision: str) -> bool:
    return revision in ScriptDirectory.from_config(_config()).get_heads()


def check_schema(connection: Connection) -> None:
    """Raises SettingsError unless the tables are those of this release."""
    if not _is_current(connection):
        raise SettingsError("metadata: the database lacks tables of this release; make them with: sluice migrate")


def _is_current(connection: Connection) -> bool:
    """Whether the tables are those of this release. Raises SettingsError where they are of a later one."""
    found = set(MigrationContext.configure(connection).get_current_heads())
    scripts = ScriptDirectory.from_config(_config())
    if unknown := sorted(found - {script.revision for script in scripts.walk_revisions()}):
        raise SettingsError(f"metadata: the database is of a later release (schema {unknown[0]})")
    return found == set(scripts.get_heads())
