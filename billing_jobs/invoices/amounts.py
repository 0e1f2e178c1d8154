"""Money between what is exact and what is paid.

Everything is counted in pico-currency, exactly. It is rounded once, where an invoice's total is asked for in the
smallest unit that its currency is paid in; what that leaves goes on to the next invoice.
"""

import re
from dataclasses import dataclass
from decimal import Decimal

from schemas.money import PICO_PER_UNIT, decimal_units
from schemas.month import Month

MINOR_DIGITS = {"USD": 2, "EUR": 2}
"""Currency → decimals of what is paid in it. Those that prices may have (`streams.directory.Price`)."""
MAX_ENTRY_PICO = 10**9 * PICO_PER_UNIT
"""Of one entry that somebody types: beyond it a digit too many is likelier than a credit."""
_AMOUNT = re.compile(r"-?[0-9]{1,10}(\.[0-9]{1,12})?")


class InvoiceRefused(ValueError):
    """What cannot be done, in words for the operator. `param` names the field at fault, where one is; `status` is
    HTTP's: 400 it is wrong, 404 it is not there, 409 it cannot be done as things are.
    """

    def __init__(self, message: str, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.param = param
        self.status = status


def parse_month(text: str) -> Month:
    """`2027-03`. Raises InvoiceRefused."""
    try:
        return Month.parse(text)
    except ValueError as error:
        raise InvoiceRefused(f"month: {error}", "month") from None


def per_million(pico_per_token: int) -> str:
    """A price as the settings have it, exact."""
    return decimal_units(pico_per_token * 1_000_000)


def pico_of(amount: str, field: str = "amount") -> int:
    """Exact. Raises InvoiceRefused."""
    if _AMOUNT.fullmatch(amount) is None:
        raise InvoiceRefused(
            f"{field}: {amount[:40]!r} is no amount such as 12.50, of at most ten digits and twelve decimals", field
        )
    pico = int(Decimal(amount).scaleb(12))
    if not 0 < abs(pico) <= MAX_ENTRY_PICO:
        raise InvoiceRefused(f"{field}: an entry is not 0, and at most {MAX_ENTRY_PICO // PICO_PER_UNIT}", field)
    return pico


def check_currency(currency: str) -> str:
    """Raises InvoiceRefused."""
    if currency not in MINOR_DIGITS:
        raise InvoiceRefused(f"currency: {currency[:10]!r} is none of {', '.join(MINOR_DIGITS)}", "currency")
    return currency


@dataclass(frozen=True, slots=True)
class Payable:
    """`minor`: in cents, never below 0. `carried_pico` is what is exact beyond it, and goes on to the next invoice: a
    part of a cent of either sign, or what credits exceed the usage by.
    """

    minor: int
    carried_pico: int


def payable(exact_pico: int, currency: str) -> Payable:
    """The one rounding of an invoice: to the nearest cent, half to the even one."""
    pico_per_minor = PICO_PER_UNIT // 10 ** MINOR_DIGITS[currency]
    minor, rest = divmod(max(0, exact_pico), pico_per_minor)
    if 2 * rest > pico_per_minor or (2 * rest == pico_per_minor and minor % 2):
        minor += 1
    return Payable(minor, exact_pico - minor * pico_per_minor)


def paid_units(minor: int, currency: str) -> str:
    """`1234` cents as `12.34`."""
    digits = MINOR_DIGITS[currency]
    whole, fraction = divmod(minor, 10**digits)
    return f"{whole}.{fraction:0{digits}d}"
