"""Telling alerts, in the billing process: a thread beside the sink."""

from collections.abc import Callable
from threading import Event

import structlog

from billing_jobs.metrics import BillingMetrics
from billing_jobs.webhooks.addresses import Forbidden, check_url
from billing_jobs.webhooks.deliverer import GROUP, Deliverer, Receivers
from streams.directory import Tenant
from streams.keyring import Keyring, Purpose
from streams.log.kafka import KafkaConsumer, KafkaProducer
from streams.settings import Settings, SettingsError
from streams.toml_directory import TomlTenantDirectory

_log = structlog.get_logger()


def check_webhooks(settings: Settings) -> None:
    """Raises SettingsError where the operator is to be told and there is no secret to sign with."""
    if settings.alerts.webhooks and keyring_of(settings) is None:
        raise SettingsError(
            "alerts.webhooks: neither secrets.alert_webhooks nor deployment_secret is there to sign with"
        )


def keyring_of(settings: Settings) -> Keyring | None:
    """None where neither the purpose nor the deployment has a secret."""
    try:
        return settings.keyring(Purpose.ALERT_WEBHOOKS)
    except SettingsError:
        return None


def tenants_of(settings: Settings) -> TomlTenantDirectory | None:
    """None where this machine has no file of them: then the operator alone is told. Raises SettingsError, OSError."""
    if not settings.tenants_file.exists():
        _log.warning("alerts_without_tenants", tenants_file=str(settings.tenants_file))
        return None
    directory = TomlTenantDirectory(settings.tenants_file)
    for tenant in directory.tenants():
        if tenant.alert_webhook:
            _check_tenants(tenant, settings.alerts.tenant_webhooks_anywhere)
    return directory


def _check_tenants(tenant: Tenant, anywhere: bool) -> None:
    """Said before the first alert is given up for it. Others' work does not depend on it, so no more than said."""
    try:
        check_url(tenant.alert_webhook, is_open=anywhere)
    except Forbidden as error:
        _log.error("tenant_webhook_not_allowed", tenant_id=tenant.tenant_id, why=str(error))


def delivering(settings: Settings, metrics: BillingMetrics) -> Callable[[Event], None]:
    """What a thread of its own is to run until it is told to stop; it may raise anything. Raises LogError."""
    producer = KafkaProducer(settings.kafka, "billing-webhooks")

    def run(stop: Event) -> None:
        Deliverer(
            open_consumer=lambda: KafkaConsumer(settings.kafka, f"{settings.region}.{GROUP}", "billing-webhooks"),
            producer=producer,
            receivers=Receivers(
                operators=settings.alerts.webhooks,
                directory=tenants_of(settings),
                keyring=keyring_of(settings),
                tenants_anywhere=settings.alerts.tenant_webhooks_anywhere,
                give_up_ms=int(settings.alerts.give_up_s * 1_000),
            ),
            alerts_topic=settings.topics.alerts.name,
            dead_letter_topic=settings.topics.dead_letters.name,
            stop=stop,
            metrics=metrics,
        ).run()

    return run
