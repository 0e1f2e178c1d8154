"""The one settings model. Sources, strongest first: environment (`SLUICE_KAFKA__BOOTSTRAP=…`), the TOML file named by
`SLUICE_CONFIG`, defaults. An unknown or invalid field fails with its name.

Over 500 lines because it is the one place for every field, and for what must hold between them.
"""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextvars import ContextVar, copy_context
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from schemas.generated import MAX_MOVES
from streams.brownout import DEFAULT_POLICY, BrownoutPolicy
from streams.directory import Model, Pool, WebhookUrl
from streams.engine_args import wrong_arguments
from streams.ids import ResponseIds
from streams.keyring import Keyring, Purpose, derived_keyring
from streams.lane_policy import LANE_POLICIES, LanePolicies
from streams.log.port import MAX_RECORD_BYTES
from streams.secret_files import FilePath, Secret
from streams.topics import LONGEST_RESPONSE_MS, Partitions, Topics

CONFIG_VARIABLE = "SLUICE_CONFIG"
_VARIABLES: ContextVar[Mapping[str, str]] = ContextVar("variables", default=os.environ)
MIN_SECRET_CHARS = 32
MAX_BODY_BYTES = MAX_RECORD_BYTES - 131_072
"""Its record writes out what a body leaves out: of each of 2,048 messages the parts, beside them scope and defaults."""


LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1", "[::1]"})

SecurityProtocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
_SASL = frozenset({"SASL_PLAINTEXT", "SASL_SSL"})
_TLS = frozenset({"SSL", "SASL_SSL"})


def _host(address: str) -> str:
    return address.strip().rpartition(":")[0]


def _as_browsers_send_it(origin: str) -> str:
    """Compared letter by letter (RFC 6454, section 6.2). Raises ValueError."""
    matched = re.fullmatch(r"(https?)://[a-z0-9._\[\]:-]*[a-z0-9\]]", origin)
    is_default = matched is not None and matched.group(0).endswith({"http": ":80", "https": ":443"}[matched.group(1)])
    if origin != "*" and (matched is None or is_default):
        raise ValueError(f"{origin!r} is no origin: https://host, in lower case, no path, no port that is the default")
    return origin


Origin = Annotated[str, AfterValidator(_as_browsers_send_it)]


def readable(path: Path | None) -> Path | None:
    """The path of a file that this process can read, or none. Raises ValueError."""
    if path is not None and not os.access(path, os.R_OK):
        raise ValueError(f"{path} cannot be read")
    return path


def with_certificate(key: Path | None, info: ValidationInfo, certificate: str) -> Path | None:
    """A key, whose certificate's field stands before it: both or neither. Raises ValueError."""
    if certificate in info.data and (info.data[certificate] is None) != (key is None):
        raise ValueError(f"goes together with {certificate}")
    return key


def long_enough(value: SecretStr) -> SecretStr:
    """A secret that nobody guesses, or none. Raises ValueError."""
    if 0 < len(value) < MIN_SECRET_CHARS:
        raise ValueError(f"must have {MIN_SECRET_CHARS} characters or more")
    return value


def previous_of(current: str, value: SecretStr, info: ValidationInfo) -> SecretStr:
    """A secret that was replaced by the one of the field `current`, or none. Raises ValueError."""
    if value and not info.data.get(current, value):
        raise ValueError(f"has no effect without {current}")
    return long_enough(value)


