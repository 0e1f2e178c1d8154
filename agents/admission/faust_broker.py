"""How Faust reaches the brokers: as every other client does (`streams.log.kafka.config`)."""

from faust.auth import SASLCredentials, SSLCredentials

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
