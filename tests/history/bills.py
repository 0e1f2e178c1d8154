"""What is billed: one usage event for each choice, over the tokens that count, and one row for each event."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from tests.history.log import Generated, Log
from tests.history.violation import Violation, exactly_one

CHARGED = frozenset({"completed", "cancelled", "safety_halted", "deadline_exceeded", "budget_exhausted"})
"""Endings for which tokens are charged, once a worker has begun: as analysts are told."""
BILLED = (
    "response_id", "choice", "endpoint", "model", "requested_model", "pool", "lane", "worker_id", "ending",
    "finish_reason", "billable", "attempts", "uncached_input_tokens", "cached_input_tokens", "output_tokens",
    "reasoning_tokens", "released_tokens", "reserved_tokens",
)  # fmt: skip
"""What the table has as the log has it; beside them tenant and time, which it has in columns of other names."""
PRICED = {
    "uncached_input_tokens": "uncached_input", "cached_input_tokens": "cached_input", "output_tokens": "output",
    "reasoning_tokens": "reasoning",
}  # fmt: skip
PICO_PER_TOKEN_OF_PRICE = 10**6
"""Of a price per million tokens."""

HOUR_MS = 3_600_000
SUMMED = (*PRICED, "released_tokens")
"""Of events, in the figures of an hour."""

Prices = Mapping[str, Mapping[str, str]]
"""Of each model, what a million tokens of each class cost, as in the catalogue, where none changed meanwhile, and in
which `currency`, dollars where that is not said."""


def of_usage(response_ids: Iterable[str], log: Log) -> Iterator[Violation]:
    """`response_ids`: of all that there are. Each choice of them has its usage event, and nothing else has one."""
    known: set[str] = set()
    for response_id in response_ids:
        generated = log.generated[response_id]
        known |= {f"{response_id}/{choice}" for choice in range(generated.choices)}
        for terminal in log.told[response_id].terminals.values():
            yield from _bill_of(response_id, log, generated, terminal)
    for usage_id in sorted(log.usage.keys() - known):
        yield Violation("billed", usage_id, "it is no choice of any response")


def _bill_of(response_id: str, log: Log, generated: Generated, terminal: Mapping[str, Any]) -> Iterator[Violation]:
    released = 0
    used: Counter[str] = Counter()
    for choice in range(generated.choices):
        usage_id = f"{response_id}/{choice}"
        events = log.usage.get(usage_id, {})
        yield from exactly_one(events, usage_id, "usage event")
        for event in events.values():
            due = _due(generated, choice, terminal)
            for name, value in due.items():
                if event[name] != value:
                    yield Violation("billed", usage_id, f"{name} is {event[name]}, and should be {value}")
            if (tenant := event["scope"]["tenant_id"]) != generated.tenant:
                yield Violation("billed", usage_id, f"{tenant} is to pay what {generated.tenant} asked for")
            output = event["output_tokens"] + event["reasoning_tokens"]
            tokens = 0 if generated.is_of_vectors else sum(token.choice == choice for token in generated.tokens)
            if output != tokens:
                yield Violation("billed", usage_id, f"{output} tokens are billed, and {tokens} count")
            released += event["released_tokens"]
            used += Counter(
                cached_tokens=event["cached_input_tokens"], completion_tokens=output,
                reasoning_tokens=event["reasoning_tokens"],
            )  # fmt: skip
    if released != (until := 0 if generated.is_of_vectors else terminal["sequence_number"] - 1):
        what = f"{released} tokens are billed as released, and it ends after {until}"
        yield Violation("billed", response_id, what)
    for name in ("cached_tokens", "completion_tokens", "reasoning_tokens"):
        if (told := terminal["usage"][name]) != used[name]:
            what = f"its client is told of {told} {name.replace('_', ' ')}, and {used[name]} are billed"
            yield Violation("billed", response_id, what)
    if generated.opened is not None and terminal["usage"]["prompt_tokens"] != generated.served["prompt_tokens"]:
        told = terminal["usage"]["prompt_tokens"]
        yield Violation("billed", response_id, f"its client is told of {told} tokens of its prompt")


def _due(generated: Generated, choice: int, terminal: Mapping[str, Any]) -> dict[str, Any]:
    """Of the event of that choice: of the model and the pool that it was moved to, where a worker has begun it there.
    What was never opened has no model that was to answer.
    """
    taken, served, about = bool(generated.attempt_id), generated.served, generated.served or generated.refused
    first = taken and bool(served) and not choice
    cached = min(generated.cached_tokens, served["prompt_tokens"]) if first else 0
    finish_reasons = terminal["finish_reasons"]
    return {
        "response_id": terminal["response_id"],
        "choice": choice,
        "ending": terminal["code"],
        "finish_reason": finish_reasons[choice] if choice < len(finish_reasons) else "",
        "attempts": len(generated.began),
        "billable": taken and terminal["code"] in CHARGED,
        "uncached_input_tokens": served["prompt_tokens"] - cached if first else 0,
        "cached_input_tokens": cached,
        "reserved_tokens": served["reserved_tokens"] if served and not choice else 0,
        **{name: served[name] if served else "" for name in ("model", "pool", "lane")},
        **{name: about[name] for name in ("requested_model", "endpoint", "accepted_at_ms") if about is not None},
    }


def of_bills(log: Log, bills: Iterable[Mapping[str, Any]], prices: Prices | None = None) -> Iterator[Violation]:
    """The table has one row for each usage event, says what that says, and charges what that costs. `prices` None:
    nobody knows them.
    """
    rows: Counter[str] = Counter()
    for bill in bills:
        usage_id = bill["usage_id"]
        rows[usage_id] += 1
        event = next(iter(log.usage.get(usage_id, {}).values()), None)
        if event is None:
            yield Violation("billed", usage_id, "the table has it and the log does not")
            continue
        said = {name: event[name] for name in (*BILLED, "accepted_at_ms")} | {"tenant_id": event["scope"]["tenant_id"]}
        for name, value in said.items():
            if bill[name] != value:
                yield Violation("billed", usage_id, f"{name} is {bill[name]} in the table and {value} in the log")
        if prices is not None:
            due = charge_of(event, prices)
            if (charged := (bill["charge_state"], bill["cost_pico"])) != due:
                yield Violation("billed", usage_id, f"it is {charged[0]}, {charged[1]} pico, and should be {due}")
    for usage_id, count in rows.items():
        if count > 1:
            yield Violation("doubled", usage_id, f"the table has {count} rows of it")
    for usage_id in log.usage.keys() - rows.keys():
        yield Violation("lost", usage_id, "the table does not have it")


def of_hours(log: Log, hours: Iterable[Mapping[str, Any]], prices: Prices | None = None) -> Iterator[Violation]:
    """`hours`: what analysts read of each hour. It is the sum over the events of requests that were accepted then."""
    due: dict[tuple[str, str, int], Counter[str]] = defaultdict(Counter)
    for events in log.usage.values():
        event = next(iter(events.values()))
        hour_ms = event["accepted_at_ms"] // HOUR_MS * HOUR_MS
        figures = due[event["scope"]["tenant_id"], event["model"], hour_ms]
        figures["requests"] += event["choice"] == 0
        for name in SUMMED:
            figures[name] += event[name]
        if prices is not None:
            figures["cost_pico"] += charge_of(event, prices)[1]
    told: dict[tuple[str, str, int], Counter[str]] = defaultdict(Counter)
    for row in hours:
        names = ("requests", *SUMMED, *(() if prices is None else ("cost_pico",)))
        told[row["tenant_id"], row["model"], row["hour_ms"]] += Counter({name: row[name] for name in names})
    for key in due.keys() | told.keys():
        for name in sorted(due[key].keys() | told[key].keys()):
            if (said := told[key][name]) != (is_due := due[key][name]):
                about = "/".join(map(str, key))
                yield Violation("billed", about, f"{name} of the hour is {said}, and its events come to {is_due}")


def charge_of(event: Mapping[str, Any], prices: Prices) -> tuple[str, int]:
    """What becomes of it, and what it costs."""
    if not event["billable"]:
        return "not_billable", 0
    if (price := prices.get(event["model"])) is None:
        return "suspense", 0
    each = (event[tokens] * Decimal(price[name]) * PICO_PER_TOKEN_OF_PRICE for tokens, name in PRICED.items())
    return "priced", int(sum(each))
