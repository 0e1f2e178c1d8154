"""A whole stack as on a cluster: TLS and a password everywhere, and nobody allowed more than the list of ACLs says."""

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import redis
import tomli_w
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._scram import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialUpsertion,
)

from deploy.local.kafka_broker import ADMIN, BrokerSecurity, KafkaNode, format_storage, run_command, write_properties
from deploy.tenants_file import create_api_key, create_producer_key, create_tenant, write_tenants
from streams.access import principal, producer_prefix, producer_role_name, roles
from streams.directory import Tenant
from streams.log.kafka import client_config
from streams.provisioning import wait_for_brokers
from streams.settings import KafkaSettings, Settings
from tests.certificates import Authority
from tests.e2e.stacks import AMPLE, ENGINE
from tests.servers import free_ports, server, until

ROOT = Path(__file__).parents[2]
REGION = "secured"
TENANTS = ("north", "south")
START_TIMEOUT_S = 90.0
PROCESSES = {
    "billing": "billing_jobs", "settlement": "agents.settlement", "post-safety": "agents.post_safety",
    "worker": "gpu_consumers", "admission": "agents.admission", "gateway": "streams.gateway",
}  # fmt: skip
"""Role → module."""
SCRAM_ROLES = frozenset({"gateway", "admission"})
"""The others send their password as it is (PLAIN). Admission's Faust has a library of its own."""
PURPOSES = (
    "request_signing", "response_ids", "derived_ids", "end_user_pseudonyms", "billing", "browser_tokens",
    "alert_webhooks",
)  # fmt: skip


