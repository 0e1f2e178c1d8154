"""The contract of stores, of one in a server."""

from tests.unit.billing_jobs.test_store import *  # noqa: F403

# Of the embedded engine alone.
del test_the_embedded_engine_removes_merged_parts_without_a_hundred_threads  # noqa: F821
