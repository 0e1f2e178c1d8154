"""The steps of the tables' schema, as statements: files of `migrations/`, and views that are defined once for all."""

from importlib.resources import files

from billing_jobs.embedded import statements_of
from billing_jobs.invoices.views import invoice_views
from billing_jobs.rollups.views import usage_views

MIGRATIONS = {
    1: "1_tables.sql",
    2: "2_usage_precedence.sql",
    3: "3_price_differences.sql",
    4: "4_log_identity.sql",
    5: "5_repricing.sql",
    6: "6_price_changes.sql",
    7: "7_price_scopes.sql",
    8: "8_rollups.sql",
    9: "9_invoices.sql",
    10: "10_reconciliations.sql",
    11: "11_price_changes.sql",
    12: "12_forgotten.sql",
    14: "14_margins.sql",
    15: "15_forgotten_looks.sql",
}
"""Schema version → the statements that lead to it from the one before."""
_VIEWS = {8: usage_views, 9: invoice_views}
"""Schema version → views that are made with its step and each later one."""
SCHEMA_VERSION = max(MIGRATIONS)
STEPS = (0, *sorted(MIGRATIONS))
"""All that `schema_statements` knows, in their order."""


def schema_statements(version: int) -> list[str]:
    """Those that lead to it from the version before; those of 0 make the table of versions."""
    if version == 0:
        return [
            "CREATE TABLE IF NOT EXISTS schema_version (version UInt32, applied_at DateTime64(3, 'UTC') DEFAULT"
            " now64(3)) ENGINE = MergeTree ORDER BY version"
        ]
    text = (files("billing_jobs") / "migrations" / MIGRATIONS[version]).read_text()
    return statements_of("\n".join((text, *(made() for since, made in _VIEWS.items() if version >= since))))
