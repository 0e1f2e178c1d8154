"""What stands in a server is compared with the log."""

from tests.unit.billing_jobs.reconciliation.test_reconcile import (  # noqa: F401
    test_a_bill_that_was_lost_one_that_was_invented_and_one_that_differs_are_each_named,
    test_an_hour_that_is_not_the_sum_of_its_events_is_found,
    test_what_was_billed_as_it_stands_in_the_log_is_equal_whatever_it_is,
    world,
)
