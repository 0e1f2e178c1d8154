"""One run: a stack, traffic, faults one after the other, and the judgement of its history."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.stacks import raise_limits
from deploy.local.runner import Stack, simulated
from deploy.local.supervision import RestartPolicy
from deploy.local.supervisor import SupervisorError
from tests.chaos.clients import PATIENCE_S
from tests.chaos.schedule import Fault, schedule
from tests.chaos.strike import Struck, strike, until_ready
from tests.chaos.summary import result
from tests.chaos.traffic import Traffic
from tests.history.check import Verdict
from tests.history.collect import read_bills, read_log, until_settled
from tests.history.kept import History

SCRIPT = "A fox went for a walk and met an old friend. Behind the hill lived the silver dragon, who was kind 🐉. "
ENGINE: dict[str, bool | int | float | str] = {
    "ttft_ms": 20.0, "inter_token_ms": 40.0, "step_ms": 20.0, "min_output_tokens": 40, "max_output_tokens": 140,
    "script": SCRIPT, "script_share": 0.7,
}  # fmt: skip
CLIENTS = 12
SETTLED_TIMEOUT_S = 300.0
SOON = RestartPolicy(max_delay_s=0.5)
"""Whoever is struck again at once is no process that cannot run."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Run:
    """`stopped`: why it did not come to its end, if it did not. `secrets`: those of its stack."""

    told: dict[str, Any]
    verdict: Verdict
    stopped: str
    secrets: tuple[str, ...]


def run(folder: Path, seed: int, wanted: int, *, begin: int = 0, minutes: float = 60.0, say: Say = print) -> Run:
    """Strikes up to `wanted` times, for so many minutes. `folder`/history is what it is judged by, `folder`/stack has
    what the processes wrote.
    """
    options = replace(
        simulated(ENGINE, workers=2, admission=2, gateways=2), environment={"SLUICE_GATEWAY__LEAVE_MS": "500"}
    )
    began_s = time.monotonic()
    history = History(folder / "history")
    with Stack(folder / "stack", options, policy=SOON) as stack:
        raise_limits(stack)
        stack.wait_ready()
        until_ready(stack)
        with Traffic(stack, CLIENTS) as traffic:
            traffic.until_answered(0, PATIENCE_S)
            to_strike = schedule(seed, wanted, beginning_with=begin)
            struck, stopped = _strike(stack, traffic, to_strike, began_s + minutes * 60, say)
            traffic.finish(PATIENCE_S + 30)
        until_settled(stack, traffic.answers, traffic.jobs, SETTLED_TIMEOUT_S)
        secrets = (*stack.keys.api_keys.values(), stack.keys.deployment_secret)
        history.keep(traffic.answers, traffic.jobs, read_log(stack), read_bills(stack), ENGINE)
        stack.stop(kill=True)
    log = history.log()
    verdict = history.verdict(log)
    continued_at_ms = {
        response_id: [began.at_ms for began in generated.began[1:]] for response_id, generated in log.generated.items()
    }
    took_s = time.monotonic() - began_s
    return Run(
        result(seed, begin, struck, traffic.answers, verdict, took_s, continued_at_ms), verdict, stopped, secrets
    )


def _strike(
    stack: Stack, traffic: Traffic, faults: Sequence[Fault], until_s: float, say: Say
) -> tuple[list[Struck], str]:
    """One after the other until then, or until one is not recovered from, which is told."""
    struck: list[Struck] = []
    for fault in faults:
        if time.monotonic() > until_s:
            break
        what = f"{len(struck) + 1} of {len(faults)}: {fault.name} ({', '.join(fault.processes)})"
        try:
            struck.append(strike(stack, traffic, fault))
        except (TimeoutError, SupervisorError) as error:
            say(stopped := f"{what}: {error}")
            return struck, stopped
        say(f"{what}: {_recovery(struck[-1])}")
    return struck, ""


def _recovery(struck: Struck) -> str:
    return f"ready {struck.ready_s:.1f} s later, answered {struck.answered_s:.1f}, all moving {struck.moved_s:.1f}"
