"""Messages to prompt token ids, with the model's own chat template and tokenizer, and no torch.

The template is rendered around placeholders; each message's content is then encoded on its own with special tokens
switched off. So text such as `<|end|>` inside a message becomes ordinary tokens: no message can forge a turn.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NoReturn

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from schemas.request import Message

MAX_REMEMBERED_TURNS = 32
"""What the template writes depends on the roles alone; for short chats it is rendered once."""
MAX_CHARS_PER_TOKEN = 256
"""No tokenizer makes one token of more: a longer text is beyond any context before it is tokenised."""
PROBED_CHARS_PER_TOKEN = 8
"""Ordinary text has half of it: so much of a longer text shows whether the whole is too long."""
_NOT_WORTH_PROBING_CHARS = 4_096
_BETWEEN_WORDS = re.compile("[A-Za-z](?= [A-Za-z])")
_ACROSS_WORDS = re.compile("[A-Za-z][ \u0120\u2581]")
"""In a vocabulary, where a space is also written as `Ġ` or `▁`."""
_PLACEHOLDER = re.compile("\ue000([0-9]+)\ue001")


class TooManyTokens(Exception):
    """A prompt has more tokens than it may have; how many is not known, because not all of it was tokenised."""


def _raise_template_error(message: str) -> NoReturn:
    """What chat templates call for roles and parts that they do not know."""
    raise TemplateError(message)


@dataclass(frozen=True, slots=True)
class _Around:
    """What the template writes around the contents: tokens before each message, by its index, and behind the last."""

    messages: Sequence[tuple[Sequence[int], int]]
    end: Sequence[int]


class ChatTokenizer:
    """Deterministic and without state between calls. `path` holds `tokenizer.json` and `chat_template.jinja`.

    Raises OSError when a file is missing.
    """

    def __init__(self, path: Path) -> None:
        for name in ("tokenizer.json", "chat_template.jinja"):
            if not (path / name).is_file():
                raise FileNotFoundError(f"{path}: no {name}")
        self._template_tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        self._content_tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
        self._content_tokenizer.encode_special_tokens = True
        vocabulary = self._content_tokenizer.get_vocab()
        self._vocabulary_size = 1 + max(vocabulary.values())
        # Then a text has a boundary of tokens between any two words, so what stands before it is tokenised alike alone.
        self._divides_words = not any(map(_ACROSS_WORDS.search, vocabulary))
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _raise_template_error
        self._template: Template = environment.from_string((path / "chat_template.jinja").read_text())
        self._around = lru_cache(maxsize=256)(self._render)

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest token id, special tokens included."""
        return self._vocabulary_size

    def encode_chat(self, messages: Sequence[Message], *, asks: bool = True, at_most: int | None = None) -> list[int]:
        """The prompt; it `asks` for the next assistant turn. Raises jinja2.TemplateError for a role it lacks.

        Raises TooManyTokens where the beginning of a long prompt shows that there are more than `at_most`.
        """
        roles = tuple(message.role for message in messages)
        render = self._around if len(roles) <= MAX_REMEMBERED_TURNS else self._render
        around = render(roles, asks)
        token_ids: list[int] = []
        left_chars = 0 if at_most is None else sum(len(message.text) for message in messages)
        for before, index in around.messages:
            token_ids += before
            text = messages[index].text
            if at_most is not None:
                self._probe(text, left_chars, at_most - len(token_ids))
                left_chars -= len(text)
            token_ids += self.encode_text(text)
        token_ids += around.end
        return token_ids

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

    def _render(self, roles: tuple[str, ...], asks: bool) -> "_Around":
        rendered = self._template.render(
            messages=[{"role": role, "content": f"\ue000{i}\ue001"} for i, role in enumerate(roles)],
            add_generation_prompt=asks,
        )
        found = []
        end = 0
        for match in _PLACEHOLDER.finditer(rendered):
            found.append((self._encode_template(rendered[end : match.start()]), int(match[1])))
            end = match.end()
        return _Around(found, self._encode_template(rendered[end:]))

    def encode_text(self, text: str, *, framed: bool = False) -> list[int]:
        """Tokens of plain text, none of them special; `framed` by those that the tokenizer sets around a whole text.

        Other threads run meanwhile.
        """
        # Only the batch calls let go of the interpreter lock, and a long text takes seconds.
        [encoding] = self._content_tokenizer.encode_batch_fast([text], add_special_tokens=framed)
        return list(encoding.ids)

    def decode(self, token_ids: Sequence[int], *, with_specials: bool = False) -> str:
        return str(self._content_tokenizer.decode(list(token_ids), skip_special_tokens=not with_specials))

    def token_strings(self, token_ids: Sequence[int]) -> list[str]:
        """Each as the vocabulary writes it, empty for what it does not have."""
        return [self._content_tokenizer.id_to_token(token_id) or "" for token_id in token_ids]

    def _encode_template(self, text: str) -> list[int]:
        return list(self._template_tokenizer.encode(text, add_special_tokens=False).ids) if text else []
