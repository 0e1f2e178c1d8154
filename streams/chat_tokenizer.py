"""Chats to prompt token ids, with the model's own chat template and tokenizer, and no torch.

What the template writes and what clients say is encoded apart, the latter without the tokens that frame turns. So text
such as `<|end|>` inside a message, a tool or a result becomes ordinary tokens: no client can forge a turn.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any

import orjson
from tokenizers import Tokenizer

from schemas.request import Message, Tool
from streams.chat_template import ChatTemplate, Rendered
from streams.directory import Model

MAX_REMEMBERED_TURNS = 32
"""What the template writes depends on the roles alone; for short chats without tools it is rendered once."""
MAX_CHARS_PER_TOKEN = 256
"""No tokenizer makes one token of more: a longer text is beyond any context before it is tokenised."""
PROBED_CHARS_PER_TOKEN = 8
"""Ordinary text has half of it: so much of a longer text shows whether the whole is too long."""
_NOT_WORTH_PROBING_CHARS = 4_096
_BETWEEN_WORDS = re.compile("[A-Za-z](?= [A-Za-z])")
_ACROSS_WORDS = re.compile("[A-Za-z][ \u0120\u2581]")
"""In a vocabulary, where a space is also written as `Ġ` or `▁`."""


_NO_TEMPLATE = "{{ raise_exception('the model has none') }}"


class TooManyTokens(Exception):
    """A prompt has more tokens than it may have; how many is not known, because not all of it was tokenised."""


@dataclass(frozen=True, slots=True)
class _Around:
    """What the template writes around the texts: tokens before each, by its index, and behind the last."""

    places: Sequence[tuple[Sequence[int], int]]
    end: Sequence[int]
    rendered: Rendered


class ChatTokenizer:
    """Deterministic and without state between calls. `path` holds `tokenizer.json` and `chat_template.jinja`.

    One that does not `chat` needs no template, and refuses chats. Raises OSError when a file is missing.
    """

    def __init__(self, path: Path, *, chats: bool = True) -> None:
        for name in ("tokenizer.json", *(["chat_template.jinja"] if chats else [])):
            if not (path / name).is_file():
                raise FileNotFoundError(f"{path}: no {name}")
        self._template = ChatTemplate((path / "chat_template.jinja").read_text() if chats else _NO_TEMPLATE)
        self._template_tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        fields = orjson.loads((path / "tokenizer.json").read_bytes())
        markers = _markers(fields, self._template)
        self._content_tokenizer = _for_contents(fields, markers)
        self._markers = frozenset(markers.values())
        vocabulary = self._content_tokenizer.get_vocab()
        self._vocabulary_size = 1 + max(vocabulary.values())
        # Then a text has a boundary of tokens between any two words, so what stands before it is tokenised alike alone.
        self._divides_words = not any(map(_ACROSS_WORDS.search, vocabulary))
        self._remembered = lru_cache(maxsize=256)(self._around_roles)

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest token id, special tokens included."""
        return self._vocabulary_size

    def encode_chat(
        self, messages: Sequence[Message], *, tools: Sequence[Tool] = (), asks: bool = True, at_most: int | None = None
    ) -> list[int]:
        """The prompt; it `asks` for the next assistant turn. Raises jinja2.TemplateError for what it does not take.

        Raises TooManyTokens where the beginning of a long prompt shows that there are more than `at_most`.
        """
        around, texts = self._laid_out(messages, tools, asks=asks)
        token_ids: list[int] = []
        left_chars = 0 if at_most is None else sum(len(texts[index]) for _, index in around.places)
        for before, index in around.places:
            token_ids += before
            text = texts[index]
            if at_most is not None:
                self._probe(text, left_chars, at_most - len(token_ids))
                left_chars -= len(text)
            token_ids += self.encode_text(text)
        token_ids += around.end
        return token_ids

    def _laid_out(
        self, messages: Sequence[Message], tools: Sequence[Tool], *, asks: bool
    ) -> tuple[_Around, Sequence[str]]:
        """What stands around which texts."""
        if tools or any(message.tool_calls or message.role == "tool" for message in messages):
            rendered, given = self._template.of_chat(messages, tools, asks=asks)
            return self._around(rendered), rendered.texts(given)
        roles = tuple(message.role for message in messages)
        around = (self._remembered if len(roles) <= MAX_REMEMBERED_TURNS else self._around_roles)(roles, asks)
        return around, around.rendered.texts([message.text for message in messages])

    def _around_roles(self, roles: tuple[str, ...], asks: bool) -> _Around:
        return self._around(self._template.of_roles(roles, asks=asks))

    def _around(self, rendered: Rendered) -> _Around:
        places = [(self._encode_template(before), index) for before, index in rendered.before]
        return _Around(places, self._encode_template(rendered.end), rendered)

    def _probe(self, text: str, left_chars: int, room: int) -> None:
        """Raises TooManyTokens if `text`, of `left_chars` still to come, shows that there are more than `room`."""
        probed_chars = PROBED_CHARS_PER_TOKEN * max(room, 0)
        if left_chars <= probed_chars + _NOT_WORTH_PROBING_CHARS:
            return
        if room < 0:
            raise TooManyTokens
        boundary = _BETWEEN_WORDS.search(text, probed_chars) if self._divides_words else None
        if boundary is not None and len(self.encode_text(text[: boundary.end()])) > room:
            raise TooManyTokens

    def encode_text(self, text: str, *, framed: bool = False) -> list[int]:
        """Tokens of plain text, none of them special; `framed` by those that the tokenizer sets around a whole text.

        Other threads run meanwhile.
        """
        # Only the batch calls let go of the interpreter lock, and a long text takes seconds.
        [encoding] = self._content_tokenizer.encode_batch_fast([text], add_special_tokens=framed)
        return list(encoding.ids)

    def encode_prompt(self, text: str, *, at_most: int) -> list[int]:
        """Tokens of a text that is a whole prompt, framed as the tokenizer does; none that it writes is special.

        Raises TooManyTokens as `encode_chat`.
        """
        self._probe(text, len(text), at_most)
        return self.encode_text(text, framed=True)

    def decode(self, token_ids: Sequence[int], *, with_specials: bool = False) -> str:
        return str(self._template_tokenizer.decode(list(token_ids), skip_special_tokens=not with_specials))

    def readings(self, token_ids: Sequence[int]) -> Sequence[str]:
        """What they may be taken to say: with the markers among them, without, and with a space for each."""
        if self._markers.isdisjoint(token_ids):
            return (self.decode(token_ids),)
        space = self.encode_text(" ")
        without = [token_id for token_id in token_ids if token_id not in self._markers]
        spaced = chain.from_iterable(space if each in self._markers else (each,) for each in token_ids)
        return self.decode(token_ids, with_specials=True), self.decode(without), self.decode([*spaced])

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Each as the vocabulary writes it, empty for what it does not have."""
        return [self._content_tokenizer.id_to_token(token_id) or "" for token_id in token_ids]

    def _encode_template(self, text: str) -> list[int]:
        return list(self._template_tokenizer.encode(text, add_special_tokens=False).ids) if text else []


def _markers(fields: Mapping[str, Any], template: ChatTemplate) -> dict[str, int]:
    """Added tokens that no text of a client's may become, with their ids: the special ones, and what else the template
    writes.
    """
    return {
        token["content"]: token["id"]
        for token in fields.get("added_tokens") or ()
        if token["special"] or template.may_write(token["content"])
    }


def tokenizer_of(model: Model) -> ChatTokenizer:
    """Raises OSError."""
    return ChatTokenizer(Path(model.path), chats=model.embedding is None)


def _for_contents(fields: dict[str, Any], markers: Mapping[str, int]) -> Tokenizer:
    """Takes no text for a marker, and cuts and fills none, as tokenizers of models that embed often say they would."""
    fields["truncation"] = fields["padding"] = None
    for token in fields.get("added_tokens") or ():
        token["special"] = token["content"] in markers
    tokenizer = Tokenizer.from_buffer(orjson.dumps(fields))
    tokenizer.encode_special_tokens = True
    return tokenizer
