"""Invoices as CSV and as a page: the same figures, and nothing that somebody wrote becomes markup or a formula."""

import csv
import io
from html.parser import HTMLParser
from typing import Any

from billing_jobs.invoices.core import content_sha256, invoices_of
from billing_jobs.invoices.pages import COLUMNS, csv_of, html_of
from tests.unit.billing_jobs.invoices.test_core import CLOSING, PRICES, counted, entry

EVIL = "<script>alert(1)</script>&\"'"


def documents() -> list[dict[str, Any]]:
    found = [counted(), counted("euro@0"), counted(month=CLOSING.month, kind="late"), counted("", (0, 0, 0, 0), 7)]
    waiting = [entry(-15 * 10**11, reason=f"=1+1 {EVIL}")]
    invoices = [invoice.document() for invoice in invoices_of(CLOSING, found, PRICES, waiting)]
    return [{**document, "sha256": content_sha256(document)} for document in invoices]


class Page(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.texts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action")]

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_page_says_all_that_an_invoice_does_and_needs_nothing_else() -> None:
    euro, usd = documents()
    page = Page(html_of([euro, usd], is_draft=False))
    assert page.tags.count("article") == 2
    assert (page.addresses, "script" in page.tags, "link" in page.tags) == ([], False, False)
    said = " ".join(page.texts)
    for invoice in (euro, usd):
        for name in ("invoice_id", "tenant_id", "month", "exact", "total", "carried", "usage", "sha256"):
            assert invoice[name] in said, name
        for line in [*invoice["lines"], *(line for each in invoice["entries"] for line in each["lines"])]:
            for figure in (f"{line['quantity']:,}", line["price_per_million"], line["amount"], line["price_id"]):
                assert figure in page.texts
    assert "Without a price, and on a later invoice: 7 events." in said
    assert EVIL in said
    assert "DRAFT" not in said


def test_a_draft_is_not_taken_for_an_invoice() -> None:
    [document, _] = documents()
    said = " ".join(Page(html_of([document], is_draft=True)).texts)
    assert "DRAFT, not an invoice" in said
    assert document["sha256"] not in said
    assert "Nothing was used." in html_of([], is_draft=True)


def test_rows_of_the_csv_add_up_and_none_is_a_formula() -> None:
    euro, usd = documents()
    rows = list(csv.DictReader(io.StringIO(csv_of([euro, usd]), newline="")))
    assert list(rows[0]) == list(COLUMNS)
    for invoice in (euro, usd):
        own = [row for row in rows if row["invoice_id"] == invoice["invoice_id"]]
        amounts = {kind: [row["amount"] for row in own if row["row"] == kind] for kind in ("line", "exact", "total")}
        assert amounts["line"] == [line["amount"] for line in invoice["lines"]]
        assert (amounts["exact"], amounts["total"]) == ([invoice["exact"]], [invoice["total"]])
        assert {row["sha256"] for row in own} == {invoice["sha256"]}
    assert [row["reason"] for row in rows if row["row"] == "entry"] == [
        "usage of 2025-11 that was stored after its invoice was closed", f"'=1+1 {EVIL}",
    ]  # fmt: skip
    assert [row["class"] for row in rows if row["row"] == "entry line"] == [
        "uncached_input", "cached_input", "output", "reasoning",
    ]  # fmt: skip
