"""What a local stack consists of: its settings, its ports, and the command of every process. Starts nothing."""

import http.client
import itertools
import json
import os
import random
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

import redis
from pydantic import BaseModel

from deploy.install.kafka_jars import kafka_libs
from deploy.local.data_folder import DataFolder, Keys
from deploy.local.gpus import TooFewGpus, shared_out, visible_gpus
from deploy.local.kafka_broker import KafkaNode, bootstrap_of, cluster, copies_among, is_formatted, run_command
from deploy.local.ports import free_ports, is_free, owner
from deploy.paths import ROOT
from gpu_consumers.worker import FLUSH_S, HEIRS_READ_WITHIN_S
from streams.directory import Model, Pool
from streams.gateway.dismissal import DISMISSAL_S
from streams.settings import CONFIG_VARIABLE, LOOPBACK, Settings, load_settings, reachable

LOCAL_CONFIG = Path(__file__).parent / "local.toml"
EMBEDDINGS, SMALL = "embeddings", "small"
"""What may be added to the settings: each is a file beside `LOCAL_CONFIG`, with its pools and models."""
BROKERS = (1, 3)
"""How many a local Kafka may have. Two would stand still as soon as one of them is away."""
SESSION_ON_SEVERAL_MS = 6_000
"""Of consumers: longer than others take to follow a broker that died, so that no group is balanced for that."""
LAST_OF_ALL = 65_535
"""Of TCP's ports."""
PROBE_TIMEOUT_S = 1.0
INFRASTRUCTURE_TIMEOUT_S = 180.0
WORKER_ENDS_S = 10.0
"""For leaving its lanes, giving back claims and ending its engine, beside the waits that it bounds itself."""
PYTHON = (sys.executable, "-P", "-m")
"""Before a module's name. A folder of the same name where it is started is not taken for ours."""

NICENESS_BESIDE_A_MODEL = 10
"""Of all but the workers: a step of the model takes most of a core, and whoever interrupts it delays every stream. What
is nice still gets all that no model uses, and vLLM leaves a core free."""

Probe = Callable[[], str | None]
"""None when ready, else why not. Returns within about `PROBE_TIMEOUT_S`."""


class PlanError(Exception):
    """Why no stack can start like this, in one line."""


class Stage(IntEnum):
    """Stages stop from the last to the first, so that each one's work can still flow out through the others.

    Infrastructure is ready before anything else starts; the rest starts at once.
    """

    INFRASTRUCTURE = 0
    SINKS = 1
    POST_SAFETY = 2
    WORKERS = 3
    ADMISSION = 4
    GATEWAYS = 5


@dataclass(frozen=True)
class ProcessSpec:
    name: str
    stage: Stage
    command: tuple[str, ...]
    probe: Probe
    environment: Mapping[str, str] = field(default_factory=dict)
    health_port: int | None = None
    start_timeout_s: float = 60.0
    stop_timeout_s: float = 15.0
    niceness: int = 0
    """On top of the supervisor's own."""


@dataclass(frozen=True)
class Options:
    """What the command line or a test may choose. `environment` holds more SLUICE_* settings, the strongest of all.

    `gpus` None: those that this machine shows. `engine_args` replace the pools' own where `engine` replaces the pools'
    engine, but for pools that embed. `free_ports` False: those of the settings. `added`: names of files with more
    pools and models, such as `EMBEDDINGS`. `brokers`: one of `BROKERS`, of a Kafka of ours.
    """

    engine: str | None = None
    engine_args: Mapping[str, bool | int | float | str] = field(default_factory=dict)
    workers: int | None = None
    max_running: int | None = None
    admission: int = 1
    gateways: int = 1
    brokers: int = 1
    added: tuple[str, ...] = ()
    free_ports: bool = False
    gpus: tuple[str, ...] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """`environment`: the SLUICE_* settings of every process, complete, with secrets; `kafka`: its brokers, none
    where it is not ours.
    """

    settings: Settings
    environment: Mapping[str, str]
    processes: tuple[ProcessSpec, ...]
    kafka: tuple[KafkaNode, ...]
    engine: str
    gateway_urls: tuple[str, ...]
    clickhouse_url: str

    @property
    def gateway_url(self) -> str:
        """Of the first one."""
        return self.gateway_urls[0]

    @property
    def start_timeout_s(self) -> float:
        """Until all are ready, counted from a ready infrastructure."""
        return max(spec.start_timeout_s for spec in self.processes if spec.stage is not Stage.INFRASTRUCTURE)


