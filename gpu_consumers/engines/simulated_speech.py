"""What the simulated engine says: it tells a story, thinks, calls tools and fills structures, by rule.

It calls the first tool, or the one named, with the smallest arguments that satisfy its schema. Asked for calls only if
they help, it does so unless the prompt ends with a tool's result: then it answers in text, or fills the structure.
"""

import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from tokenizers import Tokenizer

from gpu_consumers.engines.port import EngineRequest
from gpu_consumers.engines.simulated_structure import instance_of, say
from gpu_consumers.engines.simulated_text import SENTENCES, Passage, Reading, Vocabulary
from gpu_consumers.parsing.either import EitherParser
from gpu_consumers.parsing.fold import Fold
from gpu_consumers.parsing.hermes import CALL, END_CALL, END_THINK, THINK, HermesParser
from gpu_consumers.parsing.port import ParserNames, TokenParser
from schemas.request import Tool, ToolChoice

TOOL_PARSERS: Final = ("", "hermes")
REASONING_PARSERS: Final = ("", "deepseek_r1", "qwen3")
"""Of vLLM's, those whose format is the one that is spoken here."""

_THOUGHT: Final = f"{THINK}The fox asked for a story, and she will get one 🦊.{END_THINK}"
_CALL: Final = f'{CALL}\n{{"name": %s, "arguments": %s}}\n{END_CALL}'

_TAIL_TOKENS: Final = 64
_MARK = re.compile(r"<\|[^<>|]*\|>|<think>|</think>")
_RESULT_LAST = re.compile(r"</tool_response>\s*(?:assistant|model)?\s*")
"""As chat templates have it that go with the Hermes format, and what they write behind it to ask for an answer."""

EndsWithResult = Callable[[Sequence[int]], bool]
"""Whether a prompt ends with the result of a tool."""


def ends_with_result(tokenizer: Tokenizer) -> EndsWithResult:
    """For prompts of this tokenizer."""

    def ends(prompt: Sequence[int]) -> bool:
        tail = tokenizer.decode(list(prompt[-_TAIL_TOKENS:]), skip_special_tokens=False)
        begin = tail.rfind("</tool_response>")
        return begin >= 0 and _RESULT_LAST.fullmatch(_MARK.sub("", tail[begin:])) is not None

    return ends


class Opening(NamedTuple):
    """What an answer begins with, and whether that is all of it."""

    passage: Passage
    is_all: bool


class Speech:
    """For a pool's parsers. `script` is told instead of the story, if there is one; `calls` is how many tools an answer
    calls that may call several.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        script: str,
        parsers: ParserNames,
        calls: int,
        ends_with_result: EndsWithResult,
    ) -> None:
        self._vocabulary = vocabulary
        self._story = [vocabulary.tokenize(sentence) for sentence in SENTENCES]
        self._script = vocabulary.tokenize(script) if script else None
        self._parsers = parsers
        self._calls = calls
        self._ends_with_result = ends_with_result
        if parsers != ParserNames():
            vocabulary.tokenize(_THOUGHT + _CALL)

    def story(self, source: random.Random, *, scripted: bool) -> Iterator[Passage]:
        """Without an end."""
        if scripted and self._script is not None:
            while True:
                yield self._script
        yield self._story[0]
        while True:
            yield self._story[source.randrange(1, len(self._story))]

    def opening(self, request: EngineRequest, source: random.Random) -> Opening | None:
        """None where an answer is nothing but its story. Raises CannotSay for a structure beyond this engine."""
        thought = _THOUGHT if self._parsers.reasoning and request.is_turn else ""
        bound_to = request.sampling.structured_outputs
        text = "\n".join(map(_call, self.called(request)))
        if not text and bound_to is not None:
            text = say(bound_to, source)
        if not thought and not text:
            return None
        return Opening(self._vocabulary.spell(thought + text), bool(text))

    def fold(self, request: EngineRequest) -> Fold | None:
        """That reads the answer; None where that is not needed."""
        if not self._parsers.are_needed(request):
            return None
        reasoning = bool(self._parsers.reasoning)
        parser: TokenParser = HermesParser(reasoning=reasoning, calls=self._parsers.finds_calls(request))
        if self._parsers.schema_beside_calls(request) is not None:
            parser = EitherParser(parser, HermesParser(reasoning=reasoning, calls=False))
        return Fold(Reading(self._vocabulary).text_of, parser, request.sampling)

    def called(self, request: EngineRequest) -> Sequence[Tool]:
        """The tools that an answer calls."""
        if not self._parsers.finds_calls(request):
            return ()
        choice = request.tool_choice or ToolChoice()
        if choice.mode == "named":
            return [tool for tool in request.tools if tool.name == choice.name]
        if choice.mode == "auto" and self._ends_with_result(request.prompt_token_ids):
            return ()
        return request.tools[: self._calls if choice.parallel else 1]


def _call(tool: Tool) -> str:
    arguments = instance_of(tool.parameters or {"type": "object"})
    return _CALL % (json.dumps(tool.name), json.dumps(arguments, ensure_ascii=False))
