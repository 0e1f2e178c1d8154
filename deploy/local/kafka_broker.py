"""Local Kafka nodes (KRaft), one alone or several as a cluster: their settings and their commands.

The order for a runner, for each node: `write_properties`; `format_storage` unless `is_formatted`; keep
`run_command` alive. Stop it with SIGTERM. A killed node comes back with its data: run `run_command` again.
"""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from deploy.local.folders import make_empty

ADMIN = "admin"
"""A secured node's own name, which may do everything."""
CLIENTS, CONTROLLER = "CLIENTS", "CONTROLLER"
"""The node's listeners."""
FORMAT_TIMEOUT_S = 60.0
HEAP_MB, HEAP_OF_SEVERAL_MB = 384, 256
"""Of one node: alone, or beside others on the same machine, of which each is asked less."""


@dataclass(frozen=True, slots=True)
class BrokerSecurity:
    """TLS everywhere, a name and a password for everybody, and nothing allowed but by an ACL, as on a cluster.

    `keystore` holds the node's key and certificate, `authority` who signed both sides' certificates (PEM).
    `passwords` by name; `ADMIN`'s is the node's own. Others may have SCRAM credentials instead.
    """

    keystore: Path
    authority: Path
    passwords: Mapping[str, str] = field(repr=False)

    def properties(self) -> dict[str, object]:
        users = " ".join(f'user_{name}="{password}"' for name, password in self.passwords.items())
        plain = (
            "org.apache.kafka.common.security.plain.PlainLoginModule required"
            f' username="{ADMIN}" password="{self.passwords[ADMIN]}" {users};'
        )
        scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
        return {
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "sasl.mechanism.controller.protocol": "PLAIN",
            "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
            f"listener.name.{CLIENTS.lower()}.plain.sasl.jaas.config": plain,
            f"listener.name.{CLIENTS.lower()}.scram-sha-512.sasl.jaas.config": scram,
            f"listener.name.{CONTROLLER.lower()}.sasl.enabled.mechanisms": "PLAIN",
            f"listener.name.{CONTROLLER.lower()}.plain.sasl.jaas.config": plain,
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.keystore,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.authority,
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:{ADMIN}",
            "allow.everyone.if.no.acl.found": "false",
        }


@dataclass(frozen=True, slots=True)
class KafkaNode:
    """Where a node lives. `libs` holds the jars and may be shared by many nodes; `directory` is one node's own.

    `quorum`: the controllers of its cluster, as `id@host:port`; empty: it is alone.
    """

    directory: Path
    libs: Path
    port: int
    controller_port: int
    host: str = "127.0.0.1"
    heap_mb: int = HEAP_MB
    security: BrokerSecurity | None = None
    node_id: int = 1
    quorum: tuple[str, ...] = ()

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def voter(self) -> str:
        """What `quorum` holds of it."""
        return f"{self.node_id}@{self.host}:{self.controller_port}"

    @property
    def properties_path(self) -> Path:
        return self.directory / "server.properties"

    @property
    def scratch_directory(self) -> Path:
        """Where Java unpacks libraries, which a killed node leaves behind; it asks no TMPDIR."""
        return self.directory / "tmp"

    @property
    def log_directory(self) -> Path:
        return _log_directory(self.directory)


def copies_among(brokers: int) -> tuple[int, int]:
    """Of each record, on so many brokers: how many copies, and how many must have it before it counts as written."""
    return (3, 2) if brokers >= 3 else (1, 1)


def cluster(nodes: Sequence[KafkaNode]) -> tuple[KafkaNode, ...]:
    """The same nodes as members of one cluster, numbered from 1 in this order. One node stays alone."""
    if len(nodes) == 1:
        return tuple(nodes)
    members = [replace(node, node_id=number, heap_mb=HEAP_OF_SEVERAL_MB) for number, node in enumerate(nodes, start=1)]
    quorum = tuple(member.voter for member in members)
    return tuple(replace(member, quorum=quorum) for member in members)


def bootstrap_of(nodes: Sequence[KafkaNode]) -> str:
    """Any of them tells a client of the others, so each is named: one may be away when it asks."""
    return ",".join(node.bootstrap for node in nodes)


