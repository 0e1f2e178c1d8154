"""`sluice billing forget`: usage no longer names an end user, or any of a tenant's."""

import json
import re
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.markup import escape

from billing_jobs.forget_desk import PSEUDONYM
from billing_jobs.invoices.pages import counted
from billing_jobs.readers import LONGEST_S
from deploy.cli.app import CommandError, DataOption, JsonOption, err, out, running, settings_of, who_asks
from deploy.cli.billing import YesOption, billing
from deploy.cli.questions import ask_billing, check_has_usage
from deploy.paths import DEFAULT_DATA
from streams.dialects.neutral import end_user_pseudonym
from streams.keyring import Purpose
from streams.settings import Settings
from streams.toml_directory import read_tenants
from streams.topics import LONGEST_RESPONSE_MS, WORK_RETENTION_MS


def pseudonyms_of(settings: Settings, tenant: str, end_user: str) -> list[str]:
    """Under each secret that may still have made one."""
    secrets = settings.keyring(Purpose.END_USER_PSEUDONYMS).accepted
    return [end_user_pseudonym(secret, tenant, end_user) for secret in secrets]


def _check_tenant(settings: Settings, tenant: str) -> None:
    """One that has left the tenants file may still be named by its usage. Raises CommandError."""
    if tenant not in {each.tenant_id for each in read_tenants(settings.tenants_file)}:
        check_has_usage(settings, tenant)


@billing.command()
def forget(
    tenant: Annotated[str, typer.Option(help="Whose end user it is.")],
    end_user: Annotated[
        str | None, typer.Option(metavar="USER", help="As the tenant names it in requests (`user`).")
    ] = None,
    pseudonym: Annotated[str | None, typer.Option(help="As usage names it (`end_user`): 32 hex digits.")] = None,
    everyone: Annotated[bool, typer.Option("--all", help="All end users of the tenant.")] = False,
    data: DataOption = DEFAULT_DATA,
    yes: YesOption = False,
    as_json: JsonOption = False,
) -> None:
    """Cuts an end user out of usage, or all of a tenant's: what was used and charged stays. It cannot be undone.

    What was accepted until now is cut, also where it is billed later, or read again. Who comes again is somebody new.
    """
    if [end_user is not None, pseudonym is not None, everyone].count(True) != 1 or "" in (end_user, pseudonym):
        raise CommandError("name one of --end-user, --pseudonym and --all")
    if pseudonym is not None and re.fullmatch(PSEUDONYM, pseudonym) is None:
        raise CommandError("--pseudonym: 32 hex digits, as `end_user` of usage has them; a name is given as --end-user")
    _, run = running(data)
    settings = settings_of(run)
    _check_tenant(settings, tenant)
    found = [pseudonym] if pseudonym else pseudonyms_of(settings, tenant, end_user) if end_user else []
    if not yes:
        whom = "all end users" if everyone else "this end user"
        typer.confirm(f"Usage of {tenant} will not name {whom} any more. Go on?", abort=True)
    body = {"tenant_id": tenant, "pseudonyms": found, "actor": who_asks()}
    answer = ask_billing(settings, "POST", "/internal/forgotten", body, 2 * LONGEST_S)
    kept_ms = settings.topics.usage.retention_ms or 0
    gone_ms = answer["before_ms"] + LONGEST_RESPONSE_MS + WORK_RETENTION_MS + kept_ms
    if as_json:
        print(json.dumps({**answer, "leaves_the_log_at_ms": gone_ms}, indent=1))
        return
    if answer["rows"]:
        out.print(f"{counted(answer['rows'], 'usage event')} of {escape(tenant)} cut loose")
    else:
        whom = "anybody" if everyone else "this end user"
        out.print(
            f"no usage event of {escape(tenant)} that is stored names {whom}: nothing was cut. It is remembered all "
            "the same, for what was accepted until now and is stored later"
        )
    gone = f"{datetime.fromtimestamp(gone_ms / 1_000, UTC):%Y-%m-%d}"
    err.print(
        f"The topic {settings.topics.usage.name} keeps what it said until {gone} at the latest, and Kafka removes it "
        "some days later; whatever is made of it until then is cut alike."
    )
