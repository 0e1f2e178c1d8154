"""The baseline goes on for all others when a reader leaves in the middle of an answer."""

import asyncio
from pathlib import Path

import orjson
from starlette.requests import Request

from benchmarks.thin_server import ThinServer
from gpu_consumers.engines.simulated import SimulatedEngine
from streams.chat_tokenizer import ChatTokenizer
from streams.engine_args import SimulatedEngineSettings

MODEL_PATH = Path(__file__).parents[3] / "models" / "sluice-tiny"


def request(max_tokens: int) -> Request:
    body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": max_tokens, "ignore_eos": True}

    async def receive() -> dict[str, object]:
        return {"type": "http.request", "body": orjson.dumps(body)}

    return Request({"type": "http", "method": "POST", "path": "/", "headers": []}, receive)


async def test_a_reader_that_leaves_takes_nobody_with_it() -> None:
    settings = SimulatedEngineSettings(ttft_ms=1, inter_token_ms=1, step_ms=1)
    server = ThinServer(SimulatedEngine(settings), ChatTokenizer(MODEL_PATH))
    async with asyncio.timeout(60), server.app.router.lifespan_context(server.app):
        leaving, staying = [await server._complete(request(tokens)) for tokens in (1_000, 50)]
        chunks = leaving.body_iterator
        await anext(aiter(chunks))
        await chunks.aclose()  # type: ignore[attr-defined]
        read = [chunk async for chunk in staying.body_iterator]
    assert read[-1] == b"data: [DONE]\n\n"
