"""What settlement measures."""

from prometheus_client import Counter

SETTLEMENTS = Counter("sluice_settlements_total", "Usage events by what settling did.", ["result"])
SWEPT = Counter("sluice_settlement_swept_total", "Overdue reservations by what the sweeper did.", ["result"])
UNPRICED = Counter(
    "sluice_settlement_unpriced_total", "Billable usage events without a known price: they count of no budget."
)
BUDGET_ALERTS = Counter("sluice_settlement_budget_alerts_total", "Thresholds of budgets that were told on `alerts`.")
BUDGET_CANCELS = Counter(
    "sluice_settlement_budget_cancels_total", "Responses cancelled because a budget has no room for them any more."
)
