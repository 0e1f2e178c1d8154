"""`make demo`: starts a stack of its own, walks through what Sluice does and checks every step, then stops everything.

Exit code 0 only if each step did what it says.
"""

import argparse
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import openai
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from deploy.batch.connection import Kafka
from deploy.cli.chat import Answer, Chat
from deploy.cli.invoices import print_invoices
from deploy.cli.overview import status_of
from deploy.cli.progress import Progress, wait_ready
from deploy.cli.questions import ask_billing, query
from deploy.examples.producer import await_result, produce
from deploy.local.data_folder import DataFolderError
from deploy.local.plan import Options
from deploy.local.runner import Stack
from deploy.local.supervisor import SupervisorError
from deploy.paths import DEFAULT_DATA

CLIENT_TIMEOUT_S = 60.0
BATCH_TIMEOUT_S = 60.0
USAGE_TIMEOUT_S = 60.0
PIECES, ATTEMPTS = 3, 3
"""In so many pieces an answer comes as it is made; all of it at once where the machine did something else meanwhile."""

STORY = "Tell me a story about a fox."
DRAGON = "Tell me a story about a dragon."
QUESTION = "What is the capital of France?"
DENIED_PHRASE = "the silver dragon"

USAGE_SQL = """
    SELECT response_id, tenant_id, ending, billable, uncached_input_tokens, cached_input_tokens, output_tokens,
           released_tokens, cost_pico, currency
    FROM usage_events FINAL WHERE response_id IN ($ids) ORDER BY accepted_at, usage_id
"""

# What `--engine sim` says: it has no model, so the phrase that the policy denies is in its script.
SIMULATED_SCRIPT = (
    "The capital of France is Paris. A fox went for a walk and met an old friend by the river. "
    "Behind the hill lived the silver dragon, who was kind to everybody. "
)

out = Console(highlight=False, soft_wrap=True, width=None if sys.stdout.isatty() else 120)


class StepFailed(Exception):
    """What a step should have shown and did not."""


def expect(condition: object, what: str) -> None:
    """Raises StepFailed unless the condition holds."""
    if not condition:
        raise StepFailed(what)


@dataclass
class Tour:
    """A running stack, and what the steps note for the last one: which responses there were, and how each is billed."""

    stack: Stack
    responses: dict[str, "Expected"] = field(default_factory=dict)

    def client(self, tenant_id: str) -> openai.OpenAI:
        return openai.OpenAI(
            base_url=f"{self.stack.gateway_url}/v1", api_key=self.stack.api_key(tenant_id),
            max_retries=0, timeout=CLIENT_TIMEOUT_S,
            http_client=openai.DefaultHttpxClient(trust_env=False),  # no proxy of the environment is told the key
        )  # fmt: skip

    def chat(self, tenant_id: str) -> Chat:
        return Chat(self.stack.websocket_url, self.stack.api_key(tenant_id))


@dataclass(frozen=True)
class Expected:
    """How a response must stand in `usage_events`. `output_tokens` None: not told to the client."""

    tenant_id: str
    ending: str
    billable: bool
    output_tokens: int | None


def _user(text: str) -> Any:
    return [{"role": "user", "content": text}]


def _message(error: openai.APIStatusError) -> str:
    return str(error.body.get("message")) if isinstance(error.body, dict) else error.message


def chat_over_websocket(tour: Tour) -> None:
    """A chat over WebSocket, token by token"""
    for _ in range(ATTEMPTS):
        out.print(f"  [bold]> {STORY}[/bold]\n  ", end="")
        with tour.chat("demo") as chat:
            answer = chat.ask(
                {"model": "default", "messages": _user(STORY), "max_tokens": 200},
                lambda text: print(text, end="", flush=True),
            )
        print()
        _expect_whole(answer)
        tour.responses[answer.response_id] = Expected("demo", "completed", True, answer.sequence_number)
        # On a busy machine tokens join; whoever waits for the end would get one piece.
        if answer.deltas >= PIECES:
            break
    expect(answer.deltas >= PIECES, f"several pieces, but got {answer.deltas}")
    out.print(f"  [dim]{answer.sequence_number} tokens in {answer.deltas} messages[/dim]")


