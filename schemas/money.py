"""Money is an integer of pico-currency; this is how it is shown, without a float between."""

PICO_PER_UNIT = 10**12


def decimal_units(pico: int) -> str:
    """An amount as an exact decimal string, such as `0.0000138`."""
    whole, fraction = divmod(abs(pico), PICO_PER_UNIT)
    shown = f"{whole}.{fraction:012d}".rstrip("0").rstrip(".")
    return f"-{shown}" if pico < 0 else shown
