import json
import random
import socket
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from deploy.local.data_folder import DataFolder, Keys
from deploy.local.first_run import provision_keys
from deploy.local.gpus import visible_gpus
from deploy.local.kafka_broker import KafkaNode, server_properties
from deploy.local.plan import (
    EMBEDDINGS,
    LOCAL_CONFIG,
    SMALL,
    Options,
    PlanError,
    Stage,
    make_plan,
    settings_with,
    tenants_file_of,
)
from deploy.local.ports import FIRST_PORT, LAST_PORT, free_ports, is_free
from gpu_consumers.worker import FLUSH_S, HEIRS_READ_WITHIN_S
from streams.settings import SettingsError

KEYS = Keys(deployment_secret="s" * 40)


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in [name for name in os.environ if name.startswith("SLUICE_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def data(tmp_path: Path) -> DataFolder:
    return DataFolder(tmp_path)


def test_every_process_of_the_architecture_is_there(data: DataFolder) -> None:
    plan = make_plan(data, KEYS, Options(workers=2, admission=2, gateways=2, free_ports=True), random.Random(1))
    assert [spec.name for spec in plan.processes] == [
        "kafka", "redis", "redis-history", "billing", "settlement", "post-safety",
        "worker-1", "worker-2", "admission-1", "admission-2", "gateway-1", "gateway-2",
    ]  # fmt: skip
    assert {spec.stage for spec in plan.processes} == set(Stage)


def test_a_folder_of_the_same_name_where_a_process_starts_is_not_taken_for_ours(
    data: DataFolder, tmp_path: Path
) -> None:
    plan = make_plan(data, KEYS, Options(free_ports=True), random.Random(1))
    [python] = {spec.command[:-1] for spec in plan.processes if spec.command[0] == sys.executable}
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy" / "__init__.py").write_text("raise SystemExit('a stranger')")
    ours = [*python, "deploy.install.kafka_jars", "--help"]
    done = subprocess.run(ours, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_no_port_is_given_twice(data: DataFolder) -> None:
    plan = make_plan(data, KEYS, Options(workers=3, gateways=3, brokers=3, free_ports=True), random.Random(1))
    settings = plan.settings
    assert settings.kafka.bootstrap == ",".join(node.bootstrap for node in plan.kafka)
    ports = [
        *(port for node in plan.kafka for port in (node.port, node.controller_port)),
        settings.billing.port,
        settings.billing.analysts_port,
        *(urlsplit(url).port for url in (settings.redis.url, settings.redis.history_url)),
        *(spec.health_port for spec in plan.processes if spec.health_port),
        *(int(spec.environment["SLUICE_GATEWAY__PORT"]) for spec in plan.processes if spec.stage is Stage.GATEWAYS),
    ]
    assert all(count == 1 for count in Counter(ports).values())
    assert all(port is not None and FIRST_PORT <= port < LAST_PORT for port in ports), (
        "outside the range of outgoing connections"
    )


def properties_of(node: KafkaNode) -> dict[str, str]:
    return dict(line.split("=", 1) for line in server_properties(node).splitlines())


def test_three_brokers_are_one_cluster_whose_records_survive_any_one_of_them(data: DataFolder) -> None:
    plan = make_plan(data, KEYS, Options(brokers=3, free_ports=True), random.Random(1))
    names = [spec.name for spec in plan.processes if spec.stage is Stage.INFRASTRUCTURE]
    assert names == ["kafka-1", "kafka-2", "kafka-3", "redis", "redis-history"]
    assert (plan.settings.kafka.replication_factor, plan.settings.kafka.min_insync_replicas) == (3, 2)
    nodes = [properties_of(node) for node in plan.kafka]
    [dead_after_ms] = {int(node["broker.session.timeout.ms"]) for node in nodes}
    assert 2 * dead_after_ms < plan.settings.kafka.session_timeout_ms, "members outlast it"
    assert [node["node.id"] for node in nodes] == ["1", "2", "3"]
    assert len({node["log.dirs"] for node in nodes}) == 3
    [quorum] = {node["controller.quorum.voters"] for node in nodes}
    assert quorum == ",".join(node.voter for node in plan.kafka)
    for node in nodes:
        for of in ("default", "offsets.topic", "transaction.state.log", "share.coordinator.state.topic"):
            assert node[f"{of}.replication.factor"] == "3", of
        for of in ("min.insync.replicas", "transaction.state.log.min.isr", "share.coordinator.state.topic.min.isr"):
            assert node[of] == "2", of


def test_how_long_sessions_are_is_the_operators_to_say(data: DataFolder) -> None:
    said = {"SLUICE_KAFKA__SESSION_TIMEOUT_MS": "4000"}
    plan = make_plan(data, KEYS, Options(brokers=3, free_ports=True, environment=said), random.Random(1))
    assert plan.settings.kafka.session_timeout_ms == 4_000
    alone = make_plan(data, KEYS, Options(free_ports=True), random.Random(1))
    assert alone.settings.kafka.session_timeout_ms == 3_000


def test_one_broker_keeps_one_copy(data: DataFolder) -> None:
    plan = make_plan(data, KEYS, Options(free_ports=True), random.Random(1))
    assert (plan.settings.kafka.replication_factor, plan.settings.kafka.min_insync_replicas) == (1, 1)
    [node] = plan.kafka
    assert properties_of(node)["controller.quorum.voters"] == node.voter
    assert properties_of(node)["offsets.topic.replication.factor"] == "1"


def test_brokers_take_pairs_of_ports_from_the_one_that_the_settings_name(
    data: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = random.Random(11)
    first = next(port for port in free_ports(rng) if all(is_free(port + more) for more in range(6)))
    monkeypatch.setenv("SLUICE_KAFKA__BOOTSTRAP", f"127.0.0.1:{first}")
    for variable in ("SLUICE_REDIS__URL", "SLUICE_REDIS__HISTORY_URL"):
        monkeypatch.setenv(variable, "redis://redis.example:6379/0")
    monkeypatch.setenv("SLUICE_BILLING__PORT", "0")
    monkeypatch.setenv("SLUICE_GATEWAY__PORT", "0")
    plan = make_plan(data, KEYS, Options(brokers=3), random.Random(1))
    assert [(node.port, node.controller_port) for node in plan.kafka] == [
        (first, first + 1), (first + 2, first + 3), (first + 4, first + 5),
    ]  # fmt: skip


@pytest.mark.parametrize(("wrote", "asked"), [(1, 3), (3, 1)])
def test_what_other_brokers_wrote_is_not_begun_anew_beside_them(data: DataFolder, wrote: int, asked: int) -> None:
    meta = data.kafka(wrote)[-1] / "data" / "meta.properties"
    meta.parent.mkdir(parents=True)
    meta.write_text("version=1\n")
    with pytest.raises(PlanError, match=rf"holds the log of {wrote} broker.*--brokers {wrote}, or"):
        make_plan(data, KEYS, Options(brokers=asked, free_ports=True), random.Random(1))
    make_plan(data, KEYS, Options(brokers=wrote, free_ports=True), random.Random(1))


def test_brokers_are_asked_for_that_can_lose_one_and_of_a_kafka_of_ours_alone(data: DataFolder) -> None:
    with pytest.raises(PlanError, match="--brokers 2: it is one of 1, 3"):
        make_plan(data, KEYS, Options(brokers=2, free_ports=True), random.Random(1))
    elsewhere = {"SLUICE_KAFKA__BOOTSTRAP": "kafka.example:9092"}
    with pytest.raises(PlanError, match=r"--brokers 3: Kafka is not started here, it is at kafka\.example:9092"):
        make_plan(data, KEYS, Options(brokers=3, free_ports=True, environment=elsewhere), random.Random(1))


def test_another_engine_comes_with_its_own_arguments(data: DataFolder) -> None:
    options = Options(engine="simulated", engine_args={"ttft_ms": 5.0}, workers=3, free_ports=True)
    plan = make_plan(data, KEYS, options, random.Random(1))
    [pool] = plan.settings.pools
    assert (pool.engine, pool.engine_args, pool.workers) == ("simulated", {"ttft_ms": 5.0}, 3)
    assert json.loads(plan.environment["SLUICE_POOLS"])[0]["engine"] == "simulated"
    unchanged = make_plan(data, KEYS, Options(engine="vllm", free_ports=True), random.Random(1)).settings.pools[0]
    assert unchanged.engine_args["dtype"] == "float32"
    wrong = Options(engine="simulated", engine_args={"min_outptu_tokens": 3}, free_ports=True)
    with pytest.raises(SettingsError, match=r"pools\.default\.engine_args\.min_outptu_tokens: Extra inputs"):
        make_plan(data, KEYS, wrong, random.Random(1))


def test_beside_a_model_everything_but_its_worker_is_nice(data: DataFolder) -> None:
    plan = make_plan(data, KEYS, Options(workers=2, free_ports=True), random.Random(1))
    assert {spec.name for spec in plan.processes if not spec.niceness} == {"worker-1", "worker-2"}
    simulated = make_plan(data, KEYS, Options(engine="simulated", free_ports=True), random.Random(1))
    assert not any(spec.niceness for spec in simulated.processes)


def test_every_process_loads_what_was_planned(data: DataFolder) -> None:
    options = Options(engine="simulated", free_ports=True, environment={"SLUICE_POST_SAFETY__GAP_MS": "123"})
    plan = make_plan(data, KEYS, options, random.Random(1))
    assert settings_with(plan.environment) == plan.settings
    assert plan.settings.post_safety.gap_ms == 123
    assert plan.settings.data_dir == data.path
    assert plan.settings.deployment_secret.get_secret_value() == KEYS.deployment_secret


def test_a_large_model_may_take_its_time_to_load(data: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def allowed_s() -> tuple[float, float]:
        plan = make_plan(data, KEYS, Options(free_ports=True), random.Random(1))
        [worker] = [spec for spec in plan.processes if spec.stage is Stage.WORKERS]
        return worker.start_timeout_s, plan.start_timeout_s

    assert allowed_s() == (600, 600)
    monkeypatch.setenv("SLUICE_WORKER__START_TIMEOUT_S", "3600")
    assert allowed_s() == (3600, 3600)


def test_a_worker_may_finish_wait_for_its_heirs_and_write_all_of_it(
    data: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_WORKER__DRAIN_TIMEOUT_S", "70")
    plan = make_plan(data, KEYS, Options(free_ports=True), random.Random(1))
    [worker] = [spec for spec in plan.processes if spec.stage is Stage.WORKERS]
    assert worker.stop_timeout_s > 70 + HEIRS_READ_WITHIN_S + FLUSH_S


def test_a_gateway_may_take_its_time_to_leave(data: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def allowed_s() -> float:
        plan = make_plan(data, KEYS, Options(free_ports=True), random.Random(1))
        [gateway] = [spec for spec in plan.processes if spec.stage is Stage.GATEWAYS]
        return gateway.stop_timeout_s

    before = allowed_s()
    monkeypatch.setenv("SLUICE_GATEWAY__LEAVE_MS", "20000")
    assert allowed_s() == before + 18


def test_the_operators_own_secret_is_stronger_than_the_folders(
    data: DataFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def planned() -> str:
        plan = make_plan(data, KEYS, Options(free_ports=True), random.Random(1))
        assert plan.environment["SLUICE_DEPLOYMENT_SECRET"] == plan.settings.deployment_secret.get_secret_value()
        return plan.settings.deployment_secret.get_secret_value()

    monkeypatch.setenv("SLUICE_DEPLOYMENT_SECRET", "")
    assert planned() == KEYS.deployment_secret
    monkeypatch.delenv("SLUICE_DEPLOYMENT_SECRET")
    assert planned() == KEYS.deployment_secret
    config = tmp_path / "own.toml"
    config.write_text(f'deployment_secret = "{"f" * 40}"\n{LOCAL_CONFIG.read_text()}')
    monkeypatch.setenv("SLUICE_CONFIG", str(config))
    assert planned() == "f" * 40, "of the settings' file"
    monkeypatch.setenv("SLUICE_DEPLOYMENT_SECRET", "e" * 40)
    assert planned() == "e" * 40, "of the environment"


def test_a_secret_in_a_file_is_left_there(data: DataFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "secret").write_text("f" * 40)
    monkeypatch.setenv("SLUICE_DEPLOYMENT_SECRET_FILE", str(tmp_path / "secret"))
    plan = make_plan(data, KEYS, Options(free_ports=True), random.Random(1))
    assert plan.settings.deployment_secret.get_secret_value() == "f" * 40
    assert "f" * 40 not in plan.environment.values()


def test_what_asks_for_more_than_ours_does_is_somebody_elses(data: DataFolder) -> None:
    secured = {
        "SLUICE_KAFKA__SECURITY_PROTOCOL": "SSL",
        "SLUICE_REDIS__URL": "rediss://127.0.0.1:16379/0",
    }
    plan = make_plan(data, KEYS, Options(free_ports=True, environment=secured), random.Random(1))
    assert plan.kafka == ()
    assert not {spec.name for spec in plan.processes} & {"kafka", "redis", "redis-history"}


@pytest.mark.parametrize(
    "asked",
    [
        {"SLUICE_REDIS__PASSWORD": "p" * 12},
        {"SLUICE_REDIS__USERNAME": "sluice"},
        {"SLUICE_REDIS__URL": "redis://:secret@127.0.0.1:16379/0"},
    ],
)
def test_a_redis_that_asks_for_a_password_is_not_ours_which_knows_none(data: DataFolder, asked: dict[str, str]) -> None:
    plan = make_plan(data, KEYS, Options(free_ports=True, environment=asked), random.Random(1))
    assert not {spec.name for spec in plan.processes} & {"redis", "redis-history"}
    history = {
        "SLUICE_REDIS__HISTORY_URL": "redis://127.0.0.1:16380/0",
        "SLUICE_REDIS__HISTORY_PASSWORD": "p" * 12,
    }
    plan = make_plan(data, KEYS, Options(free_ports=True, environment=history), random.Random(1))
    assert {spec.name for spec in plan.processes} & {"redis", "redis-history"} == {"redis"}


def test_a_taken_port_is_named_with_the_way_out(data: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ports = free_ports(random.Random(3))
        monkeypatch.setenv("SLUICE_KAFKA__BOOTSTRAP", f"127.0.0.1:{next(ports)}")
        monkeypatch.setenv("SLUICE_REDIS__URL", f"redis://127.0.0.1:{next(ports)}/0")
        monkeypatch.setenv("SLUICE_BILLING__PORT", str(next(ports)))
        monkeypatch.setenv("SLUICE_GATEWAY__PORT", str(port))
        with pytest.raises(PlanError, match=rf"port {port} \(gateway\) is in use by .*SLUICE_GATEWAY__PORT"):
            make_plan(data, KEYS, Options(), random.Random(1))


def test_the_address_of_every_gateway_is_told(data: DataFolder) -> None:
    plan = make_plan(data, KEYS, Options(gateways=3, free_ports=True), random.Random(1))
    ports = [spec.environment["SLUICE_GATEWAY__PORT"] for spec in plan.processes if spec.stage is Stage.GATEWAYS]
    assert plan.gateway_urls == tuple(f"http://127.0.0.1:{port}" for port in ports)
    assert plan.gateway_url == plan.gateway_urls[0]


def test_a_port_beyond_the_last_one_is_named_with_the_way_out(
    data: DataFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    ports = free_ports(random.Random(7))
    monkeypatch.setenv("SLUICE_KAFKA__BOOTSTRAP", f"127.0.0.1:{next(ports)}")
    monkeypatch.setenv("SLUICE_REDIS__URL", f"redis://127.0.0.1:{next(ports)}/0")
    monkeypatch.setenv("SLUICE_BILLING__PORT", str(next(ports)))
    monkeypatch.setenv("SLUICE_GATEWAY__PORT", "65535")
    with pytest.raises(PlanError, match=r"gateway would need port 65536.*SLUICE_GATEWAY__PORT"):
        make_plan(data, KEYS, Options(gateways=2), random.Random(1))


def test_a_port_is_looked_at_where_the_gateway_will_listen(data: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    ports = free_ports(random.Random(5))
    monkeypatch.setenv("SLUICE_KAFKA__BOOTSTRAP", f"127.0.0.1:{next(ports)}")
    monkeypatch.setenv("SLUICE_REDIS__URL", f"redis://127.0.0.1:{next(ports)}/0")
    monkeypatch.setenv("SLUICE_BILLING__PORT", str(next(ports)))
    with socket.socket() as taken:
        taken.bind(("127.0.0.2", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setenv("SLUICE_GATEWAY__PORT", str(port))
        make_plan(data, KEYS, Options(), random.Random(1))
        for host in ("127.0.0.2", "0.0.0.0"):
            monkeypatch.setenv("SLUICE_GATEWAY__HOST", host)
            with pytest.raises(PlanError, match=rf"port {port} \(gateway\) is in use"):
                make_plan(data, KEYS, Options(), random.Random(1))
    monkeypatch.setenv("SLUICE_GATEWAY__HOST", "192.0.2.1")  # reserved for documentation: nobody's
    for free in (False, True):
        with pytest.raises(PlanError, match=r"gateway cannot listen on 192\.0\.2\.1: Cannot assign"):
            make_plan(data, KEYS, Options(free_ports=free), random.Random(1))


def test_servers_elsewhere_are_used_and_not_started(data: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_KAFKA__BOOTSTRAP", "kafka.example:9092")
    monkeypatch.setenv("SLUICE_REDIS__URL", "redis://redis.example:6379/3")
    monkeypatch.setenv("SLUICE_BILLING__CLICKHOUSE_URL", "http://clickhouse.example:8123/sluice")
    plan = make_plan(data, KEYS, Options(free_ports=True), random.Random(1))
    assert plan.kafka == ()
    assert Stage.INFRASTRUCTURE not in {spec.stage for spec in plan.processes}
    assert plan.settings.kafka.bootstrap == "kafka.example:9092"
    assert plan.settings.redis.url == "redis://redis.example:6379/3"
    assert plan.clickhouse_url == "http://clickhouse.example:8123/sluice"


def test_history_has_a_redis_of_its_own_where_ours_is(data: DataFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def started() -> tuple[set[str], str]:
        plan = make_plan(data, KEYS, Options(free_ports=True), random.Random(1))
        assert settings_with(plan.environment) == plan.settings
        return {spec.name for spec in plan.processes if "redis" in spec.name}, plan.settings.redis.history_url

    names, url = started()
    assert names == {"redis", "redis-history"}
    assert url.startswith("redis://127.0.0.1:")
    monkeypatch.setenv("SLUICE_REDIS__HISTORY_URL", "redis://history.example:6379/1")
    assert started() == ({"redis"}, "redis://history.example:6379/1")
    monkeypatch.setenv("SLUICE_REDIS__URL", "redis://redis.example:6379/3")
    monkeypatch.delenv("SLUICE_REDIS__HISTORY_URL")
    assert started() == (set(), "")
    monkeypatch.setenv("SLUICE_REDIS__HISTORY_URL", "redis://localhost:7000/0")
    assert started()[0] == {"redis-history"}


def test_a_listening_port_is_not_free() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert not is_free(taken.getsockname()[1])


def test_no_two_workers_compute_on_one_gpu(data: DataFolder) -> None:
    options = Options(engine="vllm", engine_args={"tensor_parallel_size": 2}, workers=2, free_ports=True)
    plan = make_plan(data, KEYS, replace(options, gpus=("4", "5", "6", "7")), random.Random(1))
    workers = [spec for spec in plan.processes if spec.stage is Stage.WORKERS]
    assert [spec.environment["CUDA_VISIBLE_DEVICES"] for spec in workers] == ["4,5", "6,7"]
    with pytest.raises(PlanError, match="2 workers want 4 GPUs, and there are 3"):
        make_plan(data, KEYS, replace(options, gpus=("0", "1", "2")), random.Random(1))


def test_a_worker_of_several_replicas_has_the_gpus_of_all(data: DataFolder) -> None:
    sizes: dict[str, bool | int | float | str] = {
        "tensor_parallel_size": 2, "pipeline_parallel_size": 1, "data_parallel_size": 2,
    }  # fmt: skip
    options = Options(engine="vllm", engine_args=sizes, workers=2, gpus=tuple("01234567"), free_ports=True)
    plan = make_plan(data, KEYS, options, random.Random(1))
    workers = [spec for spec in plan.processes if spec.stage is Stage.WORKERS]
    assert [spec.environment["CUDA_VISIBLE_DEVICES"] for spec in workers] == ["0,1,2,3", "4,5,6,7"]


@pytest.mark.parametrize(("engine", "gpus"), [("vllm", ()), ("simulated", ("0",))])
def test_who_needs_no_gpu_is_given_none(data: DataFolder, engine: str, gpus: tuple[str, ...]) -> None:
    plan = make_plan(data, KEYS, Options(engine=engine, workers=2, gpus=gpus, free_ports=True), random.Random(1))
    workers = [spec for spec in plan.processes if spec.stage is Stage.WORKERS]
    assert not any(spec.environment.get("CUDA_VISIBLE_DEVICES") for spec in workers)


@pytest.mark.parametrize(
    ("named", "seen"), [("-1", ()), ("2,-1,3", ("2",)), ("", ()), ("GPU-a, GPU-b", ("GPU-a", "GPU-b"))]
)
def test_gpus_are_those_that_cuda_would_see(named: str, seen: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert visible_gpus() == seen


def test_a_tenants_file_of_the_operators_own_is_the_one_that_counts(
    data: DataFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(data, KEYS, Options(free_ports=True), random.Random(1))
    assert plan.settings.tenants_file == data.tenants_file
    own = tmp_path / "own.toml"
    monkeypatch.setenv("SLUICE_TENANTS_FILE", str(own))
    plan = make_plan(data, KEYS, Options(free_ports=True), random.Random(1))
    assert (plan.settings.tenants_file, tenants_file_of(data)) == (own, own)
    keys = provision_keys(data, own)
    assert not own.exists()
    assert (keys.api_keys, keys) == ({}, provision_keys(data, own))


def test_a_model_that_embeds_comes_with_a_pool_and_a_worker_of_its_own_where_it_is_asked_for(data: DataFolder) -> None:
    chats = {"ttft_ms": 5.0}
    options = Options(engine="simulated", engine_args=chats, added=(EMBEDDINGS,), free_ports=True)
    plan = make_plan(data, KEYS, options, random.Random(1))
    [chat, embeds] = plan.settings.pools
    assert (chat.engine_args, embeds.engine_args) == (chats, {}), "arguments are those of the engine that chats"
    assert (embeds.name, embeds.engine, embeds.workers) == ("embeddings", "simulated", 1)
    workers = [spec.environment["SLUICE_WORKER__POOL"] for spec in plan.processes if spec.stage is Stage.WORKERS]
    assert workers == ["default", "embeddings"]
    [_, model] = plan.settings.models
    assert model.embedding is not None
    assert (model.pool, model.embedding.offered) == ("embeddings", [32, 64, 128])
    real = make_plan(data, KEYS, Options(added=(EMBEDDINGS,), free_ports=True), random.Random(1)).settings.pools[1]
    assert (real.engine, real.engine_args["max_model_len"]) == ("vllm", model.context_window)
    without = make_plan(data, KEYS, Options(free_ports=True), random.Random(1))
    assert [each.name for each in without.settings.models] == ["sluice-tiny"]


def test_several_pools_run_at_once_and_what_is_chosen_of_engines_is_of_all_that_chat(data: DataFolder) -> None:
    chats, added = {"ttft_ms": 5.0}, (EMBEDDINGS, SMALL)
    options = Options(engine="simulated", engine_args=chats, max_running=2, added=added, free_ports=True)
    plan = make_plan(data, KEYS, options, random.Random(1))
    pools = {pool.name: (pool.engine_args, pool.max_running) for pool in plan.settings.pools}
    assert pools == {"default": (chats, 2), "embeddings": ({}, 64), "small": (chats, 2)}
    workers = [spec.environment["SLUICE_WORKER__POOL"] for spec in plan.processes if spec.stage is Stage.WORKERS]
    assert workers == ["default", "embeddings", "small"]
    [small] = [model for model in plan.settings.models if model.pool == "small"]
    assert (small.name, small.fallback) == ("sluice-small", "sluice-tiny")


def test_of_the_catalogue_no_more_is_written_than_was_said(data: DataFolder) -> None:
    """A process of another release reads it too, and knows no field that it does not have."""
    plan = make_plan(data, KEYS, Options(free_ports=True), random.Random(1))
    [pool] = json.loads(plan.environment["SLUICE_POOLS"])
    assert {*pool} == {"name", "engine", "engine_args", "gpu_hour"}
    assert "SLUICE_MODELS" not in plan.environment, "it has those of its own settings"
    added = make_plan(data, KEYS, Options(free_ports=True, added=(EMBEDDINGS,)), random.Random(1))
    for model in json.loads(added.environment["SLUICE_MODELS"]):
        assert not {*model} & {"alternates", "fallback", "reasoning_parser"}
