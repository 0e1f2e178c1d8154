"""What a usage event counts of budgets: what billing charges for it, by the same rules and prices."""

from agents.quota.beside import Spent, nano_of_line
from schemas.month import Month
from schemas.usage import UsageEvent
from streams.pricing import PriceBook, charge


def spent_of(event: UsageEvent, book: PriceBook, partition: int, offset: int, log_id: str = "") -> Spent | None:
    """`partition`, `offset`, `log_id`: where `usage` tells it. None: nothing is charged, or no price is known
    (`is_unpriced`).
    """
    charged = charge(event, book)
    if charged.state != "priced" or not charged.cost_pico:
        return None
    return Spent(
        Month.at(event.accepted_at_ms), charged.currency, nano_of_line(charged.cost_pico), event.scope.project_id,
        event.scope.key_id, partition, offset, log_id,
    )  # fmt: skip


def is_unpriced(event: UsageEvent, book: PriceBook) -> bool:
    """Billing charges it when its price appears; until then it counts of no budget."""
    return charge(event, book).state == "suspense"
