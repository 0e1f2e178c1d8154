"""One run: a stack, traffic, faults one after the other, and the judgement of its history."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import redis

from benchmarks.stacks import raise_limits
from deploy.local.plan import Options
from deploy.local.runner import Stack, simulated
from deploy.local.supervision import RestartPolicy
from deploy.local.supervisor import SupervisorError
from deploy.tenants_file import write_tenants
from streams.settings import CONFIG_VARIABLE
from streams.toml_directory import read_tenants
from tests.chaos.clients import PATIENCE_S
from tests.chaos.schedule import Fault
from tests.chaos.strike import Struck, strike, until_ready
from tests.chaos.summary import result
from tests.chaos.traffic import TENANTS, ClientFailed, Traffic
from tests.history.check import ENDINGS, Verdict
from tests.history.collect import (
    SETTLED_TIMEOUT_S,
    prices_of,
    read_bills,
    read_drafts,
    read_held,
    read_hours,
    read_ledger,
    read_log,
    until_settled,
)
from tests.history.kept import History
from tests.history.saw import Answer, Held
from tests.history.violation import Violation

SCRIPT = "A fox went for a walk and met an old friend. Behind the hill lived the silver dragon, who was kind 🐉. "
ENGINE: dict[str, bool | int | float | str] = {
    "ttft_ms": 20.0, "inter_token_ms": 40.0, "step_ms": 20.0, "min_output_tokens": 40, "max_output_tokens": 140,
    "script": SCRIPT, "script_share": 0.7,
}  # fmt: skip
CLIENTS = 12
SLOTS = 4
"""Of each worker. All of them are taken where both workers of the smaller model run, now and then, and where one does,
always: then jobs are paused for chats. What waits for a slot has nothing to lose by being moved.
"""
MOVE_AFTER_MS = 1_000
FALLS_BACK = "demo"
"""The tenant whom a smaller model may answer. Others wait for theirs."""
OPTIONS = replace(
    simulated(ENGINE, admission=2, gateways=2, max_running=SLOTS),
    environment={
        CONFIG_VARIABLE: str(Path(__file__).with_name("catalogue.toml")),
        "SLUICE_GATEWAY__LEAVE_MS": "500",
        "SLUICE_WORKER__HEADROOM": str(1 / SLOTS),
        "SLUICE_POST_SAFETY__MOVE_AFTER_MS": str(MOVE_AFTER_MS),
    },
)
SOON = RestartPolicy(max_delay_s=0.5)
"""Whoever is struck again at once is no process that cannot run."""

Say = Callable[[str], None]
Deal = Callable[[Stack], Iterable[Fault]]
"""What is struck, one after the other: the next one is asked for when all has recovered from the one before."""


@dataclass(frozen=True)
class Run:
    """`stopped`: why it did not come to its end, if it did not. `secrets`: those of its stack. `restarts`: of each
    process.
    """

    told: dict[str, Any]
    verdict: Verdict
    stopped: str
    secrets: tuple[str, ...]
    struck: Sequence[Struck]
    answers: Sequence[Answer]
    restarts: Mapping[str, int]


def run(
    folder: Path, deal: Deal, options: Options = OPTIONS, *, clients: int = CLIENTS, minutes: float = 60.0,
    say: Say = print, endings: Collection[str] = ENDINGS,
) -> Run:  # fmt: skip
    """Strikes with one after the other, for so many minutes. `folder`/history is what it is judged by, `folder`/stack
    has what the processes wrote. `options`: of the stack; its engine is simulated. `endings`: those that there may be.
    """
    began_s = time.monotonic()
    history = History(folder / "history")
    with Stack(folder / "stack", options, policy=SOON) as stack:
        raise_limits(stack)
        _let_fall_back(stack)
        stack.wait_ready()
        until_ready(stack)
        with Traffic(stack, clients) as traffic:
            struck, stopped = _strike(stack, traffic, deal(stack), began_s + minutes * 60, say)
            traffic.finish(PATIENCE_S + 30)
        until_settled(stack, traffic.answers, traffic.jobs, SETTLED_TIMEOUT_S)
        secrets = (*stack.keys.api_keys.values(), stack.keys.deployment_secret)
        restarts = {record.name: record.restarts for record in stack.processes()}
        _keep(history, stack, traffic, struck, options)
        stack.stop(kill=True)
    log = history.log()
    verdict = history.verdict(log, endings)
    verdict.violations += [Violation("lost", "traffic", failure) for failure in traffic.failures]
    continued_at_ms = {
        response_id: [began.at_ms for began in generated.began[1:]] for response_id, generated in log.generated.items()
    }
    told = result(struck, traffic.answers, verdict, time.monotonic() - began_s, continued_at_ms)
    return Run(told, verdict, stopped, secrets, struck, traffic.answers, restarts)


def _let_fall_back(stack: Stack) -> None:
    file = stack.data.tenants_file
    tenants = read_tenants(file)
    write_tenants(file, [each.model_copy(update={"fallback": each.tenant_id == FALLS_BACK}) for each in tenants])


def _keep(history: History, stack: Stack, traffic: Traffic, struck: Sequence[Struck], options: Options) -> None:
    held: list[Held] = []
    try:
        held = read_held(stack)
    except redis.RedisError as error:
        traffic.failures.append(f"nobody can tell what quota holds: {error!r}")
    history.keep(
        traffic.answers, traffic.jobs, read_log(stack), read_bills(stack), options.engine_args,
        prices=prices_of(stack), hours=read_hours(stack), invoices=read_drafts(stack), ledger=read_ledger(stack),
        held=held, memory_lost_at_ms=memory_lost_at_ms(struck),
        own_model_only=[tenant for tenant in TENANTS if tenant != FALLS_BACK],
    )  # fmt: skip


def memory_lost_at_ms(struck: Sequence[Struck]) -> int:
    """Until when Redis may have lost a settlement, or quota been rebuilt beside one. 0: it has lost nothing."""
    return max((each.until_ms for each in struck if "redis" in (*each.fault.processes, each.fault.flushed)), default=0)


def _strike(
    stack: Stack, traffic: Traffic, faults: Iterable[Fault], until_s: float, say: Say
) -> tuple[list[Struck], str]:
    """One after the other until then, or until one is not recovered from, which is told."""
    struck: list[Struck] = []
    what = "before the first"
    try:
        traffic.until_answered(0, PATIENCE_S)
        for fault in faults:
            if time.monotonic() > until_s:
                break
            what = f"{len(struck) + 1}: {fault.name} ({', '.join(fault.processes)})"
            struck.append(strike(stack, traffic, fault))
            say(f"{what}: {_recovery(struck[-1])}")
    except (TimeoutError, SupervisorError, ClientFailed) as error:
        say(stopped := f"{what}: {error}")
        return struck, stopped
    return struck, ""


def _recovery(struck: Struck) -> str:
    return f"ready {struck.ready_s:.1f} s later, answered {struck.answered_s:.1f}, all moving {struck.moved_s:.1f}"
