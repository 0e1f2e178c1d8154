"""Strikes a stack with a fault, and waits for it to recover."""

import signal
import time
from dataclasses import dataclass

import redis

from deploy.local.runner import Stack
from deploy.local.supervision import State
from tests.chaos.brokers import move_coordinators
from tests.chaos.clients import now_ms
from tests.chaos.schedule import LEASE_S, Fault, Kind
from tests.chaos.traffic import Traffic
from tests.e2e.stacks import worker_metrics

RECOVERY_TIMEOUT_S = 300.0
"""Far beyond what it takes, on a busy machine too."""
BUSY_TIMEOUT_S = 10.0
FLUSH_AFTER_S = LEASE_S + 0.5
"""Of a freeze."""


@dataclass(frozen=True)
class Struck:
    """`at_ms`: Unix time; it took `blow_s`. From then on, `ready_s`: until every process was ready; `answered_s`: until
    somebody who asked after the blow had a token; `moved_s`: until every stream that ran had one more, or its end.
    """

    fault: Fault
    at_ms: int
    blow_s: float
    ready_s: float
    answered_s: float
    moved_s: float

    @property
    def until_ms(self) -> int:
        """By then all had recovered."""
        return self.at_ms + round((self.blow_s + max(self.ready_s, self.answered_s, self.moved_s)) * 1_000)


def strike(stack: Stack, traffic: Traffic, fault: Fault) -> Struck:
    """Raises TimeoutError where the stack does not recover, SupervisorError where a process is given up."""
    time.sleep(fault.after_s)
    _until_busy(stack, fault)
    at_ms, began_s = now_ms(), time.monotonic()
    match fault.kind:
        case Kind.KILL:
            for name in fault.processes:
                stack.kill(name)
        case Kind.STOP:
            for name in fault.processes:
                stack.kill(name, signal.SIGTERM)
        case Kind.FREEZE:
            _freeze(stack, fault)
        case Kind.AWAY:
            _keep_away(stack, fault)
        case Kind.MOVE:
            move_coordinators(stack)
    blow_ms, blow_s = now_ms(), time.monotonic()
    until_ready(stack)
    ready_s = time.monotonic() - blow_s
    traffic.until_answered(blow_ms, RECOVERY_TIMEOUT_S)
    answered_s = time.monotonic() - blow_s
    traffic.until_moved(blow_ms, RECOVERY_TIMEOUT_S)
    return Struck(fault, at_ms, blow_s - began_s, ready_s, answered_s, time.monotonic() - blow_s)


def _until_busy(stack: Stack, fault: Fault) -> None:
    """Of the workers that are struck each has an answer to lose, unless none comes to it for some seconds."""
    deadline_s = time.monotonic() + BUSY_TIMEOUT_S
    for name in fault.processes:
        while name.startswith("worker-") and time.monotonic() < deadline_s:
            if worker_metrics(stack, name).get("sluice_worker_running_requests"):
                break
            time.sleep(0.05)


def _freeze(stack: Stack, fault: Fault) -> None:
    processes = [stack.supervisor.process(name) for name in fault.processes]
    try:
        for process in processes:
            process.send(signal.SIGSTOP)
        time.sleep(min(FLUSH_AFTER_S, fault.away_s))
        if fault.flushed:
            _flush(stack, fault.flushed)
        time.sleep(max(0.0, fault.away_s - FLUSH_AFTER_S))
    finally:
        for process in processes:
            process.send(signal.SIGCONT)


def _keep_away(stack: Stack, fault: Fault) -> None:
    processes = [stack.supervisor.process(name) for name in fault.processes]
    try:
        for process in processes:
            process.stop(kill=True)
        time.sleep(fault.away_s)
    finally:
        for process in processes:
            process.start()


def _flush(stack: Stack, name: str) -> None:
    """Everything in it is gone, as if somebody had said so by mistake."""
    settings = stack.plan.settings.redis
    with redis.Redis.from_url(settings.url if name == "redis" else settings.history_url) as client:
        client.flushall()


def until_ready(stack: Stack) -> None:
    """Every process says so itself, now: of one that was frozen its supervisor knows nothing newer."""
    deadline_s = time.monotonic() + RECOVERY_TIMEOUT_S
    while waiting := _waiting(stack):
        stack.supervisor.raise_if_given_up()
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"not ready after {RECOVERY_TIMEOUT_S:g} s: {waiting}")
        time.sleep(0.05)


def _waiting(stack: Stack) -> dict[str, str]:
    """Who is not ready, and why not."""
    waiting: dict[str, str] = {}
    for spec in stack.plan.processes:
        record = stack.record(spec.name)
        why_not = record.detail or record.state if record.state != State.READY else spec.probe()
        if why_not is not None:
            waiting[spec.name] = why_not
    return waiting
