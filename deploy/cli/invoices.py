"""`sluice invoice` and `sluice ledger`: what a tenant owes for a month, and what is added to that or taken off."""

import json
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from billing_jobs.invoices.pages import CLASSES, KINDS, counted, csv_of, html_of
from billing_jobs.readers import LONGEST_S
from deploy.cli.app import CommandError, DataOption, JsonOption, app, err, out, running, settings_of, who_asks
from deploy.cli.billing import YesOption, billing
from deploy.cli.questions import ask_billing
from deploy.paths import DEFAULT_DATA

invoice_app = typer.Typer(
    help="What a tenant owes for a month, made once and for good.", no_args_is_help=True, rich_markup_mode=None
)
ledger_app = typer.Typer(
    help="Credits and corrections, which come on a tenant's next invoice.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(invoice_app, name="invoice")
app.add_typer(ledger_app, name="ledger")

TenantArgument = Annotated[str, typer.Argument(metavar="TENANT")]
MonthArgument = Annotated[str, typer.Argument(metavar="YYYY-MM", help="Of UTC.")]
AmountArgument = Annotated[str, typer.Argument(metavar="AMOUNT", help="Such as 12.50.")]
CurrencyArgument = Annotated[str, typer.Argument(metavar="CURRENCY")]
ReasonOption = Annotated[str, typer.Option(help="Why; the tenant reads it.")]
OfMonthOption = Annotated[
    str | None, typer.Option("--month", metavar="YYYY-MM", help="To which it belongs; without it, this month.")
]


_WITHOUT_INVOICE = "without an invoice: there was nothing to invoice. What comes later is on the next one"


class Shape(StrEnum):
    TEXT = "text"
    JSON = "json"
    CSV = "csv"
    HTML = "html"


FormatOption = Annotated[Shape, typer.Option("--format", help="CSV for programs, HTML to print.")]


def _ask(data: Path, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    _, run = running(data)
    return ask_billing(settings_of(run), method, path, body, LONGEST_S)


def _of(tenant: str, month: str, what: str = "") -> str:
    return f"/internal/invoices/{quote(tenant, safe='')}/{quote(month, safe='')}{what}"


def _line_row(line: dict[str, Any], indent: str = "") -> list[str]:
    name = CLASSES.get(line["class"], line["class"])
    figures = (f"{line['quantity']:,}", line["price_per_million"], line["amount"])
    return [escape(f"{indent}{line['model']}"), name, escape(line["price_id"]), *figures]


def print_invoices(answer: dict[str, Any], console: Console = out) -> None:
    if not answer["invoices"]:
        is_draft = answer["is_draft"]
        console.print("nothing to invoice" if is_draft else f"closed at {answer['closed_at']}, {_WITHOUT_INVOICE}")
    for invoice in answer["invoices"]:
        title = f"{'DRAFT, ' if answer['is_draft'] else ''}{invoice['invoice_id']}"
        table = Table(title=escape(title), title_justify="left")
        for name in ("model", "tokens", "price"):
            table.add_column(name)
        for name in ("quantity", f"{invoice['currency']} per million", "amount"):
            table.add_column(name, justify="right")
        for line in invoice["lines"]:
            table.add_row(*_line_row(line))
        for entry in invoice["entries"]:
            kind = KINDS.get(entry["kind"], entry["kind"])
            table.add_row(kind, entry["month"], escape(entry["reason"]), "", "", entry["amount"])
            for line in entry["lines"]:
                table.add_row(*_line_row(line, "  "))
        table.add_section()
        table.add_row("exact", "", "", "", "", invoice["exact"])
        table.add_row("total", "", "", "", invoice["currency"], invoice["total"])
        console.print(table)
        if invoice["events_without_price"]:
            waiting = counted(invoice["events_without_price"], "event")
            console.print(f"without a price, and on a later invoice: {waiting}")
        if not answer["is_draft"]:
            console.print(f"sha256 {invoice['sha256']}, closed {invoice['closed_at']}")


def _show(answer: dict[str, Any], shape: Shape) -> None:
    writers: dict[Shape, Callable[[], str]] = {
        Shape.JSON: lambda: json.dumps(answer, indent=1) + "\n",
        Shape.CSV: lambda: csv_of(answer["invoices"]),
        Shape.HTML: lambda: html_of(answer["invoices"], is_draft=answer["is_draft"]),
    }
    if shape is Shape.TEXT:
        print_invoices(answer)
    else:
        sys.stdout.write(writers[shape]())


@invoice_app.command("list")
def invoice_list(
    tenant: Annotated[str | None, typer.Argument(metavar="[TENANT]")] = None,
    month: Annotated[str | None, typer.Option(metavar="YYYY-MM")] = None,
    data: DataOption = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> None:
    """Invoices, months with usage that are not closed yet, and those that were closed without an invoice."""
    asked = urlencode({name: value for name, value in (("tenant_id", tenant), ("month", month)) if value})
    answer = _ask(data, "GET", f"/internal/invoices?{asked}")
    if as_json:
        print(json.dumps(answer, indent=1))
        return
    table = Table("tenant", "month", "invoice", "total", "closed")
    for each in answer["invoices"]:
        total = f"{each['total']} {each['currency']}"
        table.add_row(escape(each["tenant_id"]), each["month"], escape(each["invoice_id"]), total, each["closed_at"])
    for each in answer["open"]:
        table.add_row(escape(each["tenant_id"]), each["month"], "open", counted(each["events"], "event"), "")
    for each in answer["without_invoice"]:
        late = f"{counted(each['late_events'], 'late event')}, for the next one" if each["late_events"] else "nothing"
        table.add_row(escape(each["tenant_id"]), each["month"], "closed without one", late, each["closed_at"])
    out.print(table)


@invoice_app.command("show")
def invoice_show(
    tenant: TenantArgument, month: MonthArgument, data: DataOption = DEFAULT_DATA, shape: FormatOption = Shape.TEXT
) -> None:
    """A closed month's invoices, one for each currency, as they were made."""
    _show(_ask(data, "GET", _of(tenant, month)), shape)


@invoice_app.command("draft")
def invoice_draft(
    tenant: TenantArgument, month: MonthArgument, data: DataOption = DEFAULT_DATA, shape: FormatOption = Shape.TEXT
) -> None:
    """What would stand on an open month's invoices by now. Changes nothing."""
    _show(_ask(data, "GET", _of(tenant, month, "/draft")), shape)


@invoice_app.command("close")
def invoice_close(
    tenant: TenantArgument,
    month: MonthArgument,
    data: DataOption = DEFAULT_DATA,
    yes: YesOption = False,
    shape: FormatOption = Shape.TEXT,
) -> None:
    """Makes a month's invoices, once it is over and all of it is stored. What comes later is on the next ones."""
    asked: dict[str, Any] = {"actor": who_asks()}
    if not yes:
        draft = _ask(data, "GET", _of(tenant, month, "/draft"))
        print_invoices(draft)
        if not draft["invoices"]:
            err.print("closed so, the month has no invoice for good, and what comes later of it is on the next one")
        if not typer.confirm("Close the month so?", err=True):
            raise CommandError("nothing was changed")
        asked["expected"] = {invoice["currency"]: invoice["exact"] for invoice in draft["invoices"]}
    _show(_ask(data, "POST", _of(tenant, month, "/close"), asked), shape)


@invoice_app.command("check")
def invoice_check(
    tenant: TenantArgument, month: MonthArgument, data: DataOption = DEFAULT_DATA, as_json: JsonOption = False
) -> None:
    """Makes a closed month's invoices again, and says whether they are the same and what has come since."""
    found = _ask(data, "GET", _of(tenant, month, "/check"))
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        for each in found["to_be_added"]:
            price = escape(each["price_id"] or "no price")
            err.print(f"{each['kind']}, for the next invoice: {each['amount']} {each['currency']} ({price})")
        if found["missing_events"]:
            missing = counted(found["missing_events"], "event")
            err.print(f"[red]{missing} of what was invoiced cannot be found in the tables any more[/red]")
        if found["dropped_at"]:
            err.print(f"its usage events left the tables at {found['dropped_at']}")
    if not found["reproduced"]:
        raise CommandError("the invoices cannot be made again: what they were made of, or they, have been changed")
    if as_json:
        return
    if not found["sha256"]:
        out.print(f"closed at {found['closed_at']}, {_WITHOUT_INVOICE}")
    else:
        out.print("the same to the byte: " + ", ".join(found["sha256"]))


@ledger_app.command("list")
def ledger_list(tenant: TenantArgument, data: DataOption = DEFAULT_DATA, as_json: JsonOption = False) -> None:
    """Every entry of a tenant. Above 0 it owes, below 0 it gets."""
    answer = _ask(data, "GET", f"/internal/ledger/{quote(tenant, safe='')}")
    if as_json:
        print(json.dumps(answer, indent=1))
        return
    table = Table("recorded", "of", "kind", "amount", "", "by", "reason", "invoice")
    for each in answer["entries"]:
        table.add_row(
            each["recorded_at"][:19], each["month"], each["kind"], each["amount"], each["currency"],
            escape(each["actor"]), escape(each["reason"]), "has it" if each["is_invoiced"] else "next",
        )  # fmt: skip
    out.print(table)


def _record(data: Path, kind: str, tenant: str, amount: str, currency: str, reason: str, month: str | None) -> None:
    body = {
        "tenant_id": tenant, "kind": kind, "amount": amount, "currency": currency, "reason": reason, "month": month,
        "actor": who_asks(),
    }  # fmt: skip
    entry = _ask(data, "POST", "/internal/ledger", body)
    said = "stands there already" if entry["is_repeat"] else "recorded"
    out.print(f"{entry['entry_id']} {said}: {entry['amount']} {entry['currency']} of {entry['month']}")
    if entry["is_repeat"]:
        err.print("to record as much once more, give another reason")


@ledger_app.command("credit", context_settings={"ignore_unknown_options": True})
def ledger_credit(
    tenant: TenantArgument, amount: AmountArgument, currency: CurrencyArgument, reason: ReasonOption,
    month: OfMonthOption = None, data: DataOption = DEFAULT_DATA,
) -> None:  # fmt: skip
    """Takes an amount off the tenant's next invoice."""
    _record(data, "credit", tenant, amount, currency, reason, month)


@ledger_app.command("correct", context_settings={"ignore_unknown_options": True})
def ledger_correct(
    tenant: TenantArgument, amount: AmountArgument, currency: CurrencyArgument, reason: ReasonOption,
    month: OfMonthOption = None, data: DataOption = DEFAULT_DATA,
) -> None:  # fmt: skip
    """Adds an amount to the tenant's next invoice; one below 0, such as -3, takes it off."""
    _record(data, "correction", tenant, amount, currency, reason, month)


@billing.command("drop-month")
def drop_month(
    month: MonthArgument,
    reason: Annotated[str, typer.Option(help="Why; it is kept.")],
    data: DataOption = DEFAULT_DATA,
    yes: YesOption = False,
) -> None:
    """Removes a month's usage events for good, if each of them is on an invoice. Invoices stay as they are."""
    if not yes and not typer.confirm(f"Remove all usage events of {month}?", err=True):
        raise CommandError("nothing was changed")
    body = {"month": month, "reason": reason, "actor": who_asks()}
    done = _ask(data, "POST", "/internal/dropped-months", body)
    out.print(f"gone: {counted(done['events'], 'usage event')} of {done['month']}")
