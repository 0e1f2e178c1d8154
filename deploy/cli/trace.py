"""`sluice trace`: where a response's time went, read from the log."""

import json
import time
from contextlib import closing
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from deploy.cli.app import CommandError, DataOption, JsonOption, app, err, out, settings_at
from deploy.cli.log_search import LOOKED_BESIDE_MS, LogSearch
from deploy.cli.timeline import Timeline
from deploy.local.data_folder import DataFolder
from deploy.paths import DEFAULT_DATA
from streams.ids import ResponseId, parse_response_id
from streams.log.kafka import KafkaConsumer
from streams.settings import Settings

TIMEOUT_S = 30.0
HOURS = 1.0
BAR_CHARS = 40
MS_PER_HOUR = 3_600_000


@app.command()
def trace(
    response_id: Annotated[str, typer.Argument(help="As x-request-id has it, or a result's id.")],
    data: DataOption = DEFAULT_DATA,
    as_json: JsonOption = False,
    hours: Annotated[
        float, typer.Option(min=0.01, help="How far to look back for a job's, whose id tells no time.")
    ] = HOURS,
    timeout: Annotated[float, typer.Option(min=0.1, help="How many seconds to read at most.")] = TIMEOUT_S,
) -> None:
    """Shows what happened to one response step by step, while it runs or after it, as long as the log keeps it."""
    settings = settings_at(DataFolder(data))
    now_ms = time.time_ns() // 1_000_000
    wanted = _checked(response_id, settings, now_ms)
    with closing(KafkaConsumer(settings.kafka, None, "sluice-trace")) as consumer:
        search = LogSearch(
            consumer, settings.topics, now_ms=now_ms, since_ms=now_ms - int(hours * MS_PER_HOUR),
            request_timeout_ms=settings.gateway.request_timeout_ms, timeout_s=timeout,
        )  # fmt: skip
        told = search.find(wanted)
    if not told:
        raise CommandError("\n".join([_nothing_known(wanted, hours), *search.notes]))
    if as_json:
        print(json.dumps(shown_trace(told, search.notes), indent=1))
    else:
        _show(told)
        for note in search.notes:
            err.print(f"[yellow]{escape(note)}[/yellow]")


def _checked(response_id: str, settings: Settings, now_ms: int) -> ResponseId:
    try:
        wanted = parse_response_id(response_id)
    except ValueError:
        raise CommandError(f"{response_id!r} is no response id; one looks like resp_local-3_018f3c2e…") from None
    if wanted.region != settings.region:
        raise CommandError(f"that response is of region {wanted.region!r}, and the settings are of {settings.region!r}")
    if wanted.partition >= settings.topics.responses.partitions:
        raise CommandError(f"nobody was given that id: `responses` has no partition {wanted.partition}")
    if wanted.minted_at_ms is not None and wanted.minted_at_ms > now_ms + LOOKED_BESIDE_MS:
        raise CommandError("nobody was given that id: its time is yet to come")
    return wanted


def _nothing_known(wanted: ResponseId, hours: float) -> str:
    minted_at_ms = wanted.minted_at_ms
    if minted_at_ms is None:
        return f"the log tells nothing of it since {hours:g} h ago; look further back with --hours"
    return (
        f"the log tells nothing of it: nobody was given that id at {_utc(minted_at_ms)}, or its records have aged out "
        "(`sluice topics` says what is kept how long)"
    )


def _utc(unix_ms: int) -> str:
    return datetime.fromtimestamp(unix_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] + " UTC"


def shown_trace(told: Timeline, notes: list[str]) -> dict[str, Any]:
    """What `sluice trace --json` prints."""
    steps = told.steps()
    begun_ms = told.accepted_at_ms if told.accepted_at_ms is not None else steps[0].at_ms
    scope, opened, bill = told.scope, told.opened, told.bill
    known = opened or bill
    return {
        "response_id": told.response_id,
        "state": told.state,
        "tenant": scope.tenant_id if scope else None,
        "traceparent": (scope.traceparent if scope else "") or None,
        "model": known.model if known else None,
        "pool": known.pool if known else None,
        "lane": str(known.lane) if known else None,
        "attempts": told.attempts,
        "tokens": told.tokens,
        "accepted_at_ms": told.accepted_at_ms,
        "steps": [
            {
                "at_ms": step.at_ms, "since_accepted_ms": step.at_ms - begun_ms,
                "since_step_before_ms": step.at_ms - before.at_ms, "what": step.what, "by": step.by,
                "where": step.where or None, "is_account": step.is_account,
            }
            for before, step in zip([steps[0], *steps], steps, strict=False)
        ],
        "notes": notes,
    }  # fmt: skip


def bar(begin_ms: int, end_ms: int, whole_ms: int) -> str:
    """A step's share of the whole time, where it lies in it."""
    if whole_ms <= 0:
        return ""
    first = begin_ms * BAR_CHARS // whole_ms
    last = max(end_ms * BAR_CHARS // whole_ms, first)
    return " " * first + ("█" * (last - first) or "▏")


def _show(told: Timeline) -> None:
    shown = shown_trace(told, [])
    steps = shown["steps"]
    facts = [shown["state"], f"tenant {shown['tenant']}"]
    if shown["model"]:
        facts.append(f"{shown['model']} on {shown['pool']}, {shown['lane']}")
    if told.attempts:
        facts.append(f"{told.attempts} attempt(s), {told.tokens} tokens")
    if told.accepted_at_ms is not None:
        facts.append(f"accepted {_utc(told.accepted_at_ms)}")
    table = Table("ms", "+ms", "step", "by", "where", "", title=f"{told.response_id}\n{escape('; '.join(facts))}")
    table.columns[0].justify = table.columns[1].justify = "right"
    first_ms = steps[0]["since_accepted_ms"]
    whole_ms = max((step["at_ms"] for step in steps if not step["is_account"]), default=0) - steps[0]["at_ms"]
    for step in steps:
        since_ms, took_ms = step["since_accepted_ms"], step["since_step_before_ms"]
        drawn = "" if step["is_account"] else bar(since_ms - took_ms - first_ms, since_ms - first_ms, whole_ms)
        words = (step["what"], step["by"], step["where"] or "")
        table.add_row(str(since_ms), str(took_ms), *(escape(word) for word in words), drawn)
    out.print(table)
