"""Hours are summed in a server. Histories by chance are left to the embedded engine."""

from tests.unit.billing_jobs.rollups.test_rollups import (  # noqa: F401
    store,
    test_a_late_event_and_a_price_that_came_later_are_in_the_hour_that_was_rolled_before,
    test_a_roller_that_stood_still_does_not_bring_back_what_it_knew,
    test_a_row_that_arrives_while_its_hour_is_summed_is_shown,
    test_sums_outlive_the_events_of_their_month_and_what_comes_later_stands_beside_them,
    world,
)
