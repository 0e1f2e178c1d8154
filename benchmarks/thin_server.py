"""The baseline: an engine behind a thin HTTP server that streams Chat Completions chunks, and nothing else.

No log, no safety, no quota, no billing, no resume. `python -m benchmarks.thin_server PORT MODEL_PATH ENGINE_ARGS_JSON`.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import orjson
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from gpu_consumers.engines.port import EngineDelta, EngineDied, EngineRequest
from gpu_consumers.engines.simulated import SimulatedEngine
from schemas.request import Message, Sampling, TextPart
from streams.chat_tokenizer import ChatTokenizer
from streams.engine_args import SimulatedEngineSettings


class ThinServer:
    """Routes the engine's deltas to one queue per request."""

    def __init__(self, engine: SimulatedEngine, tokenizer: ChatTokenizer) -> None:
        self._engine = engine
        self._tokenizer = tokenizer
        self._queues: dict[str, asyncio.Queue[EngineDelta]] = {}
        self.app = FastAPI(lifespan=self._lifespan)
        self.app.post("/v1/chat/completions")(self._complete)

    @asynccontextmanager
    async def _lifespan(self, _app: FastAPI) -> AsyncIterator[None]:
        await self._engine.start(self._route, self._died)
        yield
        await self._engine.close()

    def _route(self, deltas: list[EngineDelta]) -> None:
        for delta in deltas:
            queue = self._queues.get(delta.request_id)
            if queue is not None:  # its reader has not left
                queue.put_nowait(delta)

    def _died(self, error: EngineDied) -> None:
        raise error

    async def _complete(self, request: Request) -> StreamingResponse:
        body = orjson.loads(await request.body())
        messages = [Message(role=m["role"], content=[TextPart(text=_text(m["content"]))]) for m in body["messages"]]
        max_tokens = body.get("max_completion_tokens") or body["max_tokens"]
        request_id = uuid4().hex
        self._queues[request_id] = asyncio.Queue()
        sampling = Sampling(max_tokens=max_tokens, ignore_eos=body.get("ignore_eos", False))
        self._engine.submit(EngineRequest(request_id, self._tokenizer.encode_chat(messages), sampling, max_tokens))
        return StreamingResponse(self._chunks(request_id, body["model"]), media_type="text/event-stream")

    async def _chunks(self, request_id: str, model: str) -> AsyncIterator[bytes]:
        queue = self._queues[request_id]
        try:
            while True:
                delta = await queue.get()
                choice = {"index": 0, "delta": {"content": delta.text}, "finish_reason": delta.finish or None}
                chunk = {"id": request_id, "object": "chat.completion.chunk", "model": model, "choices": [choice]}
                yield b"data: " + orjson.dumps(chunk) + b"\n\n"
                if delta.finish or delta.error:
                    yield b"data: [DONE]\n\n"
                    return
        finally:
            del self._queues[request_id]
            self._engine.abort(request_id)


def _text(content: str | list[dict[str, str]]) -> str:
    """Of a message; who translates from another dialect sends its parts."""
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def main() -> None:
    port, model_path, engine_args = int(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    engine = SimulatedEngine(SimulatedEngineSettings.model_validate(engine_args))
    server = ThinServer(engine, ChatTokenizer(model_path))
    uvicorn.run(server.app, host="127.0.0.1", port=port, loop="uvloop", http="httptools", log_level="warning")


if __name__ == "__main__":
    main()
