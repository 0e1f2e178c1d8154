"""Invoices as a table for programs (CSV) and as a page to print (HTML), from their documents."""

import csv
import io
from collections.abc import Sequence
from html import escape
from typing import Any

COLUMNS = (
    "invoice_id", "tenant_id", "month", "currency", "row", "kind", "of_month", "model", "price_id", "class", "quantity",
    "price_per_million", "amount", "reason", "sha256",
)  # fmt: skip
"""Of the CSV. `row` is `line`, `entry`, `entry line` (part of the entry above it), or a sum: `exact`, `total` or
`carried`."""
CLASSES = {
    "uncached_input": "Input", "cached_input": "Input, cached", "output": "Output", "reasoning": "Output, reasoning",
}  # fmt: skip
KINDS = {
    "credit": "Credit", "correction": "Correction", "late": "Late usage", "re-rated": "Re-rated usage",
    "carried": "Carried over",
}  # fmt: skip
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""A cell of text that begins so is a formula to a spreadsheet."""

_STYLE = """
@page { size: A4; margin: 18mm }
body { font: 14px/1.45 system-ui, "Liberation Sans", sans-serif; color: #1a1a1a; max-width: 60em; margin: 2em auto; padding: 0 1em }
article + article { break-before: page; margin-top: 4em }
h1 { font-size: 26px; margin: 0 0 .2em } h2 { font-size: 16px; margin: 2em 0 .4em }
.draft { color: #a40000; border: 2px solid; display: inline-block; padding: .1em .6em; font-weight: bold }
dl { display: grid; grid-template-columns: max-content auto; gap: .15em 1.5em; margin: 1.2em 0 } dt { color: #555 }
dd { margin: 0; overflow-wrap: anywhere }
table { border-collapse: collapse; width: 100% } th { text-align: left; color: #555; font-weight: 600 }
th, td { padding: .3em .6em .3em 0; border-bottom: 1px solid #ddd; vertical-align: top; overflow-wrap: anywhere }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; padding-right: 0; padding-left: 1em }
thead { display: table-header-group } tr { break-inside: avoid } .part td { color: #555; font-size: 12.5px }
tfoot td { border-bottom: none } .total td { font-size: 18px; font-weight: bold; border-top: 2px solid #1a1a1a }
footer { margin-top: 2.5em; color: #555; font-size: 12px; overflow-wrap: anywhere }
"""  # noqa: E501


def counted(number: int, name: str) -> str:
    """As people say it: `1 event`, `2 events`."""
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def csv_of(invoices: Sequence[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, restval="", lineterminator="\r\n")
    writer.writeheader()
    for invoice in invoices:
        head = {name: invoice[name] for name in ("invoice_id", "tenant_id", "month", "currency", "sha256")}
        for line in invoice["lines"]:
            writer.writerow({**head, **_cells(line), "row": "line", "kind": "usage", "of_month": invoice["month"]})
        for entry in invoice["entries"]:
            of_entry = {**head, "kind": entry["kind"], "of_month": entry["month"]}
            writer.writerow({**of_entry, "row": "entry", "amount": entry["amount"], "reason": _text(entry["reason"])})
            for line in entry["lines"]:
                writer.writerow({**of_entry, **_cells(line), "row": "entry line"})
        for name in ("exact", "total", "carried"):
            writer.writerow({**head, "row": name, "of_month": invoice["month"], "amount": invoice[name]})
    return out.getvalue()


def _cells(line: dict[str, Any]) -> dict[str, Any]:
    return {**line, "model": _text(line["model"]), "price_id": _text(line["price_id"])}


def _text(value: str) -> str:
    return f"'{value}" if value.startswith(_FORMULA) else value


def html_of(invoices: Sequence[dict[str, Any]], *, is_draft: bool) -> str:
    """One page that needs nothing else, an invoice on a sheet of its own."""
    title = escape(", ".join(invoice["invoice_id"] for invoice in invoices) or "no invoice")
    articles = "\n".join(_article(invoice, is_draft) for invoice in invoices) or "<p>Nothing was used.</p>"
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{title}</title><style>{_STYLE}</style></head>\n<body>\n{articles}\n</body></html>\n"
    )


def _article(invoice: dict[str, Any], is_draft: bool) -> str:
    currency = escape(invoice["currency"])
    facts = {
        "Invoice": invoice["invoice_id"],
        "Tenant": invoice["tenant_id"],
        "Period": f"{invoice['month']}, UTC, by when requests were accepted",
        "Number": "none yet" if is_draft else str(invoice["number"]),
        "As of" if is_draft else "Closed": invoice["closed_at"],
    }
    waiting = invoice["events_without_price"]
    notes = [
        "Amounts are exact; the total alone is rounded, to the nearest cent, half to the even one. What that leaves is "
        "carried to the next invoice.",
        f"All usage that was logged by {invoice['finalized_through']} is counted; what comes later is on the "
        "next invoice.",
        *([f"Without a price, and on a later invoice: {counted(waiting, 'event')}."] if waiting else []),
    ]
    hash_of = "" if is_draft else f"<p>SHA-256 of its content: <code>{escape(invoice['sha256'])}</code></p>"
    return (
        "<article>"
        + ('<p class="draft">DRAFT, not an invoice</p>' if is_draft else "")
        + f"<h1>Invoice {escape(invoice['month'])}</h1>"
        + f"<dl>{''.join(f'<dt>{name}</dt><dd>{escape(value)}</dd>' for name, value in facts.items())}</dl>"
        + "<table><thead><tr><th>Model</th><th>Tokens</th><th>Price</th><th class=n>Quantity</th>"
        + f"<th class=n>{currency} per million</th><th class=n>Amount</th></tr></thead><tbody>"
        + "".join(_line(line, "") for line in invoice["lines"])
        + _sum("Usage", invoice["usage"])
        + "".join(map(_entry, invoice["entries"]))
        + (_sum("Credits, corrections, usage of other months", invoice["adjustments"]) if invoice["entries"] else "")
        + "</tbody><tfoot>"
        + _sum("Exact sum", invoice["exact"])
        + f"<tr class=total><td colspan=5>Total, {currency}</td><td class=n>{escape(invoice['total'])}</td></tr>"
        + _sum("Carried to the next invoice", invoice["carried"])
        + f"</tfoot></table><footer>{''.join(f'<p>{escape(note)}</p>' for note in notes)}{hash_of}</footer></article>"
    )


def _line(line: dict[str, Any], css_class: str) -> str:
    cells = (line["model"], CLASSES.get(line["class"], line["class"]), line["price_id"])
    figures = (f"{line['quantity']:,}", line["price_per_million"], line["amount"])
    return (
        f"<tr class='{css_class}'>"
        + "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        + "".join(f"<td class=n>{escape(figure)}</td>" for figure in figures)
        + "</tr>"
    )


def _entry(entry: dict[str, Any]) -> str:
    kind = KINDS.get(entry["kind"], entry["kind"])
    return (
        f"<tr><td>{escape(kind)}</td><td colspan=4>{escape(entry['reason'])}"
        f" <small>({escape(entry['recorded_at'][:10])}, {escape(entry['entry_id'])})</small></td>"
        f"<td class=n>{escape(entry['amount'])}</td></tr>"
    ) + "".join(_line(line, "part") for line in entry["lines"])


def _sum(name: str, amount: str) -> str:
    return f"<tr><td colspan=5>{name}</td><td class=n>{escape(amount)}</td></tr>"
