"""Usage made into bills anew: JSON read, and priced, by this module alone. Pure.

Not one rule is imported of the sink, its tables or the models of records, so a mistake there is not made here again.
What this cannot use as a bill it counts: the sink writes the same records to `dead-letters`.
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any, NamedTuple

import orjson

from billing_jobs.reconciliation.figures import Bill, Delivered
from streams.clocks import DAY_MS

_EARLIEST_MS, _LATEST_MS = 400 * DAY_MS, DAY_MS
"""So long before, and after, a record was written, its times may be."""
_MOST_TOKENS = 2**31
_CLASSES = ("uncached_input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens")
_RULE_VERSION = 1
"""Of the rules of what is charged: the last one that can be priced here."""


class Price(NamedTuple):
    """A row of `prices`: pico-currency per token of each class, from a moment on until the next row for the same.

    `of`: tenant, endpoint, lane and region, empty where it is for all. `withdrawn`: from then on these have none.
    """

    model: str
    of: tuple[str, str, str, str]
    currency: str
    valid_from_ms: int
    pico_per_token: tuple[int, int, int, int]
    withdrawn: bool = False


class OwnPrices:
    """Which price holds: of those that are for what was used, the one that names more of it, from the tenant on. Of two
    rows for the same that begin together the one that comes first counts.
    """

    def __init__(self, rows: Iterable[Price]) -> None:
        known: dict[tuple[str, tuple[str, str, str, str]], dict[int, Price]] = {}
        for row in rows:
            known.setdefault((row.model, row.of), {}).setdefault(row.valid_from_ms, row)
        self._rows: dict[str, list[list[Price]]] = {}
        """Of each model, what is for the same in the order of time; what names more of it comes first."""
        for (model, _), found in sorted(known.items(), key=lambda each: [not named for named in each[0][1]]):
            self._rows.setdefault(model, []).append([found[start] for start in sorted(found)])

    def at(self, model: str, used: tuple[str, str, str, str], accepted_at_ms: int) -> Price | None:
        """`used`: the tenant, endpoint, lane and region."""
        for rows in self._rows.get(model, ()):
            if any(named and named != is_used for named, is_used in zip(rows[0].of, used, strict=True)):
                continue
            place = bisect_right(rows, accepted_at_ms, key=lambda row: row.valid_from_ms)
            if place and not rows[place - 1].withdrawn:
                return rows[place - 1]
        return None


class Unreadable(Exception):
    """No bill; the message names the field, never a value."""


def read(
    value: bytes | None, partition: int, offset: int, written_at_ms: int, prices: OwnPrices
) -> Bill | Delivered | None:
    """A record of `usage`; None: of a kind that nobody is told of. Raises Unreadable."""
    try:
        record = orjson.loads(value or b"")
    except orjson.JSONDecodeError:
        raise Unreadable("it is no JSON") from None
    if not isinstance(record, dict) or record.get("schema_version", 1) != 1:
        raise Unreadable("schema_version")
    found = record.get("scope")
    scope = found if isinstance(found, dict) else {}
    tenant_id = _text(scope, "tenant_id", at_least=1)
    response_id = _text(record, "response_id", at_least=1)
    match record.get("type"):
        case "usage":
            return _bill(record, tenant_id, _text({"region": "local", **scope}, "region"), written_at_ms, prices)
        case "delivered":
            tokens = _count(record, "delivered_tokens")
            return Delivered(f"{partition}-{offset}", response_id, tenant_id, tokens)
        case "compute":
            return None
        case _:
            raise Unreadable("type")


def _bill(record: dict[str, Any], tenant_id: str, region: str, written_at_ms: int, prices: OwnPrices) -> Bill:
    accepted_at_ms = _time(record, "accepted_at_ms", written_at_ms)
    _time(record, "ended_at_ms", written_at_ms)
    if record.get("first_token_at_ms"):
        _time(record, "first_token_at_ms", written_at_ms)
    tokens = [_count(record, name) for name in _CLASSES]
    model, endpoint, billable = _text(record, "model"), _text(record, "endpoint"), record.get("billable")
    if not isinstance(billable, bool):
        raise Unreadable("billable")
    price = prices.at(model, (tenant_id, endpoint, _text(record, "lane"), region), accepted_at_ms)
    state, cost_pico = "not_billable", 0
    if billable:
        state = "suspense"
        if price is not None and record.get("billing_rule_version", 1) <= _RULE_VERSION:
            state = "priced"
            cost_pico = sum(count * pico for count, pico in zip(tokens, price.pico_per_token, strict=True))
    uncached, cached, output, reasoning = tokens
    return Bill(
        usage_id=_text(record, "usage_id", at_least=1),
        tenant_id=tenant_id,
        endpoint=endpoint,
        model=model,
        ending=_text(record, "ending"),
        attempts=_count(record, "attempts", most=2**32 - 1),
        accepted_at_ms=accepted_at_ms,
        uncached_input_tokens=uncached,
        cached_input_tokens=cached,
        output_tokens=output,
        reasoning_tokens=reasoning,
        released_tokens=_count(record, "released_tokens"),
        charge_state=state,
        cost_pico=cost_pico,
        currency=price.currency if price else "",
    )


def _text(record: dict[str, Any], name: str, at_least: int = 0) -> str:
    value = record.get(name)
    if not isinstance(value, str) or len(value) < at_least:
        raise Unreadable(name)
    return value


def _count(record: dict[str, Any], name: str, most: int = _MOST_TOKENS) -> int:
    value = record.get(name)
    if type(value) is not int or not 0 <= value <= most:
        raise Unreadable(name)
    return value


def _time(record: dict[str, Any], name: str, written_at_ms: int) -> int:
    at_ms = _count(record, name, most=2**53)
    if not written_at_ms - _EARLIEST_MS <= at_ms <= written_at_ms + _LATEST_MS:
        raise Unreadable(name)
    return at_ms