def settings_with(environment: Mapping[str, str]) -> Settings:
    """The settings that a process with these variables beside its own would load. Raises SettingsError."""
    return load_settings({**os.environ, **environment})


def http_probe(host: str, port: int) -> Probe:
    """Asks a process's own `/readyz`."""

    def probe() -> str | None:
        connection = http.client.HTTPConnection(host, port, timeout=PROBE_TIMEOUT_S)
        try:
            connection.request("GET", "/readyz")
            answer = connection.getresponse()
            body = answer.read(1_000).decode(errors="replace").strip()
        except (OSError, http.client.HTTPException):
            return "does not answer yet"
        finally:
            connection.close()
        return None if answer.status == http.HTTPStatus.OK else body or f"status {answer.status}"

    return probe


def redis_probe(url: str) -> Probe:
    def probe() -> str | None:
        with redis.Redis.from_url(
            url, socket_timeout=PROBE_TIMEOUT_S, socket_connect_timeout=PROBE_TIMEOUT_S
        ) as client:
            try:
                client.ping()
            except redis.RedisError as error:
                return str(error)
        return None

    return probe


def tcp_probe(host: str, port: int) -> Probe:
    def probe() -> str | None:
        connection = http.client.HTTPConnection(host, port, timeout=PROBE_TIMEOUT_S)
        try:
            connection.connect()
        except OSError as error:
            return str(error)
        finally:
            connection.close()
        return None

    return probe


class _Ports:
    """Hands out ports: the settings' own, checked, or free ones."""

    def __init__(self, rng: random.Random, *, free: bool) -> None:
        self._free = free
        self._given: set[int] = set()
        self._ports = free_ports(rng, self._given)

    def any(self, host: str = "127.0.0.1") -> int:
        port = next(port for port in self._ports if is_free(port, host))
        self._given.add(port)
        return port

    def fixed(self, port: int, what: str, variable: str, host: str = "127.0.0.1") -> int:
        """`host`: where it will listen."""
        try:
            if self._free or port == 0:
                return self.any(host)
            if port > LAST_OF_ALL:
                raise PlanError(f"{what} would need port {port}, which is none; set {variable}")
            free = is_free(port, host)
        except OSError as error:
            raise PlanError(f"{what} cannot listen on {host}: {error.strerror}") from None
        if port in self._given:
            raise PlanError(f"port {port} is needed twice, the second time by {what}; set {variable}")
        if not free:
            raise PlanError(f"port {port} ({what}) is in use by {owner(port)}; choose another with {variable}")
        self._given.add(port)
        return port


def _as_chosen(pool: Pool, options: Options, *, embeds: bool) -> Pool:
    """What was given of engines is of those that chat."""
    changes: dict[str, object] = {}
    arguments = {} if embeds else dict(options.engine_args)
    if options.workers is not None:
        changes["workers"] = options.workers
    if options.max_running is not None and not embeds:
        changes["max_running"] = options.max_running
    if options.engine is not None and (options.engine != pool.engine or arguments):
        changes |= {"engine": options.engine, "engine_args": arguments}
    return pool.model_copy(update=changes)


def _catalogue(settings: Settings, options: Options) -> dict[str, str]:
    added = [tomllib.loads(LOCAL_CONFIG.with_name(f"{name}.toml").read_text()) for name in options.added]
    models = [*settings.models, *(Model.model_validate(model) for each in added for model in each["models"])]
    pools = [*settings.pools, *(Pool.model_validate(pool) for each in added for pool in each["pools"])]
    embedding = {name for model in models if model.embedding is not None for name in model.pools}
    chosen = [_as_chosen(pool, options, embeds=pool.name in embedding) for pool in pools]
    # What the settings say of models stands there, also for a release that reads its own.
    changed: dict[str, Sequence[BaseModel]] = {"POOLS": chosen}
    if added:
        changed["MODELS"] = models
    return {
        f"SLUICE_{name}": json.dumps([each.model_dump(mode="json", exclude_defaults=True) for each in listed])
        for name, listed in changed.items()
    }


