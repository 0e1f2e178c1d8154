"""The one settings model. Sources, strongest first: environment (`SLUICE_KAFKA__BOOTSTRAP=…`), the TOML file named by
`SLUICE_CONFIG`, defaults. An unknown or invalid field fails with its name.
"""

import os
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from streams.directory import Model, Pool
from streams.ids import ResponseIds
from streams.log.port import MAX_RECORD_BYTES
from streams.topics import LONGEST_RESPONSE_MS, Partitions, Topics

CONFIG_VARIABLE = "SLUICE_CONFIG"
MIN_SECRET_CHARS = 32
MAX_BODY_BYTES = MAX_RECORD_BYTES - 131_072
"""Its record writes out what a body leaves out: of each of 2,048 messages the parts, beside them scope and defaults."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class KafkaSettings(_Section):
    bootstrap: str = "127.0.0.1:19092"
    replication_factor: int = Field(default=1, ge=1)
    min_insync_replicas: int = Field(default=1, ge=1)
    session_timeout_ms: int = Field(default=3_000, ge=1_000, description="Managed brokers allow 6000 and more.")
    delivery_timeout_ms: int = Field(default=30_000, ge=1_000)
    producer_queue_records: int = Field(default=100_000, ge=1)
    partitions: Partitions = Partitions()
    extra: dict[str, str] = Field(default_factory=dict, description="librdkafka settings, such as TLS and SASL.")


class RedisSettings(_Section):
    url: str = Field(default="redis://127.0.0.1:16379/0", description="Quota and claims; must not evict.")
    history_url: str = Field(
        default="", description="What clients replay; a Redis that evicts what is old. Empty: that of `url`."
    )
    timeout_ms: int = Field(default=500, ge=1, description="Of any one command.")


class GatewaySettings(_Section):
    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65_535)
    gateway_id: str = "gateway-1"
    admission_timeout_ms: int = Field(default=5_000, ge=1, description="Wait for `started` or a refusal; then 503.")
    request_timeout_ms: int = Field(
        default=600_000, ge=1_000, le=LONGEST_RESPONSE_MS, description="Deadline of a response."
    )
    max_body_bytes: int = Field(
        default=MAX_BODY_BYTES, ge=1_024, le=MAX_BODY_BYTES, description="Of a request; also of a WebSocket message."
    )
    max_connections: int = Field(default=20_000, ge=1, description="Requests and WebSockets served at once.")
    max_open_responses: int = Field(default=20_000, ge=1, description="Accepted by this gateway and not ended.")
    viewer_lag_bytes: int = Field(
        default=4_194_304, ge=65_536, description="Of memory that a response may take for viewers that lag behind it."
    )
    viewer_stall_ms: int = Field(default=10_000, ge=100)
    history_flush_ms: int = Field(default=500, ge=1, description="Every append costs as much as many tokens.")
    history_retention_s: int = Field(default=3_600, ge=1)
    coalesce_ms: int = Field(default=20, ge=0, description="Under load only; a first token never waits.")
    reply_partitions: int = Field(
        default=1, ge=1, description="Of those it owns, how many new responses go to: fewer make fuller records."
    )


class AdmissionSettings(_Section):
    placement: Literal["fused", "split"] = "fused"
    batch_jobs_per_second: int = Field(default=200, ge=1, description="Bound of the intake, per admission worker.")
    stall_s: float = Field(default=30, gt=0, description="Lag without a commit for so long ends the process.")
    max_attempts: int = Field(default=5, ge=1, description="Of one event, before its dead letter.")
    in_flight: int = Field(default=256, ge=1, le=4_096, description="Requests worked on at once, per admission worker.")
    max_queued_tokens: int = Field(default=2_000_000, ge=1, description="Bound of a pool's queue; then `overloaded`.")
    max_queued_requests: int = Field(default=10_000, ge=1, description="Bound of a pool's queue; then `overloaded`.")
    trust_window_ms: int = Field(default=300_000, ge=1_000)


class PostSafetySettings(_Section):
    regroup_ms: int = Field(default=10, ge=0)
    gap_ms: int = Field(default=2_000, ge=1)
    unclaimed_cancel_ms: int = Field(default=5_000, ge=0, description="Then a cancel that no worker answered ends it.")
    max_open_responses: int = Field(default=50_000, ge=1)


class WorkerSettings(_Section):
    worker_id: str = "worker-1"
    pool: str = "default"
    lease_ms: int = Field(default=4_000, ge=500)
    home_partitions: int = Field(default=1, ge=1)
    max_uncommitted_records: int = Field(
        default=10_000, ge=1, description="Unfinished of all lanes, and in any partition from its oldest unfinished on."
    )
    max_uncommitted_bytes: int = Field(default=268_435_456, ge=1)
    healthy_buffer: int = Field(default=8, ge=0, description="Requests beyond `max_running` that wait in the engine.")
    coalesce_ms: int = Field(
        default=45, ge=0, description="Steps that follow each other within it leave as one frame, under load only."
    )
    coalesce_rows: int = Field(default=16, ge=1, description="Load is a step with so many rows, or more.")
    start_timeout_s: float = Field(
        default=600, gt=0, description="Until it has loaded its model; then the runner starts it again."
    )
    drain_timeout_s: float = Field(default=30, gt=0)
    max_engine_restarts: int = Field(default=5, ge=0)


class BillingSettings(_Section):
    host: str = "127.0.0.1"
    port: int = Field(default=18123, ge=0, le=65_535)
    clickhouse_url: str = Field(default="", description="`http://user:password@host:8123/database`; empty: embedded.")
    batch_rows: int = Field(default=10_000, ge=1)
    batch_wait_ms: int = Field(default=5_000, ge=1, description="Every batch costs four inserts, however small it is.")
    query_timeout_s: float = Field(default=10, gt=0)
    max_query_rows: int = Field(default=10_000, ge=1)


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
    health_port: int = Field(default=0, ge=0, le=65_535, description="`/readyz` and `/metrics`; 0: any free port.")
    deployment_secret: SecretStr = Field(
        default=SecretStr(""),
        description=f"Signs `requests` records and operator calls; {MIN_SECRET_CHARS} characters or more.",
    )
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
    billing: BillingSettings = BillingSettings()
    models: list[Model] = Field(default_factory=list)
    pools: list[Pool] = Field(default_factory=list)

    @model_validator(mode="after")
    def _references_hold(self) -> Self:
        pools = [pool.name for pool in self.pools]
        names = [name for model in self.models for name in (model.name, *model.aliases)]
        if len(set(pools)) != len(pools):
            raise ValueError("pools: two pools have the same name")
        if len(set(names)) != len(names):
            raise ValueError("models: two models share a name or alias")
        for model in self.models:
            if model.pool not in pools:
                raise ValueError(f"models.{model.name}.pool: no pool {model.pool!r}")
        if self.kafka.min_insync_replicas > self.kafka.replication_factor:
            raise ValueError("kafka.min_insync_replicas: more than kafka.replication_factor")
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
        path = os.environ.get(CONFIG_VARIABLE)
        files = (TomlConfigSettingsSource(settings_cls, Path(path)),) if path else ()
        return init_settings, env_settings, *files

    @property
    def response_ids(self) -> ResponseIds:
        """What makes and proves this region's response ids; keep one per process."""
        secrets = [self.deployment_secret.get_secret_value().encode()]
        return ResponseIds(self.region, secrets, without_mac_until_ms=self.ids_without_mac_until_ms)

    @property
    def topics(self) -> Topics:
        return Topics(self.region, (pool.name for pool in self.pools), self.kafka.partitions)


class SettingsError(Exception):
    """One line per wrong field, each with its name."""


def load_settings() -> Settings:
    """Reads the sources. Raises SettingsError."""
    path = os.environ.get(CONFIG_VARIABLE)
    if path and not Path(path).is_file():
        raise SettingsError(f"{CONFIG_VARIABLE}: no file {path}")
    try:
        return Settings()
    except ValidationError as error:
        lines = (f"{'.'.join(map(str, e['loc'])) or 'settings'}: {e['msg']}" for e in error.errors())
        raise SettingsError("\n".join(lines)) from None
    except ValueError as error:
        raise SettingsError(f"{path}: {error}") from None


def check_secret(settings: Settings) -> None:
    """For processes that sign or verify with it. Raises SettingsError."""
    if len(settings.deployment_secret.get_secret_value()) < MIN_SECRET_CHARS:
        raise SettingsError(f"deployment_secret: must have {MIN_SECRET_CHARS} characters or more")
