"""The engine port over vLLM for models that chat: answers, folded where they have tools or reasoning, or are continued.

To continue an answer vLLM gets the prompt and what was said as one prompt. Its text is made here then, from the first
token on: that of a prompt which ends in the middle of a character, or of a stop string, would be another.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from gpu_consumers.engines.folding import Folding, Step
from gpu_consumers.engines.port import EngineDelta, EngineDied, EngineRequest
from gpu_consumers.engines.vllm_base import MAX_WHY_CHARS, VllmBase
from gpu_consumers.engines.vllm_logprobs import TokenTexts, told, with_logprobs
from gpu_consumers.engines.vllm_options import generating
from gpu_consumers.engines.vllm_sampling import sampling_arguments, sampling_params
from gpu_consumers.parsing.grammars import Inexpressible
from gpu_consumers.parsing.port import ParserNames
from gpu_consumers.parsing.vllm_parsers import Reading, VllmParsers, plain_reading
from schemas.generated import FinishReason
from schemas.logprobs import TokenLogprobs

_FINISH: Final[dict[str, FinishReason]] = {"stop": "stop", "length": "length", "repetition": "stop"}


@dataclass(slots=True, eq=False)
class _Live:
    """A request whose answers have not all ended. `to_blame` is the parameter because of which vLLM may fail on it;
    `vllm_id` is what vLLM calls it, once it has it; `stopped` are the choices that were ended here alone.
    """

    request: EngineRequest
    open_choices: int
    to_blame: str | None
    vllm_id: str = ""
    stopped: set[int] = field(default_factory=set)

    @property
    def id(self) -> str:
        return self.request.request_id


class VllmEngine(VllmBase):
    """`parsers` read reasoning and calls in the answers that may hold some."""

    def __init__(
        self,
        model_path: str,
        engine_args: Mapping[str, bool | int | float | str],
        max_running: int,
        parsers: ParserNames = ParserNames(),
    ) -> None:
        super().__init__(model_path, engine_args, max_running)
        self._sampling_params: Callable[[Mapping[str, Any], int], Any] = sampling_params
        self._parser_names = parsers
        self._parsers: VllmParsers | None = None
        self._folding = Folding(parsers)
        self._live: dict[str, _Live] = {}
        self._texts: TokenTexts | None = None

    def _options(self) -> dict[str, Any]:
        return generating(self._parser_names)

    def _prepare(self, llm: Any) -> None:
        if self._parser_names != ParserNames():
            self._parsers = VllmParsers(self._parser_names, llm.get_tokenizer())

    @property
    def _has_work(self) -> bool:
        return bool(self._live)

    def _forget(self) -> None:
        self._live.clear()
        self._folding.clear()

    def _take_step(self) -> list[EngineDelta]:
        batch, self._batch = self._batch, []
        return batch + self._fold() if self._folding.is_behind else batch

    def submit(self, request: EngineRequest) -> None:
        if self._llm is None:
            raise EngineDied("the engine is not running")
        to_blame = None if request.sampling.structured_outputs is None else "structured_outputs"
        live = self._live[request.request_id] = _Live(request, request.choices, to_blame)
        if request.sampling.seed is not None and not self._accepts_seed:
            self._fail(live, "a seed is not supported on CPU", "seed")
            return
        self._start_task(self._add(live))

    async def _add(self, live: _Live) -> None:
        from vllm.exceptions import VLLMValidationError
        from vllm.v1.engine.exceptions import EngineDeadError

        llm = self._llm
        request = live.request
        try:
            if request.sampling.logprobs is not None and self._texts is None:
                self._texts = TokenTexts(llm.get_tokenizer())
            said = [] if request.accepted is None else request.accepted.token_ids[0]
            prompt = self._tokens_input([*request.prompt_token_ids, *said], cache_salt=request.cache_salt or None)
            arguments = sampling_arguments(request.sampling, request.max_tokens, len(said))
            collect = self._collect
            if request.accepted is not None or self._parser_names.are_needed(request):
                reading = await self._begin_folding(live)
                live.to_blame = reading.to_blame or live.to_blame
                arguments |= reading.arguments
                if said and reading.arguments.get("structured_outputs"):
                    self._fail(live, "its grammar cannot begin in the middle")
                    return
                collect = self._collect_ids
            if len(said) >= request.max_tokens:
                self._folding.put(live.id, Step([], "length", by_token=False, cached_tokens=0))
                self._flush_soon()
                return
            params = self._sampling_params(arguments, request.choices)
            if live.to_blame is not None:
                # Otherwise vLLM would validate the structure in this loop, for as long as that takes.
                prompt = await llm.input_processor.process_inputs_async(
                    live.id, prompt, params, await llm.get_supported_tasks(), priority=request.priority
                )
            # What follows on a text holds no reasoning, behind which alone vLLM would begin to bind it.
            collector = await llm.add_request(
                live.id, prompt, params, priority=request.priority, reasoning_ended=None if request.is_turn else True
            )
            live.vllm_id = collector.request_id
            if not self._is_live(live):
                await llm.abort(live.vllm_id, internal=True)
                return
            # vLLM would wake a task per request and step to take its delta. Taking each delta as it is put, and
            # handing on all of a step at once, costs one callback per step instead.
            early = collector.get_nowait()
            collector.put = partial(collect, live)
            if early is not None:
                collect(live, early)
        except EngineDeadError as error:
            self._died(error)
        except Inexpressible as error:
            self._fail(live, str(error), "tool_choice" if live.to_blame is None else "tools")
        except VLLMValidationError as error:
            self._fail(live, f"{type(error).__name__}: {error}", error.parameter or live.to_blame)
        # Whatever else it is, nobody awaits this task: the request would hang until its deadline.
        except Exception as error:  # noqa: BLE001 - raised nowhere, told as the request's end
            self._fail(live, f"{type(error).__name__}: {error}")

    def _is_live(self, live: _Live) -> bool:
        return self._live.get(live.id) is live

    async def _begin_folding(self, live: _Live) -> Reading:
        request = live.request
        if self._parser_names.are_needed(request):
            assert self._parsers is not None
            reading = await asyncio.to_thread(self._parsers.reading, request)
        else:
            reading = await asyncio.to_thread(plain_reading, request, self._llm.get_tokenizer())
        if self._is_live(live):
            self._folding.begin(request, reading.new_fold)
            self._flush_soon()
        return reading

    def _collect(self, live: _Live, output: Any) -> None:
        """What vLLM puts for a request: what its choices have got, or the exception that ended the engine."""
        if isinstance(output, Exception):
            self._died(output)
            return
        if not self._is_live(live):
            return
        for completion in output.outputs:
            token_ids = list(completion.token_ids)
            text = completion.text
            reason = completion.finish_reason
            if reason is not None and reason not in _FINISH:
                self._fail(live, f"vLLM ended the request: {reason}", live.to_blame)
                return
            # Of several tokens in one step (speculative decoding) vLLM gives the text of all: the last one carries it.
            text_ends = [0] * (len(token_ids) - 1) + [len(text)] if token_ids else []
            delta = EngineDelta(
                live.id,
                completion.index,
                token_ids,
                text,
                text_ends,
                _FINISH[reason] if reason is not None else "",
                output.num_cached_tokens or 0,
            )
            rows, sampling = [delta], live.request.sampling
            if completion.logprobs is not None:
                by_token = reason == "stop" and not isinstance(completion.stop_reason, str)
                hides_last = by_token and not sampling.include_stop_str_in_output
                rows = with_logprobs(delta, self._told(completion), hides_last=hides_last)
            # vLLM has reasons of its own as well.
            if completion.stop_reason in sampling.stop or completion.stop_reason in sampling.stop_token_ids:
                rows[-1].stopped_by = completion.stop_reason
            for row in rows:
                self._deliver(row)
            if reason is not None:
                self._end_choice(live)

    def _collect_ids(self, live: _Live, output: Any) -> None:
        """As `_collect`, of a request whose text is made here."""
        if isinstance(output, Exception):
            self._died(output)
            return
        for completion in output.outputs:
            if completion.index in live.stopped:
                continue  # vLLM tells that it was aborted
            reason = completion.finish_reason
            if reason is not None and reason not in _FINISH:
                self._fail(live, f"vLLM ended the request: {reason}", live.to_blame)
                return
            finish = _FINISH[reason] if reason is not None else ""
            logprobs = None if completion.logprobs is None else self._told(completion)
            cached_tokens = output.num_cached_tokens or 0
            step = Step(completion.token_ids, finish, reason == "stop", cached_tokens, completion.index, logprobs)
            self._folding.put(live.id, step)
        self._flush_soon()

    def _told(self, completion: Any) -> list[TokenLogprobs]:
        assert self._texts is not None
        return told(completion.logprobs, self._texts)

    def _fold(self) -> list[EngineDelta]:
        deltas = self._folding.turn()
        for request_id, choice in self._folding.take_stopped():
            self._stop(self._live[request_id], choice)
        for delta in deltas:
            live = self._live[delta.request_id]
            if delta.error is not None:
                del self._live[live.id]
            elif delta.finish:
                self._end_choice(live)
                if not live.open_choices and live.request.choices > 1:
                    self._abort_soon(live.vllm_id)  # else vLLM would remember it, where choices were aborted one by one
        if self._folding.is_behind:
            self._flush_soon()
        return deltas

    def _stop(self, live: _Live, choice: int | None) -> None:
        """One of its choices, or all, which vLLM would go on with."""
        if choice is None or live.request.choices == 1:
            self._abort_soon(live.vllm_id)
        else:
            live.stopped.add(choice)
            self._abort_soon(f"{choice}_{live.vllm_id}")  # as vLLM calls each of several

    def _end_choice(self, live: _Live) -> None:
        live.open_choices -= 1
        if not live.open_choices:
            del self._live[live.id]

    def _fail(self, live: _Live, why: str, refused_param: str | None = None) -> None:
        """Ends the request with an error; does nothing when it is no longer in the engine."""
        if not self._is_live(live):
            return
        del self._live[live.id]
        self._folding.drop(live.id)
        self._abort_soon(live.vllm_id)
        self._deliver(EngineDelta.failure(live.id, why[:MAX_WHY_CHARS], refused_param))

    def abort(self, request_id: str) -> None:
        live = self._live.pop(request_id, None)
        if live is None:
            return
        self._folding.drop(request_id)
        self._batch = [delta for delta in self._batch if delta.request_id != request_id]
        self._abort_soon(live.vllm_id)