def _from_outside(data: DataFolder) -> dict[str, str]:
    """What the operator's environment says, and where it says nothing, what a local stack takes."""
    config = os.environ.get(CONFIG_VARIABLE, str(LOCAL_CONFIG))
    return {
        **{name: value for name, value in os.environ.items() if name.startswith("SLUICE_")},
        CONFIG_VARIABLE: str(Path(config).absolute()),
        "SLUICE_DATA_DIR": str(data.path),
    }


def settings_of_folder(data: DataFolder) -> Settings:
    """Those of what would run on it. Raises SettingsError."""
    return settings_with(_from_outside(data))


def tenants_file_of(data: DataFolder, more: Mapping[str, str] = MappingProxyType({})) -> Path:
    """The operator's own where the settings name one, else the data folder's. Raises SettingsError."""
    settings = settings_with({**_from_outside(data), **more})
    named = "tenants_file" in settings.model_fields_set
    return ROOT / settings.tenants_file if named else data.tenants_file


def make_plan(data: DataFolder, keys: Keys, options: Options, rng: random.Random) -> Plan:
    """Raises PlanError (a port is taken, the folder holds what other brokers wrote), SettingsError."""
    environment = {
        **_from_outside(data),
        **options.environment,
        "SLUICE_TENANTS_FILE": str(tenants_file_of(data, options.environment)),
    }
    settings = settings_with(environment)
    # The operator's own secret where there is one, in the environment or in the settings' file; what stands in a file
    # of its own every process reads there.
    if settings.deployment_secret_file is None:
        own = settings.deployment_secret.get_secret_value()
        environment["SLUICE_DEPLOYMENT_SECRET"] = own or keys.deployment_secret
    environment |= _catalogue(settings, options)

    ports = _Ports(rng, free=options.free_ports)
    kafka = _kafka_nodes(data, settings, options.brokers, ports)
    environment |= _kafka_environment(settings, kafka)
    redis_port = _redis_port(settings, ports)
    if redis_port is not None:
        environment["SLUICE_REDIS__URL"] = _on_port(settings.redis.url, redis_port)
    history_port = _history_port(settings, redis_port, ports)
    if history_port is not None:
        environment["SLUICE_REDIS__HISTORY_URL"] = _on_port(settings.redis.history_url, history_port)
    billing, edge = settings.billing, settings.gateway
    environment["SLUICE_BILLING__PORT"] = str(
        ports.fixed(billing.port, "billing", "SLUICE_BILLING__PORT", billing.host)
    )
    environment["SLUICE_BILLING__ANALYSTS_PORT"] = str(
        ports.fixed(billing.analysts_port, "billing", "SLUICE_BILLING__ANALYSTS_PORT", billing.analysts_host)
    )
    gateways = [
        ports.fixed(edge.port + number if edge.port else 0, "gateway", "SLUICE_GATEWAY__PORT", edge.host)
        for number in range(options.gateways)
    ]
    settings = settings_with(environment)

    specs = _infrastructure(data, settings, kafka, redis_port, history_port)
    specs += _python_processes(settings, options, gateways, ports)
    if any(pool.engine == "vllm" for pool in settings.pools):
        specs = [
            spec if spec.stage is Stage.WORKERS else replace(spec, niceness=NICENESS_BESIDE_A_MODEL) for spec in specs
        ]
    scheme = "https" if settings.gateway.tls_key_file else "http"
    return Plan(
        settings=settings,
        environment=environment,
        processes=tuple(specs),
        kafka=kafka,
        engine=", ".join(sorted({pool.engine for pool in settings.pools})),
        gateway_urls=tuple(f"{scheme}://{reachable(settings.gateway.host)}:{port}" for port in gateways),
        clickhouse_url=settings.billing.clickhouse_url or settings.billing.analysts_url,
    )