def reachable(host: str) -> str:
    """The address by which this machine reaches what listens on `host`."""
    return "127.0.0.1" if host in ("0.0.0.0", "::", "") else host  # noqa: S104


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class KafkaSettings(_Section):
    """Security holds for every client alike; the files are those of this process."""

    bootstrap: str = "127.0.0.1:19092"
    security_protocol: SecurityProtocol = "PLAINTEXT"
    sasl_mechanism: Literal["", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = Field(default="", validate_default=True)
    sasl_username: str = Field(default="", validate_default=True)
    sasl_password_file: FilePath = None
    sasl_password: Secret = SecretStr("")
    ssl_ca_file: FilePath = Field(default=None, description="Who may sign the brokers' certificates; none: the system.")
    ssl_certificate_file: FilePath = Field(default=None, description="Of this client, where brokers ask for one.")
    ssl_key_file: FilePath = Field(default=None, validate_default=True)
    ssl_key_password_file: FilePath = None
    ssl_key_password: Secret = SecretStr("")
    replication_factor: int | None = Field(default=None, ge=1, description="None: 1 on loopback, refused elsewhere.")
    min_insync_replicas: int | None = Field(default=None, ge=1, description="None: 1 on loopback, refused elsewhere.")
    session_timeout_ms: int = Field(default=3_000, ge=1_000, description="Managed brokers allow 6000 and more.")
    delivery_timeout_ms: int = Field(default=30_000, ge=1_000)
    producer_queue_records: int = Field(default=100_000, ge=1)
    partitions: Partitions = Partitions()
    principals: dict[str, str] = Field(
        default_factory=dict,
        description="Who acts in a role, where that is another than `User:sluice-<region>-<role>`; for the ACLs.",
    )
    extra: dict[str, str] = Field(default_factory=dict, description="More settings of librdkafka, none of security.")

    @property
    def uses_sasl(self) -> bool:
        return self.security_protocol in _SASL

    @property
    def uses_tls(self) -> bool:
        return self.security_protocol in _TLS

    @property
    def is_on_loopback(self) -> bool:
        return all(_host(address) in LOOPBACK for address in self.bootstrap.split(","))

    @field_validator("sasl_mechanism", "sasl_username", "sasl_password")
    @classmethod
    def _sasl_holds_together(cls, value: str | SecretStr, info: ValidationInfo) -> str | SecretStr:
        protocol = info.data.get("security_protocol")
        if protocol in _SASL and not value:
            raise ValueError(f"is needed with security_protocol {protocol}")
        if protocol in {"PLAINTEXT", "SSL"} and value:
            raise ValueError(f"has no effect with security_protocol {protocol}")
        return value

    @field_validator("ssl_ca_file", "ssl_certificate_file", "ssl_key_file", "ssl_key_password")
    @classmethod
    def _tls_holds_together(cls, value: Path | SecretStr | None, info: ValidationInfo) -> Path | SecretStr | None:
        protocol = info.data.get("security_protocol")
        if value and protocol in {"PLAINTEXT", "SASL_PLAINTEXT"}:
            raise ValueError(f"has no effect with security_protocol {protocol}")
        return readable(value) if isinstance(value, Path) else value

    @field_validator("ssl_key_file")
    @classmethod
    def _key_has_its_certificate(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        return with_certificate(value, info, "ssl_certificate_file")

    @field_validator("ssl_key_password")
    @classmethod
    def _password_has_its_key(cls, value: SecretStr, info: ValidationInfo) -> SecretStr:
        if value and info.data.get("ssl_key_file", value) is None:
            raise ValueError("has no effect without ssl_key_file")
        return value

    @field_validator("extra")
    @classmethod
    def _security_has_fields_of_its_own(cls, value: dict[str, str]) -> dict[str, str]:
        found = sorted(name for name in value if name.startswith(("sasl.", "ssl.", "security.", "enable.ssl")))
        if found:
            raise ValueError(
                f"{', '.join(found)}: security is set by security_protocol, sasl_* and ssl_*, which every client knows"
            )
        return value


class RedisSettings(_Section):
    """Over TLS with `rediss://`. A password may stand in the address, or beside it; so it may in a file."""

    url: str = Field(default="redis://127.0.0.1:16379/0", repr=False, description="Quota and claims; must not evict.")
    username: str = ""
    password_file: FilePath = None
    password: Secret = SecretStr("")
    history_url: str = Field(
        default="",
        repr=False,
        description="What clients replay; a Redis that evicts what is old. Empty: that of `url`.",
    )
    history_username: str = ""
    history_password_file: FilePath = None
    history_password: Secret = SecretStr("")
    ca_file: FilePath = Field(default=None, description="Who may sign a server's certificate; none: the system.")
    certificate_file: FilePath = Field(default=None, description="Of this client, where servers ask for one.")
    key_file: FilePath = Field(default=None, validate_default=True)
    timeout_ms: int = Field(default=500, ge=1, description="Of any one command.")

    @field_validator("ca_file", "certificate_file", "key_file")
    @classmethod
    def _tls_holds_together(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        urls = (info.data.get("url", ""), info.data.get("history_url", ""))
        if value is not None and not any(url.startswith("rediss://") for url in urls):
            raise ValueError("has no effect without an address that begins with rediss://")
        return readable(value)

    @field_validator("key_file")
    @classmethod
    def _key_has_its_certificate(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        return with_certificate(value, info, "certificate_file")

    @field_validator("history_username", "history_password")
    @classmethod
    def _history_has_a_place(cls, value: str | SecretStr, info: ValidationInfo) -> str | SecretStr:
        if value and not info.data.get("history_url"):
            raise ValueError("has no effect without history_url")
        return value


class TenantShareSettings(_Section):
    """Of one gateway, for any one tenant. Half of what there is, or far beyond what quota lets through."""

    requests_per_s: int = Field(default=1_000, ge=1, description="Refused ones too; ten times that at once.")
    log_bytes_per_s: int = Field(
        default=16_777_216, ge=1_024, description="Of accepted requests, before quota decides; ten times that at once."
    )
    small_messages_per_s: int = Field(
        default=5_000, ge=1, description="Pings and what else asks for nothing on WebSockets; ten times that at once."
    )
    connections: int = Field(default=10_000, ge=1, description="Requests and WebSockets served at once.")
    open_responses: int = Field(default=10_000, ge=1)
    body_bytes: int = Field(
        default=268_435_456,
        ge=1_024,
        description="Of memory for bodies until they are stored, and what is made of them; a sixteenth for small ones.",
    )
    answer_bytes: int = Field(
        default=268_435_456,
        ge=1_024,
        description="Of memory for answers that are told whole, until they are sent; one alone may take more.",
    )


class GatewaySettings(_Section):
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65_535)
    gateway_id: str = "gateway-1"
    admission_timeout_ms: int = Field(default=5_000, ge=1, description="Wait for `started` or a refusal; then 503.")
    circuit_failures: int = Field(
        default=20, ge=1, description="So many in a row are not admitted in time: then others hear 503 at once."
    )
    circuit_open_ms: int = Field(
        default=1_000, ge=1, description="Until one is let through to try; longer each time, up to eight times that."
    )
    request_timeout_ms: int = Field(
        default=600_000, ge=1_000, le=LONGEST_RESPONSE_MS, description="Deadline of a response."
    )
    max_body_bytes: int = Field(
        default=MAX_BODY_BYTES, ge=1_024, le=MAX_BODY_BYTES, description="Of a request; also of a WebSocket message."
    )
    max_connections: int = Field(
        default=20_000, ge=1, description="Requests and WebSockets with a key, served at once."
    )
    max_strangers: int = Field(default=2_000, ge=1, description="The same without a key, beside them.")
    max_open_connections: int = Field(
        default=25_000,
        ge=1,
        description="Idle ones too: a new one takes the place of a stranger, or of the longest idle.",
    )
    max_connections_per_peer: int = Field(
        default=2_000, ge=1, description="Of one address (IPv6: of one /64) that is no trusted proxy."
    )
    trusted_proxies: list[str] = Field(
        default=["127.0.0.1", "::1"], description="Their `X-Forwarded-For` and `X-Forwarded-Proto` are believed."
    )
    allowed_origins: list[Origin] = Field(
        default=[], description="Whose pages may ask beside the gateway's own (`https://chat.example`); `*`: anybody's."
    )
    tls_certificate_file: FilePath = Field(default=None, description="With its chain. HTTPS and WSS alone, if given.")
    tls_key_file: FilePath = Field(default=None, validate_default=True)
    head_timeout_ms: int = Field(default=10_000, ge=10, description="For the complete head of a request.")
    max_open_responses: int = Field(default=20_000, ge=1, description="Accepted by this gateway and not ended.")
    tenant_share: TenantShareSettings = TenantShareSettings()
    viewer_lag_bytes: int = Field(
        default=4_194_304, ge=65_536, description="Of memory that a response may take for viewers that lag behind it."
    )
    viewer_stall_ms: int = Field(default=10_000, ge=100)
    history_flush_ms: int = Field(default=500, ge=1, description="Every append costs as much as many tokens.")
    history_retention_s: int = Field(default=3_600, ge=1)
    coalesce_ms: int = Field(default=20, ge=0, description="Under load only; a first token never waits.")
    leave_ms: int = Field(
        default=2_000,
        ge=0,
        le=600_000,
        description="How long it serves on when it is to stop, not ready any more; less, where nobody is connected.",
    )
    reply_partitions: int = Field(
        default=1, ge=1, description="Of those it owns, how many new responses go to: fewer make fuller records."
    )

    @field_validator("tls_key_file")
    @classmethod
    def _key_has_its_certificate(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        readable(info.data.get("tls_certificate_file"))
        return with_certificate(readable(value), info, "tls_certificate_file")


class AdmissionSettings(_Section):
    placement: Literal["fused", "split"] = "fused"
    batch_jobs_per_second: int = Field(default=200, ge=1, description="Bound of the intake, per admission worker.")
    catch_up_per_second: int = Field(
        default=500, ge=1, description="Bound of requests that were read late, per admission worker."
    )
    stall_s: float = Field(default=30, gt=0, description="Lag without a commit for so long ends the process.")
    max_attempts: int = Field(default=5, ge=1, description="Of one event, before its dead letter.")
    in_flight: int = Field(
        default=256, ge=1, le=4_096, description="Events worked on at once, of each topic of a worker."
    )
    max_queued_tokens: int = Field(
        default=2_000_000,
        ge=1,
        description="Bound of a pool's queue, half of it for one tenant; then `overloaded`.",
    )
    max_queued_requests: int = Field(default=10_000, ge=1, description="The same, in which each answer counts.")
    lowered_from: float = Field(
        default=0.5, gt=0, le=1,
        description="Of a lane's share of a queue: beyond it free tenants wait behind the lane, until it is full.",
    )  # fmt: skip
    prefix_load_excess: float = Field(
        default=0.25, ge=0, le=10,
        description="Beyond its pool's mean load, for what a worker has the beginning of. 0: the least loaded has it.",
    )  # fmt: skip
    max_moves: int = Field(
        default=4, ge=0, le=MAX_MOVES,
        description="So often a response goes to another pool, or a smaller model, if it fails before its first token.",
    )  # fmt: skip
    trust_window_ms: int = Field(default=300_000, ge=1_000)
    unbilled_share: float = Field(
        default=0.75, gt=0, le=1,
        description="Of the time that `usage` is kept: while some waits for longer to be billed, nothing new is taken.",
    )  # fmt: skip


class PostSafetySettings(_Section):
    regroup_ms: int = Field(default=10, ge=0)
    gap_ms: int = Field(default=2_000, ge=1)
    unanswered_cancel_ms: int = Field(
        default=5_000, ge=0, description="So long a cancel is left to the worker that has begun it; then it ends here."
    )
    max_open_responses: int = Field(
        default=50_000, ge=1, description="Beyond it new ones end as `overloaded`. Each answer counts: it has a state."
    )
    max_reviewed_mib: int = Field(
        default=256, ge=1,
        description="What answers that are reviewed whole may hold. Beyond it new ones of these end as `overloaded`.",
    )  # fmt: skip
    park_after_ms: int = Field(
        default=30_000, ge=1, description="What waits so long without a worker no longer holds the commit."
    )
    move_after_ms: int = Field(
        default=10_000, ge=1_000,
        description="After so long without a worker a pool's waiting responses go to another one that may answer.",
    )  # fmt: skip


class WorkerSettings(_Section):
    worker_id: str = "worker-1"
    pool: str = "default"
    lease_ms: int = Field(default=4_000, ge=500)
    home_partitions: int = Field(default=1, ge=1)
    max_uncommitted_records: int = Field(
        default=10_000, ge=1, description="Unfinished of all lanes, and in any partition from its oldest unfinished on."
    )
    max_uncommitted_bytes: int = Field(default=268_435_456, ge=1)
    headroom: float = Field(
        default=3 / 64, ge=0, le=0.5,
        description="The part of `max_running` kept free for who holds little, so that nobody waits behind a flood.",
    )  # fmt: skip
    max_pauses: int = Field(
        default=3, ge=0, le=6,
        description="So often an answer that nobody waits for leaves the engine for who waits for a first token.",
    )  # fmt: skip
    spills_per_s: int = Field(
        default=64, ge=0, le=10_000,
        description="So many unstarted requests go to workers of its pool where they wait less. 0: none.",
    )  # fmt: skip
    healthy_buffer: int = Field(
        default=8, ge=0, description="Answers beyond `max_running` that wait in the engine, where none is kept free."
    )
    memory_foresight: float = Field(
        default=0.99, ge=0, le=1,
        description="The chance that KV blocks suffice for what is let in. 1: bounds are reserved. 0: not looked at.",
    )  # fmt: skip
    memory_for_short: float = Field(
        default=1 / 8, ge=0, le=0.5, description="The part of the KV blocks that large prompts leave to others."
    )
    large_waits_ms: int = Field(
        default=5_000, ge=0, description="After so long at its turn a large prompt has what becomes free of KV blocks."
    )
    coalesce_ms: int = Field(
        default=45, ge=0, description="Steps that follow each other within it leave as one frame, under pressure only."
    )
    coalesce_rows_per_s: int = Field(
        default=12_500,
        ge=1,
        description="Beyond so many rows there is pressure; also while a frame is not acknowledged.",
    )
    start_timeout_s: float = Field(
        default=600, gt=0, description="Until it has loaded its model; then the runner starts it again."
    )
    drain_timeout_s: float = Field(default=30, gt=0)
    max_engine_restarts: int = Field(default=5, ge=0)
    engine_answers_s: float = Field(
        default=30, gt=0, description="An engine that does not answer for so long hangs. Longer than its longest step."
    )
    engine_silence_s: float = Field(
        default=60, gt=0, description="One that has requests and gives no token for so long hangs."
    )
    circuit_failures: int = Field(
        default=10, ge=1,
        description="So many of the last `circuit_attempts` fail before their first token: then the engine is tried by"
        " one at a time.",
    )  # fmt: skip
    circuit_attempts: int = Field(default=20, ge=1, le=10_000)
    circuit_open_ms: int = Field(
        default=1_000, ge=1, description="Until it is tried; longer each time, up to eight times that."
    )

    @field_validator("circuit_attempts")
    @classmethod
    def _can_fail_so_often(cls, value: int, info: ValidationInfo) -> int:
        if value < info.data.get("circuit_failures", 0):
            raise ValueError("less than circuit_failures")
        return value


class BillingSettings(_Section):
    host: str = "127.0.0.1"
    port: int = Field(default=18123, ge=0, le=65_535)
    url: str = Field(
        default="",
        pattern=r"^(https?://[^/?#]+/?)?$",
        description="Where gateways and the command reach it, if not at `host` and `port`.",
    )
    clickhouse_url: str = Field(
        default="",
        repr=False,
        description="`https://user@host:8443/database`, over TLS; `http:` without. Empty: embedded.",
    )
    clickhouse_replicated: bool = Field(
        default=False, description="Its database is of the engine Replicated, and the tables are to be replicated."
    )
    clickhouse_password_file: FilePath = None
    clickhouse_password: Secret = SecretStr("")
    clickhouse_ca_file: FilePath = Field(default=None, description="Who may sign its certificate; none: the system.")
    clickhouse_certificate_file: FilePath = Field(default=None, description="Of this client, where it asks for one.")
    clickhouse_key_file: FilePath = Field(default=None, validate_default=True)
    batch_rows: int = Field(default=5_000, ge=1)
    batch_wait_ms: int = Field(default=5_000, ge=1, description="Every batch costs four inserts, however small it is.")
    quick_wait_ms: int = Field(
        default=300, ge=1, description="The same while small batches take less than a twentieth of the time."
    )
    query_timeout_s: float = Field(default=10, gt=0)
    max_query_rows: int = Field(default=10_000, ge=1)
    usage_cache_s: float = Field(
        default=2, ge=0, le=60, description="So long the same question about usage has the same answer."
    )
    analysts_host: str = "127.0.0.1"
    analysts_port: int = Field(
        default=18124, ge=0, le=65_535, description="ClickHouse's HTTP interface over the embedded engine."
    )
    readers: int = Field(
        default=2, ge=1, le=64, description="Processes that answer analysts; each runs one statement at a time."
    )
    reader_memory_mib: int = Field(default=1_024, ge=256, description="Of each of them.")
    reader_age_s: float = Field(
        default=5, gt=0, description="So old may be what they read, besides what waits in the log."
    )

    reconcile_s: float = Field(
        default=900, ge=0, description="How often what was billed since is compared with the log; 0: never."
    )
    lag_alert_s: float = Field(default=300, gt=0, description="An older bill is alerted.")

    @property
    def client_url(self) -> str:
        """Where to reach its HTTP interface, without a slash at the end."""
        return self.url.rstrip("/") or f"http://{reachable(self.host)}:{self.port}"

    @property
    def analysts_url(self) -> str:
        """Of ClickHouse's interface over the embedded engine, on this machine."""
        return f"http://{reachable(self.analysts_host)}:{self.analysts_port}"

    @field_validator("clickhouse_replicated")
    @classmethod
    def _replicas_are_servers(cls, value: bool, info: ValidationInfo) -> bool:
        if value and not info.data.get("clickhouse_url"):
            raise ValueError("has no effect without clickhouse_url")
        return value

    @field_validator("clickhouse_password")
    @classmethod
    def _password_has_a_server(cls, value: SecretStr, info: ValidationInfo) -> SecretStr:
        if value and not info.data.get("clickhouse_url"):
            raise ValueError("has no effect without clickhouse_url")
        return value

    @field_validator("clickhouse_ca_file", "clickhouse_certificate_file", "clickhouse_key_file")
    @classmethod
    def _tls_holds_together(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        if value is not None and not info.data.get("clickhouse_url", "").startswith("https://"):
            raise ValueError("has no effect without a clickhouse_url that begins with https://")
        return readable(value)

    @field_validator("clickhouse_key_file")
    @classmethod
    def _key_has_its_certificate(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        return with_certificate(value, info, "clickhouse_certificate_file")


class MetadataSettings(_Section):
    """The database of what outlives the log. Only gateways use it."""

    url: str = Field(
        default="",
        repr=False,
        pattern=r"^(sqlite:///|postgresql://|$)",
        description="`postgresql://user@host/database`, or `sqlite:////path`. Empty: SQLite in the data folder.",
    )
    password_file: FilePath = None
    password: Secret = SecretStr("")
    connections: int = Field(default=4, ge=1, le=64, description="Of each process; what is beyond them waits.")
    busy_timeout_ms: int = Field(default=1_000, ge=1, description="How long a writer waits for others.")
    statement_timeout_ms: int = Field(default=2_000, ge=1)
    circuit_failures: int = Field(
        default=5, ge=1, description="So many transactions in a row get no answer: then others are refused at once."
    )
    circuit_open_ms: int = Field(
        default=500, ge=1, description="Until one is let through to try; longer each time, up to eight times that."
    )
    responses_kept_days: int = Field(default=30, ge=1, le=3_650)
    max_response_bytes: int = Field(
        default=16_777_216, ge=65_536, description="Of what one has told; a longer one is not kept."
    )
    tenant_responses: int = Field(default=1_000_000, ge=1, description="Of each tenant; the oldest go first.")
    tenant_bytes: int = Field(default=10_737_418_240, ge=1_048_576, description="The same in bytes.")
    tenant_keys: int = Field(
        default=1_000_000, ge=1, description="Idempotency keys of each tenant; the oldest go first, also within a day."
    )

    tenant_conversations: int = Field(
        default=100_000, ge=1, description="Of each tenant; those that were used longest ago go first."
    )

    @field_validator("password")
    @classmethod
    def _password_has_a_server(cls, value: SecretStr, info: ValidationInfo) -> SecretStr:
        if value and not info.data.get("url", "").startswith("postgresql:"):
            raise ValueError("has no effect without a url that begins with postgresql://")
        return value


class FileSettings(_Section):
    """What clients upload, and what batches make."""

    folder: Path | None = Field(
        default=None, description="Where their bytes lie; all gateways of a region share it. None: in the data folder."
    )
    max_file_bytes: int = Field(default=536_870_912, ge=1_024, description="Of one that is uploaded.")
    tenant_bytes: int = Field(default=10_737_418_240, ge=1_024, description="Of each tenant's files.")
    tenant_files: int = Field(default=10_000, ge=1)
    upload_timeout_s: float = Field(default=600, gt=0, description="For all of one file to come.")


class BatchSettings(_Section):
    """Of `/v1/batches`. Only gateways use it."""

    max_lines: int = Field(default=100_000, ge=1, le=1_000_000, description="Of one file.")
    lines_in_flight: int = Field(default=1_000, ge=1, le=100_000, description="Of one batch: sent, and not ended.")
    at_once: int = Field(default=16, ge=1, le=1_024, description="Batches that one gateway runs.")
    max_output_bytes: int = Field(
        default=4_294_967_296, ge=1_024, description="Of one batch's answers; those beyond it are told as errors."
    )
    tenant_open: int = Field(default=100, ge=1, description="Batches of a tenant that have not ended.")
    tenant_kept: int = Field(default=10_000, ge=1, description="Ended ones among them; the oldest go first.")
    kept_days: int = Field(default=30, ge=1, le=3_650, description="Batches that have ended, and their files.")


class AlertSettings(_Section):
    """Who is told of alerts, beside the topic. Only billing uses it."""

    webhooks: list[WebhookUrl] = Field(
        default_factory=list, max_length=16, description="The operator's, which are sent all of them."
    )
    tenant_webhooks_anywhere: bool = Field(
        default=False,
        description="Whether tenants' addresses may be of this machine or a private network, and without TLS.",
    )
    give_up_s: float = Field(default=86_400, gt=0, le=7 * 86_400, description="How long one is tried.")


class TracingSettings(_Section):
    """Of gateways and post-safety, which tell all spans of a response from its records."""

    otlp_endpoint: str = Field(
        default="",
        pattern=r"^(https?://[^?#\s]+)?$",
        description="A collector's OTLP over HTTP, such as `http://127.0.0.1:4318`. Empty: no spans.",
    )
    sample_share: float = Field(default=1.0, ge=0, le=1, description="Of all responses, how many have spans.")


class Lasting(_Section):
    """A secret of one purpose."""

    value_file: FilePath = None
    value: Secret = SecretStr("")

    @field_validator("value")
    @classmethod
    def _is_long_enough(cls, value: SecretStr) -> SecretStr:
        return long_enough(value)


class Rotating(Lasting):
    """A secret of one purpose, and the one before it, which is still accepted."""

    previous_file: FilePath = None
    previous: Secret = SecretStr("")

    @field_validator("previous")
    @classmethod
    def _follows(cls, value: SecretStr, info: ValidationInfo) -> SecretStr:
        return previous_of("value", value, info)


class SecretSettings(_Section):
    """One per purpose; where it is not set, the deployment's secret serves (`Settings.keyring`)."""

    request_signing: Rotating = Field(default=Rotating(), description="What proves a record of `requests`.")
    response_ids: Rotating = Field(default=Rotating(), description="What proves that a response id was minted here.")
    derived_ids: Lasting = Field(
        default=Lasting(), description="The same of ids that are derived. Another one gives every job another id."
    )
    billing: Rotating = Field(default=Rotating(), description="The password of billing's HTTP interface.")
    end_user_pseudonyms: Lasting = Field(
        default=Lasting(), description="Another one gives every end user another pseudonym."
    )
    browser_tokens: Rotating = Field(default=Rotating(), description="What proves that a token was minted from a key.")
    alert_webhooks: Rotating = Field(
        default=Rotating(), description="What the secrets of those are made of who are sent alerts."
    )


class Settings(BaseSettings):
    """Everything a process may know from outside. Frozen; read once, in `__main__`."""

    model_config = SettingsConfigDict(
        env_prefix="SLUICE_",
        env_nested_delimiter="__",
        extra="forbid",
        frozen=True,
        nested_model_default_partial_update=True,
    )

    region: str = Field(default="local", pattern=r"^[a-z0-9]{1,32}$")
    config: Path | None = None
    data_dir: Path = Path(".data")
    tenants_file: Path = Path(".data/tenants.toml")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    health_host: str = Field(default="127.0.0.1", description="`0.0.0.0`: a kubelet and Prometheus reach it.")
    health_port: int = Field(
        default=0, ge=0, le=65_535, description="`/livez`, `/readyz` and `/metrics`; 0: any free port."
    )
    deployment_secret_file: FilePath = None
    deployment_secret: Secret = Field(
        default=SecretStr(""),
        description=f"Serves where `secrets` has none of that purpose; {MIN_SECRET_CHARS} characters or more.",
    )
    deployment_secret_previous_file: FilePath = None
    deployment_secret_previous: Secret = Field(default=SecretStr(""), description="Still accepted.")
    secrets: SecretSettings = SecretSettings()
    ids_without_mac_until_ms: int = Field(
        default=0, ge=0,
        description="Unix time until which response ids are accepted as the release before made them: when it is "
        "upgraded, a day after its last process has ended. The same for all processes.",
    )  # fmt: skip
    kafka: KafkaSettings = KafkaSettings()
    redis: RedisSettings = RedisSettings()
    gateway: GatewaySettings = GatewaySettings()
    admission: AdmissionSettings = AdmissionSettings()
    post_safety: PostSafetySettings = PostSafetySettings()
    worker: WorkerSettings = WorkerSettings()
    lanes: LanePolicies = LANE_POLICIES
    brownout: BrownoutPolicy = DEFAULT_POLICY
    billing: BillingSettings = BillingSettings()
    metadata: MetadataSettings = MetadataSettings()
    files: FileSettings = FileSettings()
    batches: BatchSettings = BatchSettings()
    alerts: AlertSettings = AlertSettings()
    tracing: TracingSettings = TracingSettings()
    models: list[Model] = Field(default_factory=list)
    pools: list[Pool] = Field(default_factory=list)

    @field_validator("deployment_secret_previous")
    @classmethod
    def _follows(cls, value: SecretStr, info: ValidationInfo) -> SecretStr:
        return previous_of("deployment_secret", value, info)

    @model_validator(mode="after")
    def _references_hold(self) -> Self:
        pools = [pool.name for pool in self.pools]
        names = [name for model in self.models for name in (model.name, *model.aliases)]
        if len(set(pools)) != len(pools):
            raise ValueError("pools: two pools have the same name")
        if len(set(names)) != len(names):
            raise ValueError("models: two models share a name or alias")
        for model in self.models:
            _check_route(model, pools, {each.name: each for each in self.models})
        served = Counter(pool for model in self.models for pool in model.pools)
        if shared := [pool for pool, models in served.items() if models > 1]:
            raise ValueError(f"pools.{shared[0]}: {served[shared[0]]} models name it, and a pool serves one")
        if unknown := sorted(self.brownout.pinned.keys() - set(pools)):
            raise ValueError(f"brownout.pinned: no pool {unknown[0]!r}")
        if (self.kafka.min_insync_replicas or 1) > (self.kafka.replication_factor or 1):
            raise ValueError("kafka.min_insync_replicas: more than kafka.replication_factor")
        return self

    @model_validator(mode="after")
    def _simulated_engines_can_be_so(self) -> Self:
        embedding = {name for model in self.models if model.embedding is not None for name in model.pools}
        wrong = [
            each
            for pool in self.pools
            if pool.engine == "simulated"
            for each in wrong_arguments(pool.name, pool.max_running, pool.engine_args, embeds=pool.name in embedding)
        ]
        if wrong:
            raise ValueError("\n".join(wrong))
        return self

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        variables = _VARIABLES.get()
        if isinstance(env_settings, EnvSettingsSource):
            env_settings.env_vars = {name.lower(): value for name, value in variables.items()}
        path = variables.get(CONFIG_VARIABLE)
        files = (TomlConfigSettingsSource(settings_cls, Path(path)),) if path else ()
        return init_settings, env_settings, *files

    @property
    def response_ids(self) -> ResponseIds:
        """What makes and proves this region's response ids; keep one per process."""
        return ResponseIds(
            self.region,
            self.keyring(Purpose.RESPONSE_IDS).accepted,
            deriving=self.keyring(Purpose.DERIVED_IDS).accepted,
            without_mac_until_ms=self.ids_without_mac_until_ms,
        )

    def keyring(self, purpose: Purpose) -> Keyring:
        """Raises SettingsError where there is neither a secret of that purpose nor one of the deployment."""
        own: Lasting = getattr(self.secrets, purpose)
        if own.value:
            previous = own.previous if isinstance(own, Rotating) else SecretStr("")
            return Keyring(tuple(each.get_secret_value().encode() for each in (own.value, previous) if each))
        if len(self.deployment_secret) < MIN_SECRET_CHARS:
            raise SettingsError(f"deployment_secret: must have {MIN_SECRET_CHARS} characters or more")
        roots = (self.deployment_secret, self.deployment_secret_previous)
        return derived_keyring(purpose, [each.get_secret_value() for each in roots if each])

    def check_secrets(self, *purposes: Purpose) -> None:
        """For a process that needs them. Raises SettingsError."""
        for purpose in purposes:
            self.keyring(purpose)

    @property
    def files_folder(self) -> Path:
        return self.files.folder or self.data_dir / "files"

    @property
    def topics(self) -> Topics:
        return Topics(self.region, (pool.name for pool in self.pools), self.kafka.partitions)


def _check_route(model: Model, pools: Sequence[str], models: Mapping[str, Model]) -> None:
    """Raises ValueError where the model names what is not there, or what cannot stand in for it."""
    where = f"models.{model.name}"
    if model.pool not in pools:
        raise ValueError(f"{where}.pool: no pool {model.pool!r}")
    for pool in model.alternates:
        if pool not in pools:
            raise ValueError(f"{where}.alternates: no pool {pool!r}")
    if len(set(model.pools)) != len(model.pools):
        raise ValueError(f"{where}.alternates: a pool is named twice")
    if not model.fallback:
        return
    smaller = models.get(model.fallback)
    if smaller is None or smaller is model:
        raise ValueError(f"{where}.fallback: no other model {model.fallback!r}")
    if model.embedding is not None or smaller.embedding is not None:
        raise ValueError(f"{where}.fallback: vectors of two models cannot be compared")


class SettingsError(Exception):
    """One line per wrong field, each with its name."""


def _is_of_no_section(variable: str) -> bool:
    """Without two underscores it may be one of those that Kubernetes makes for a service beside the pod."""
    prefix, _, rest = variable.upper().partition("_")
    section, nested, _ = rest.lower().partition("__")
    return prefix == "SLUICE" and bool(nested) and section not in Settings.model_fields


def _read(variables: Mapping[str, str]) -> Settings:
    _VARIABLES.set(variables)
    return Settings()


def load_settings(variables: Mapping[str, str] = os.environ) -> Settings:
    """What a process with these variables takes. Other threads may load theirs meanwhile. Raises SettingsError."""
    path = variables.get(CONFIG_VARIABLE)
    if path and not Path(path).is_file():
        raise SettingsError(f"{CONFIG_VARIABLE}: no file {path}")
    if unknown := [name for name in sorted(variables) if _is_of_no_section(name)]:
        raise SettingsError("\n".join(f"{name}: no such setting" for name in unknown))
    try:
        return copy_context().run(_read, variables)
    except ValidationError as error:
        lines = (
            f"{'.'.join(map(str, e['loc'])) or 'settings'}: {line}"
            for e in error.errors(include_input=False, include_url=False)
            for line in e["msg"].removeprefix("Value error, ").splitlines()
        )
        raise SettingsError("\n".join(lines)) from None
    except ValueError as error:
        raise SettingsError(f"{path}: {error}") from None
