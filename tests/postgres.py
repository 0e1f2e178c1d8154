"""A Postgres of the tests' own: a cluster in a folder, started from the system's programs, reached on loopback.

Postgres refuses to run as root, so there it runs as another user, to whom the folder belongs then.
"""

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from deploy.install.prerequisites import postgres_programs
from tests.servers import free_ports, server, until

USERS: Final = ("postgres", "nobody")
INITDB_TIMEOUT_S: Final = 300


def why_not() -> str | None:
    """Why no cluster can be started here."""
    if postgres_programs() is None:
        return "Postgres is not installed (Debian's package: postgresql)"
    if os.geteuid() == 0 and (_user() is None or shutil.which("setpriv") is None):
        return "Postgres does not run as root, and there is no other user for it"
    return None


def _user() -> pwd.struct_passwd | None:
    known = {each.pw_name: each for each in pwd.getpwall()}
    return next((known[name] for name in USERS if name in known), None)


def _as_its_user(command: Sequence[str]) -> list[str]:
    user = _user()
    if os.geteuid() != 0 or user is None:
        return [*command]
    # It takes the place of setpriv: whoever ends the process ends Postgres.
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--", *command]


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """The URL of an empty database, until the block ends. `folder` must not be there, and its parents must be open to
    everybody.
    """
    found = postgres_programs()
    assert found is not None, "`why_not` says why"
    folder.mkdir(mode=0o700)
    if os.geteuid() == 0 and (user := _user()) is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)
    data, [port] = folder / "data", free_ports(1)
    # No test loses power: the disk need not be waited for.
    initdb = [str(found / "initdb"), "-D", str(data), "-U", "sluice", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"]
    subprocess.run(
        _as_its_user(initdb), check=True, capture_output=True, timeout=INITDB_TIMEOUT_S, cwd=folder,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    options = {
        "listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": str(folder), "fsync": "off",
        "full_page_writes": "off", "shared_buffers": "32MB", "max_connections": 40,
    }  # fmt: skip
    command = [str(found / "postgres"), "-D", str(data)]
    for name, value in options.items():
        command += ["-c", f"{name}={value}"]
    ready = [str(found / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]

    def answers() -> bool:
        return subprocess.run(ready, check=False, timeout=30).returncode == 0

    with server(_as_its_user(command), folder.parent / f"{folder.name}.log") as process:
        until(answers, "Postgres answers", timeout_s=120)
        try:
            yield f"postgresql://sluice@127.0.0.1:{port}/postgres"
        finally:
            # Killed, it would leave its shared memory behind.
            process.send_signal(signal.SIGINT)
            process.wait(timeout=60)
