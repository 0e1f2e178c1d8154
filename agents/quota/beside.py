"""What holds for a response beside its tenant's limits: those of its key and its model, and budgets in currency."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

import orjson

from schemas.base import Scope
from schemas.month import Month
from streams.directory import Budget, Currency, ScopedLimits, Tenant, TenantDirectory

PICO_PER_NANO = 1_000
NANO_PER_UNIT = 10**9


@dataclass(frozen=True, slots=True)
class Further:
    """Limits of a key (`key:<id>`) or of a model (`model:<name>`) of one tenant."""

    name: str
    limits: ScopedLimits


@dataclass(frozen=True, slots=True)
class Hold:
    """What a response may cost at most, held of every hard budget that it falls under, or of none.

    `most`: those budgets, by account, in nano-currency.
    """

    accepted_at_ms: int
    currency: Currency
    nano: int
    choices: int
    project: str
    key: str
    most: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Spent:
    """What a choice was charged. `partition`, `offset`: where `usage` says so, which is the log `log_id`."""

    month: Month
    currency: str
    nano: int
    project: str
    key: str
    partition: int
    offset: int
    log_id: str = ""


@dataclass(frozen=True, slots=True)
class Beside:
    limits: tuple[Further, ...] = ()
    hold: Hold | None = None

    def encode(self) -> str:
        """For the script; empty where nothing holds. Numbers of money are strings there: all of their digits count."""
        said: dict[str, object] = {}
        if self.limits:
            said["limits"] = [[each.name, *_rates(each.limits)] for each in self.limits]
        if (hold := self.hold) is not None:
            month = Month.at(hold.accepted_at_ms)
            said["money"] = {
                "month": str(month), "at_ms": str(hold.accepted_at_ms),
                "currency": hold.currency, "nano": str(hold.nano), "choices": hold.choices, "project": hold.project,
                "key": hold.key,
                "most": {account: str(nano) for account, nano in hold.most.items()},
            }  # fmt: skip
        return orjson.dumps(said).decode() if said else ""


NOTHING = Beside()


def encode_spent(spent: Spent | None) -> str:
    if spent is None:
        return ""
    money = {
        "month": str(spent.month), "currency": spent.currency, "nano": str(spent.nano), "project": spent.project,
        "key": spent.key, "partition": str(spent.partition), "offset": str(spent.offset),
        "log": spent.log_id,
    }  # fmt: skip
    return orjson.dumps({"money": money}).decode()


def _rates(limits: ScopedLimits) -> tuple[int, int, int, int]:
    return (
        limits.requests_per_minute or 0, limits.tokens_per_minute or 0, limits.concurrent_responses or 0,
        limits.concurrent_jobs or 0,
    )  # fmt: skip


def further_limits(scope: Scope, model: str, directory: TenantDirectory) -> tuple[Further, ...]:
    """Of the key, and of the model that was asked, whichever answers in its place."""
    tenant = directory.tenant(scope.tenant_id)
    return () if tenant is None else tuple(_further(tenant, scope.key_id, model))


def _further(tenant: Tenant, key_id: str, model: str) -> Iterator[Further]:
    if key_id:
        for key in tenant.keys:
            if key.key_id == key_id and key.limits.is_any:
                yield Further(f"key:{key_id}", key.limits)
                break
    limits = tenant.model_limits.get(model)
    if limits is not None and limits.is_any:
        yield Further(f"model:{model}", limits)


def budgets_of(tenant: Tenant) -> dict[str, Budget]:
    """All of a tenant's, by account: `tenant`, `project:<id>` and `key:<id>`."""
    of_keys = {f"key:{key.key_id}": key.budget for key in tenant.keys}
    of_projects = {f"project:{project_id}": budget for project_id, budget in tenant.project_budgets.items()}
    budgets = {"tenant": tenant.budget, **of_projects, **of_keys}
    return {account: budget for account, budget in budgets.items() if budget is not None}


def accounts_of(scope: Scope) -> tuple[str, str, str]:
    """Under which accounts what it costs is counted, as `money.lua` has them."""
    return "tenant", f"project:{scope.project_id}", f"key:{scope.key_id}"


def nano_of_amount(amount: Decimal) -> int:
    return int(amount * NANO_PER_UNIT)


def decimal_of(nano: int) -> str:
    """In the currency, as people read it."""
    return f"{(Decimal(nano) / NANO_PER_UNIT).normalize():f}"


def nano_of_line(pico: int) -> int:
    """What one line counts of a budget: its cost, rounded up to a whole nano-currency."""
    return -(-pico // PICO_PER_NANO)


@dataclass(frozen=True, slots=True)
class Held:
    """What is held of budgets for one response."""

    month: str
    currency: str
    nano: int
    project: str
    key: str
    accepted_at_ms: int

    @property
    def accounts(self) -> tuple[str, str, str]:
        return "tenant", f"project:{self.project}", f"key:{self.key}"


@dataclass(frozen=True, slots=True)
class Account:
    """How a budget's account stands, in nano-currency."""

    spent: int = 0
    held: int = 0


@dataclass(slots=True)
class Sums:
    """A tenant's money of one month and currency. `told`: alerts that were written, as `agents.settlement.alerts` names
    them."""

    accounts: dict[str, Account] = field(default_factory=dict)
    told: set[str] = field(default_factory=set)

    def of(self, account: str) -> Account:
        return self.accounts.get(account, Account())


@dataclass(frozen=True, slots=True)
class Told:
    """What one partition of `usage` has told of a tenant's month, by account in nano-currency; the month's alerts."""

    nano: Mapping[str, int]
    alerts: frozenset[str]
    counted: int = 0
    """Nothing at this offset of the log or behind it is in `nano`."""
