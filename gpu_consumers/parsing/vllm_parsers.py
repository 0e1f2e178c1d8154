"""vLLM's own parsers of tools and of reasoning, by the names that users of `vllm serve` know.

Their state cannot be kept, and of some of them what comes of an answer depends on how it is cut: so each gets one token
at a time, as it would in a replay. The ids that they give to calls are random and are passed over.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Final

from gpu_consumers.engines.port import EngineRequest
from gpu_consumers.parsing.either import EitherParser
from gpu_consumers.parsing.fold import Fold
from gpu_consumers.parsing.grammars import Inexpressible, either_grammar, json_grammar, lark_grammar
from gpu_consumers.parsing.hermes import HermesParser
from gpu_consumers.parsing.port import ParserNames, Piece, TokenParser
from schemas.request import Tool, ToolChoice

_NOISY: Final = ("vllm.parser", "vllm.reasoning", "vllm.tool_parsers")
"""They log what they cannot parse, with every token: a hostile answer would write megabytes."""

_TEXT_IS_MADE_HERE: Final[dict[str, Any]] = {"stop": [], "detokenize": False}


@dataclass(frozen=True, slots=True)
class Reading:
    """How the answer to one request is read: what vLLM's `SamplingParams` are to say beyond, or instead of, what the
    request does, and a new fold for each choice. `to_blame` is the parameter because of which vLLM may refuse them.
    """

    arguments: dict[str, Any]
    new_fold: Callable[[], Fold]
    to_blame: str | None = None


def plain_reading(request: EngineRequest, tokenizer: Any) -> Reading:
    """Of an answer that is all text."""
    from vllm.sampling_params import SamplingParams

    sampling = request.sampling
    shown = SamplingParams(
        skip_special_tokens=sampling.skip_special_tokens,
        spaces_between_special_tokens=sampling.spaces_between_special_tokens,
    )

    def new_fold() -> Fold:
        text_of = _Detokenizer(tokenizer, request.prompt_token_ids, shown).text_of
        return Fold(text_of, HermesParser(reasoning=False, calls=False), sampling)

    return Reading(dict(_TEXT_IS_MADE_HERE), new_fold)


class VllmParsers:
    """Those of a pool. Imports vLLM, which takes seconds. Raises TypeError where vLLM has no parser of such a name, or
    the tokenizer lacks what one needs.
    """

    def __init__(self, names: ParserNames, tokenizer: Any) -> None:
        from vllm.parser.parser_manager import ParserManager

        for name in _NOISY:
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        self.names = names
        self._tokenizer = tokenizer

        def parser_class(tool: str, strict_level: str) -> Any:
            return ParserManager.get_parser(
                tool_parser_name=tool or None, reasoning_parser_name=names.reasoning or None,
                enable_auto_tools=bool(tool), tool_strict_level=strict_level, tokenizer=tokenizer,
            )  # fmt: skip

        self._without_calls = parser_class("", "auto")
        self._may_call = parser_class(names.tool, "auto")
        # Arguments that are bound are bound to their schema.
        self._must_call = parser_class(names.tool, "parameter")
        self._special_tokens = _special_tokens(tokenizer)

    def reading(self, request: EngineRequest) -> Reading:
        """Takes as long as the tools' schemas are large. Raises Inexpressible where a call that is asked for cannot be
        bound by a grammar.
        """
        from vllm.sampling_params import SamplingParams

        calls = self.names.finds_calls(request)
        is_forced = calls and request.tool_choice is not None and request.tool_choice.mode in ("required", "named")
        made = self._must_call if is_forced else self._may_call if calls else self._without_calls
        chat = self._adjusted(made, request, request.tools if calls else ())
        arguments = dict(_TEXT_IS_MADE_HERE)
        to_blame = None
        schema = self.names.schema_beside_calls(request)
        if schema is not None:
            arguments["structured_outputs"], to_blame = self._calls_or(schema, request)
        # As in vLLM, any other structure that the client asks for wins over the form of calls that need not be made.
        elif is_forced or request.sampling.structured_outputs is None:
            if (bound := self._bound(chat)) is not None:
                arguments["structured_outputs"], to_blame = bound, "tools"
            elif is_forced:
                raise Inexpressible(f"the parser {self.names.tool} has no grammar for a call that must be made")
        shown = SamplingParams(
            # Behind hidden markers of calls an answer would seem to begin as JSON does.
            skip_special_tokens=chat.skip_special_tokens and schema is None,
            spaces_between_special_tokens=request.sampling.spaces_between_special_tokens,
        )

        def new_fold() -> Fold:
            text_of = _Detokenizer(self._tokenizer, request.prompt_token_ids, shown).text_of
            parser: TokenParser = VllmParser(made(self._tokenizer, chat.tools), chat, request.prompt_token_ids)
            if schema is not None:
                parser = EitherParser(parser, self._plain(request))
            return Fold(text_of, parser, request.sampling)

        return Reading(arguments, new_fold, to_blame)

    def _plain(self, request: EngineRequest) -> TokenParser:
        """That takes all but reasoning for text."""
        if not self.names.reasoning:
            return HermesParser(reasoning=False, calls=False)
        parser = self._without_calls(self._tokenizer, None)
        return VllmParser(parser, _chat_request(request, ()), request.prompt_token_ids)

    def _adjusted(self, made: Any, request: EngineRequest, tools: Sequence[Tool]) -> Any:
        """The request as the parser would have it."""
        chat = _chat_request(request, tools)
        return made(self._tokenizer, chat.tools).adjust_request(chat)

    def _calls_or(self, schema: Mapping[str, Any], request: EngineRequest) -> tuple[dict[str, Any], str]:
        """Calls as those that must be made, or the JSON that is asked for; and what vLLM may refuse of it."""
        tools = [
            tool.model_copy(
                update={"strict": True, "parameters": (tool.strict and tool.parameters) or {"type": "object"}}
            )
            for tool in request.tools
        ]
        choice = ToolChoice(mode="required", parallel=request.tool_choice is None or request.tool_choice.parallel)
        calls = self._adjusted(self._must_call, replace(request, tool_choice=choice), tools).structured_outputs
        try:
            grammar = either_grammar(calls and calls.structural_tag, self._special_tokens, schema)
        except Inexpressible as why:
            raise Inexpressible(
                f"the parser {self.names.tool} has no grammar for an answer that calls tools or fits a schema: {why}"
            ) from why
        return {"grammar": grammar}, _to_blame(request.tools, schema)

    def _bound(self, chat: Any) -> dict[str, Any] | None:
        """The grammar that the parser asks for, in a form that every backend has."""
        asked = chat.structured_outputs
        if asked is None:
            return None
        if asked.structural_tag is None:
            schema = asked.json if isinstance(asked.json, dict) else json.loads(asked.json)
            return {"grammar": json_grammar(schema)}
        return {"grammar": lark_grammar(asked.structural_tag, self._special_tokens)}


def _to_blame(tools: Sequence[Tool], schema: Mapping[str, Any]) -> str:
    """What an engine refuses that refuses either the schema of a strict tool or that of the answer."""
    if not any(tool.strict for tool in tools):
        return "structured_outputs"
    from vllm.exceptions import VLLMValidationError
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams
    from vllm.v1.structured_output.backend_guidance import validate_guidance_grammar

    try:
        validate_guidance_grammar(
            SamplingParams(structured_outputs=StructuredOutputsParams(grammar=json_grammar(schema)))
        )
    except VLLMValidationError:
        return "structured_outputs"
    return "tools"


class VllmParser:
    """A `TokenParser` over one of vLLM's."""

    def __init__(self, parser: Any, chat: Any, prompt_token_ids: Sequence[int]) -> None:
        self._parser = parser
        self._chat = chat
        self._prompt: list[int] | None = list(prompt_token_ids)
        self._calls: dict[int, int] = {}

    def feed(self, token_id: int, text: str, *, is_last: bool) -> Sequence[Piece]:
        # The first time it looks where the prompt has left off.
        prompt, self._prompt = self._prompt, None
        message = self._parser.parse_delta(text, [token_id], self._chat, prompt_token_ids=prompt, finished=is_last)
        return () if message is None else self._pieces(message)

    def _pieces(self, message: Any) -> list[Piece]:
        pieces = []
        if message.reasoning:
            pieces.append(Piece("reasoning", 0, message.reasoning))
        if message.content:
            pieces.append(Piece("content", 0, message.content))
        for delta in message.tool_calls or ():
            function = delta.function
            if function is None or not (function.name or delta.index in self._calls):
                continue  # nothing is told of a call that has no name yet
            call = self._calls.setdefault(delta.index, len(self._calls))
            if function.name:
                pieces.append(Piece("tool_name", call, function.name))
            if function.arguments:
                pieces.append(Piece("tool_arguments", call, function.arguments))
        return pieces


