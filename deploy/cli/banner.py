"""What `sluice up` prints when everything is ready: where to look, and three commands to copy."""

import json
from pathlib import Path
from typing import Any

from rich.markup import escape

from deploy.paths import data_option


def banner(status: dict[str, Any], default_data: Path, *, detached: bool = False) -> str:
    """Rich markup, from what `sluice status --json` shows. Commands name the data folder unless it is the default.
    `detached`: what it tells of goes on when whoever prints it has ended.
    """
    gateway, key = status["gateway"], status["api_key"]
    data = data_option(Path(status["data"]), default_data)
    body = json.dumps(
        {
            "model": "default",
            "stream": True,
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
        }
    )
    stop = f"This stops everything: .venv/bin/sluice down{data}" if detached else "Ctrl-C stops everything."
    look = f"{'And this shows it' if detached else 'In another terminal'}: .venv/bin/sluice status{data}"
    headers = f"-H 'Authorization: Bearer {key}' -H 'Content-Type: application/json'"
    curl = f"curl -N {gateway}/v1/chat/completions {headers} -d '{body}'"
    lines = [
        "",
        f"[bold]Chat page[/bold]   {escape(gateway)}/",
        f"[bold]Usage[/bold]       {escape(gateway)}/usage",
        f"[bold]Operations[/bold]  {escape(gateway)}/operations   (for a key of the role admin)",
        f"[bold]API docs[/bold]    {escape(gateway)}/docs",
        *([f"[bold]Gateways[/bold]    {escape('  '.join(status['gateways']))}"] if len(status["gateways"]) > 1 else []),
        f"[bold]API key[/bold]     {escape(str(key))}   (tenant {status['tenant']}, for development)",
        "",
        "[dim]# server-sent events[/dim]",
        escape(curl),
        "[dim]# WebSocket[/dim]",
        escape(f'.venv/bin/sluice chat{data} "Tell me a story about a fox."'),
        "[dim]# batch, through Kafka[/dim]",
        escape(f'.venv/bin/python deploy/examples/producer.py{data} "What is the capital of France?"'),
        "",
        f"[dim]{escape(stop)}  {escape(look)}[/dim]",
    ]
    return "\n".join(lines)
