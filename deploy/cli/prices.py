"""`sluice prices`: what is charged, and from when on something else is."""

import getpass
import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any

import typer
from rich.table import Table

from billing_jobs.pricing import PRICED_CLASSES
from deploy.cli.app import CommandError, DataOption, JsonOption, app, err, out, running, settings_of
from deploy.cli.questions import ask_billing
from deploy.paths import DEFAULT_DATA
from schemas.money import PICO_PER_UNIT
from streams.settings import Settings

prices_app = typer.Typer(
    help="What is charged, and from when on something else is.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(prices_app, name="prices")

FromOption = Annotated[
    datetime | None,
    typer.Option(
        "--from", formats=["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"], help="UTC; without it, as soon as it is applied."
    ),
]


def _body(settings: Settings, since: datetime | None) -> dict[str, Any]:
    body: dict[str, Any] = {
        "prices": [{"model": each.name, "price": each.price.model_dump(mode="json")} for each in settings.models]
    }
    if since is not None:
        body["valid_from_ms"] = int(since.replace(tzinfo=UTC).timestamp() * 1_000)
    return body


def _moment(valid_from_ms: int) -> str:
    if not valid_from_ms:
        return "the beginning"
    return datetime.fromtimestamp(valid_from_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _terms(price: dict[str, Any] | None) -> str:
    if price is None:
        return "none"
    return " / ".join(price["per_million_tokens"][name] for name in PRICED_CLASSES) + f" {price['currency']}"


@prices_app.command("list")
def prices_list(data: DataOption = DEFAULT_DATA, as_json: JsonOption = False) -> None:
    """Every price that there was, is or will be, and from when on."""
    _, run = running(data)
    known = ask_billing(settings_of(run), "GET", "/internal/prices")
    if as_json:
        print(json.dumps(known, indent=1))
        return
    table = Table("model", "from", "input / cached / output / reasoning, of a million tokens")
    for price in known["prices"]:
        table.add_row(price["model"], _moment(price["valid_from_ms"]), _terms(price))
    out.print(table)


def _show(planned: dict[str, Any]) -> None:
    table = Table("model", "from", "before", "after", f"last {planned['compared_days']} days before", "after")
    for change in planned["changes"]:
        costs = (f"{Decimal(change[f'cost_{side}_pico']) / PICO_PER_UNIT:,.6f}" for side in ("before", "after"))
        after = change["after"]
        table.add_row(change["model"], _moment(after["valid_from_ms"]), _terms(change["before"]), _terms(after), *costs)
    out.print(table)


@prices_app.command("plan")
def prices_plan(data: DataOption = DEFAULT_DATA, since: FromOption = None, as_json: JsonOption = False) -> None:
    """What the prices of the settings would change, and what the last month would have cost. Changes nothing."""
    _, run = running(data)
    settings = settings_of(run)
    planned = ask_billing(settings, "POST", "/internal/prices/plan", _body(settings, since))
    if as_json:
        print(json.dumps(planned, indent=1))
    elif planned["changes"]:
        _show(planned)
        err.print("sluice prices apply --reason … makes it so")
    else:
        err.print("the prices of the settings are in force")


@prices_app.command("apply")
def prices_apply(
    reason: Annotated[str, typer.Option(help="Why; it is kept with the prices.")],
    data: DataOption = DEFAULT_DATA,
    since: FromOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Asks for no confirmation.")] = False,
) -> None:
    """Puts the prices of the settings into force, for what is accepted from then on."""
    _, run = running(data)
    settings = settings_of(run)
    body = _body(settings, since)
    planned = ask_billing(settings, "POST", "/internal/prices/plan", body)
    if not planned["changes"]:
        err.print("the prices of the settings are in force")
        return
    _show(planned)
    if not yes and not typer.confirm("Charge so?"):
        raise CommandError("nothing was changed")
    named = {"version": planned["version"], "actor": getpass.getuser(), "reason": reason}
    done = ask_billing(settings, "POST", "/internal/prices/apply", {**body, **named})
    out.print(f"version {done['version']}: {len(done['applied'])} prices")
