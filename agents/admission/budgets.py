"""What a request takes beside its tenant's limits: those of its key and model, and of budgets what it may cost at most.

The most is its prompt and every answer as long as it may be, at the dearest price in force that may come to be charged:
of its model, in whatever lane it waits, and of the smaller model that may answer in its place. So what a response is
charged was held of the budgets before it was admitted, and a hard budget is never exceeded. A request of which only a
part fits is refused: nobody pays for half an answer.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from agents.admission.fallback import smaller_of
from agents.admission.services import Services
from agents.quota.beside import (
    NOTHING,
    Beside,
    Hold,
    accounts_of,
    budgets_of,
    further_limits,
    nano_of_amount,
    nano_of_line,
)
from agents.quota.port import RETRY_AFTER_MS, QuotaUnavailable, Refusal
from schemas.admission import Admission
from schemas.base import Scope
from schemas.endings import EndingCode
from schemas.generated import Opened
from schemas.request import LANES
from streams.directory import Budget, ModelCatalog, Tenant, TenantDirectory
from streams.price_list import PriceList
from streams.pricing import PriceBook, PriceRow, PriceScope

MOST_HELD_NANO = 2**52
"""More than any budget is; beyond it numbers would not be exact in the store."""


class PricesUnread(QuotaUnavailable):
    """What stood on `prices` when this process began is not read yet: nothing is decided that depends on one."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one response, in tokens. `scope` and `endpoint`, `model`: by what its price is looked up."""

    scope: Scope
    endpoint: str
    model: str
    stand_in: str
    """The model that may answer in its place; empty: none."""
    prompt_tokens: int
    output_tokens: int
    choices: int
    accepted_at_ms: int


def beside(admission: Admission, services: Services) -> Beside | Refusal:
    """What is asked of the quota store for it. Raises PricesUnread."""
    asked = admission.model if admission.fallback is None else admission.fallback.asked
    limits = further_limits(admission.scope, asked, services.directory)
    tenant = services.directory.tenant(admission.scope.tenant_id)
    hard = {} if tenant is None else _hard_budgets(tenant, admission.scope)
    if not hard:
        return Beside(limits) if limits else NOTHING
    if not services.prices.are_read:
        raise PricesUnread("prices are not read yet")
    smaller = smaller_of(admission, services)
    request = admission.request
    held = _hold(
        Bounds(
            admission.scope, request.endpoint, asked, "" if smaller is None else smaller.name,
            len(admission.prompt_token_ids), request.choices * admission.max_tokens, request.choices,
            request.accepted_at_ms,
        ),
        hard, services.prices.book,
    )  # fmt: skip
    return held if isinstance(held, Refusal) else Beside(limits, held)


def beside_of_opened(opened: Opened, directory: TenantDirectory, catalog: ModelCatalog, prices: PriceList) -> Beside:
    """The same of a response that was admitted, for a store that has lost it. What it may cost is held as far as that
    is known: nothing is refused here. Raises PricesUnread.
    """
    asked = opened.model if opened.fallback is None else opened.fallback.asked
    limits = further_limits(opened.scope, asked, directory)
    tenant = directory.tenant(opened.scope.tenant_id)
    hard = {} if tenant is None else _hard_budgets(tenant, opened.scope)
    if not hard:
        return Beside(limits) if limits else NOTHING
    if not prices.are_read:
        raise PricesUnread("prices are not read yet")
    model = catalog.model(asked)
    output_tokens = max(opened.reserved_tokens - opened.prompt_tokens, 0)
    stand_in = opened.model if opened.fallback is not None else model.fallback if model is not None else ""
    held = _hold(
        Bounds(
            opened.scope, opened.endpoint, asked, stand_in, opened.prompt_tokens, output_tokens, opened.choices,
            opened.accepted_at_ms,
        ),
        hard, prices.book,
    )  # fmt: skip
    return Beside(limits, None if isinstance(held, Refusal) else held)


def _hard_budgets(tenant: Tenant, scope: Scope) -> dict[str, Budget]:
    """Under which it falls, by account."""
    if not tenant.has_budgets:
        return {}
    of_scope = accounts_of(scope)
    return {name: budget for name, budget in budgets_of(tenant).items() if name in of_scope and budget.hard}


def _hold(bounds: Bounds, hard: dict[str, Budget], book: PriceBook) -> Hold | Refusal:
    rows = list(_prices(bounds.model, bounds, book))
    if not rows:
        message = f"No price is known of {bounds.model}, and a budget holds; nothing was generated."
        return Refusal(code=EndingCode.UNAVAILABLE, message=message, retry_after_ms=RETRY_AFTER_MS)
    smaller = list(_prices(bounds.stand_in, bounds, book)) if bounds.stand_in else []
    currency = next(iter(hard.values())).currency
    if others := {row.currency for row in (*rows, *smaller)} - {currency}:
        return Refusal(
            code=EndingCode.BUDGET_EXHAUSTED,
            message=f"The budget is in {currency}; {bounds.model} may be charged in {min(others)}.",
            limited=next(iter(hard)),
        )
    pico = max(
        bounds.prompt_tokens * max(row.uncached_input_pico, row.cached_input_pico)
        + bounds.output_tokens * max(row.output_pico, row.reasoning_pico)
        for row in rows
    )
    # How the smaller model parts the same sum of tokens is not known before it is asked.
    tokens = bounds.prompt_tokens + bounds.output_tokens
    pico = max([pico, *(tokens * _dearest_pico(row) for row in smaller)])
    # Each choice is a line, and each line is rounded up.
    nano = min(nano_of_line(pico) + bounds.choices - 1, MOST_HELD_NANO)
    return Hold(
        bounds.accepted_at_ms, currency, nano, bounds.choices, bounds.scope.project_id, bounds.scope.key_id,
        {name: nano_of_amount(budget.amount) for name, budget in hard.items()},
    )  # fmt: skip


def _prices(model: str, bounds: Bounds, book: PriceBook) -> Iterator[PriceRow]:
    """Whichever lane it comes to wait in."""
    for lane in LANES:
        used = PriceScope(model, bounds.scope.tenant_id, bounds.endpoint, lane.value, bounds.scope.region)
        if (row := book.at(used, bounds.accepted_at_ms)) is not None:
            yield row


def _dearest_pico(row: PriceRow) -> int:
    return max(row.uncached_input_pico, row.cached_input_pico, row.output_pico, row.reasoning_pico)
