"""The commands on a data folder whose stack is only written down: what they read there, send and show."""

import fcntl
import json
import os
import pty
import re
import signal
import stat
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, NoReturn

import httpx
import pytest

from deploy.cli import alerts, app, backup, cluster, inspection, lifecycle, overview, questions, trace
from deploy.cli import billing as billing_commands
from deploy.cli.app import CommandError
from deploy.cli.inspection import without_credentials
from deploy.local.data_folder import DataFolder, Keys, ProcessRecord, RunRecord
from deploy.local.plan import LOCAL_CONFIG
from deploy.local.supervision import State
from deploy.paths import DEFAULT_DATA
from streams.metadata.engine import FILE_NAME
from tests.servers import proxy_of_the_environment


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLUICE_")]:
        monkeypatch.delenv(name)


@contextmanager
def running(path: Path, **record: str) -> Iterator[DataFolder]:
    """A folder as a runner with these SLUICE_* settings leaves it while it lives."""
    folder = DataFolder(path)
    with folder.lock():
        folder.write_keys(Keys(deployment_secret="k" * 40, api_keys={"demo": "sk-sluice-x"}))
        folder.write_run(run_of(os.getpid(), **record))
        yield folder


def run_of(
    pid: int, *, redis: str = "redis://127.0.0.1:1/0", clickhouse: str = "http://127.0.0.1:1", **environment: str
) -> RunRecord:
    return RunRecord(
        supervisor_pid=pid, engine="simulated", gateway="http://127.0.0.1:1", kafka="127.0.0.1:1",
        redis=redis, clickhouse=clickhouse,
        environment={"SLUICE_CONFIG": str(LOCAL_CONFIG)}
        | {f"SLUICE_{name}": value for name, value in environment.items()},
    )  # fmt: skip


@contextmanager
def billing(columns: Sequence[str] = ("one",), row: Sequence[Any] = (1,)) -> Iterator[tuple[int, list[str]]]:
    """Answers any query with one row; its port, and the Authorization headers that came."""
    seen: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            seen.append(self.headers["Authorization"])
            self.rfile.read(int(self.headers["Content-Length"]))
            answer = json.dumps({"columns": columns, "rows": [row], "truncated": False}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: Any) -> None:
            """Nobody reads it."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port, seen
        finally:
            server.shutdown()
            thread.join(timeout=60)


def test_a_query_bears_the_password_that_the_processes_were_started_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also from a terminal that has another one, or none."""
    with (
        billing() as (port, seen),
        running(tmp_path, BILLING__PORT=str(port), DEPLOYMENT_SECRET="o" * 40),
    ):
        questions.sql("SELECT 1 AS one", data=tmp_path, as_json=True)
        monkeypatch.setenv("SLUICE_DEPLOYMENT_SECRET", "t" * 40)
        questions.sql("SELECT 1 AS one", data=tmp_path, as_json=True)
        capsys.readouterr()
        cluster.secret("billing", data=tmp_path)
    [password] = capsys.readouterr().out.split()
    assert seen == [f"Bearer {password}"] * 2
    assert "o" * 40 not in password, "the deployment's secret travels to nobody"


WIDE = [f"column_{number}" for number in range(41)]
MARKED = ["[red]as it is[/red] :smile:", None, "2026-11-22 12:00:00.000", *range(38)]
PIPE = None


def shown_by_sql(path: Path, columns: Sequence[str], row: Sequence[Any], width: int | None) -> list[str]:
    """The lines that `sluice sql` writes to a terminal so wide, or into a pipe."""
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    with billing(columns, row) as (port, _), running(path, BILLING__PORT=str(port), DEPLOYMENT_SECRET="o" * 40):
        ours, theirs = pty.openpty() if width else os.pipe()
        if width:
            fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, width, 0, 0))
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "deploy.cli", "sql", "SELECT * FROM usage", "--data", str(path)],
            env=environment | {"TERM": "xterm"}, stdin=subprocess.DEVNULL, stdout=theirs, stderr=subprocess.PIPE,
        ) as command:  # fmt: skip
            os.close(theirs)
            written = b""
            with suppress(OSError):  # so a terminal ends whose other side was closed
                while piece := os.read(ours, 65_536):
                    written += piece
            os.close(ours)
            _, complaint = command.communicate(timeout=60)
        assert command.returncode == 0, complaint
    return re.sub(r"\x1b\[[0-9;]*m", "", written.decode()).splitlines()


@pytest.mark.parametrize("width", [80, PIPE])
def test_a_row_that_is_wider_than_the_output_is_shown_column_by_column(tmp_path: Path, width: int | None) -> None:
    first, *lines = shown_by_sql(tmp_path, WIDE, MARKED, width)
    assert first == "row 1"
    told = [tuple(part.strip() for part in line.split(":", 1)) for line in lines]
    assert told == [(name, "" if value is None else str(value)) for name, value in zip(WIDE, MARKED, strict=True)]