def _expect_whole(answer: Answer) -> None:
    expect(answer.error is None, f"an answer, but got {answer.error}")
    terminal = answer.terminal
    assert terminal is not None
    expect(terminal.code == "completed", f"the ending `completed`, but got {terminal.code}")
    expect(not answer.gaps, f"sequence numbers without a gap, but got {answer.gaps}")
    expect(terminal.sequence_number == answer.sequence_number + 1, "the terminal right after the last token")
    tokens = terminal.usage.completion_tokens
    expect(tokens == answer.sequence_number, f"as many tokens billed as numbered: {tokens}, {answer.sequence_number}")


def chat_over_sse(tour: Tour) -> None:
    """The same over server-sent events, with OpenAI's own package"""
    out.print(f"  [bold]> {QUESTION}[/bold]\n  ", end="")
    text, finish, tokens, response_id = "", None, None, ""
    with tour.client("demo") as client, client.chat.completions.create(
        model="default", messages=_user(QUESTION), stream=True, temperature=0,
        max_tokens=64, stream_options={"include_usage": True},
    ) as stream:  # fmt: skip
        response_id = stream.response.headers["x-request-id"]
        for chunk in stream:
            for choice in chunk.choices:
                piece = choice.delta.content or ""
                text += piece
                finish = choice.finish_reason or finish
                print(piece, end="", flush=True)
            if chunk.usage is not None:
                tokens = chunk.usage.completion_tokens
    print()
    expect("Paris" in text, f"Paris, but got {text!r}")
    expect(finish in ("stop", "length"), f"a finish reason, but got {finish}")
    expect(tokens is not None, "the usage at the end of the stream")
    tour.responses[response_id] = Expected("demo", "completed", True, tokens)


def batch_over_kafka(tour: Tour) -> None:
    """A batch job, signed and put on Kafka by a producer, and its result read back"""
    status = status_of(tour.stack.data)
    custom_id = f"demo-{uuid.uuid4().hex[:12]}"
    kafka: Kafka = {"bootstrap.servers": status["kafka"]}
    produce(status, kafka, QUESTION, custom_id, max_tokens=64)
    out.print(f"  [dim]job {custom_id} → {status['producer']['topics']['intake']}[/dim]")
    result = await_result(status, kafka, custom_id, BATCH_TIMEOUT_S)
    expect(result.custom_id == custom_id, "the result of this job")
    expect(result.response is not None, f"a response, but got {result.error}")
    assert result.response is not None
    expect(result.response.status_code == 200, f"status 200, but got {result.response.status_code}")
    body = result.response.body
    text = body["choices"][0]["message"]["content"]
    expect(text.strip(), "some text")
    out.print(f"  [dim]{status['producer']['topics']['results']} →[/dim] {escape(text)}")
    tour.responses[result.id] = Expected("demo", "completed", True, body["usage"]["completion_tokens"])


def prompt_refused(tour: Tour) -> None:
    """A prompt that pre-safety refuses, before any GPU work"""
    prompt = "Please OPEN the  vault for me."
    out.print(f"  [bold]> {prompt}[/bold]")
    try:
        with tour.client("guarded") as client:
            client.chat.completions.create(model="default", messages=_user(prompt), max_tokens=16)
    except openai.BadRequestError as error:
        expect(error.code == "prompt_refused", f"the code `prompt_refused`, but got {error.code}")
        out.print(f"  [yellow]{error.status_code} {error.code}[/yellow]: {escape(_message(error))}")
        tour.responses[error.response.headers["x-request-id"]] = Expected("guarded", "prompt_refused", False, 0)
    else:
        raise StepFailed("a refusal, but got an answer")


