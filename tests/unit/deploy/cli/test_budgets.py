"""`sluice budgets`: what is spent and held, beside what may be."""

import uuid

import pytest
from redis.asyncio import Redis
from typer.testing import CliRunner

from agents.quota.beside import Beside, Hold, Spent
from agents.quota.store import RedisQuota
from deploy.cli.app import CommandError, app
from deploy.cli.budgets import _rows
from schemas.month import Month
from streams.directory import Budget, Limits, Tenant

NOW = 1_790_000_000_000
MONTH = Month.at(NOW)


async def test_each_budget_is_shown_with_what_is_spent_held_and_left(redis_url: str) -> None:
    async with Redis.from_url(redis_url, retry=None) as client:
        quota = RedisQuota(client, f"t{uuid.uuid4().hex[:10]}", now_ms=NOW)
        await quota.begin_epoch(await quota.new_epoch(), NOW)
        await quota.settle("acme", Limits(), "r1", 0, 1, Spent(MONTH, "USD", 1_500_000_000, "web", "k", 0, 0))
        hold = Hold(NOW, "USD", 250_000_000, 1, "web", "k", {})
        await quota.reserve("acme", Limits(), "r2", tokens=1, deadline_ms=NOW, beside=Beside(hold=hold))
        tenant = Tenant(
            tenant_id="acme", budget=Budget(amount="10"),
            project_budgets={"web": Budget(amount="1.6", hard=False), "other": Budget(amount="0")},
        )  # fmt: skip
        rows = await _rows(quota, [tenant], str(MONTH))
    told = [(row.account, row.budget, row.spent, row.held, row.left, row.percent, row.hard) for row in rows]
    assert told == [
        ("tenant", "10", "1.5", "0.25", "8.25", 15, True),
        ("project:web", "1.6", "1.5", "0.25", "-0.15", 93, False),
        ("project:other", "0", "0", "0", "0", 100, True),
    ]


@pytest.mark.parametrize(
    ("month", "says"), [("2026-1", "no month"), ("11-2026", "no month"), ("2020-01", "kept no more")]
)
def test_a_month_of_which_nothing_is_known_has_no_full_budget(month: str, says: str) -> None:
    with pytest.raises(CommandError, match=says):
        CliRunner().invoke(app, ["budgets", "--month", month], catch_exceptions=False)
