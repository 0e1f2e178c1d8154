"""Prices, and what is told by them, in a server."""

from tests.unit.billing_jobs.test_price_tables import *  # noqa: F403