def answer_halted(tour: Tour) -> None:
    """An answer that post-safety halts before a phrase which the tenant denies"""
    request: dict[str, Any] = {"model": "default", "messages": _user(DRAGON), "max_tokens": 400, "temperature": 0}
    with tour.chat("demo") as chat:
        free = chat.ask(request)
    expect(free.terminal is not None and free.terminal.code == "completed", "an unguarded answer")
    assert free.terminal is not None
    tour.responses[free.response_id] = Expected("demo", "completed", True, free.terminal.usage.completion_tokens)
    expect(DENIED_PHRASE in free.text.lower(), f"{DENIED_PHRASE!r} in the unguarded answer: {free.text!r}")
    out.print(
        "  [dim]the tenant `demo` was told this story to its end; the tenant `guarded` denies a phrase of it[/dim]"
    )

    out.print(f"  [bold]> {DRAGON}[/bold]\n  ", end="")
    with tour.chat("guarded") as chat:
        halted = chat.ask(request, lambda text: print(text, end="", flush=True))
    print()
    expect(halted.terminal is not None, f"an ending, but got {halted.error}")
    assert halted.terminal is not None
    expect(halted.terminal.code == "safety_halted", f"the ending `safety_halted`, but got {halted.terminal.code}")
    expect(halted.terminal.finish_reason == "content_filter", "the finish reason `content_filter`")
    at = free.text.lower().index(DENIED_PHRASE)
    expect(DENIED_PHRASE not in halted.text.lower(), "nothing of the phrase shown")
    expect(free.text.startswith(halted.text) and len(halted.text) <= at, "the same text up to the phrase")
    out.print(f"  [yellow]{halted.terminal.code}[/yellow] before “{DENIED_PHRASE}”")
    tour.responses[halted.response_id] = Expected("guarded", "safety_halted", True, None)


def quota_refused(tour: Tour) -> None:
    """A quota refusal, with the time after which to try again"""
    with tour.client("tiny-quota") as client:
        request: dict[str, Any] = {"model": "default", "messages": _user("Hello!"), "max_tokens": 8}
        first = client.chat.completions.with_raw_response.create(**request)
        answer = first.parse()
        expect(answer.usage is not None, "the usage of the first answer")
        assert answer.usage is not None
        tour.responses[first.headers["x-request-id"]] = Expected(
            "tiny-quota", "completed", True, answer.usage.completion_tokens
        )
        out.print(
            "  [dim]the tenant `tiny-quota` may ask once a minute: the first request is answered, now a second[/dim]"
        )
        try:
            client.chat.completions.create(**request)
        except openai.RateLimitError as error:
            retry_after_s = int(error.response.headers["retry-after"])
            # A minute, and the spread that keeps refused clients from coming back all at once.
            expect(1 <= retry_after_s <= 120, f"a wait of about a minute, but got {retry_after_s} s")
            out.print(f"  [yellow]{error.status_code} {error.code}[/yellow], Retry-After: {retry_after_s} s")
            tour.responses[error.response.headers["x-request-id"]] = Expected(
                "tiny-quota", "rate_limited_requests", False, 0
            )
        else:
            raise StepFailed("a refusal, but got a second answer within a minute")


def usage_in_clickhouse(tour: Tour) -> None:
    """The usage rows of all that, from ClickHouse"""
    sql = USAGE_SQL.replace("$ids", ", ".join(f"'{response_id}'" for response_id in tour.responses))
    deadline_s = time.monotonic() + USAGE_TIMEOUT_S
    while True:
        result = query(tour.stack.plan.settings, sql)
        if len(result["rows"]) >= len(tour.responses) or time.monotonic() > deadline_s:
            break
        time.sleep(0.2)
    columns = result["columns"]
    rows = [dict(zip(columns, row, strict=True)) for row in result["rows"]]
    # 80 columns hold it whole: the ending and the cost are what it is looked at for.
    shown = Table("tenant", "ending", "input", "output", "cost")
    for row in rows:
        tokens_in = int(row["uncached_input_tokens"]) + int(row["cached_input_tokens"])
        cost = f"{int(row['cost_pico']) / 1e12:.8f} {row['currency']}" if row["billable"] else "not billed"
        shown.add_row(row["tenant_id"], row["ending"], str(tokens_in), str(row["output_tokens"]), cost)
    out.print(shown)
    expect(
        sorted(row["response_id"] for row in rows) == sorted(tour.responses),
        f"one row for each of {len(tour.responses)} responses, but got {len(rows)}",
    )
    for row in rows:
        expected = tour.responses[row["response_id"]]
        expect(
            (row["tenant_id"], row["ending"], bool(row["billable"]))
            == (expected.tenant_id, expected.ending, expected.billable),
            f"{expected}, but got {row}",
        )
        if expected.output_tokens is not None:
            expect(
                int(row["output_tokens"]) == expected.output_tokens,
                f"{expected.output_tokens} output tokens, as the client was told, but got {row}",
            )
        priced = int(row["cost_pico"]) > 0
        expect(priced == expected.billable, f"a price exactly for what is billed, but got {row}")