class SecuredStack:
    """Start it with `running`; everything lies in `folder`, secrets in files of their own, as they would be mounted."""

    def __init__(self, folder: Path, kafka_libs: Path) -> None:
        self.folder = folder
        self.authority = Authority(folder / "tls")
        self._pair = self.authority.pair("server")
        ports = free_ports(6 + len(PROCESSES))
        self.port, broker, controller, self.redis_port, self.billing_port, self.analysts_port, *health = ports
        self.health_ports = dict(zip(PROCESSES, health, strict=True))
        self.tenants_file = folder / "tenants.toml"
        self.config_file = folder / "sluice.toml"
        write_tenants(self.tenants_file, [])
        self.api_keys = {}
        for tenant in TENANTS:
            create_tenant(self.tenants_file, Tenant(tenant_id=tenant, tier="paid", limits=AMPLE))
            self.api_keys[tenant] = create_api_key(self.tenants_file, tenant, "test")
            create_producer_key(self.tenants_file, tenant, "test-producer", folder / f"{tenant}.pem")
        self.redis_password = self._secret("redis-password")
        for purpose in PURPOSES:
            self._secret(purpose)
        self.kafka_passwords = {ADMIN: self._secret(f"kafka-{ADMIN}")}
        self.users = {}
        self.config_file.write_text(tomli_w.dumps(self._config(f"127.0.0.1:{broker}")))
        self.settings = Settings.model_validate(
            {"region": REGION, "pools": [{"name": "default", "engine": "simulated"}]}
        )
        for role in roles(self.settings.topics, TENANTS):
            self.users[role.name] = principal(REGION, role.name, {}).removeprefix("User:")
            self.kafka_passwords[self.users[role.name]] = self._secret(f"kafka-{self.users[role.name]}")
        plain = {
            user: password
            for user, password in self.kafka_passwords.items()
            if user not in {self.users[role] for role in SCRAM_ROLES}
        }
        self.node = KafkaNode(
            folder / "kafka", kafka_libs, broker, controller, heap_mb=256,
            security=BrokerSecurity(self._pair.both, self.authority.certificate, plain),
        )  # fmt: skip
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def _secret(self, name: str) -> str:
        path = self.folder / "secrets" / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.touch(mode=0o600)
        value = secrets.token_hex(24)
        path.write_text(f"{value}\n")
        return value

    def _config(self, bootstrap: str) -> dict[str, Any]:
        mounted = self.folder / "secrets"
        return {
            "region": REGION,
            "data_dir": str(self.folder / "data"),
            "tenants_file": str(self.tenants_file),
            "secrets": {purpose: {"value_file": str(mounted / purpose)} for purpose in PURPOSES},
            "kafka": {
                "bootstrap": bootstrap,
                "security_protocol": "SASL_SSL",
                "ssl_ca_file": str(self.authority.certificate),
            },
            "redis": {
                "url": f"rediss://localhost:{self.redis_port}/0",
                "history_url": f"rediss://localhost:{self.redis_port}/1",
                "password_file": str(mounted / "redis-password"),
                "history_password_file": str(mounted / "redis-password"),
                "ca_file": str(self.authority.certificate),
                "certificate_file": str(self._pair.certificate),
                "key_file": str(self._pair.key),
                "timeout_ms": 5_000,
            },
            "gateway": {
                "port": self.port,
                "tls_certificate_file": str(self._pair.certificate),
                "tls_key_file": str(self._pair.key),
                "admission_timeout_ms": 30_000,
            },
            # Split, so that every topic between the stages is used.
            "admission": {"placement": "split"},
            "worker": {"lease_ms": 1_000},
            "billing": {"port": self.billing_port, "analysts_port": self.analysts_port, "batch_wait_ms": 50},
            "pools": [{"name": "default", "engine": "simulated", "engine_args": ENGINE}],
            "models": [
                {
                    "name": "sluice-tiny", "aliases": ["default"], "path": str(ROOT / "models" / "sluice-tiny"),
                    "pool": "default", "context_window": 4_096,
                    "price": {
                        "currency": "USD", "uncached_input": "1", "cached_input": "1", "output": "1", "reasoning": "1",
                    },
                }
            ],
        }  # fmt: skip

    # -- who one is

    def environment(self, role: str) -> dict[str, str]:
        """Of a process that acts in this role, or of the operator (`admin`)."""
        user = self.users.get(role, ADMIN)
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")},
            "SLUICE_CONFIG": str(self.config_file),
            "SLUICE_KAFKA__SASL_MECHANISM": "SCRAM-SHA-512" if role in SCRAM_ROLES else "PLAIN",
            "SLUICE_KAFKA__SASL_USERNAME": user,
            "SLUICE_KAFKA__SASL_PASSWORD_FILE": str(self.folder / "secrets" / f"kafka-{user}"),
            "SLUICE_HEALTH_PORT": str(self.health_ports.get(role, 0)),
        }

    def kafka(self, role: str, **fields: Any) -> KafkaSettings:
        user = self.users.get(role, ADMIN)
        return KafkaSettings.model_validate(
            {
                "bootstrap": self.node.bootstrap,
                "security_protocol": "SASL_SSL",
                "sasl_mechanism": "SCRAM-SHA-512" if role in SCRAM_ROLES else "PLAIN",
                "sasl_username": user,
                "sasl_password": self.kafka_passwords[user],
                "ssl_ca_file": self.authority.certificate,
                **fields,
            }
        )

    def producer(self, tenant: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """What an operator tells a tenant's producer: names, and how to reach the brokers."""
        topics = self.settings.topics
        told = {
            "tenant": tenant,
            "producer": {
                "key_id": "test-producer",
                "key_file": str(self.folder / f"{tenant}.pem"),
                "topics": {"intake": topics.intake_batch.name, "results": topics.results(tenant).name},
                "group_prefix": producer_prefix(topics, tenant),
            },
        }
        return told, client_config(self.kafka(producer_role_name(tenant)), "producer")

    # -- running

    @contextmanager
    def running(self) -> Iterator[None]:
        """Until every process is ready."""
        write_properties(self.node)
        format_storage(self.node)
        with ExitStack() as stack:
            stack.enter_context(server(run_command(self.node), self.folder / "kafka.log"))
            stack.enter_context(server(self._redis_command(), self.folder / "redis.log"))
            admin = self.kafka(ADMIN)
            try:
                wait_for_brokers(admin, START_TIMEOUT_S)
            except TimeoutError as error:
                raise RuntimeError((self.folder / "kafka.log").read_text()[-4_000:]) from error
            self._make_scram_users(admin)
            provisioned = self.provision("--apply-acls")
            assert provisioned.returncode == 0, provisioned.stderr
            migrated = self._sluice("migrate")
            assert migrated.returncode == 0, migrated.stderr
            stack.callback(self._end)
            for role in PROCESSES:
                self.start(role)
            for role in PROCESSES:
                self.wait_ready(role)
            yield

    def _redis_command(self) -> list[str]:
        words: dict[str, object] = {
            "port": 0, "tls-port": self.redis_port, "bind": "127.0.0.1", "dir": self.folder, "save": '""',
            "tls-cert-file": self._pair.certificate, "tls-key-file": self._pair.key,
            "tls-ca-cert-file": self.authority.certificate, "maxmemory-policy": "noeviction",
        }  # fmt: skip
        config = self.folder / "redis.conf"
        config.touch(mode=0o600)
        words["requirepass"] = self.redis_password
        config.write_text("".join(f"{name} {value}\n" for name, value in words.items()))
        return ["redis-server", str(config)]

    def _make_scram_users(self, admin: KafkaSettings) -> None:
        upserts: list[UserScramCredentialAlteration] = [
            UserScramCredentialUpsertion(
                self.users[role],
                ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 4_096),
                self.kafka_passwords[self.users[role]].encode(),
            )
            for role in sorted(SCRAM_ROLES)
        ]
        client = AdminClient(client_config(admin, "test"))
        for future in client.alter_user_scram_credentials(upserts).values():
            future.result(20)

    def provision(self, *options: str) -> subprocess.CompletedProcess[str]:
        """As the operator does it."""
        return self._sluice("provision", *options)

    def _sluice(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "deploy.cli", *words], cwd=ROOT, env=self.environment(ADMIN),
            capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip

    def start(self, role: str) -> None:
        with (self.folder / f"{role}.log").open("ab") as log:
            self._processes[role] = subprocess.Popen(
                [sys.executable, "-m", PROCESSES[role]], cwd=ROOT, env=self.environment(role),
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def kill(self, role: str) -> None:
        self._processes[role].kill()
        self._processes[role].wait(timeout=10)

    def wait_ready(self, role: str) -> None:
        def ready() -> bool:
            assert self._processes[role].poll() is None, f"{role} ended:\n{self.log(role)[-4_000:]}"
            try:
                url = f"http://127.0.0.1:{self.health_ports[role]}/readyz"
                return httpx.get(url, timeout=5, trust_env=False).status_code == 200
            except httpx.TransportError:
                return False

        until(ready, f"{role} is ready; {self.log(role)[-2_000:]}", START_TIMEOUT_S, every_s=0.2)

    def _end(self) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait(timeout=10)

    def log(self, role: str) -> str:
        return (self.folder / f"{role}.log").read_text(errors="replace")

    @property
    def logs(self) -> Mapping[str, str]:
        return {role: self.log(role) for role in PROCESSES}

    def command_lines(self) -> list[str]:
        """As `ps` shows them."""
        return [
            Path(f"/proc/{process.pid}/cmdline").read_bytes().decode().replace("\0", " ")
            for process in self._processes.values()
        ]

    # -- what clients use

    @property
    def gateway_url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def redis_client(self, **options: Any) -> redis.Redis:
        return redis.Redis(
            host="localhost", port=self.redis_port, ssl=True, ssl_ca_certs=str(self.authority.certificate),
            ssl_certfile=str(self._pair.certificate), ssl_keyfile=str(self._pair.key), **options,
        )  # fmt: skip

    def sql(self, query: str) -> list[list[Any]]:
        """As the documents say: with billing's password, which the command shows."""
        shown = subprocess.run(
            [sys.executable, "-m", "deploy.cli", "secret", "billing", "--data", str(self.folder / "data")], cwd=ROOT,
            env=self.environment(ADMIN), capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip
        answer = httpx.post(
            f"http://127.0.0.1:{self.billing_port}/internal/sql", json={"query": query}, timeout=30, trust_env=False,
            headers={"Authorization": f"Bearer {shown.stdout.strip()}"},
        )  # fmt: skip
        assert answer.status_code == 200, answer.text
        rows: list[list[Any]] = json.loads(answer.text)["rows"]
        return rows
