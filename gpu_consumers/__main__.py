"""`python -m gpu_consumers`: one worker of the pool `worker.pool`."""

import asyncio
import contextlib
import signal
import sys
from pathlib import Path

import structlog
import uvloop
from tokenizers import Tokenizer

from gpu_consumers.core.capacity import MemoryPolicy
from gpu_consumers.core.config import CoreConfig
from gpu_consumers.core.engine_circuit import CircuitPolicy
from gpu_consumers.core.home_partitions import home_partitions
from gpu_consumers.core.worker_core import WorkerCore
from gpu_consumers.engines.port import Engine
from gpu_consumers.engines.simulated_group import simulated_engine
from gpu_consumers.engines.simulated_pooling import SimulatedPoolingEngine
from gpu_consumers.engines.simulated_speech import REASONING_PARSERS, TOOL_PARSERS, ends_with_result
from gpu_consumers.engines.vllm_engine import VllmEngine
from gpu_consumers.engines.vllm_pooling import VllmPoolingEngine
from gpu_consumers.metrics import WorkerMetrics
from gpu_consumers.parsing.port import ParserNames
from gpu_consumers.shell.engine_keeping import WorkerFailed
from gpu_consumers.shell.redis_claims import RedisClaims
from gpu_consumers.worker import FLUSH_S, Ports, Worker
from streams.directory import Model, Pool
from streams.engine_args import SimulatedEngineSettings, SimulatedPoolingSettings
from streams.entry_point import EXIT_FAILED, exit_code
from streams.garbage import collect_seldom
from streams.health import HealthServer
from streams.ids import mint_attempt_id
from streams.log.consumer_thread import ConsumerThread
from streams.log.kafka import QUIET_FETCH_WAIT_MS, KafkaConsumer, KafkaProducer
from streams.log.port import LogError
from streams.log.producer_thread import ProducerThread
from streams.redis_client import connect_quota
from streams.settings import Settings, SettingsError
from streams.toml_directory import SettingsCatalog

_log = structlog.get_logger()


def pool_and_model(settings: Settings) -> tuple[Pool, Model]:
    """The pool of this worker and the model that it serves. Raises SettingsError."""
    catalog = SettingsCatalog(settings)
    name = settings.worker.pool
    try:
        pool = catalog.pool(name)
    except KeyError:
        raise SettingsError(f"worker.pool: no pool {name!r}") from None
    models = [model for model in catalog.models() if name in model.pools]
    if len(models) != 1:
        raise SettingsError(f"pools.{name}: serves {len(models)} models, a worker needs exactly one")
    return pool, models[0]


def make_engine(pool: Pool, model: Model) -> Engine:
    """The pool's engine, not started. Raises SettingsError for what the simulated engine does not know.

    Of what settings hold its arguments are known to be right.
    """
    parsers = ParserNames(model.tool_parser, model.reasoning_parser)
    if pool.engine == "vllm":
        if not Path(model.path).is_dir():
            raise SettingsError(f"models.{model.name}.path: no folder {model.path}")
        if model.embedding is not None:
            return VllmPoolingEngine(model.path, pool.engine_args, pool.max_running, model.embedding.dimensions)
        return VllmEngine(model.path, pool.engine_args, pool.max_running, parsers)
    arguments = {"max_running": pool.max_running, **pool.engine_args}
    if model.embedding is not None:
        return SimulatedPoolingEngine(SimulatedPoolingSettings.model_validate(arguments), model.embedding.dimensions)
    settings = SimulatedEngineSettings.model_validate(arguments)
    for field, name, known in (
        ("tool_parser", parsers.tool, TOOL_PARSERS),
        ("reasoning_parser", parsers.reasoning, REASONING_PARSERS),
    ):
        if name not in known:
            names = " and ".join(filter(None, known))
            raise SettingsError(f"models.{model.name}.{field}: the simulated engine knows {names} alone, not {name}")
    if not parsers.tool:
        return simulated_engine(settings, parsers)
    tokenizer = Tokenizer.from_file(str(Path(model.path) / "tokenizer.json"))
    return simulated_engine(settings, parsers, ends_with_result(tokenizer))


