"""How a client reaches the brokers: one set of settings, for librdkafka and for clients that take an `SSLContext`."""

import ssl

from streams.settings import KafkaSettings


def client_config(settings: KafkaSettings, client_id: str) -> dict[str, str | int | float]:
    """What every client of librdkafka shares; `settings.extra` comes last and wins. Holds secrets: never log it."""
    return {
        "bootstrap.servers": settings.bootstrap,
        "client.id": client_id,
        "socket.nagle.disable": True,
        "socket.timeout.ms": 10_000,
        "reconnect.backoff.ms": 50,
        "reconnect.backoff.max.ms": 1_000,
        "log.connection.close": False,
        **_security(settings),
        **settings.extra,
    }


def _security(settings: KafkaSettings) -> dict[str, str | int | float]:
    named = {
        "security.protocol": settings.security_protocol,
        "sasl.mechanism": settings.sasl_mechanism,
        "sasl.username": settings.sasl_username,
        "sasl.password": settings.sasl_password.get_secret_value(),
        "ssl.ca.location": settings.ssl_ca_file,
        "ssl.certificate.location": settings.ssl_certificate_file,
        "ssl.key.location": settings.ssl_key_file,
        "ssl.key.password": settings.ssl_key_password.get_secret_value(),
    }
    return {name: str(value) for name, value in named.items() if value}


def tls_context(settings: KafkaSettings) -> ssl.SSLContext | None:
    """The same for a client of Python's own TLS; None without TLS. A broker proves its name to both.

    Raises OSError, of which ssl.SSLError is one, for files that hold something else.
    """
    if not settings.uses_tls:
        return None
    context = ssl.create_default_context(cafile=settings.ssl_ca_file)
    if settings.ssl_certificate_file is not None:
        password = settings.ssl_key_password.get_secret_value()
        context.load_cert_chain(settings.ssl_certificate_file, settings.ssl_key_file, password or None)
    return context
