"""What settlement measures."""

from prometheus_client import Counter

SETTLEMENTS = Counter("sluice_settlements_total", "Usage events by what settling did.", ["result"])
SWEPT = Counter("sluice_settlement_swept_total", "Overdue reservations by what the sweeper did.", ["result"])
