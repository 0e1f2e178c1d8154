"""Messages to prompt token ids, with the model's own chat template and tokenizer, and no torch.

The template is rendered around placeholders; each message's content is then encoded on its own with special tokens
switched off. So text such as `<|end|>` inside a message becomes ordinary tokens: no message can forge a turn.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from jinja2 import Template, TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from schemas.request import Message

_PLACEHOLDER = re.compile("\ue000([0-9]+)\ue001")


def _raise_template_error(message: str) -> NoReturn:
    """What chat templates call for roles and parts that they do not know."""
    raise TemplateError(message)


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
        self._vocabulary_size = 1 + max(self._content_tokenizer.get_vocab().values())
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _raise_template_error
        self._template: Template = environment.from_string((path / "chat_template.jinja").read_text())

    @property
    def vocabulary_size(self) -> int:
        """One more than the largest token id, special tokens included."""
        return self._vocabulary_size

    def encode_chat(self, messages: Sequence[Message]) -> list[int]:
        """The prompt that asks for the next assistant turn. Raises jinja2.TemplateError for a role it lacks."""
        rendered = self._template.render(
            messages=[{"role": m.role, "content": f"\ue000{i}\ue001"} for i, m in enumerate(messages)],
            add_generation_prompt=True,
        )
        token_ids: list[int] = []
        end = 0
        for match in _PLACEHOLDER.finditer(rendered):
            token_ids += self._encode_template(rendered[end : match.start()])
            token_ids += self.encode_text(messages[int(match[1])].text)
            end = match.end()
        return token_ids + self._encode_template(rendered[end:])

    def encode_text(self, text: str) -> list[int]:
        """Tokens of plain text; never a special token. Other threads run meanwhile."""
        # Only the batch calls let go of the interpreter lock, and a long text takes seconds.
        [encoding] = self._content_tokenizer.encode_batch_fast([text], add_special_tokens=False)
        return list(encoding.ids)

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of tokens, without special ones."""
        return str(self._content_tokenizer.decode(list(token_ids), skip_special_tokens=True))

    def _encode_template(self, text: str) -> list[int]:
        return list(self._template_tokenizer.encode(text, add_special_tokens=False).ids) if text else []
