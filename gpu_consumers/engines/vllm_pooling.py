"""The engine port over vLLM's pooling runner: vectors of texts, pooled as the model's own folder says.

Each input is a request of vLLM's by itself; it batches them as it does all.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from gpu_consumers.engines.port import EngineDelta, EngineDied, EngineRequest, EngineStats
from gpu_consumers.engines.vectors import NO_TEXT, Vectors, next_step
from gpu_consumers.engines.vllm_base import MAX_WHY_CHARS, VllmBase
from gpu_consumers.engines.vllm_options import POOLING


@dataclass(eq=False, slots=True)
class _Embedding:
    """One request. `inside`: its inputs that are in vLLM, by their ids there; `room`: for more of them."""

    id: str
    priority: int
    inputs: list[list[int]]
    vectors: Vectors
    room: asyncio.Semaphore
    inside: set[str] = field(default_factory=set)


class VllmPoolingEngine(VllmBase):
    """`dimensions` is how long the model's vectors must be. Of one request `max_running` inputs are in vLLM at once."""

    def __init__(
        self, model_path: str, engine_args: Mapping[str, bool | int | float | str], max_running: int, dimensions: int
    ) -> None:
        super().__init__(model_path, engine_args, max_running)
        self._dimensions = dimensions
        self._embeddings: dict[str, _Embedding] = {}

    def _options(self) -> dict[str, Any]:
        return POOLING

    def _configure(self, config: Any) -> None: ...

    def _prepare(self, llm: Any) -> None:
        from vllm import PoolingParams

        self._pooling_params = partial(PoolingParams, task="embed")
        if (size := llm.vllm_config.model_config.embedding_size) != self._dimensions:
            raise EngineDied(f"the model's vectors have {size} numbers, and not {self._dimensions}")

    @property
    def _has_work(self) -> bool:
        return bool(self._embeddings)

    def _forget(self) -> None:
        embeddings, self._embeddings = self._embeddings, {}
        for embedding in embeddings.values():
            embedding.room.release()

    def _take_step(self) -> list[EngineDelta]:
        step, self._batch = next_step(self._batch)
        if self._batch:
            self._flush_soon()
        return step

    def submit(self, request: EngineRequest) -> None:
        if self._llm is None:
            raise EngineDied("the engine is not running")
        if not request.input_ends:
            self._deliver(EngineDelta.failure(request.request_id, NO_TEXT))
            return
        embedding = self._embeddings[request.request_id] = _Embedding(
            request.request_id, request.priority, request.inputs, Vectors(request), asyncio.Semaphore(self._max_running)
        )
        self._start_task(self._embed(embedding))

    def stats(self) -> EngineStats:
        """In requests, as its worker counts them: to vLLM each input is one."""
        running = sum(bool(embedding.inside) for embedding in self._embeddings.values())
        return replace(super().stats(), running=running, waiting=len(self._embeddings) - running)

    def _is_wanted(self, embedding: _Embedding) -> bool:
        return self._embeddings.get(embedding.id) is embedding

    async def _embed(self, embedding: _Embedding) -> None:
        from vllm.exceptions import VLLMValidationError
        from vllm.v1.engine.exceptions import EngineDeadError

        try:
            for index, token_ids in enumerate(embedding.inputs):
                await embedding.room.acquire()
                if not self._is_wanted(embedding):
                    return
                await self._add_input(embedding, index, token_ids)
        except EngineDeadError as error:
            if self._is_wanted(embedding):
                self._died(error)
        except VLLMValidationError as error:
            self._give_up(embedding, f"{type(error).__name__}: {error}", "input")
        # Whatever else it is, nobody awaits this task: the request would hang until its deadline.
        except Exception as error:  # noqa: BLE001 - raised nowhere, told as the request's end
            self._give_up(embedding, f"{type(error).__name__}: {error}")

    async def _add_input(self, embedding: _Embedding, index: int, token_ids: list[int]) -> None:
        llm = self._llm
        collector = await llm.add_request(
            f"{embedding.id}/{index}", self._tokens_input(token_ids), self._pooling_params(),
            priority=embedding.priority,
        )  # fmt: skip
        vllm_id = collector.request_id
        if not self._is_wanted(embedding):
            await llm.abort(vllm_id, internal=True)
            return
        embedding.inside.add(vllm_id)
        # As in the engine that generates: each output is taken as it is put, and those of a step are handed on at once.
        early = collector.get_nowait()
        collect = partial(self._collect_vector, embedding, index, vllm_id)
        collector.put = collect
        if early is not None:
            collect(early)

    def _collect_vector(self, embedding: _Embedding, index: int, vllm_id: str, output: Any) -> None:
        """What vLLM puts for an input: its vector, or the exception that ended the engine."""
        if isinstance(output, Exception):
            if self._is_wanted(embedding):
                self._died(output)
            return
        embedding.inside.discard(vllm_id)
        embedding.room.release()
        if not self._is_wanted(embedding):
            return
        vector = output.outputs.data.tolist()
        if len(vector) != self._dimensions:
            self._give_up(embedding, f"vLLM ended the request: {output.error}")
            return
        embedding.vectors.put(index, vector)
        if embedding.vectors.are_complete:
            del self._embeddings[embedding.id]
            self._batch += embedding.vectors.rows()
            self._flush_soon()
        else:
            self._on_step([])

    def _give_up(self, embedding: _Embedding, why: str, refused_param: str | None = None) -> None:
        if self._is_wanted(embedding):
            self.abort(embedding.id)
            self._deliver(EngineDelta.failure(embedding.id, why[:MAX_WHY_CHARS], refused_param))

    def abort(self, request_id: str) -> None:
        embedding = self._embeddings.pop(request_id, None)
        self._batch = [delta for delta in self._batch if delta.request_id != request_id]
        if embedding is not None:
            embedding.room.release()
            self._abort_soon([*embedding.inside])
