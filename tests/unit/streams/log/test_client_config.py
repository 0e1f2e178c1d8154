"""Every client reaches the brokers alike: librdkafka's and Faust's."""

import ssl
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from faust.auth import SASLCredentials, SSLCredentials
from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth

from agents.admission.faust_broker import broker_credentials, broker_urls
from streams.log.kafka import client_config, tls_context
from streams.settings import KafkaSettings
from tests.certificates import Authority

NOBODY = "127.0.0.1:1"
"""librdkafka connects as soon as a client is made, and somebody may run a stack on the default port."""
LOGIN: dict[str, Any] = {"sasl_username": "gateway", "sasl_password": "secret"}


def settings(folder: Path, protocol: str, **fields: Any) -> KafkaSettings:
    authority = Authority(folder)
    pair = authority.pair("client")
    files = {
        "ssl_ca_file": authority.certificate, "ssl_certificate_file": pair.certificate, "ssl_key_file": pair.key
    } if protocol.endswith("SSL") else {}  # fmt: skip
    return KafkaSettings.model_validate({"bootstrap": NOBODY, "security_protocol": protocol, **files, **fields})


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("protocol", ["SASL_PLAINTEXT", "SASL_SSL"])
def test_a_name_and_a_password_reach_both_libraries(tmp_path: Path, protocol: str, mechanism: str) -> None:
    kafka = settings(tmp_path, protocol, sasl_mechanism=mechanism, **LOGIN)
    config = client_config(kafka, "test")
    AdminClient(config)
    assert {name: config[name] for name in ("security.protocol", "sasl.username", "sasl.password")} == {
        "security.protocol": protocol, "sasl.username": "gateway", "sasl.password": "secret"
    }  # fmt: skip
    credentials = broker_credentials(kafka)
    assert isinstance(credentials, SASLCredentials)
    auth = credentials_to_aiokafka_auth(credentials)
    assert (auth["security_protocol"], auth["sasl_mechanism"]) == (protocol, mechanism)
    assert (auth["sasl_plain_username"], auth["sasl_plain_password"]) == ("gateway", "secret")
    assert (auth["ssl_context"] is None) is (protocol == "SASL_PLAINTEXT")
    assert "secret" not in repr(credentials) + repr(kafka)


def test_certificates_reach_both_libraries(tmp_path: Path) -> None:
    kafka = settings(tmp_path, "SSL")
    config = client_config(kafka, "test")
    AdminClient(config)
    assert config["ssl.ca.location"] == str(tmp_path / "ca.pem")
    assert config["ssl.key.location"] == str(tmp_path / "client.key")
    assert isinstance(broker_credentials(kafka), SSLCredentials)
    context = tls_context(kafka)
    assert context is not None
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_without_security_nothing_is_said_of_it() -> None:
    kafka = KafkaSettings(bootstrap="one:9092, two:9092")
    config = client_config(kafka, "test")
    assert {name for name in config if name.startswith(("sasl", "ssl", "security"))} == {"security.protocol"}
    assert broker_credentials(kafka) is None
    assert broker_urls(kafka) == ["kafka://one:9092", "kafka://two:9092"]
