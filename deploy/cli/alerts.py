"""`sluice alerts`: what somebody should know, and what proves to who is told of it that it comes from here."""

import json
import time
from contextlib import closing
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from billing_jobs.webhooks.signatures import receiver_secrets, shown_secret
from deploy.cli.app import CommandError, DataOption, JsonOption, app, err, out, running, settings_at, settings_of
from deploy.cli.cluster import keyring_at
from deploy.local.data_folder import DataFolder
from deploy.paths import DEFAULT_DATA
from schemas.alert import Alert
from schemas.codec import Undecodable, decode
from streams.keyring import Purpose
from streams.log.kafka import KafkaConsumer
from streams.log.reading import kept_offsets, read_offsets
from streams.settings import Settings
from streams.toml_directory import read_tenants

READ_S = 30.0

alerts_app = typer.Typer(
    help="What somebody should know, and who is told.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(alerts_app, name="alerts")


def read_alerts(settings: Settings) -> list[Alert]:
    """As many as the topic keeps, each with its last state, in the order in which they began. Raises LogError."""
    found: dict[str, Alert] = {}
    with closing(KafkaConsumer(settings.kafka, None, "sluice-alerts")) as consumer:
        offsets = kept_offsets(consumer, consumer.partitions(settings.topics.alerts.name))
        for record in read_offsets(consumer, offsets, time.monotonic() + READ_S):
            try:
                alert = decode(Alert, record.value)
            except Undecodable:
                continue  # billing gives it to the dead letters
            found[alert.alert_id] = alert
    return sorted(found.values(), key=lambda alert: alert.since_ms)


@alerts_app.command("list")
def alerts_list(
    data: DataOption = DEFAULT_DATA,
    every: Annotated[bool, typer.Option("--all", help="Those that have been resolved too.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Shows what is open."""
    _, run = running(data)
    shown = [alert for alert in read_alerts(settings_of(run)) if every or alert.state == "raised"]
    if as_json:
        print(json.dumps([alert.model_dump(mode="json", exclude={"stage_ms"}) for alert in shown], indent=1))
        return
    table = Table("since", "told", "severity", "kind", "whose", "about", "what", "state")
    for alert in shown:
        moments = (datetime.fromtimestamp(at_ms / 1_000, UTC) for at_ms in (alert.since_ms, alert.told_at_ms))
        row = (
            *(f"{moment:%Y-%m-%d %H:%M:%S}" for moment in moments),
            alert.severity,
            alert.kind,
            alert.tenant_id or "operator",
            alert.subject,
            alert.message,
            alert.state,
        )
        table.add_row(*map(escape, row))
    if shown:
        out.print(table)
    else:
        err.print("nothing is open")


@alerts_app.command("secret")
def alerts_secret(
    tenant: Annotated[str | None, typer.Argument(help="Whose; left out, the operator's.")] = None,
    data: DataOption = DEFAULT_DATA,
) -> None:
    """Prints the secret with which a receiver of webhooks checks their signature."""
    folder = DataFolder(data)
    keyring = keyring_at(folder, Purpose.ALERT_WEBHOOKS)
    if tenant is not None and tenant not in {each.tenant_id for each in read_tenants(settings_at(folder).tenants_file)}:
        raise CommandError(f"no tenant {tenant!r}")
    print(shown_secret(receiver_secrets(keyring, tenant or "")[0]))
