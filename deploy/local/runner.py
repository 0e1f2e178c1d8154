"""A whole local stack: `Stack` starts every process on one data folder and stops them again."""

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.markup import escape

from deploy.install.kafka_jars import has_jars
from deploy.local import guardian
from deploy.local.data_folder import DataFolder, DataFolderError, Keys, ProcessRecord, RunRecord
from deploy.local.first_run import provision_keys
from deploy.local.folders import make_empty
from deploy.local.kafka_broker import KafkaNode, format_storage, is_formatted, write_properties
from deploy.local.notifier import OnChange
from deploy.local.plan import INFRASTRUCTURE_TIMEOUT_S, Options, Plan, make_plan, tenants_file_of
from deploy.local.supervision import RestartPolicy
from deploy.local.supervisor import Supervisor, SupervisorError, stop_timeout_s
from streams.metadata.schema import migrate
from streams.provisioning import provision, wait_for_brokers
from streams.toml_directory import read_tenants

BROKER_LOOK_S = 1.0
KILL_NOTICED_TIMEOUT_S = 10.0

Say = Callable[[str], None]


def _silent(_text: str) -> None:
    """Progress that nobody wants to see."""


def _unseen(_record: ProcessRecord) -> None:
    """Changes that nobody wants to see."""


class StartInterrupted(Exception):
    """Somebody wants no stack any more; nothing of it is left."""


