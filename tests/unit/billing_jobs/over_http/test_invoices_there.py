"""Months are closed in a server. Deaths at each step are left to the embedded engine."""

from tests.unit.billing_jobs.invoices.test_closing import (  # noqa: F401
    test_a_month_is_closed_once_and_then_says_the_same_for_good,
    test_events_leave_once_each_is_on_an_invoice_and_invoices_are_made_again_without_them,
    test_of_two_that_close_at_once_one_counts_and_the_other_is_told,
    world,
)
