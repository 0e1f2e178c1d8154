"""`sluice chat` asks a model, `sluice sql` asks ClickHouse."""

import json
import sys
from typing import Annotated, Any
from urllib.parse import quote

import httpx
import typer
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from deploy.cli.app import CommandError, DataOption, JsonOption, app, development_key, err, out, running, settings_of
from deploy.cli.chat import Answer, Chat
from deploy.cli.terminal import printable
from deploy.paths import DEFAULT_DATA
from streams.keyring import Purpose
from streams.settings import Settings

HTTP_SLACK_S = 10.0
WIDER_THAN_ANY = 1_000_000


def _ending(answer: Answer) -> str:
    """How it ended, for a person."""
    if answer.terminal is None:
        error = answer.error
        return (
            "[red]no answer[/red]" if error is None else f"[red]{error.error.code}[/red]: {escape(error.error.message)}"
        )
    terminal = answer.terminal
    tokens = f"{terminal.usage.prompt_tokens} + {terminal.usage.completion_tokens} tokens"
    if terminal.error is not None:
        return f"[red]{terminal.code}[/red]: {escape(terminal.error.message)} ({tokens})"
    return f"[dim]{terminal.code}, {tokens}, {answer.response_id}[/dim]"


def _say(chat_: Chat, messages: list[dict[str, str]], model: str, max_tokens: int | None) -> Answer:
    body: dict[str, Any] = {"model": model, "messages": messages}
    if max_tokens is not None:
        body["max_tokens"] = max_tokens
    answer = chat_.ask(body, lambda text: print(printable(text), end="", flush=True))
    print()
    err.print(_ending(answer))
    return answer


@app.command()
def chat(
    prompt: Annotated[str | None, typer.Argument(help="One question; without it, a conversation.")] = None,
    data: DataOption = DEFAULT_DATA,
    model: Annotated[str, typer.Option(help="Name or alias.")] = "default",
    tenant: Annotated[str, typer.Option(help="Whose development key to use.")] = "demo",
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Bound of each answer.")] = None,
) -> None:
    """Talks to a model over WebSocket. Ctrl-C cancels an answer, Ctrl-D ends the conversation."""
    folder, run = running(data)
    api_key = development_key(folder, tenant)
    with Chat(f"ws{run.gateway.removeprefix('http')}/v1/stream", api_key) as chat_:
        if prompt is not None:
            answer = _say(chat_, [{"role": "user", "content": prompt}], model, max_tokens)
            if answer.terminal is None or answer.terminal.error is not None:
                sys.exit(1)
            return
        messages: list[dict[str, str]] = []
        while True:
            try:
                question = input("> ").strip()
            except (EOFError, KeyboardInterrupt):
                print()
                return
            if not question:
                continue
            asked = [*messages, {"role": "user", "content": question}]
            answer = _say(chat_, asked, model, max_tokens)
            if answer.text:
                messages = [*asked, {"role": "assistant", "content": answer.text}]


def ask_billing(
    settings: Settings, method: str, path: str, body: dict[str, Any] | None = None, wait_s: float | None = None
) -> dict[str, Any]:
    """What the billing process answers; `wait_s` where it may take longer than a query. Raises CommandError with its
    own words, which may be ClickHouse's.
    """
    try:
        answer = httpx.request(
            method,
            f"{settings.billing.client_url}{path}",
            json=body,
            headers={"Authorization": f"Bearer {settings.keyring(Purpose.BILLING).current.decode()}"},
            timeout=(wait_s or settings.billing.query_timeout_s) + HTTP_SLACK_S,
            trust_env=False,  # a proxy of the environment would be told the password
        )
    except httpx.ConnectError as error:
        where = settings.billing.client_url
        raise CommandError(f"billing does not answer at {where}: {error}; `sluice status` says how it is") from error
    if answer.is_error:
        try:
            raise CommandError(answer.json()["error"]["message"])
        except (ValueError, LookupError):
            raise CommandError(f"billing answered with status {answer.status_code}") from None
    result: dict[str, Any] = answer.json()
    return result


def check_has_usage(settings: Settings, tenant: str) -> None:
    """Raises CommandError where billing knows of no usage of such a tenant: its ledger is refused then."""
    ask_billing(settings, "GET", f"/internal/ledger/{quote(tenant, safe='')}")


def query(settings: Settings, sql_text: str) -> dict[str, Any]:
    """`columns`, `rows` and `truncated`. Raises CommandError."""
    return ask_billing(settings, "POST", "/internal/sql", {"query": sql_text})


def _show(columns: list[str], rows: list[list[Any]]) -> None:
    """As a table; where that is wider than the output, each row as a record of its own, a line for each column."""
    table = Table()
    for name in columns:
        table.add_column(Text(name))
    cells = [[Text("" if value is None else str(value)) for value in row] for row in rows]
    for row in cells:
        table.add_row(*row)
    unbound = out.options.update(max_width=WIDER_THAN_ANY)
    if Measurement.get(out, unbound, table).maximum <= out.width:
        out.print(table)
        return
    longest = max(map(len, columns))
    for number, row in enumerate(cells, 1):
        out.print(Text(f"row {number}", style="bold"))
        for name, cell in zip(columns, row, strict=True):
            out.print(Text(f"{name + ':':<{longest + 1}} ") + cell)


@app.command()
def sql(
    text: Annotated[
        str, typer.Argument(help="One SELECT, for instance: SELECT model, sum(cost) FROM usage GROUP BY model")
    ],
    data: DataOption = DEFAULT_DATA,
    as_json: JsonOption = False,
) -> None:
    """Asks ClickHouse, read-only. Views: usage, usage_by_hour, usage_by_day, price_intervals."""
    _, run = running(data)
    result = query(settings_of(run), text)
    if as_json:
        print(json.dumps(result, indent=1))
        return
    _show(result["columns"], result["rows"])
    if result["truncated"]:
        err.print("[yellow]more rows match; only the first are shown[/yellow]")