class Stack:
    """Every process on one data folder, started by `start` or `with`, stopped by `stop` or the block's end.

    One per data folder, held by a lock. Raises DataFolderError, PlanError, SettingsError, SupervisorError, DriftError,
    MetadataUnavailable, each with a first line that says what is wrong; nothing is left running then. Nor is it after
    StartInterrupted, which ends a start in which `interrupted` is set before the infrastructure is ready.
    """

    def __init__(
        self,
        data_dir: Path,
        options: Options = Options(),
        *,
        say: Say = _silent,
        on_change: OnChange = _unseen,
        interrupted: threading.Event | None = None,
        policy: RestartPolicy = RestartPolicy(),
        seed: int | None = None,
    ) -> None:
        self.data = DataFolder(data_dir)
        self._options = options
        self._say = say
        self._on_change = on_change
        self._interrupted = threading.Event() if interrupted is None else interrupted
        self._policy = policy
        self._rng = random.Random(seed)  # noqa: S311
        self._resources = contextlib.ExitStack()
        self._plan: Plan | None = None
        self._keys: Keys | None = None
        self._supervisor: Supervisor | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def plan(self) -> Plan:
        assert self._plan is not None, "the stack was started"
        return self._plan

    @property
    def keys(self) -> Keys:
        assert self._keys is not None, "the stack was started"
        return self._keys

    @property
    def supervisor(self) -> Supervisor:
        assert self._supervisor is not None, "the stack was started"
        return self._supervisor

    @property
    def gateway_url(self) -> str:
        return self.plan.gateway_url

    @property
    def websocket_url(self) -> str:
        return f"ws{self.plan.gateway_url.removeprefix('http')}/v1/stream"

    def api_key(self, tenant_id: str = "demo") -> str:
        return self.keys.api_keys[tenant_id]

    def clear(self) -> None:
        """Ends what an earlier run left behind and empties its folder. Before the start.

        Raises DataFolderError when a stack runs on it, or when it holds something else than a stack's state.
        """
        if not self.data.is_ours():
            raise DataFolderError(f"{self.data.path} is not empty and was not made by Sluice; name another folder")
        with self.data.lock():
            self._end_leftovers()
            self.data.clear()

    def start(self) -> None:
        """Returns when the infrastructure is ready and all else was started; see `wait_ready`."""
        try:
            self._start()
        except BaseException:
            self.stop(kill=True)
            raise

    def _start(self) -> None:
        self._resources.enter_context(self.data.lock())
        self._say(f"Sluice starts on {escape(str(self.data.path))}")
        self._end_leftovers()
        tenants_file = tenants_file_of(self.data, self._options.environment)
        self._keys = provision_keys(self.data, tenants_file)
        self._plan = plan = make_plan(self.data, self._keys, self._options, self._rng)
        make_empty(self.data.scratch)
        self._prepare_infrastructure(plan)
        self._supervisor = supervisor = Supervisor(
            plan.processes, self._environment(plan), self.data.logs, self._on_change, self._policy, self._save
        )
        supervisor.start(infrastructure=True)
        supervisor.wait_ready(INFRASTRUCTURE_TIMEOUT_S, supervisor.infrastructure(), self._raise_if_interrupted)
        self._wait_for_brokers(plan)
        began_s = time.monotonic()
        migrate(plan.settings.metadata, plan.settings.data_dir)
        tenants = [tenant.tenant_id for tenant in read_tenants(plan.settings.tenants_file)]
        report = provision(plan.settings.kafka, plan.settings.topics.all(tenants))
        self._say(
            f"topics: {len(report.created)} created, {len(report.present)} present ({time.monotonic() - began_s:.1f} s)"
        )
        supervisor.start(infrastructure=False)

    def _raise_if_interrupted(self) -> None:
        if self._interrupted.is_set():
            raise StartInterrupted

    def _wait_for_brokers(self, plan: Plan) -> None:
        deadline_s = time.monotonic() + INFRASTRUCTURE_TIMEOUT_S
        while True:
            self._raise_if_interrupted()
            try:
                return wait_for_brokers(plan.settings.kafka, BROKER_LOOK_S, max(1, len(plan.kafka)))
            except TimeoutError:
                if time.monotonic() > deadline_s:
                    raise

    def _environment(self, plan: Plan) -> dict[str, str]:
        return {
            **plan.environment, "TMPDIR": str(self.data.scratch), "VLLM_RPC_BASE_PATH": str(self.data.sockets),
        }  # fmt: skip

    def _end_leftovers(self) -> None:
        leftovers = self.data.leftovers()
        if leftovers:
            self._say(f"ending what an earlier run left behind: {', '.join(process.name for process in leftovers)}")
            guardian.end({process.pid for process in leftovers if process.pid is not None})

    def _prepare_infrastructure(self, plan: Plan) -> None:
        self.data.redis.mkdir(parents=True, exist_ok=True)
        for node in plan.kafka:
            self._prepare_broker(node)

    def _prepare_broker(self, node: KafkaNode) -> None:
        if not has_jars(node.libs):
            raise SupervisorError("Kafka's jars are missing; fetch them with: python -m deploy.install.kafka_jars")
        write_properties(node)
        if is_formatted(node.directory):
            return
        self._say(f"formatting the storage of {node.directory.name}")
        try:
            format_storage(node)
        except FileNotFoundError:
            raise SupervisorError("Java is missing; install it with: python3 -m deploy.install.bootstrap") from None
        except subprocess.CalledProcessError as error:
            raise SupervisorError(f"Kafka's storage could not be formatted\n{error.stdout}{error.stderr}") from None

    def _save(self) -> None:
        if self._supervisor is None:
            return
        self.data.write_run(
            RunRecord(
                supervisor_pid=os.getpid(),
                engine=self.plan.engine,
                gateway=self.plan.gateway_url,
                gateways=list(self.plan.gateway_urls),
                kafka=self.plan.settings.kafka.bootstrap,
                redis=self.plan.settings.redis.url,
                clickhouse=self.plan.clickhouse_url,
                environment=dict(self.plan.environment),
                processes=self._supervisor.records(),
                start_timeout_s=self.plan.start_timeout_s,
                stop_timeout_s=stop_timeout_s(self.plan.processes),
            )
        )

    def wait_ready(self, timeout_s: float | None = None, *names: str) -> None:
        """Until these, or all that are not stopped, are ready; by default as long as the plan allows.

        Raises SupervisorError.
        """
        self.supervisor.wait_ready(self.plan.start_timeout_s if timeout_s is None else timeout_s, names or None)

    def processes(self) -> list[ProcessRecord]:
        return self.supervisor.records()

    def record(self, name: str) -> ProcessRecord:
        """Raises KeyError."""
        return self.supervisor.process(name).record()

    def log(self, name: str) -> str:
        """All that the process wrote. Raises KeyError."""
        return self.supervisor.process(name).log.read_text(errors="replace")

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Signals one process and returns when its end was noticed; it is restarted like after any crash."""
        process = self.supervisor.process(name)
        restarts = process.record().restarts
        pid = process.send(number)
        takes_s = 0.0 if number == signal.SIGKILL else process.spec.stop_timeout_s
        timeout_s = KILL_NOTICED_TIMEOUT_S + takes_s
        deadline_s = time.monotonic() + timeout_s
        while (now := process.record()).pid == pid and now.restarts == restarts:
            if time.monotonic() > deadline_s:
                raise SupervisorError(f"{name} still lives {timeout_s:g} s after signal {number}")
            time.sleep(0.01)

    def stop(self, *, kill: bool = False) -> None:
        """Stops everything; again does nothing. With `kill`, at once."""
        try:
            if self._supervisor is not None:
                self._supervisor.stop(kill=kill)
                self._save()
                make_empty(self.data.scratch)
        finally:
            self._supervisor = None
            self._resources.close()


def simulated(engine_args: Mapping[str, bool | int | float | str] | None = None, **options: int) -> Options:
    """Options of a test's stack: free ports, the simulated engine, `workers=`, `max_running=`, …."""
    return Options(engine="simulated", engine_args=engine_args or {}, free_ports=True, **options)  # type: ignore[arg-type]
