"""The ids of the calls that answers make: the same in every dialect, stream, replay and result."""

import hashlib


def call_id(response_id: str, choice: int, call: int) -> str:
    """Of the `call`-th one of a choice, from 0 on: derived, so that whoever tells it again tells the same."""
    return f"call_{hashlib.sha256(f'{response_id}/{choice}/{call}'.encode()).hexdigest()[:24]}"
