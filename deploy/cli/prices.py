"""`sluice prices`: what is charged, and from when on something else is."""

import json
import tomllib
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from billing_jobs.pricing import PRICED_CLASSES, PRICES_SETTLE_MS
from billing_jobs.readers import LONGEST_S
from deploy.cli.app import TIMES, CommandError, DataOption, JsonOption, app, err, out, running, settings_of, who_asks
from deploy.cli.questions import ask_billing
from deploy.paths import DEFAULT_DATA
from schemas.money import PICO_PER_UNIT
from streams.settings import Settings

prices_app = typer.Typer(
    help="What is charged, and from when on something else is.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(prices_app, name="prices")
MAX_FILE_BYTES = 262_144
_SCOPE = ("tenant_id", "endpoint", "lane", "region")

FromOption = Annotated[
    datetime | None,
    typer.Option(
        "--from", formats=TIMES,
        help=f"UTC; without it, {PRICES_SETTLE_MS // 1_000} s after it is applied, when every process knows it.",
    ),
]  # fmt: skip
UntilOption = Annotated[
    datetime | None,
    typer.Option("--until", formats=TIMES, help="UTC; of prices for some alone: from then on they are withdrawn."),
]
FileOption = Annotated[
    Path | None,
    typer.Option(
        "--file", exists=True, dir_okay=False,
        help="TOML with [[prices]] for some alone: model, tenant_id, endpoint, lane, region, price or withdrawn."
        " Without it: the prices of the settings, which hold for all, and GPU-hours.",
    ),
]  # fmt: skip


def _ms(moment: datetime) -> int:
    return int(moment.replace(tzinfo=UTC).timestamp() * 1_000)


def _of_file(path: Path) -> dict[str, Any]:
    """As it stands there; billing says what is wrong with it. Raises CommandError."""
    if path.stat().st_size > MAX_FILE_BYTES:
        raise CommandError(f"{path}: larger than {MAX_FILE_BYTES} bytes")
    try:
        read = tomllib.loads(path.read_text(), parse_float=Decimal)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise CommandError(f"{path}: {error}") from None
    if unknown := sorted(set(read) - {"prices"}):
        raise CommandError(f"{path}: {unknown[0]}: only [[prices]] are known")
    body: dict[str, Any] = json.loads(json.dumps(read, default=str))
    return body


def _of_settings(settings: Settings) -> dict[str, Any]:
    body: dict[str, Any] = {
        "prices": [{"model": each.name, "price": each.price.model_dump(mode="json")} for each in settings.models]
    }
    hours = [
        {"pool": pool.name, "gpu_hour": pool.gpu_hour.model_dump(mode="json"), "gpus": max(1, pool.devices)}
        for pool in settings.pools
        if pool.gpu_hour is not None
    ]
    return {**body, "gpu_hours": hours} if hours else body


def _check_names(settings: Settings, body: dict[str, Any]) -> None:
    """What else is wrong with a file billing says, which knows of no alias. Raises CommandError."""
    priced = {alias: model.name for model in settings.models for alias in model.aliases}
    for number, price in enumerate(body["prices"] if isinstance(body.get("prices"), list) else ()):
        name = price.get("model") if isinstance(price, dict) else None
        if isinstance(name, str) and name in priced:
            raise CommandError(f"prices.{number}.model: {name!r} is an alias and has no price; name {priced[name]!r}")


def _body(settings: Settings, file: Path | None, since: datetime | None, until: datetime | None) -> dict[str, Any]:
    if until is not None and file is None:
        raise CommandError("--until is for prices of a --file: those of the settings hold for all, and have no end")
    times = {"valid_from_ms": since, "valid_until_ms": until}
    body = _of_settings(settings) if file is None else _of_file(file)
    _check_names(settings, body)
    return body | {name: _ms(moment) for name, moment in times.items() if moment is not None}


def _moment(valid_from_ms: int) -> str:
    if not valid_from_ms:
        return "the beginning"
    return datetime.fromtimestamp(valid_from_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _terms(price: dict[str, Any] | None) -> str:
    if price is None:
        return "none"
    if price["per_million_tokens"] is None:
        return "withdrawn"
    return " / ".join(price["per_million_tokens"][name] for name in PRICED_CLASSES) + f" {price['currency']}"


def _whom(price: dict[str, Any]) -> str:
    return ", ".join(price[name] for name in _SCOPE if price[name]) or "all"


def _hour(price: dict[str, Any] | None) -> str:
    return "none" if price is None else f"{price['per_gpu_hour']} {price['currency']} × {price['gpus']}"


@prices_app.command("list")
def prices_list(data: DataOption = DEFAULT_DATA, as_json: JsonOption = False) -> None:
    """Every price that there was, is or will be, and from when on."""
    _, run = running(data)
    known = ask_billing(settings_of(run), "GET", "/internal/prices")
    if as_json:
        print(json.dumps(known, indent=1))
        return
    table = Table("model", "for", "from", "input / cached / output / reasoning, of a million tokens")
    for price in known["prices"]:
        table.add_row(price["model"], _whom(price), _moment(price["valid_from_ms"]), _terms(price))
    out.print(table)
    if known["gpu_hours"]:
        hours = Table("pool", "from", "of a GPU-hour, × GPUs of a worker")
        for price in known["gpu_hours"]:
            hours.add_row(price["pool"], _moment(price["valid_from_ms"]), _hour(price))
        out.print(hours)


def _costs(pico_by_currency: dict[str, str]) -> str:
    costs = (f"{Decimal(pico) / PICO_PER_UNIT:,.6f} {name}" for name, pico in sorted(pico_by_currency.items()))
    return ", ".join(costs) or "nothing"


def _show(planned: dict[str, Any]) -> None:
    if planned["changes"]:
        days = f"last {planned['compared_days']} days"
        table = Table("model", "for", "from", "before", "after", f"{days} before", "after")
        for change in planned["changes"]:
            after = change["after"]
            table.add_row(
                change["model"], _whom(after), _moment(after["valid_from_ms"]), _terms(change["before"]), _terms(after),
                _costs(change["cost_before_pico"]), _costs(change["cost_after_pico"]),
            )  # fmt: skip
        out.print(table)
    if planned["gpu_hours"]:
        hours = Table("pool", "from", "GPU-hour before", "after")
        for change in planned["gpu_hours"]:
            after = change["after"]
            hours.add_row(after["pool"], _moment(after["valid_from_ms"]), _hour(change["before"]), _hour(after))
        out.print(hours)


COMPARED = (
    "compared: the prices of the settings with which this stack was started; what was written into them since then is "
    "looked at after its next start"
)


def _unchanged(file: Path | None) -> str:
    if file is None:
        return "the prices of the settings are in force"
    return f"{file.name} changes nothing: what it lists is in force or to come, or has no price (sluice prices list)"


@prices_app.command("plan")
def prices_plan(
    data: DataOption = DEFAULT_DATA,
    file: FileOption = None,
    since: FromOption = None,
    until: UntilOption = None,
    as_json: JsonOption = False,
) -> None:
    """What the prices of the settings, or of a file, would change, and what the last month would have cost. Changes
    nothing. The settings are those with which the stack was started.
    """
    _, run = running(data)
    settings = settings_of(run)
    planned = ask_billing(settings, "POST", "/internal/prices/plan", _body(settings, file, since, until), LONGEST_S)
    if file is None:
        err.print(COMPARED)
    if as_json:
        print(json.dumps(planned, indent=1))
    elif planned["changes"] or planned["gpu_hours"]:
        _show(planned)
        named = "" if file is None else f"--file {escape(str(file))} "
        err.print(f"sluice prices apply {named}--reason … makes it so")
    else:
        err.print(escape(_unchanged(file)))


@prices_app.command("apply")
def prices_apply(
    reason: Annotated[str, typer.Option(help="Why; it is kept with the prices.")],
    data: DataOption = DEFAULT_DATA,
    file: FileOption = None,
    since: FromOption = None,
    until: UntilOption = None,
    yes: Annotated[bool, typer.Option("--yes", help="Asks for no confirmation.")] = False,
) -> None:
    """Puts the prices of the settings, or of a file, into force, for what is accepted from then on."""
    _, run = running(data)
    settings = settings_of(run)
    body = _body(settings, file, since, until)
    planned = ask_billing(settings, "POST", "/internal/prices/plan", body, LONGEST_S)
    if not planned["changes"] and not planned["gpu_hours"]:
        err.print(escape(_unchanged(file)))
        return
    _show(planned)
    if not yes and not typer.confirm("Charge so?"):
        raise CommandError("nothing was changed")
    named = {"version": planned["version"], "actor": who_asks(), "reason": reason}
    done = ask_billing(settings, "POST", "/internal/prices/apply", {**body, **named}, LONGEST_S)
    out.print(f"version {done['version']}: {len(done['applied']) + len(done['gpu_hours'])} prices")
