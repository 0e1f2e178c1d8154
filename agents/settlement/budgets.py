"""What comes of a budget that is nearly spent, or spent: alerts, and what runs and does not fit any more. Pure.

An alert is of one month, account, threshold and amount: a budget that is changed warns anew. Its id follows from these,
so whoever meets it twice knows it.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from agents.quota.beside import Account, Held, Sums, decimal_of, nano_of_amount
from schemas.alert import BUDGET_THRESHOLD, Alert
from schemas.month import Month
from streams.directory import Budget


@dataclass(frozen=True, slots=True)
class Crossed:
    """`mark`: what the store notes once the alert stands on the log."""

    mark: str
    alert: Alert


def crossed(tenant_id: str, month: Month, budgets: Mapping[str, Budget], sums: Sums, now_ms: int) -> list[Crossed]:
    """The thresholds that are reached and were not told, by what is spent; what is held may still come back."""
    return [
        Crossed(mark, _alert(tenant_id, month, account, budget, threshold, sums.of(account), now_ms))
        for account, budget in budgets.items()
        for threshold in sorted({*budget.thresholds})
        if (spent := sums.of(account).spent)
        and spent * 100 >= nano_of_amount(budget.amount) * threshold
        and (mark := mark_of(account, budget, threshold)) not in sums.told
    ]


def mark_of(account: str, budget: Budget, threshold: int) -> str:
    return f"{account}/{threshold}/{nano_of_amount(budget.amount)}"


def _alert(
    tenant_id: str, month: Month, account: str, budget: Budget, threshold: int, stands: Account, now_ms: int
) -> Alert:
    of = "the tenant" if account == "tenant" else account.replace(":", " ", 1)
    effect = ""
    if threshold >= 100:
        effect = " What might exceed it is refused." if budget.hard else " Nothing is refused for it."
    return Alert.raised(
        BUDGET_THRESHOLD,
        f"{month} {mark_of(account, budget, threshold)}"[:200],
        "critical" if threshold >= 100 and budget.hard else "warning",
        f"{threshold} % of the budget of {of[:260]} for {month} are spent.{effect}",
        since_ms=month.start_ms,
        told_at_ms=now_ms,
        tenant_id=tenant_id,
        figures={
            "account": account[:200], "month": str(month), "currency": budget.currency, "threshold_percent": threshold,
            "budget": str(budget.amount), "spent": decimal_of(stands.spent), "held": decimal_of(stands.held),
            "hard": "yes" if budget.hard else "no",
        },
    )  # fmt: skip


def too_much(
    month: Month, budgets: Mapping[str, Budget], sums: Sums, holds: Mapping[str, Held], cancelled: Collection[str]
) -> list[str]:
    """Responses to be cancelled, the newest first, until what is spent and held fits into every hard budget.

    What is `cancelled` already counts as gone.
    """
    gone = {id_: held for id_, held in holds.items() if id_ in cancelled}
    ending: dict[str, Held] = {}
    for account, budget in budgets.items():
        if not budget.hard:
            continue
        stands = sums.of(account)
        over = stands.spent + stands.held - nano_of_amount(budget.amount)
        over -= sum(held.nano for held in (*gone.values(), *ending.values()) if _is_of(held, month, budget, account))
        of_account = (
            id_ for id_, held in holds.items()
            if id_ not in gone and id_ not in ending and _is_of(held, month, budget, account)
        )  # fmt: skip
        for id_ in sorted(of_account, key=lambda id_: (holds[id_].accepted_at_ms, id_), reverse=True):
            if over <= 0:
                break
            ending[id_] = holds[id_]
            over -= holds[id_].nano
    return list(ending)


def _is_of(held: Held, month: Month, budget: Budget, account: str) -> bool:
    return held.month == str(month) and held.currency == budget.currency and account in held.accounts
