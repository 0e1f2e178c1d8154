"""`sluice usage`: what was used and what it cost, of all tenants for the operator, of its own for a tenant's key."""

import csv
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import httpx
import typer
from rich.table import Table

from deploy.cli.app import TIMES, CommandError, DataOption, JsonOption, app, check_order, err, out, running, settings_of
from deploy.cli.questions import HTTP_SLACK_S, ask_billing, check_has_usage
from deploy.paths import DEFAULT_DATA
from schemas.money import decimal_units
from schemas.usage_query import MAX_BUCKETS, TOKEN_CLASSES, InvalidQuery, UsageQuery
from streams.settings import Settings

MAX_PAGES = 100
"""Of buckets; what is beyond is asked for by itself."""
WEEK = timedelta(days=7)
FIGURES = ("requests", *TOKEN_CLASSES, "suspense_events")

Row = dict[str, Any]
Page = dict[str, Any]
"""As billing tells it, or the gateway: both have `data` and `finalized_through`."""
Ask = Callable[[Any], tuple[Page, Any]]
"""A page, from where the one before says; and where the next one begins, None behind the last."""


def _pages(ask: Ask) -> Iterator[Page]:
    place: Any = None
    for _ in range(MAX_PAGES):
        page, place = ask(place)
        yield page
        if place is None:
            return
    raise CommandError(f"more than {MAX_PAGES} pages; ask for less time, wider buckets or fewer groups")


def of_billing(settings: Settings, query: UsageQuery) -> Ask:
    """The operator's: of any tenant, or of all."""

    def ask(place: Any) -> tuple[Page, Any]:
        asked = query if place is None else query.model_copy(update={"start_time": place})
        page = ask_billing(settings, "POST", "/internal/usage", asked.model_dump(mode="json"))
        return page, page["next_start"]

    return ask


def of_gateway(url: str, api_key: str, query: UsageQuery) -> Ask:
    """A tenant's, by its key."""
    params: dict[str, Any] = {
        "start_time": query.start_time, "end_time": query.end_time, "bucket_width": query.bucket_width,
        "group_by": [name for name in query.group_by if name != "currency"],
    }  # fmt: skip

    def ask(place: Any) -> tuple[Page, Any]:
        further = {} if place is None else {"page": place}
        answer = httpx.get(
            f"{url}/v1/usage", params={**params, **further}, headers={"Authorization": f"Bearer {api_key}"},
            timeout=HTTP_SLACK_S * 2, trust_env=False,  # a proxy of the environment would be told the key
        )  # fmt: skip
        if answer.is_error:
            try:
                raise CommandError(answer.json()["error"]["message"])
            except (ValueError, LookupError):
                raise CommandError(f"the gateway answered with status {answer.status_code}") from None
        page: Page = answer.json()
        return page, page["next_page"]

    return ask


def rows_of(page: Page, groups: Sequence[str]) -> Iterator[Row]:
    for bucket in page["data"]:
        for result in bucket["results"]:
            yield {
                "from": datetime.fromtimestamp(bucket["start_time"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
                **{name: result[name] for name in groups},
                **{name: result[name] for name in FIGURES},
                "currency": result["currency"] or "",
                "cost_pico": str(result["cost_pico"]),
                "cost": decimal_units(int(result["cost_pico"])),
                "estimate": bucket["estimate"],
            }


def _query(
    tenant: str | None, since: datetime | None, until: datetime | None, width: str, groups: list[str]
) -> UsageQuery:
    """Raises CommandError."""
    bucket_width = next((each for each in MAX_BUCKETS if each == width), None)
    if bucket_width is None:
        raise CommandError(f"bucket_width must be one of {', '.join(MAX_BUCKETS)}")
    end = datetime.now(UTC) if until is None else until.replace(tzinfo=UTC)
    start = end - WEEK if since is None else since.replace(tzinfo=UTC)
    check_order(start, end)
    try:
        return UsageQuery.asked(
            tenant_id=tenant,
            start_time=int(start.timestamp()),
            end_time=int(end.timestamp()),
            bucket_width=bucket_width,
            group_by=(*groups, "currency"),
            limit=MAX_BUCKETS[bucket_width],
        )
    except InvalidQuery as error:
        raise CommandError(str(error)) from None


def _show(rows: Sequence[Row], groups: Sequence[str], finalized_ms: int) -> None:
    table = Table("from", *groups, "requests", "input", "cached", "output", "reasoning", "cost")
    for row in rows:
        tokens = (f"{row[name]:,}" for name in ("requests", *TOKEN_CLASSES[:4]))
        cost = f"{row['cost']} {row['currency']}" if row["currency"] else "no price" if row["suspense_events"] else ""
        table.add_row(
            row["from"], *(str(row[name]) for name in groups), *tokens, cost + (" ~" if row["estimate"] else "")
        )
    out.print(table)
    through = datetime.fromtimestamp(finalized_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    err.print(f"~ may still grow; all that had ended by {through} is counted")


@app.command()
def usage(
    data: DataOption = DEFAULT_DATA,
    since: Annotated[
        datetime | None, typer.Option("--from", formats=TIMES, help="UTC; without it, a week before the end.")
    ] = None,
    until: Annotated[datetime | None, typer.Option("--to", formats=TIMES, help="UTC; without it, now.")] = None,
    group_by: Annotated[
        str, typer.Option(help="With commas, some of: model, project_id, key_id, endpoint, lane, batch, pool, region, "
                               "ending, end_user; the operator's tenant_id.")
    ] = "",
    width: Annotated[str, typer.Option(help="Of a bucket: 1m, 1h or 1d.")] = "1d",
    tenant: Annotated[str | None, typer.Option(help="For the operator: of this one alone.")] = None,
    api_key: Annotated[
        str | None, typer.Option(envvar="SLUICE_API_KEY", help="A tenant's key: it is asked at the gateway.")
    ] = None,
    url: Annotated[str | None, typer.Option(help="Of the gateway; without it, that of the running stack.")] = None,
    as_json: JsonOption = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="For spreadsheets; money also in whole pico-currency.")] = False,
) -> None:  # fmt: skip
    """What was used and what it cost, in buckets: of all tenants, or with a key of its own."""
    if as_json and as_csv:
        raise CommandError("--json or --csv, not both")
    if api_key is not None and tenant is not None:
        raise CommandError("--tenant is for the operator: a key (--api-key, SLUICE_API_KEY) asks of its own tenant")
    groups = [name for part in group_by.split(",") if (name := part.strip())]
    query = _query(tenant, since, until, width, groups)
    if api_key is None:
        settings = settings_of(running(data)[1])
        pages = list(_pages(of_billing(settings, query)))
        if tenant is not None and not any(bucket["results"] for page in pages for bucket in page["data"]):
            check_has_usage(settings, tenant)  # Else one that is misspelt would look idle.
    else:
        pages = list(_pages(of_gateway((url or running(data)[1].gateway).rstrip("/"), api_key, query)))
    rows = [row for page in pages for row in rows_of(page, groups)]
    finalized_ms = min(page["finalized_through"] for page in pages)
    if as_json:
        print(json.dumps({"finalized_through": finalized_ms, "rows": rows}, indent=1))
    elif as_csv:
        columns = ["from", *groups, *FIGURES, "currency", "cost_pico", "cost", "estimate"]
        writer = csv.DictWriter(sys.stdout, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        _show(rows, groups, finalized_ms)
