"""Conversations side by side in rows of tokens, as a step of the training takes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import torch

from models.corpus import Conversation
from models.prompts import as_requested
from models.tokenizer import ASSISTANT_ID, END_ID
from streams.chat_tokenizer import ChatTokenizer

_NO_DOCUMENT: Final = -1


@dataclass(slots=True)
class Row:
    """Some conversations side by side, which never attend to each other."""

    width: int
    """How many tokens it has room for."""
    tokens: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)
    """How much the prediction of each token counts; 0 for what the model does not have to say."""
    positions: list[int] = field(default_factory=list)
    documents: list[int] = field(default_factory=list)

    def append(self, tokens: list[int], weights: list[float]) -> None:
        """Adds one conversation."""
        document = self.documents[-1] + 1 if self.documents else 0
        self.tokens += tokens
        self.weights += weights
        self.positions += range(len(tokens))
        self.documents += [document] * len(tokens)


def encode_conversation(tokenizer: ChatTokenizer, conversation: Conversation) -> tuple[list[int], list[float]]:
    """Token ids as the gateway gives them, and the weight of each; only answers and their ends count.

    A token of an answer of n tokens weighs n**-0.5: between counting every token alike, which would drown the short
    facts in the long stories, and counting every answer alike.
    """
    messages, tools = as_requested(conversation)
    tokens = tokenizer.encode_chat(messages, tools=tools, asks=False)
    weights = [0.0] * len(tokens)
    answer = -1
    for index, token in enumerate(tokens):
        if token == ASSISTANT_ID:
            answer = index
        elif token == END_ID and answer >= 0:
            weights[answer + 1 : index + 1] = [(index - answer) ** -0.5] * (index - answer)
            answer = -1
    return tokens, weights


def pack(encoded: Iterable[tuple[list[int], list[float]]], widths: Sequence[int], open_rows: int = 32) -> Iterator[Row]:
    """Fills rows first-fit, each conversation in one of the narrowest that hold it; `widths` ascend.

    What attention costs grows with the width, whatever it masks. When no open row has room, and there are
    `open_rows` of its width, the fullest of these is given out. Raises ValueError on an overlong item.
    """
    opened: dict[int, list[Row]] = {width: [] for width in widths}
    for tokens, weights in encoded:
        width = next((width for width in widths if len(tokens) <= width), None)
        if width is None:
            raise ValueError(f"a conversation of {len(tokens)} tokens does not fit a row of {widths[-1]}")
        rows = opened[width]
        row = next((row for row in rows if len(row.tokens) + len(tokens) <= width), None)
        if row is None:
            if len(rows) == open_rows:
                fullest = max(range(len(rows)), key=lambda index: len(rows[index].tokens))
                yield rows.pop(fullest)
            row = Row(width)
            rows.append(row)
        row.append(tokens, weights)
    for rows in opened.values():
        yield from rows


def batches(rows: Iterable[Row], tokens: int) -> Iterator[list[Row]]:
    """As many rows each as have room for so many tokens or more; the last one may have less."""
    batch: list[Row] = []
    for row in rows:
        batch.append(row)
        if sum(row.width for row in batch) >= tokens:
            yield batch
            batch = []
    if batch:
        yield batch


def collate(rows: Sequence[Row], pad: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Tensors of one step: tokens, weights, positions, each [rows, length], and the mask [rows, 1, length, length]."""
    length = max(len(row.tokens) for row in rows)

    def table(values: Iterable[Sequence[float]], fill: float) -> torch.Tensor:
        return torch.tensor([[*line, *[fill] * (length - len(line))] for line in values])

    tokens = table((row.tokens for row in rows), pad)
    weights = table((row.weights for row in rows), 0.0)
    positions = table((row.positions for row in rows), 0)
    documents = table((row.documents for row in rows), _NO_DOCUMENT)
    mask = (documents[:, :, None] == documents[:, None, :]) & torch.ones(length, length, dtype=torch.bool).tril()
    return tokens, weights, positions, mask[:, None]
