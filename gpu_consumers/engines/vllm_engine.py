"""The engine port over vLLM for models that chat: answers, folded where they have tools or reasoning, or are continued.

To continue an answer vLLM gets the prompt and what was said as one prompt. Its text is made here then, from the first
token on: that of a prompt which ends in the middle of a character, or of a stop string, would be another. What vLLM
derives from its own output goes on by `vllm_seams`.
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
from gpu_consumers.engines.vllm_seams import Seams, gone_on_with, install
from gpu_consumers.parsing.grammars import Inexpressible
from gpu_consumers.parsing.port import ParserNames
from gpu_consumers.parsing.vllm_parsers import Reading, VllmParsers, plain_reading
from schemas.generated import FinishReason
from schemas.logprobs import TokenLogprobs

_FINISH: Final[dict[str, FinishReason]] = {"stop": "stop", "length": "length", "repetition": "stop"}


@dataclass(slots=True, eq=False)
class _Live:
    """A request whose answers have not all ended. `to_blame` is the parameter because of which vLLM may fail on it;
    `vllm_ids` is what vLLM calls it, once it has it: the whole (None), or each choice that is continued; `stopped` are
    the choices that were ended here alone.
    """

    request: EngineRequest
    open_choices: int
    to_blame: str | None
    vllm_ids: dict[int | None, str] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)

    @property
    def id(self) -> str:
        return self.request.request_id

    @property
    def all_vllm_ids(self) -> list[str]:
        return list(self.vllm_ids.values())


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
        self._seams = Seams()

    def _options(self) -> dict[str, Any]:
        return generating(self._parser_names)

    def _configure(self, config: Any) -> None:
        self._seams = install(config)
        self._accepts_seed = self._accepts_seed or self._seams.has_processors

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
        live = self._live[request.request_id] = _Live(request, len(request.open_choices), to_blame)
        if request.sampling.seed is not None and not self._accepts_seed:
            self._fail(live, "a seed is not supported on CPU", "seed")
            return
        self._start_task(self._add(live))

    async def _add(self, live: _Live) -> None:
        from vllm.exceptions import VLLMValidationError
        from vllm.v1.engine.exceptions import EngineDeadError

        request = live.request
        try:
            if request.sampling.logprobs is not None and self._texts is None:
                self._texts = TokenTexts(self._llm.get_tokenizer())
            arguments, collect = sampling_arguments(request.sampling, request.max_tokens), self._collect
            if request.accepted is not None or self._parser_names.are_needed(request):
                reading = await self._begin_folding(live)
                live.to_blame = reading.to_blame or live.to_blame
                arguments |= reading.arguments
                collect = self._collect_ids
            if request.accepted is None:
                params = self._sampling_params(arguments, request.choices)
                await self._enter(live, None, request.prompt_token_ids, params, partial(collect, live))
            elif (why := self._seams.why_not_continued(arguments)) and any(request.accepted.token_ids):
                self._fail(live, why, is_not_continued=True)
            else:
                for choice in request.open_choices:
                    await self._continue(live, choice, arguments)
        except EngineDeadError as error:
            if self._is_live(live):
                self._died(error)
        except Inexpressible as error:
            self._fail(live, str(error), "tool_choice" if live.to_blame is None else "tools")
        except VLLMValidationError as error:
            self._fail(live, f"{type(error).__name__}: {error}", error.parameter or live.to_blame)
        # Whatever else it is, nobody awaits this task: the request would hang until its deadline.
        except Exception as error:  # noqa: BLE001 - raised nowhere, told as the request's end
            self._fail(live, f"{type(error).__name__}: {error}")

    async def _continue(self, live: _Live, choice: int, arguments: Mapping[str, Any]) -> None:
        """Each choice has another prompt from now on, so vLLM gets it as a request of its own."""
        request = live.request
        assert request.accepted is not None
        said = request.accepted.token_ids[choice]
        if len(said) >= request.max_tokens:
            self._folding.put(live.id, Step([], "length", by_token=False, cached_tokens=0, choice=choice))
            self._flush_soon()
            return
        params = self._sampling_params(gone_on_with(arguments, len(said), choice), 1)
        collect = partial(self._collect_ids, live, choice=choice)
        await self._enter(live, choice, [*request.prompt_token_ids, *said], params, collect)

    async def _enter(
        self, live: _Live, choice: int | None, token_ids: list[int], params: Any, collect: Callable[[Any], None]
    ) -> None:
        """Into vLLM, with all of its choices or this one, as long as somebody wants it."""
        if not self._is_wanted(live, choice):
            return
        llm, request = self._llm, live.request
        name = live.id if choice is None else f"{live.id}/{choice}"
        prompt = self._tokens_input(token_ids, cache_salt=request.cache_salt or None)
        if live.to_blame is not None:
            # Otherwise vLLM would validate the structure in this loop, for as long as that takes.
            prompt = await llm.input_processor.process_inputs_async(
                name, prompt, params, await llm.get_supported_tasks(), priority=request.priority
            )
        # What follows on a text holds no reasoning, behind which alone vLLM would begin to bind it.
        collector = await llm.add_request(
            name, prompt, params, priority=request.priority, reasoning_ended=None if request.is_turn else True
        )
        live.vllm_ids[choice] = collector.request_id
        if not self._is_wanted(live, choice):
            await llm.abort(collector.request_id, internal=True)
            return
        # vLLM would wake a task per request and step to take its delta. Taking each delta as it is put, and handing on
        # all of a step at once, costs one callback per step instead.
        early = collector.get_nowait()
        collector.put = collect
        if early is not None:
            collect(early)

    def _is_live(self, live: _Live) -> bool:
        return self._live.get(live.id) is live

    def _is_wanted(self, live: _Live, choice: int | None) -> bool:
        return self._is_live(live) and choice not in live.stopped

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
        if not self._is_live(live):
            return
        if isinstance(output, Exception):
            self._died(output)
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

    def _collect_ids(self, live: _Live, output: Any, choice: int | None = None) -> None:
        """As `_collect`, of a request whose text is made here; of one of its choices, where vLLM knows of no others."""
        if isinstance(output, Exception):
            if self._is_live(live):
                self._died(output)
            return
        for completion in output.outputs:
            index = completion.index if choice is None else choice
            if index in live.stopped:
                continue  # vLLM tells that it was aborted
            reason = completion.finish_reason
            if reason is not None and reason not in _FINISH:
                self._fail_by_vllm(live, reason)
                return
            finish = _FINISH[reason] if reason is not None else ""
            logprobs = None if completion.logprobs is None else self._told(completion)
            cached_tokens = output.num_cached_tokens or 0
            step = Step(completion.token_ids, finish, reason == "stop", cached_tokens, index, logprobs)
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
                    # Else vLLM would remember it, where choices were aborted one by one.
                    self._abort_soon(live.all_vllm_ids)
        if self._folding.is_behind:
            self._flush_soon()
        return deltas

    def _stop(self, live: _Live, choice: int | None) -> None:
        """One of its choices, or all, which vLLM would go on with."""
        if choice is None or live.request.choices == 1:
            self._abort_soon(live.all_vllm_ids)
            return
        live.stopped.add(choice)
        if None in live.vllm_ids:
            self._abort_soon(f"{choice}_{live.vllm_ids[None]}")  # as vLLM calls each of several
        else:
            self._abort_soon(live.vllm_ids.get(choice, ""))

    def _end_choice(self, live: _Live) -> None:
        live.open_choices -= 1
        if not live.open_choices:
            del self._live[live.id]

    def _fail_by_vllm(self, live: _Live, reason: str) -> None:
        """A structure that was fine when an answer began is not to blame once that is continued."""
        if live.request.accepted is not None and live.to_blame is not None:
            self._fail(live, "vLLM cannot go on with its grammar", is_not_continued=True)
        else:
            self._fail(live, f"vLLM ended the request: {reason}", live.to_blame)

    def _fail(self, live: _Live, why: str, refused_param: str | None = None, *, is_not_continued: bool = False) -> None:
        """Ends the request with an error; does nothing when it is no longer in the engine."""
        if not self._is_live(live):
            return
        del self._live[live.id]
        self._folding.drop(live.id)
        self._abort_soon(live.all_vllm_ids)
        self._deliver(
            EngineDelta.failure(live.id, why[:MAX_WHY_CHARS], refused_param, is_not_continued=is_not_continued)
        )

    def abort(self, request_id: str) -> None:
        live = self._live.pop(request_id, None)
        if live is None:
            return
        self._folding.drop(request_id)
        self._batch = [delta for delta in self._batch if delta.request_id != request_id]
        self._abort_soon(live.all_vllm_ids)
