"""How Faust reaches the brokers: as every other client does (`streams.log.kafka.config`)."""

from collections.abc import Collection
from typing import Any

from faust.auth import SASLCredentials, SSLCredentials
from faust.transport.drivers.aiokafka import aiokafka

from streams.log.kafka import tls_context
from streams.settings import KafkaSettings


def broker_urls(settings: KafkaSettings) -> list[str]:
    return [f"kafka://{address.strip()}" for address in settings.bootstrap.split(",")]


def broker_credentials(settings: KafkaSettings) -> SASLCredentials | SSLCredentials | None:
    """None: neither TLS nor a name. Raises OSError for certificates that are none."""
    context = tls_context(settings)
    if settings.uses_sasl:
        return SASLCredentials(
            username=settings.sasl_username,
            password=settings.sasl_password.get_secret_value(),
            ssl_context=context,
            mechanism=settings.sasl_mechanism,
        )
    return None if context is None else SSLCredentials(context)


def ask_those_named(client: Any) -> None:
    """From now on this client of aiokafka finds its cluster again while one broker lives that it was given by name.

    It asks those alone of which it was told last. Where the others were late to the controller then, that is one; and
    if that one dies it is asked for ever, also when the others are back.
    """
    update = client._metadata_update

    async def update_or_ask_more(cluster: Any, topics: Collection[str]) -> bool:
        if await update(cluster, topics):
            return True
        # They are asked next time, which is at once: whoever lacks an answer wants an update. An answer replaces all.
        for number, (host, port, _) in enumerate(client.hosts):
            node_id = f"named-{number}"
            client.cluster._brokers[node_id] = aiokafka.structs.BrokerMetadata(node_id, host, port, None)
        return False

    client._metadata_update = update_or_ask_more
