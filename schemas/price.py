"""Records on `prices`: what is charged, as billing has it; whoever must know what a request costs reads them."""

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Identifier, Milliseconds, Record

Pico = Annotated[int, Field(ge=0, lt=2**63)]


class PriceTold(Record):
    """A row of billing's price list, in pico-currency (10⁻¹²) per token. It holds from `valid_from_ms` until the next
    row of what it is for begins. It is never changed, so the topic is compacted by its id.
    """

    type: Literal["price"] = "price"
    price_id: str = Field(min_length=1, max_length=1_000)
    model: Identifier
    currency: str = Field(pattern=r"^([A-Z]{3})?$", description="Empty where it is withdrawn.")
    valid_from_ms: Milliseconds
    uncached_input_pico: Pico
    cached_input_pico: Pico
    output_pico: Pico
    reasoning_pico: Pico
    tenant_id: str = Field(default="", max_length=200, description="For whom; empty: for all.")
    endpoint: str = Field(default="", max_length=200, description="Of what is asked there; empty: anywhere.")
    lane: str = Field(default="", max_length=200, description="Of what goes there; empty: anywhere.")
    region: str = Field(default="", max_length=32)
    withdrawn: bool = Field(default=False, description="From then on the next less specific price holds.")
