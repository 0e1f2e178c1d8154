"""What billing stored beside the oracle, which is made of what the producer wrote and imports no rule of billing
(`tests/history/bills.py`, `invoices.py`), and what naive ways to bill made of the same log. Pure.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from tests.billing_kills.stream import PRICES
from tests.history.bills import charge_of, of_bills, of_hours
from tests.history.invoices import Closing, Recorded, of_closings
from tests.history.log import Log, Logged
from tests.history.violation import Violation

PICO = 10**12


def difference(
    events: Iterable[Mapping[str, Any]], bills: Iterable[Mapping[str, Any]], hours: Iterable[Mapping[str, Any]],
    closings: Mapping[str, Sequence[Closing]], ledgers: Mapping[str, Iterable[Mapping[str, Any]]],
    recorded: Mapping[str, Sequence[Recorded]],
) -> dict[str, list[Violation]]:  # fmt: skip
    """By what was compared. `events`: each that was written, once. `closings` and `ledgers` by tenant; `recorded`: by
    the operator since the last of them.
    """
    log = Log()
    for number, event in enumerate(events):
        log.take(Logged("usage", 0, number, 0, event))
    found: dict[str, list[Violation]] = {
        "raw": [*of_bills(log, bills, PRICES)], "hours": [*of_hours(log, hours, PRICES)], "invoices": [], "ledger": [],
    }  # fmt: skip
    for tenant, closed in closings.items():
        for violation in of_closings(closed, ledgers[tenant], PRICES, recorded[tenant]):
            found["ledger" if violation.about.endswith("/ledger") else "invoices"].append(violation)
    return found


@dataclass(frozen=True)
class NaiveError:
    """Of records of the log, by their places: how many have no row, and rows beyond the first of one. What that is
    worth, by currency; and what is charged for records that were written again, which a table without identities
    cannot tell.
    """

    lost_records: int
    doubled_records: int
    lost: Mapping[str, Decimal]
    doubled: Mapping[str, Decimal]
    charged_for_repeats: Mapping[str, Decimal]

    def told(self) -> dict[str, Any]:
        return {
            "lost_records": self.lost_records, "doubled_records": self.doubled_records,
            **{
                name: {currency: str(amount) for currency, amount in sorted(getattr(self, name).items())}
                for name in ("lost", "doubled", "charged_for_repeats")
            },
        }  # fmt: skip


def errors_of(log: Mapping[tuple[int, int], Mapping[str, Any]], stored: Iterable[tuple[int, int]]) -> NaiveError:
    rows = Counter(stored)
    lost: Counter[str] = Counter()
    doubled: Counter[str] = Counter()
    repeats: Counter[str] = Counter()
    seen: set[str] = set()
    for place, value in log.items():
        if value["type"] != "usage":
            continue
        currency = PRICES.get(value["model"], {}).get("currency", "")
        pico = charge_of(value, PRICES)[1]
        if not rows[place]:
            lost[currency] += pico
        doubled[currency] += pico * max(0, rows[place] - 1)
        if value["usage_id"] in seen:
            repeats[currency] += pico * min(1, rows[place])
        seen.add(value["usage_id"])
    return NaiveError(
        sum(not rows[place] for place in log), sum(count - 1 for count in rows.values()),
        _units(lost), _units(doubled), _units(repeats),
    )  # fmt: skip


def _units(pico: Mapping[str, int]) -> dict[str, Decimal]:
    return {currency: Decimal(amount) / PICO for currency, amount in pico.items() if currency}
