"""Invoices and the ledger as views, defined once for whoever asks."""

from importlib.resources import files

CLOSING_OF_TENANTS = (
    "closing_id", "tenant_id", "number", "month", "closed_at", "finalized_through", "entry_ids", "documents", "sha256",
)  # fmt: skip
ENTRY_OF_TENANTS = (
    "entry_id", "closing_id", "tenant_id", "month", "kind", "amount_pico", "currency", "reason", "recorded_at",
)  # fmt: skip
"""Columns of the tables that a tenant's views are made of. Who did it is not among them."""
_OF_TENANTS = (
    "(SELECT {columns} FROM {tables}invoice_closings ORDER BY closed_at, closing_id LIMIT 1 BY tenant_id, number)"
)


def invoice_views() -> str:
    """The statements that make the operator's, over the view `counting_closings`."""
    return _views("CREATE OR REPLACE VIEW", "", "", "counting_closings", "*", "actor, ")


def invoice_views_of_tenants(tables: str, views: str, create: str) -> str:
    """Those that make a tenant's. `tables` and `views` are prefixes: a database with its dot. Who closed a month or
    wrote an entry is not the tenant's to know.
    """
    closings = _OF_TENANTS.format(columns=", ".join(CLOSING_OF_TENANTS), tables=tables)
    return _views(create, tables, views, closings, ", ".join(ENTRY_OF_TENANTS), "")


def _views(create: str, tables: str, views: str, closings: str, entry: str, actor: str) -> str:
    return (files("billing_jobs.invoices") / "views.sql").read_text().format(
        create=create, tables=tables, views=views, closings=closings, entry=entry, actor=actor
    )  # fmt: skip