def _infrastructure(
    data: DataFolder, settings: Settings, kafka: Sequence[KafkaNode], redis_port: int | None, history_port: int | None
) -> list[ProcessSpec]:
    """What is not somebody else's."""
    # On a machine that has much else to do a broker takes over a minute, and would take as long each time.
    specs = [
        ProcessSpec(
            node.directory.name, Stage.INFRASTRUCTURE, tuple(run_command(node)), tcp_probe(node.host, node.port),
            start_timeout_s=INFRASTRUCTURE_TIMEOUT_S, stop_timeout_s=20,
        )
        for node in kafka
    ]  # fmt: skip
    if redis_port is not None:
        command = redis_command(data.redis, redis_port)
        specs.append(ProcessSpec("redis", Stage.INFRASTRUCTURE, command, redis_probe(settings.redis.url)))
    if history_port is not None:
        command = history_command(data.redis, history_port)
        probe = redis_probe(settings.redis.history_url)
        specs.append(ProcessSpec("redis-history", Stage.INFRASTRUCTURE, command, probe))
    return specs


def _kafka_nodes(data: DataFolder, settings: Settings, brokers: int, ports: _Ports) -> tuple[KafkaNode, ...]:
    """None: somebody else's. So is one on loopback that asks for more than ours does."""
    host, _, first = settings.kafka.bootstrap.rpartition(":")
    if host not in LOOPBACK or settings.kafka.security_protocol != "PLAINTEXT":
        if brokers > 1:
            raise PlanError(f"--brokers {brokers}: Kafka is not started here, it is at {settings.kafka.bootstrap}")
        return ()
    if brokers not in BROKERS:
        raise PlanError(f"--brokers {brokers}: it is one of {', '.join(map(str, BROKERS))}")
    _refuse_the_log_of_others(data, brokers)
    variable, libs = "SLUICE_KAFKA__BOOTSTRAP", kafka_libs(Path(sys.prefix))
    return cluster([
        KafkaNode(
            folder, libs, ports.fixed(port, folder.name, variable),
            ports.fixed(port and port + 1, f"{folder.name}'s controller", variable),
        )
        for folder, port in zip(data.kafka(brokers), _pairs(int(first)), strict=False)
    ])  # fmt: skip


def _pairs(first: int) -> Iterator[int]:
    """The ports of brokers, each followed by its controller's; 0 is any."""
    return itertools.count(first, 2) if first else itertools.repeat(0)


def _refuse_the_log_of_others(data: DataFolder, brokers: int) -> None:
    """What was accepted stands in a log; begun anew beside it, it would be lost without a word. Raises PlanError."""
    for others in BROKERS:
        if others != brokers and any(map(is_formatted, data.kafka(others))):
            raise PlanError(
                f"{data.path} holds the log of {others} broker{'s' * (others > 1)}; start it with --brokers {others}, "
                "or name another folder with --data"
            )


def _kafka_environment(settings: Settings, kafka: Sequence[KafkaNode]) -> dict[str, str]:
    """Where ours is, and unless the settings say so, how many copies topics have there and how long sessions are."""
    if not kafka:
        return {}
    replicas, min_insync = copies_among(len(kafka))
    asked = settings.kafka
    patient = len(kafka) > 1 and "session_timeout_ms" not in asked.model_fields_set
    return {
        **({"SLUICE_KAFKA__SESSION_TIMEOUT_MS": str(SESSION_ON_SEVERAL_MS)} if patient else {}),
        "SLUICE_KAFKA__BOOTSTRAP": bootstrap_of(kafka),
        "SLUICE_KAFKA__REPLICATION_FACTOR": str(asked.replication_factor or replicas),
        "SLUICE_KAFKA__MIN_INSYNC_REPLICAS": str(asked.min_insync_replicas or min_insync),
    }


def _redis_port(settings: Settings, ports: _Ports) -> int | None:
    login = settings.redis.username or settings.redis.password
    return None if login else _loopback_port(settings.redis.url, "redis", "SLUICE_REDIS__URL", ports)


def _history_port(settings: Settings, redis_port: int | None, ports: _Ports) -> int | None:
    """Beside a Redis of ours stands one of ours for history, unless the settings say where that is."""
    url, variable = settings.redis.history_url, "SLUICE_REDIS__HISTORY_URL"
    if url:
        theirs = url == settings.redis.url or settings.redis.history_username or settings.redis.history_password
        return None if theirs else _loopback_port(url, "redis-history", variable, ports)
    return None if redis_port is None else ports.fixed(redis_port + 1, "redis-history", variable)


