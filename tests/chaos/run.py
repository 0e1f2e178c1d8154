"""One run: a stack, traffic, faults one after the other, and the judgement of its history."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.stacks import raise_limits
from deploy.local.plan import Options
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
from tests.history.saw import Answer

SCRIPT = "A fox went for a walk and met an old friend. Behind the hill lived the silver dragon, who was kind 🐉. "
ENGINE: dict[str, bool | int | float | str] = {
    "ttft_ms": 20.0, "inter_token_ms": 40.0, "step_ms": 20.0, "min_output_tokens": 40, "max_output_tokens": 140,
    "script": SCRIPT, "script_share": 0.7,
}  # fmt: skip
CLIENTS = 12
SETTLED_TIMEOUT_S = 300.0
SOON = RestartPolicy(max_delay_s=0.5)
"""Whoever is struck again at once is no process that cannot run."""

OPTIONS = replace(
    simulated(ENGINE, workers=2, admission=2, gateways=2), environment={"SLUICE_GATEWAY__LEAVE_MS": "500"}
)

Say = Callable[[str], None]
Deal = Callable[[Stack], Iterable[Fault]]
"""What is struck, one after the other: the next one is asked for when all has recovered from the one before."""


@dataclass(frozen=True)
class Outcome:
    """Of a stack that was struck under traffic. `stopped`: why it did not come to its end, if it did not. `secrets`:
    those of the stack. `restarts`: of each process. `continued_at_ms`: of each response, when another attempt went on.
    """

    struck: Sequence[Struck]
    answers: Sequence[Answer]
    verdict: Verdict
    stopped: str
    secrets: tuple[str, ...]
    restarts: Mapping[str, int]
    continued_at_ms: dict[str, list[int]]
    took_s: float


@dataclass(frozen=True)
class Run:
    """`stopped`: why it did not come to its end, if it did not. `secrets`: those of its stack."""

    told: dict[str, Any]
    verdict: Verdict
    stopped: str
    secrets: tuple[str, ...]


def run(folder: Path, seed: int, wanted: int, *, begin: int = 0, minutes: float = 60.0, say: Say = print) -> Run:
    """Strikes up to `wanted` times, for so many minutes. `folder`: as of `struck_under_traffic`."""
    faults = schedule(seed, wanted, beginning_with=begin)
    done = struck_under_traffic(folder, OPTIONS, lambda _stack: faults, minutes=minutes, say=say)
    told = result(seed, begin, done.struck, done.answers, done.verdict, done.took_s, done.continued_at_ms)
    return Run(told, done.verdict, done.stopped, done.secrets)


def struck_under_traffic(
    folder: Path, options: Options, deal: Deal, *, clients: int = CLIENTS, minutes: float = 60.0, say: Say = print
) -> Outcome:
    """`folder`/history is what it is judged by, `folder`/stack has what the processes wrote."""
    began_s = time.monotonic()
    history = History(folder / "history")
    with Stack(folder / "stack", options, policy=SOON) as stack:
        raise_limits(stack)
        stack.wait_ready()
        until_ready(stack)
        with Traffic(stack, clients) as traffic:
            traffic.until_answered(0, PATIENCE_S)
            struck, stopped = _strike(stack, traffic, deal(stack), began_s + minutes * 60, say)
            traffic.finish(PATIENCE_S + 30)
        until_settled(stack, traffic.answers, traffic.jobs, SETTLED_TIMEOUT_S)
        secrets = (*stack.keys.api_keys.values(), stack.keys.deployment_secret)
        restarts = {record.name: record.restarts for record in stack.processes()}
        history.keep(traffic.answers, traffic.jobs, read_log(stack), read_bills(stack), options.engine_args)
        stack.stop(kill=True)
    log = history.log()
    continued_at_ms = {
        response_id: [began.at_ms for began in generated.began[1:]] for response_id, generated in log.generated.items()
    }
    return Outcome(
        struck, traffic.answers, history.verdict(log), stopped, secrets, restarts, continued_at_ms,
        time.monotonic() - began_s,
    )  # fmt: skip


def _strike(
    stack: Stack, traffic: Traffic, faults: Iterable[Fault], until_s: float, say: Say
) -> tuple[list[Struck], str]:
    """One after the other until then, or until one is not recovered from, which is told."""
    struck: list[Struck] = []
    for fault in faults:
        if time.monotonic() > until_s:
            break
        what = f"{len(struck) + 1}: {fault.name} ({', '.join(fault.processes)})"
        try:
            struck.append(strike(stack, traffic, fault))
        except (TimeoutError, SupervisorError) as error:
            say(stopped := f"{what}: {error}")
            return struck, stopped
        say(f"{what}: {_recovery(struck[-1])}")
    return struck, ""


def _recovery(struck: Struck) -> str:
    return f"ready {struck.ready_s:.1f} s later, answered {struck.answered_s:.1f}, all moving {struck.moved_s:.1f}"