class _Detokenizer:
    """vLLM's own, from the original prompt on: a token's text may depend on what stands before it."""

    def __init__(self, tokenizer: Any, prompt_token_ids: list[int], sampling_params: Any) -> None:
        from vllm.v1.engine.detokenizer import IncrementalDetokenizer

        self._inner = IncrementalDetokenizer.from_new_request(
            tokenizer,
            SimpleNamespace(
                request_id="", prompt_token_ids=prompt_token_ids, prompt_embeds=None, sampling_params=sampling_params
            ),
        )

    def text_of(self, token_id: int) -> str:
        self._inner.token_ids.append(token_id)
        return str(self._inner.decode_next(token_id))


def _chat_request(request: EngineRequest, tools: Sequence[Tool]) -> Any:
    """What vLLM's parsers want to know of a request."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    body: dict[str, Any] = {"messages": [], "skip_special_tokens": request.sampling.skip_special_tokens}
    if tools:
        choice = request.tool_choice or ToolChoice()
        named = {"type": "function", "function": {"name": choice.name}}
        body["tools"] = [
            {"type": "function", "function": tool.model_dump(exclude_none=True)} for tool in tools
        ]  # fmt: skip
        body["tool_choice"] = named if choice.mode == "named" else choice.mode
        body["parallel_tool_calls"] = choice.parallel
    return ChatCompletionRequest.model_validate(body)


def _special_tokens(tokenizer: Any) -> dict[str, int]:
    """As llguidance has it: those that no text spells, and whatever was added in angle brackets."""
    return {
        added.content: token_id
        for token_id, added in tokenizer.added_tokens_decoder.items()
        if added.special or (added.content.startswith("<") and added.content.endswith(">"))
    }
