"""The ceiling: vLLM's `AsyncLLM` called in its own process, no server. Prints one line of JSON per round.

`python -m benchmarks.bare_engine MODEL_PATH ENGINE_ARGS_JSON STREAMS SECONDS ROUNDS`; each line of standard input
starts one round, so that a caller can take turns with other servers; the end of it ends the program.
"""

import asyncio
import json
import sys
from pathlib import Path
from time import monotonic
from typing import Any

from benchmarks.engine_throughput import answer_tokens, question
from schemas.request import Message, TextPart
from streams.chat_tokenizer import ChatTokenizer


async def _round(engine: Any, prompts: list[list[int]], seconds: float, tag: str) -> float:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    end_s = monotonic() + seconds
    counted = 0

    async def stream(number: int) -> None:
        nonlocal counted
        turn = 0
        while monotonic() < end_s:
            asked = (number + turn) % len(prompts)
            parameters = SamplingParams(
                max_tokens=answer_tokens(asked), temperature=0.0, ignore_eos=True, output_kind=RequestOutputKind.DELTA
            )
            prompt = {"prompt_token_ids": prompts[asked]}
            async for output in engine.generate(prompt, parameters, f"{tag}-{number}-{turn}"):
                if monotonic() < end_s:
                    counted += len(output.outputs[0].token_ids)
            turn += 1

    began_s = monotonic()
    await asyncio.gather(*(stream(number) for number in range(len(prompts))))
    return counted / (min(monotonic(), end_s) - began_s)


async def main() -> None:
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    model_path, engine_args = Path(sys.argv[1]), json.loads(sys.argv[2])
    streams, seconds, rounds = (int(value) for value in sys.argv[3:6])
    tokenizer = ChatTokenizer(model_path)
    prompts = [
        tokenizer.encode_chat([Message(role="user", content=[TextPart(text=question(number))])])
        for number in range(streams)
    ]
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(model=str(model_path), **engine_args))
    try:
        print("ready", flush=True)
        for number in range(rounds):
            if not await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline):
                return  # whoever asked is gone
            rate = await _round(engine, prompts, seconds, f"round{number}")
            print(json.dumps({"tokens_per_s": rate}), flush=True)
    finally:
        engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
