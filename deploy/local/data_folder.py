"""The one folder that holds a stack's state: what lies where, who runs on it, and the keys made on the first run."""

import fcntl
import json
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from deploy.local.folders import write_atomically
from deploy.local.process_identity import identity, is_same_process
from deploy.local.supervision import State
from streams.settings import MIN_SECRET_CHARS

RUN_FILE_VERSION: Literal[1] = 1

LOOK_TIMEOUT_S = 1.0
LOOK_RETRY_S = 0.01

MAX_SOCKET_PATH_BYTES = 107
MAX_SOCKET_NAME_BYTES = 37
"""A slash and the UUID that names each of vLLM's sockets."""


_RESTORES = "restores\n"
"""In the lock, in the place of a supervisor's pid: nobody may end it as they would a stack."""


class DataFolderError(Exception):
    """The folder is in use, or holds something unreadable. One line."""


class ProcessRecord(BaseModel):
    """`identity` names, with the pid, one process for ever."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    pid: int | None = None
    identity: str = ""
    state: State
    detail: str = ""
    restarts: int = 0
    failed_starts: int = Field(default=0, description="In a row.")
    health_port: int | None = None
    log: str = ""


class RunRecord(BaseModel):
    """`run.json`, readable by its owner alone: what runs on this folder, written by its supervisor at every change."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    version: Literal[1] = RUN_FILE_VERSION
    supervisor_pid: int
    engine: str
    gateway: str = Field(description="The first of `gateways`.")
    gateways: list[str] = Field(default_factory=list)
    kafka: str
    redis: str
    clickhouse: str
    environment: dict[str, str] = Field(default_factory=dict, description="SLUICE_* of every process, with secrets.")
    processes: list[ProcessRecord] = Field(default_factory=list)
    start_timeout_s: float = Field(default=0.0, description="Of all, once the infrastructure is ready.")
    stop_timeout_s: float = Field(default=0.0, description="After that, a stop has killed what is left.")