@pytest.mark.parametrize("width", [80, PIPE])
def test_rows_that_fit_are_shown_as_a_table(tmp_path: Path, width: int | None) -> None:
    lines = shown_by_sql(tmp_path, ["model", "cost"], ["[tiny]", "0.01"], width)
    assert len(lines) == 5
    assert [part.strip() for part in lines[1].strip("┃").split("┃")] == ["model", "cost"]
    assert [part.strip() for part in lines[3].strip("│").split("│")] == ["[tiny]", "0.01"]


def test_a_query_goes_where_billing_is_reached_and_not_where_it_listens(tmp_path: Path) -> None:
    with (
        billing() as (port, seen),
        running(
            tmp_path, BILLING__HOST="192.0.2.1", BILLING__URL=f"http://127.0.0.1:{port}", DEPLOYMENT_SECRET="o" * 40
        ),
    ):
        questions.sql("SELECT 1 AS one", data=tmp_path, as_json=True)
    assert len(seen) == 1


def test_a_query_bears_its_password_past_the_proxy_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        billing() as (port, seen),
        running(tmp_path, BILLING__PORT=str(port), DEPLOYMENT_SECRET="o" * 40),
        proxy_of_the_environment(monkeypatch) as told,
        suppress(CommandError, httpx.HTTPError),
    ):
        questions.sql("SELECT 1 AS one", data=tmp_path, as_json=True)
    assert (len(seen), told) == (1, [])


def test_the_record_of_a_run_is_for_its_owner_alone(tmp_path: Path) -> None:
    with running(tmp_path, DEPLOYMENT_SECRET="o" * 40) as folder:
        assert stat.S_IMODE(folder.run_file.stat().st_mode) == 0o600


def test_a_status_shows_no_password(tmp_path: Path) -> None:
    urls = {
        "redis": "rediss://sluice:hunter2@redis.example:6380/3?timeout=1",
        "clickhouse": "https://sluice:p%40hunter2@clickhouse.example:8443/usage",
    }
    with running(tmp_path, **urls, REDIS__PASSWORD="hunter2") as folder:
        status = overview.status_of(folder)
    assert status["redis"] == "rediss://***@redis.example:6380/3?timeout=1"
    assert status["clickhouse"] == "https://***@clickhouse.example:8443/usage"
    assert "hunter2" not in json.dumps(status)


def test_a_status_tells_the_address_of_every_gateway(tmp_path: Path) -> None:
    with running(tmp_path) as folder:
        run = folder.read_run()
        assert run is not None
        assert overview.status_of(folder)["gateways"] == [run.gateway], "also of a run that has told but the first"
        urls = ["http://127.0.0.1:1", "http://127.0.0.1:2"]
        folder.write_run(run.model_copy(update={"gateways": urls}))
        assert overview.status_of(folder)["gateways"] == urls


def test_a_url_without_credentials_is_shown_as_it_is() -> None:
    assert without_credentials("redis://127.0.0.1:16379/0") == "redis://127.0.0.1:16379/0"


def test_a_status_with_a_process_that_is_not_ready_is_no_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(inspection, "CALL_TIMEOUT_S", 0.3)
    with running(tmp_path, KAFKA__BOOTSTRAP="127.0.0.1:1") as folder:
        run = folder.read_run()
        assert run is not None
        failed = ProcessRecord(name="worker-1", state=State.FAILED, detail="ended by exit code 2")
        folder.write_run(run.model_copy(update={"processes": [failed]}))
        for as_json in (True, False):
            with pytest.raises(SystemExit, match="1"):
                overview.status(data=tmp_path, as_json=as_json)
            assert "ended by exit code 2" in capsys.readouterr().out


SLEEPS = "import time; time.sleep(3600)"
HOLDS = f"""
import sys
from pathlib import Path
from deploy.local.data_folder import DataFolder
with DataFolder(Path(sys.argv[1])).lock():
    print("locked", flush=True)
    {SLEEPS}
"""


def test_what_is_stopped_is_who_holds_the_folder_and_not_who_held_it_once(tmp_path: Path) -> None:
    """Between its lock and its first word in run.json, an earlier run's word stands there; its pid is a stranger's."""
    with (
        subprocess.Popen([sys.executable, "-c", SLEEPS]) as stranger,
        subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder,
    ):
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "locked\n"
            DataFolder(tmp_path).write_run(run_of(stranger.pid))
            with pytest.raises(CommandError, match="just beginning"):
                overview.status(data=tmp_path, as_json=True)
            lifecycle.down(data=tmp_path)
            assert holder.wait(timeout=60) == -signal.SIGTERM
            assert stranger.poll() is None
        finally:
            stranger.kill()
            holder.kill()
    with pytest.raises(CommandError, match="nothing runs"):
        lifecycle.down(data=tmp_path)


