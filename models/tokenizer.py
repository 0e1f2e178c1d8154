"""The tokenizer and the chat template, which the models of all sizes share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from tokenizers import Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.trainers import BpeTrainer

from models.corpus import Conversation
from models.prompts import as_requested
from streams.chat_template import ChatTemplate

PAD: Final = "<|pad|>"
END: Final = "<|end|>"
ROLE_TOKENS: Final = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>"}
SPECIAL_TOKENS: Final = (PAD, *ROLE_TOKENS.values(), END)
PAD_ID: Final = SPECIAL_TOKENS.index(PAD)
END_ID: Final = SPECIAL_TOKENS.index(END)
ASSISTANT_ID: Final = SPECIAL_TOKENS.index(ROLE_TOKENS["assistant"])
VOCABULARY_SIZE: Final = 3072
CONTEXT_TOKENS: Final = 4096

_PIECES: Final = r" ?\p{Ll}+|\p{Lu}+\p{Ll}*|\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s"
"""What is never merged with what follows. A name is the same tokens behind a space and behind a quote, so that it can
be copied from a sentence into JSON."""

CHAT_TEMPLATE: Final = """\
{%- if tools is defined and tools -%}
  {{- '<|system|>You can call these functions:\\n<tools>\\n' -}}
  {%- for tool in tools -%}
    {{- tool['function'] | tojson ~ '\\n' -}}
  {%- endfor -%}
  {{- '</tools>\\nTo call one, answer with <tool_call>{"name": ..., "arguments": {...}}</tool_call><|end|>' -}}
{%- endif -%}
{%- for message in messages -%}
  {%- set role = 'system' if message['role'] == 'developer' else message['role'] -%}
  {%- if role not in ['system', 'user', 'assistant', 'tool'] -%}
    {{- raise_exception('this model has no role ' ~ role) -}}
  {%- endif -%}
  {%- if role != 'tool' -%}
    {{- '<|' ~ role ~ '|>' -}}
  {%- elif loop.first or loop.previtem['role'] != 'tool' -%}
    {{- '<|user|><tool_response>' -}}
  {%- else -%}
    {{- '\\n<tool_response>' -}}
  {%- endif -%}
  {%- if message['content'] is string -%}
    {{- message['content'] -}}
  {%- elif message['content'] is not none -%}
    {%- for part in message['content'] -%}
      {%- if part['type'] != 'text' -%}
        {{- raise_exception('this model reads text only, not ' ~ part['type']) -}}
      {%- endif -%}
      {{- part['text'] -}}
    {%- endfor -%}
  {%- endif -%}
  {%- if role == 'tool' -%}
    {{- '</tool_response>' -}}
  {%- elif message['tool_calls'] is defined and message['tool_calls'] -%}
    {%- for call in message['tool_calls'] -%}
      {{- '\\n' if message['content'] or not loop.first else '' -}}
      {{- '<tool_call>{"name": ' ~ call['function']['name'] | tojson -}}
      {{- ', "arguments": ' ~ call['function']['arguments'] | tojson ~ '}</tool_call>' -}}
    {%- endfor -%}
  {%- endif -%}
  {%- if role != 'tool' or loop.last or loop.nextitem['role'] != 'tool' -%}
    {{- '<|end|>' -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt is defined and add_generation_prompt -%}
  {{- '<|assistant|>' -}}
{%- endif -%}
"""


def texts_of(drawn: Iterable[Conversation]) -> Iterator[str]:
    """What is tokenised: the contents of messages, and what the template makes of tools and calls."""
    template = ChatTemplate(CHAT_TEMPLATE)
    for conversation in drawn:
        messages, tools = as_requested(conversation)
        rendered, given = template.of_chat(messages, tools, asks=False)
        texts = rendered.texts(given)
        for before, index in rendered.before:
            yield before
            yield texts[index]


def train_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """A byte-level BPE: every byte is a token, so any text round-trips; digits are never merged."""
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    # Without the emoji, so that each stays four tokens: a stream then really has characters that span frames.
    plain = ("".join(character for character in text if ord(character) < 0x10000) for text in texts)
    tokenizer.train_from_iterator(plain, trainer)
    return tokenizer


def save_tokenizer(out: Path, tokenizer: Tokenizer) -> None:
    """Writes the tokenizer and the template."""
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    tokenizer_config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT_TOKENS,
        "eos_token": END,
        "pad_token": PAD,
        "additional_special_tokens": list(ROLE_TOKENS.values()),
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(tokenizer_config, indent=2) + "\n", encoding="utf-8")
