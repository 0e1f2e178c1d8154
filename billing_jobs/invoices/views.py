"""Invoices and the ledger as views, defined once for whoever asks."""

from importlib.resources import files

_OF_TENANTS = "(SELECT * FROM {tables}invoice_closings ORDER BY closed_at, closing_id LIMIT 1 BY tenant_id, number)"


def invoice_views() -> str:
    """The statements that make the operator's, over the view `counting_closings`."""
    return _views("CREATE OR REPLACE VIEW", "", "", "counting_closings", "actor, ")


def invoice_views_of_tenants(tables: str, views: str) -> str:
    """Those that make a tenant's, in memory. `tables` and `views` are prefixes: a database with its dot. Who closed a
    month or wrote an entry is not the tenant's to know.
    """
    return _views("CREATE VIEW", tables, views, _OF_TENANTS.format(tables=tables), "")


def _views(create: str, tables: str, views: str, closings: str, actor: str) -> str:
    return (files("billing_jobs.invoices") / "views.sql").read_text().format(
        create=create, tables=tables, views=views, closings=closings, actor=actor
    )  # fmt: skip
