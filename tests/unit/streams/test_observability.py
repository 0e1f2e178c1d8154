"""What a process logs while the brokers are away: enough to see it, and no flood."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from streams.seldom import MAX_KINDS, REPEAT_S, Seldom

BEGIN = """
import logging, sys, time
import structlog
from streams.observability import configure_logging
configure_logging("process", "info")
log = structlog.get_logger()
"""
# Port 1 refuses every connection.
WITHOUT_A_BROKER = """
from streams.log.kafka import KafkaConsumer
from streams.settings import KafkaSettings
consumers = [KafkaConsumer(KafkaSettings(bootstrap="127.0.0.1:1"), None, name) for name in ("one", "two")]
for _ in range(20):  # and not for so long: a process that is held up for that hears of nothing
    for consumer in consumers:
        consumer.poll(10, 0.05)
"""
A_LIBRARY_AND_OURS = """
library = logging.getLogger("aiokafka")
for node in range(300):
    library.error("Unable connect to node with id %s: [Errno 111]", node)
    log.warning("poll_failed", error="away", repeats=True)
    log.warning("dead_letter", offset=node)
for _ in range(3):
    try:
        raise ValueError("each counts")
    except ValueError:
        library.exception("Crashed")
"""


def logged(script: str) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + script], capture_output=True, text=True, timeout=60, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_a_broker_that_is_away_is_told_once_and_not_for_each_attempt_to_connect() -> None:
    lines = [line["event"] for line in logged(WITHOUT_A_BROKER) if "FAIL" in line["event"]]
    assert sorted(line.split("#")[0] for line in lines) == ["FAIL [one", "FAIL [two"]


def test_what_repeats_is_logged_seldom_and_what_happened_each_time() -> None:
    lines = logged(A_LIBRARY_AND_OURS)
    events = [line["event"] for line in lines]
    assert events.count("poll_failed") == 1
    assert len([event for event in events if event.startswith("Unable connect")]) == 1
    assert events.count("dead_letter") == 300
    assert events.count("Crashed") == 3
    assert not any("repeats" in line for line in lines)


def test_the_next_line_of_a_kind_says_how_many_were_left_out() -> None:
    now_s = 0.0
    seldom = Seldom(lambda: now_s)
    assert [seldom.left_out("a") for _ in range(4)] == [0, None, None, None]
    assert seldom.left_out("b") == 0
    now_s = REPEAT_S
    assert [seldom.left_out("a"), seldom.left_out("a")] == [3, None]


def test_kinds_without_end_take_no_memory_without_end() -> None:
    seldom = Seldom(lambda: 0.0)
    for number in range(3 * MAX_KINDS):
        assert seldom.left_out(str(number)) == 0
        assert seldom.left_out(str(number)) is None
    assert len(seldom._said_at_s) == len(seldom._left_out) == MAX_KINDS


ROOT = Path(__file__).parents[3]
METHODS = {"debug", "info", "warning", "error", "exception", "critical", "bind", "bind_contextvars"}
OURS_ALREADY = {"event", "level", "timestamp", "logger", "process", "left_out", "exception"}
"""Fields of every line, or of some: what a call names so is overwritten, or overwrites it."""


def test_no_line_names_a_field_that_every_line_has() -> None:
    packages = ("streams", "agents", "gpu_consumers", "billing_jobs", "deploy")
    calls = [
        (path, call)
        for package in packages
        for path in sorted((ROOT / package).rglob("*.py"))
        if "get_logger" in (text := path.read_text())
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in METHODS
        if re.search(r"\b_?log(ger)?$|get_logger\(\)$|contextvars$", ast.unparse(call.func.value))
    ]
    assert len(calls) > 50
    wrong = [
        f"{path.relative_to(ROOT)}:{call.lineno} {field.arg}"
        for path, call in calls
        for field in call.keywords
        if field.arg in OURS_ALREADY
    ]
    assert wrong == []