class ProducerFile(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    key_id: str
    key_file: str


class Keys(BaseModel):
    """`keys.json`, readable by its owner alone: raw keys of the development tenants, and the deployment's secret."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    deployment_secret: str = Field(min_length=MIN_SECRET_CHARS)
    api_keys: dict[str, str] = Field(default_factory=dict, description="By tenant.")
    producers: dict[str, ProducerFile] = Field(default_factory=dict, description="By tenant.")


class DataFolder:
    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    def kafka(self, brokers: int) -> tuple[Path, ...]:
        """A folder for each of so many brokers. What one broker alone wrote, no cluster of several reads."""
        if brokers == 1:
            return (self.path / "kafka",)
        return tuple(self.path / f"kafka-{number}" for number in range(1, brokers + 1))

    @property
    def redis(self) -> Path:
        return self.path / "redis"

    @property
    def scratch(self) -> Path:
        """Temporary files of every process: one that is killed leaves them behind."""
        return self.path / "tmp"

    @property
    def sockets(self) -> Path:
        """Where an engine makes its sockets: among the temporary files, unless paths there are too long (`unix(7)`)."""
        length = len(os.fsencode(self.scratch)) + MAX_SOCKET_NAME_BYTES
        return self.scratch if length <= MAX_SOCKET_PATH_BYTES else Path(tempfile.gettempdir())

    @property
    def tenants_file(self) -> Path:
        return self.path / "tenants.toml"

    @property
    def run_file(self) -> Path:
        return self.path / "run.json"

    @property
    def keys_file(self) -> Path:
        return self.path / "keys.json"

    def producer_key_file(self, tenant_id: str) -> Path:
        return self.path / "producers" / f"{tenant_id}.pem"

    @property
    def lock_file(self) -> Path:
        return self.path / "run.lock"

    def make(self) -> None:
        """Prompts, answers and keys lie in it: it is for its owner alone, unless something else lay there before."""
        ours = self.is_ours()
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        if ours:
            self.path.chmod(0o700)

    @contextmanager
    def lock(self, look_timeout_s: float = LOOK_TIMEOUT_S, *, restores: bool = False) -> Iterator[None]:
        """Held by the one supervisor of this folder, or by who restores a backup into it (`restores`). The kernel frees
        it when that process ends, however it ends.

        Raises DataFolderError when another one holds it. Who only looks whether one does holds it for a moment.
        """
        self.make()
        deadline_s = time.monotonic() + look_timeout_s
        with self.lock_file.open("a") as file:
            while not _take(file, fcntl.LOCK_EX):
                if self.supervisor_pid() is not None or self.is_restored() or time.monotonic() > deadline_s:
                    raise DataFolderError(self.why_locked())
                time.sleep(LOOK_RETRY_S)
            file.truncate(0)
            file.write(_RESTORES if restores else f"{os.getpid()} {identity(os.getpid())}\n")
            file.flush()
            try:
                yield
            finally:
                file.truncate(0)

    def why_locked(self) -> str:
        """In a line, with what to do about it; of a folder that is locked."""
        if self.is_restored():
            return f"a backup is being restored into {self.path}; wait until that is done"
        pid = self.supervisor_pid()
        return f"already running on {self.path}{'' if pid is None else f' (pid {pid})'}; stop it with: sluice down"

    def is_restored(self) -> bool:
        """Whether somebody restores a backup into it."""
        return self.is_locked() and self.lock_file.read_text() == _RESTORES

    def is_locked(self) -> bool:
        """Whether a supervisor lives on this folder, or somebody restores a backup into it."""
        try:
            with self.lock_file.open() as file:
                return not _take(file, fcntl.LOCK_SH)  # beside others who look
        except FileNotFoundError:
            return False

    def supervisor_pid(self) -> int | None:
        """Of the supervisor that lives on this folder; None when there is none, or when it is just beginning."""
        if not self.is_locked():
            return None
        try:
            pid, known = self.lock_file.read_text().split()
        except ValueError:
            return None
        # A pid alone may be a stranger's by now: what one that was killed wrote stands there until the next one writes.
        return int(pid) if is_same_process(int(pid), known) else None

    def read_run(self) -> RunRecord | None:
        """The last record, of a run that may be over; None when there is none that can be read."""
        try:
            return RunRecord.model_validate_json(self.run_file.read_text())
        except (OSError, ValidationError):
            return None

    def write_run(self, run: RunRecord) -> None:
        write_atomically(self.run_file, run.model_dump_json(indent=1), mode=0o600)

    def leftovers(self) -> list[ProcessRecord]:
        """Processes of a run whose supervisor died, that live on: the same pid of the same process."""
        run = self.read_run()
        if run is None:
            return []
        return [
            process
            for process in run.processes
            if process.pid is not None and is_same_process(process.pid, process.identity)
        ]

    def keys(self) -> Keys:
        """Raises DataFolderError."""
        try:
            return Keys.model_validate_json(self.keys_file.read_text())
        except OSError:
            raise DataFolderError(f"no keys in {self.path}; start once with: sluice up") from None
        except ValidationError as error:
            raise DataFolderError(f"{self.keys_file}: {error.errors()[0]['msg']}") from None

    def write_keys(self, keys: Keys) -> None:
        write_atomically(self.keys_file, json.dumps(keys.model_dump(), indent=1), mode=0o600)

    def is_ours(self) -> bool:
        """Whether nothing is lost that a stack has not made: a folder that had a supervisor, an empty one, or none."""
        return self.lock_file.exists() or not self.path.exists() or not any(self.path.iterdir())

    def clear(self) -> None:
        """Deletes everything but the lock, which the caller holds."""
        for entry in self.path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            elif entry != self.lock_file:
                entry.unlink()


def _take(lock_file: IO[str], how: int) -> bool:
    """Whether the lock was to be had at once. It goes with the file."""
    try:
        fcntl.flock(lock_file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def new_deployment_secret() -> str:
    return secrets.token_urlsafe(48)