def invoice_by_hand(tour: Tour) -> None:
    """What tenant demo would be asked for this month: tokens times price, to be checked by hand"""
    settings = tour.stack.plan.settings
    columns = "formatDateTime(toStartOfMonth(accepted_at), '%Y-%m') AS month, sum(cost) AS cost"
    used = query(settings, f"SELECT {columns} FROM usage WHERE tenant_id = 'demo' GROUP BY month ORDER BY month")  # noqa: S608
    month, cost = used["rows"][-1]
    answer = ask_billing(settings, "GET", f"/internal/invoices/demo/{month}/draft")
    print_invoices(answer, out)
    [invoice] = answer["invoices"]
    for line in invoice["lines"]:
        by_hand = line["quantity"] * Decimal(line["price_per_million"]) / 1_000_000
        expect(by_hand == Decimal(line["amount"]), f"{by_hand}, but got {line}")
    by_hand = sum((Decimal(line["amount"]) for line in invoice["lines"]), Decimal())
    expect(by_hand == Decimal(invoice["exact"]) == Decimal(cost), f"{by_hand}, but got {invoice['exact']} and {cost}")


STEPS: tuple[Callable[[Tour], None], ...] = (
    chat_over_websocket,
    chat_over_sse,
    batch_over_kafka,
    prompt_refused,
    answer_halted,
    quota_refused,
    usage_in_clickhouse,
    invoice_by_hand,
)


def walk(tour: Tour) -> list[str]:
    """Runs every step; returns the names of those that failed."""
    failed = []
    for number, step in enumerate(STEPS, start=1):
        out.print(f"\n[bold cyan]{number}. {step.__doc__}[/bold cyan]")
        began_s = time.monotonic()
        try:
            step(tour)
        except Exception as error:  # noqa: BLE001 - however a step fails, it is named and counted
            failed.append(step.__name__)
            expected = "expected " if isinstance(error, StepFailed) else f"{type(error).__name__}: "
            out.print(f"  [red]✗ {expected}{escape(str(error))}[/red]")
        else:
            out.print(f"  [green]✓[/green] [dim]{time.monotonic() - began_s:.1f} s[/dim]")
    return failed


def main(words: Sequence[str] | None = None) -> int:
    """The exit code. Whatever goes wrong, the stack is stopped first and one line says it."""
    parser = argparse.ArgumentParser(description="A tour of Sluice that checks each of its steps.")
    parser.add_argument("--engine", choices=("vllm", "sim"), default="vllm")
    parser.add_argument(
        "--data", type=Path, default=DEFAULT_DATA / "demo", help="of an earlier tour, or new; emptied first"
    )
    arguments = parser.parse_args(words)
    # As for an interrupt: what was started is stopped in order.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return tour(arguments.engine, arguments.data)
    except KeyboardInterrupt:
        return _failed("interrupted")
    except (DataFolderError, SupervisorError) as error:
        return _failed(str(error))
    except Exception as error:  # noqa: BLE001 - the last resort: said, and never taken for success
        return _failed(f"{type(error).__name__}: {error}")
    finally:
        signal.signal(signal.SIGTERM, before)


def _failed(why: str) -> int:
    out.print(f"[red]demo: {escape(why.strip() or 'failed')}[/red]")
    return 1


def tour(engine: str, data: Path) -> int:
    """The exit code: 0 if every step did what it says. Raises whatever keeps the stack from running."""
    progress = Progress()
    options = Options(free_ports=True)
    if engine == "sim":
        options = Options(engine="simulated", engine_args={"script": SIMULATED_SCRIPT}, free_ports=True)
    stack = Stack(data, options, say=progress.say, on_change=progress.change)
    stack.clear()
    progress.say("starting Kafka, Redis and every process; vLLM takes the longest")
    with stack:
        wait_ready(stack, progress, threading.Event())
        progress.say("everything is ready")
        failed = walk(Tour(stack))
        progress.say("stopping everything")
    if failed:
        out.print(f"\n[red]{len(failed)} of {len(STEPS)} steps failed: {', '.join(failed)}[/red]")
        return 1
    out.print(f"\n[green]All {len(STEPS)} steps did what they say[/green] ({progress.elapsed_s():.0f} s)")
    return 0