def _loopback_port(url: str, what: str, variable: str, ports: _Ports) -> int | None:
    """None: somebody else's. So is one on loopback that asks for more than ours does."""
    parts = urlsplit(url)
    ours = parts.hostname in LOOPBACK and parts.scheme == "redis" and "@" not in parts.netloc
    return ports.fixed(parts.port or 6379, what, variable) if ours else None


def _on_port(url: str, port: int) -> str:
    return f"redis://127.0.0.1:{port}/{urlsplit(url).path.strip('/') or 0}"


def redis_command(directory: Path, port: int) -> tuple[str, ...]:
    """For quota and claims. A crash loses a second at most; full memory is an error, never an eviction."""
    return _redis_server(directory, port, appendonly="yes", appendfsync="everysec", policy="noeviction")


def history_command(directory: Path, port: int, max_memory: str = "1gb") -> tuple[str, ...]:
    """For history, which the log holds too: writes nothing to disk, and evicts what was not asked for the longest."""
    return _redis_server(directory, port, appendonly="no", policy="allkeys-lru", max_memory=max_memory)


def _redis_server(
    directory: Path, port: int, *, policy: str, max_memory: str = "1gb", **settings: str
) -> tuple[str, ...]:
    """Loopback only."""
    words = {
        "port": port, "bind": "127.0.0.1", "dir": directory, "save": "", "maxmemory": max_memory,
        "maxmemory-policy": policy, "daemonize": "no", **settings,
    }  # fmt: skip
    return ("redis-server", *(word for name, value in words.items() for word in (f"--{name}", str(value))))


def _devices(pools: Sequence[Pool], gpus: Sequence[str]) -> list[dict[str, str]]:
    """Of each worker, whose pool this is. Raises PlanError."""
    if not any(pool.engine == "vllm" for pool in pools):
        gpus = ()
    try:
        return list(shared_out(gpus, [pool.devices for pool in pools]))
    except TooFewGpus as error:
        raise PlanError(f"{error}; start fewer with --workers") from None


def _python_processes(settings: Settings, options: Options, gateways: list[int], ports: _Ports) -> list[ProcessSpec]:
    def process(name: str, stage: Stage, module: str, environment: Mapping[str, str]) -> ProcessSpec:
        health_port = ports.any()
        return ProcessSpec(
            name, stage, (*PYTHON, module), http_probe(reachable(settings.health_host), health_port),
            {**environment, "SLUICE_HEALTH_PORT": str(health_port)}, health_port,
        )  # fmt: skip

    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    specs = [
        process("billing", Stage.SINKS, "billing_jobs", one_thread),
        process("settlement", Stage.SINKS, "agents.settlement", one_thread),
        process("post-safety", Stage.POST_SAFETY, "agents.post_safety", one_thread),
    ]
    pools = [pool for pool in settings.pools for _ in range(pool.workers)]
    devices = _devices(pools, visible_gpus() if options.gpus is None else options.gpus)
    for number, (pool, own_devices) in enumerate(zip(pools, devices, strict=True), start=1):
        name = f"worker-{number}"
        environment = {"SLUICE_WORKER__WORKER_ID": name, "SLUICE_WORKER__POOL": pool.name, **own_devices}
        worker = process(name, Stage.WORKERS, "gpu_consumers", environment)
        stop_timeout_s = settings.worker.drain_timeout_s + HEIRS_READ_WITHIN_S + FLUSH_S + WORKER_ENDS_S
        specs.append(replace(worker, start_timeout_s=settings.worker.start_timeout_s, stop_timeout_s=stop_timeout_s))
    specs += [
        process(f"admission-{index}", Stage.ADMISSION, "agents.admission", one_thread)
        for index in range(1, options.admission + 1)
    ]
    for index, port in enumerate(gateways, start=1):
        name = f"gateway-{index}"
        environment = {**one_thread, "SLUICE_GATEWAY__GATEWAY_ID": name, "SLUICE_GATEWAY__PORT": str(port)}
        gateway = process(name, Stage.GATEWAYS, "streams.gateway", environment)
        leaves_s = settings.gateway.leave_ms / 1_000 + DISMISSAL_S
        specs.append(replace(gateway, stop_timeout_s=gateway.stop_timeout_s + leaves_s))
    return specs
