"""The ids of items: derived, so that whoever tells an item again tells the same."""

import hashlib
from typing import Final, Literal

ItemKind = Literal["message", "reasoning", "function_call"]
_PREFIXES: Final[dict[ItemKind, str]] = {"message": "msg", "reasoning": "rs", "function_call": "fc"}


def item_id(kind: ItemKind, response_id: str, index: int, choice: int = 0) -> str:
    """Of the `index`-th item of a choice, from 0 on."""
    unique = hashlib.sha256(f"{response_id}/{choice}/item/{index}".encode()).hexdigest()[:32]
    return f"{_PREFIXES[kind]}_{unique}"


def input_item_id(prefix: str, response_id: str, index: int) -> str:
    """Of the `index`-th item that its client sent."""
    return f"{prefix}_{hashlib.sha256(f'{response_id}/input/{index}'.encode()).hexdigest()[:32]}"