def server_properties(node: KafkaNode) -> str:
    """The node's whole configuration: broker and controller in one process, on loopback."""
    protocol = "PLAINTEXT" if node.security is None else "SASL_SSL"
    quorum = node.quorum or (node.voter,)
    copies, min_insync = copies_among(len(quorum))
    properties: dict[str, object] = {
        "process.roles": "broker,controller",
        "node.id": node.node_id,
        "controller.quorum.voters": ",".join(quorum),
        "controller.listener.names": CONTROLLER,
        "inter.broker.listener.name": CLIENTS,
        "listeners": f"{CLIENTS}://{node.host}:{node.port},{CONTROLLER}://{node.host}:{node.controller_port}",
        "advertised.listeners": f"{CLIENTS}://{node.host}:{node.port}",
        "listener.security.protocol.map": f"{CLIENTS}:{protocol},{CONTROLLER}:{protocol}",
        "log.dirs": node.log_directory,
        # Of internal topics too: the positions of a group must survive what its records do.
        "default.replication.factor": copies,
        "min.insync.replicas": min_insync,
        "offsets.topic.replication.factor": copies,
        "offsets.topic.num.partitions": 4,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": min_insync,
        "transaction.state.log.num.partitions": 4,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": min_insync,
        # An open transaction of one producer holds up what others wrote behind it in the same partition.
        "transaction.max.timeout.ms": 60_000,
        # Topics come from provisioning only.
        "auto.create.topics.enable": "false",
        # A killed consumer's partitions move after its session timeout, which may be short here.
        "group.initial.rebalance.delay.ms": 0,
        "group.min.session.timeout.ms": 1_000,
        # A killed node must wait out its own old session before it is let in again (9 s by default). Beside others it
        # leads until then: so they take over well before the sessions of consumers end.
        "broker.session.timeout.ms": 3_000 if len(quorum) == 1 else 2_000,
        "broker.heartbeat.interval.ms": 500 if len(quorum) == 1 else 250,
        # How soon another controller takes over: where the one that died was it, that comes first.
        "controller.quorum.fetch.timeout.ms": 2_000 if len(quorum) == 1 else 1_000,
        # A small box: few threads, small segments and indexes, retention looked at often enough to be seen.
        "num.network.threads": 1,
        "num.io.threads": 2,
        "num.recovery.threads.per.data.dir": 2,
        "background.threads": 2,
        "log.cleaner.dedupe.buffer.size": 16_777_216,
        "log.segment.bytes": 67_108_864,
        "log.index.size.max.bytes": 1_048_576,
        "log.retention.check.interval.ms": 60_000,
        "offsets.topic.segment.bytes": 16_777_216,
        "offsets.retention.minutes": 10_080,
        "message.max.bytes": 4_194_304,
        **({} if node.security is None else node.security.properties()),
    }
    return "".join(f"{name}={value}\n" for name, value in properties.items())


def write_properties(node: KafkaNode) -> None:
    """Writes `server.properties`, creating the node's directory. Before the node runs: its scratch is emptied."""
    make_empty(node.scratch_directory)
    node.properties_path.touch(mode=0o600)
    node.properties_path.write_text(server_properties(node))


def is_formatted(directory: Path) -> bool:
    """Whether a node has lived there."""
    return (_log_directory(directory) / "meta.properties").is_file()


def _log_directory(of_node: Path) -> Path:
    return of_node / "data"


def format_storage(node: KafkaNode) -> None:
    """Raises FileNotFoundError without Java, CalledProcessError with what it said, and TimeoutExpired."""
    command = _format_command(node)
    subprocess.run(command, check=True, timeout=FORMAT_TIMEOUT_S, capture_output=True, text=True)  # noqa: S603


def _format_command(node: KafkaNode, cluster_id: str = "c2x1aWNlLWxvY2FsLTAwMQ") -> list[str]:
    """Prepares an empty data directory; exits at once. `cluster_id` is 16 bytes in unpadded URL-safe base64."""
    arguments = ["format", "--ignore-formatted", "-t", cluster_id, "-c", str(node.properties_path)]
    # For a program of seconds the second compiler is not worth its profiles.
    return [*_java(node, heap_mb=128), "-XX:TieredStopAtLevel=1", "kafka.tools.StorageTool", *arguments]


def run_command(node: KafkaNode) -> list[str]:
    """Runs the node in the foreground, logging warnings to stderr. Ready when `wait_for_brokers` returns."""
    return [*_java(node, heap_mb=node.heap_mb), "kafka.Kafka", str(node.properties_path)]


def _java(node: KafkaNode, *, heap_mb: int) -> list[str]:
    return [
        "java",
        f"-Xmx{heap_mb}m",
        "-XX:+UseSerialGC",
        "-XX:+ExitOnOutOfMemoryError",
        "-Djava.awt.headless=true",
        f"-Djava.io.tmpdir={node.scratch_directory}",
        "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
        "-Dorg.slf4j.simpleLogger.showDateTime=true",
        "-cp",
        f"{node.libs}/*",
    ]
