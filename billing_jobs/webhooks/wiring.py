"""Telling alerts, in the billing process: a thread beside the sink."""

from collections.abc import Callable
from threading import Event

import structlog

from billing_jobs.metrics import BillingMetrics
from billing_jobs.webhooks.deliverer import GROUP, Deliverer, Receivers
from streams.directory import TenantDirectory
from streams.keyring import Keyring, Purpose
from streams.log.kafka import KafkaConsumer, KafkaProducer
from streams.settings import Settings, SettingsError
from streams.toml_directory import TenantsUnreadable, TomlTenantDirectory

_log = structlog.get_logger()


def keyring_of(settings: Settings) -> Keyring | None:
    """None where neither the purpose nor the deployment has a secret."""
    try:
        return settings.keyring(Purpose.ALERT_WEBHOOKS)
    except SettingsError:
        return None


def tenants_of(settings: Settings) -> TenantDirectory | None:
    """None where this machine has no file of them: then the operator alone is told."""
    try:
        return TomlTenantDirectory(settings.tenants_file)
    except TenantsUnreadable as error:
        _log.warning("alerts_without_tenants", error=str(error))
        return None


def delivering(settings: Settings, metrics: BillingMetrics) -> Callable[[Event], None]:
    """What a thread of its own is to run until it is told to stop. Raises LogError."""
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
