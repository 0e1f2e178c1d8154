"""The bill that the README shows is one that the program makes of these tokens, and adds up by hand."""

import io
import re
import tomllib
from decimal import Decimal
from pathlib import Path

from rich.console import Console

from billing_jobs.invoices.amounts import parse_month
from billing_jobs.invoices.core import Closing, Counted, StoredBefore, content_sha256, invoices_of
from billing_jobs.pricing import PRICED_CLASSES, PriceScope, row_of
from deploy.cli.invoices import print_invoices
from streams.directory import Price

ROOT = Path(__file__).parents[4]
[SHOWN] = re.findall(
    r"    \$ \.venv/bin/sluice invoice draft (\S+) (\S+)\n\n((?:    .*\n)+)", (ROOT / "README.md").read_text()
)
TENANT, MONTH, TABLE = SHOWN[0], SHOWN[1], re.sub(r"^    ", "", SHOWN[2], flags=re.MULTILINE)
LINES = [
    [cell.strip() for cell in line.split("│")[1:-1]] for line in TABLE.splitlines() if line.startswith("│ sluice-tiny")
]
NAMES = {"Input": 0, "Input, cached": 1, "Output": 2, "Output, reasoning": 3}


def test_each_amount_is_tokens_times_price_and_their_sum_is_the_bill() -> None:
    amounts = [int(quantity.replace(",", "")) * Decimal(price) / 1_000_000 for *_, quantity, price, _ in LINES]
    assert [Decimal(amount) for *_, amount in LINES] == amounts
    [exact] = re.findall(r"│ exact +│.* ([\d.]+) │", TABLE)
    assert Decimal(exact) == sum(amounts)


def test_the_program_makes_that_bill_of_these_tokens_at_the_prices_of_the_settings() -> None:
    settings = tomllib.loads((ROOT / "deploy" / "local" / "local.toml").read_text())
    [model] = (each for each in settings["models"] if each["name"] == "sluice-tiny")
    row = row_of(PriceScope("sluice-tiny"), Price.model_validate(model["price"]), 0)
    unit = {name: int(getattr(row, f"{name}_pico")) for name in PRICED_CLASSES}
    tokens = [0, 0, 0, 0]
    for _, name, _, quantity, *_ in LINES:
        tokens[NAMES[name]] = int(quantity.replace(",", ""))
    first, second, third, fourth = tokens
    cost_pico = sum(quantity * unit[name] for quantity, name in zip(tokens, PRICED_CLASSES, strict=True))
    month = parse_month(MONTH)
    price_id = LINES[0][2]
    counted = Counted(
        month, "usage", "sluice-tiny", "USD", price_id, 1, (first, second, third, fourth), cost_pico
    )  # fmt: skip
    closing = Closing(TENANT, month, 1, month.end_ms, "", StoredBefore(month.end_ms, ()))
    uncached, cached, output, reasoning = unit.values()
    prices = {price_id: (uncached, cached, output, reasoning)}
    documents = [invoice.document() for invoice in invoices_of(closing, [counted], prices, [])]
    told = io.StringIO()
    print_invoices(
        {"is_draft": True, "invoices": [{**each, "sha256": content_sha256(each)} for each in documents]},
        Console(file=told, width=120, highlight=False, soft_wrap=True),
    )
    assert told.getvalue() == TABLE
