"""`python -m tests.side_by_side`: all but the long tests, in two processes, because half of them mostly wait.

The unit tests are shown as they go, then what the others said; the exit code is that of pytest, 0 when both passed.
Ctrl-C reaches both.
"""

import subprocess
import sys
import tempfile

PYTEST = (sys.executable, "-m", "pytest", "-m", "not long")
ALONE = ("tests/unit",)
WITH_SERVERS = ("tests/contract", "tests/processes", "tests/faults", "tests/versions", "tests/e2e")


def main() -> int:
    with tempfile.TemporaryFile() as said:
        others = subprocess.Popen([*PYTEST, "-p", "no:cacheprovider", *WITH_SERVERS], stdout=said, stderr=said)
        try:
            alone = subprocess.run([*PYTEST, *ALONE], check=False).returncode
            print("the tests with servers go on …", flush=True)
        finally:
            code = others.wait()
            said.seek(0)
            sys.stdout.buffer.write(said.read())
            sys.stdout.flush()
    return alone or code


if __name__ == "__main__":
    sys.exit(main())
