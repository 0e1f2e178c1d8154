"""`sluice budgets`: what tenants may spend in a month, and how much of it is spent and held."""

import asyncio
import json
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.table import Table

from agents.quota.beside import budgets_of, decimal_of, nano_of_amount
from agents.quota.port import QuotaUnavailable
from agents.quota.store import RedisQuota
from deploy.cli.app import CommandError, DataOption, JsonOption, app, err, out, running, settings_of
from deploy.paths import DEFAULT_DATA
from schemas.month import Month
from streams.clocks import now_ms
from streams.directory import Tenant
from streams.redis_client import connect_quota
from streams.settings import Settings
from streams.toml_directory import read_tenants

KEPT_MS = 40 * 86_400_000
"""`MONEY_KEPT_MS` of the quota store's scripts."""

MonthOption = Annotated[
    str, typer.Option("--month", help="As 2026-11, by UTC, not more than 40 days back; without it, the running one.")
]


@dataclass(frozen=True, slots=True)
class Row:
    """One budget. Amounts are decimals of its currency."""

    tenant: str
    account: str
    month: str
    currency: str
    budget: str
    hard: bool
    spent: str
    held: str
    left: str
    """Negative where more is spent, or held, than it is by now."""
    percent: int


async def _rows(quota: RedisQuota, tenants: list[Tenant], month: str) -> list[Row]:
    rows = []
    for tenant in tenants:
        for account, budget in budgets_of(tenant).items():
            stands = (await quota.sums(tenant.tenant_id, month, budget.currency)).of(account)
            most = nano_of_amount(budget.amount)
            rows.append(
                Row(
                    tenant.tenant_id, account, month, budget.currency, f"{budget.amount:f}", budget.hard,
                    decimal_of(stands.spent), decimal_of(stands.held),
                    decimal_of(most - stands.spent - stands.held), stands.spent * 100 // most if most else 100,
                )
            )  # fmt: skip
    return rows


async def rows_of(settings: Settings, tenants: list[Tenant], month: str) -> list[Row]:
    """Raises CommandError."""
    redis = connect_quota(settings.redis)
    try:
        return await _rows(RedisQuota(redis, settings.region), tenants, month)
    except QuotaUnavailable as error:
        raise CommandError(f"the quota store does not answer: {error}") from None
    finally:
        await redis.aclose()


def _month_of(text: str) -> Month:
    """Raises CommandError: of what is kept no more nothing would seem to be spent."""
    now = now_ms()
    try:
        month = Month.parse(text) if text else Month.at(now)
    except ValueError as error:
        raise CommandError(f"--month: {error}") from None
    if month.end_ms < now - KEPT_MS:
        raise CommandError(f"--month: what was spent in {month} is kept no more; `sluice usage` tells it")
    return month


@app.command()
def budgets(
    tenant: Annotated[str, typer.Option(help="Of this one alone.")] = "",
    month: MonthOption = "",
    data: DataOption = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> None:
    """Shows every budget with what is spent of it, and what is held for answers that run."""
    of_month = _month_of(month)
    _, run = running(data)
    settings = settings_of(run)
    tenants = [each for each in read_tenants(settings.tenants_file) if tenant in ("", each.tenant_id)]
    if not tenants:
        raise CommandError(f"no tenant {tenant!r}")
    rows = asyncio.run(rows_of(settings, tenants, str(of_month)))
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=1))
        return
    if not rows:
        err.print("no tenant has a budget; docs/operators.md says how to give one")
        return
    table = Table("tenant", "of", "month", "budget", "spent", "held", "left", "%")
    for row in rows:
        kind = "" if row.hard else " (warns)"
        table.add_row(
            row.tenant, row.account, row.month, f"{row.budget} {row.currency}{kind}", row.spent, row.held, row.left,
            str(row.percent),
        )  # fmt: skip
    out.print(table)
