"""Invoices and the ledger beside them: what a tenant owes for a month, once, and explainable to the cent."""