def _core_config(settings: Settings, pool: Pool, model: Model) -> CoreConfig:
    topics, worker = settings.topics, settings.worker
    return CoreConfig(
        worker_id=worker.worker_id,
        pool=pool.name,
        model=model.name,
        engine=pool.engine,
        topics=topics,
        home_partitions=tuple(
            home_partitions(worker.worker_id, range(topics.generated.partitions), worker.home_partitions)
        ),
        lease_ms=worker.lease_ms,
        max_running=pool.max_running,
        healthy_buffer=worker.healthy_buffer,
        max_uncommitted_records=worker.max_uncommitted_records,
        max_uncommitted_bytes=worker.max_uncommitted_bytes,
        coalesce_ms=worker.coalesce_ms,
        coalesce_rows_per_s=worker.coalesce_rows_per_s,
        dimensions=0 if model.embedding is None else model.embedding.dimensions,
        headroom=worker.headroom,
        max_pauses=worker.max_pauses,
        spills_per_s=worker.spills_per_s,
        memory=MemoryPolicy(worker.memory_foresight, worker.memory_for_short, worker.large_waits_ms),
        lanes=settings.lanes,
        brownout=settings.brownout,
        circuit=CircuitPolicy(worker.circuit_failures, worker.circuit_attempts, worker.circuit_open_ms),
    )


async def serve(settings: Settings, pool: Pool, model: Model, engine: Engine) -> None:
    """Wires a worker and runs it until SIGTERM or SIGINT."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    worker = settings.worker
    client_id = worker.worker_id
    async with contextlib.AsyncExitStack() as stack:
        redis = connect_quota(settings.redis, decode_responses=True)
        stack.push_async_callback(redis.aclose)
        claims = RedisClaims(
            redis,
            region=settings.region,
            pool=pool.name,
            incarnation=f"{worker.worker_id}/{mint_attempt_id()}",
            lease_ms=worker.lease_ms,
        )
        producer = ProducerThread(KafkaProducer(settings.kafka, client_id))
        stack.push_async_callback(producer.close, FLUSH_S)
        control = ConsumerThread(
            KafkaConsumer(settings.kafka, None, f"{client_id}-control", fetch_wait_ms=QUIET_FETCH_WAIT_MS)
        )
        stack.push_async_callback(control.close)
        metrics = WorkerMetrics()
        core = WorkerCore(_core_config(settings, pool, model), mint_attempt_id, metrics)
        ports = Ports(
            engine,
            lambda lane: ConsumerThread(
                KafkaConsumer(settings.kafka, f"{settings.region}.workers.{pool.name}", f"{client_id}-{lane.value}")
            ),
            control, producer, claims,
            lambda: KafkaConsumer(settings.kafka, None, f"{client_id}-read-back"),
        )  # fmt: skip
        shell = Worker(core, ports, worker, metrics)
        collect_seldom()
        health = HealthServer(settings.health_host, settings.health_port, lambda: shell.not_ready)
        stack.callback(health.close)
        _log.info("started", pool=pool.name, engine=pool.engine, health_port=health.port)
        await shell.run(stop)
    _log.info("stopped")


def run(settings: Settings) -> int:
    """0 after a signal, `EXIT_FAILED` after what a restart may mend. Raises SettingsError."""
    pool, model = pool_and_model(settings)
    engine = make_engine(pool, model)
    try:
        uvloop.run(serve(settings, pool, model, engine))
    except (WorkerFailed, LogError) as error:
        _log.error("failed", error=str(error))
        return EXIT_FAILED
    return 0


def main() -> int:
    return exit_code(lambda settings: settings.worker.worker_id, run)


if __name__ == "__main__":
    sys.exit(main())
