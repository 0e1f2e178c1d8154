"""The simulated engine without a clock: run to the end of all that is in it."""

from gpu_consumers.engines.port import EngineDelta
from gpu_consumers.engines.simulated import SimulatedCore
from streams.engine_args import SimulatedEngineSettings

FAST = SimulatedEngineSettings(ttft_ms=10, prompt_token_us=0, inter_token_ms=10, step_ms=5)


def run(core: SimulatedCore, until_s: float = 1e9) -> list[EngineDelta]:
    deltas = []
    while (due_s := core.next_due_s) is not None and due_s <= until_s:
        deltas += core.step(due_s)
    return deltas