def test_what_restores_a_backup_is_not_stopped(tmp_path: Path) -> None:
    def start() -> None:
        lifecycle._start_detached(DataFolder(tmp_path), [])

    for command in (start, lambda: lifecycle.down(data=tmp_path), lambda: overview.status(data=tmp_path)):
        with DataFolder(tmp_path).lock(restores=True), pytest.raises(CommandError, match="being restored") as told:
            command()
        assert "sluice down" not in str(told.value)


def test_without_kafka_a_status_says_what_it_knows_and_warns_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(inspection, "CALL_TIMEOUT_S", 0.3)
    with running(tmp_path, KAFKA__BOOTSTRAP="127.0.0.1:1"):
        overview.status(data=tmp_path, as_json=True)
        shown, warnings = capsys.readouterr()
        assert json.loads(shown)["lag"] is None
        assert json.loads(shown)["gateway"] == "http://127.0.0.1:1"
        assert len(warnings.splitlines()) == 1
        overview.status(data=tmp_path, as_json=False)
        shown, warnings = capsys.readouterr()
        assert "http://127.0.0.1:1" in shown
        assert len(warnings.splitlines()) == 1


def test_where_nothing_runs_the_folder_counts_that_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = DataFolder(tmp_path / "data")
    cluster.migrate_database(folder.path)
    assert str(folder.path / FILE_NAME) in capsys.readouterr().err
    assert (folder.path / FILE_NAME).exists()
    folder.write_keys(Keys(deployment_secret="f" * 40))
    cluster.secret("request-signing", folder.path)
    assert capsys.readouterr().out.strip() == "f" * 40
    monkeypatch.setenv("SLUICE_DEPLOYMENT_SECRET", "e" * 40)
    cluster.secret("request-signing", folder.path)
    assert capsys.readouterr().out.strip() == "e" * 40


def test_where_nothing_runs_the_advice_is_for_the_folder_that_was_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=f"start it with: sluice up --data {tmp_path}$"):
        overview.status(data=tmp_path)
    assert str(app.nothing_runs(DataFolder(DEFAULT_DATA))).endswith("sluice up")


@pytest.mark.parametrize(
    "command", [lambda data: cluster.secret("billing", data), lambda data: alerts.alerts_secret(None, data)]
)
def test_where_nothing_was_ever_started_no_secret_is_shown_and_that_is_said(
    tmp_path: Path, command: Callable[[Path], None]
) -> None:
    folder = tmp_path / "nowhere"
    with pytest.raises(CommandError, match=f"none is set, and nothing runs on {folder}; start it with: sluice up"):
        command(folder)
    assert not folder.exists()


COMMANDS: Mapping[str, tuple[object, Callable[[Path], object]]] = {
    "trace": (trace, lambda data: trace.trace("resp_local-0_" + "0" * 32, data)),
    "billing inspect": (billing_commands, billing_commands.inspect),
    "billing skip": (billing_commands, lambda data: billing_commands.skip(0, data)),
    "billing recut": (billing_commands, lambda data: billing_commands.recut(0, 0, data)),
    "migrate": (cluster, cluster.migrate_database),
    "secret": (cluster, lambda data: cluster.secret("billing", data)),
    "backup": (backup, lambda data: backup.backup_database(data / "file", data)),
    "restore": (backup, lambda data: backup.restore_database(data / "file", data)),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_takes_the_settings_of_the_folder_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    class Asked(Exception):
        pass

    def ask(folder: DataFolder) -> NoReturn:
        assert folder.path == tmp_path
        raise Asked

    module, run = COMMANDS[command]
    monkeypatch.setattr(module, "settings_at", ask)
    with pytest.raises(Asked):
        run(tmp_path)


def test_settings_are_of_the_stack_that_runs_else_of_the_folder_or_of_a_file_that_names_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "DEFAULT_DATA", tmp_path / "default")
    named, default = DataFolder(tmp_path / "named"), DataFolder(tmp_path / "default")
    for folder in (named, default):
        assert app.settings_at(folder).data_dir == folder.path
    config = tmp_path / "settings.toml"
    own = f'region = "elsewhere"\ndata_dir = "{tmp_path / "of-the-file"}"'
    config.write_text(LOCAL_CONFIG.read_text().replace('region = "local"', own))
    monkeypatch.setenv("SLUICE_CONFIG", str(config))
    for folder, data_dir in ((named, named.path), (default, tmp_path / "of-the-file")):
        found = app.settings_at(folder)
        assert (found.region, found.data_dir) == ("elsewhere", data_dir)
    with running(named.path, DATA_DIR=str(named.path)):
        assert app.settings_at(named).region == "local", "as its processes were started"


def test_the_tables_of_the_stack_that_runs_are_made_by_one_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with running(tmp_path, DATA_DIR=str(tmp_path)):
        cluster.migrate_database(tmp_path)
        assert "already" not in capsys.readouterr().err
        cluster.migrate_database(tmp_path)
        assert "already" in capsys.readouterr().err
    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600
