"""`python -m tests.side_by_side [long]`: all but the long tests, or these, in two processes, because half of them
mostly wait.

The first half is shown as it goes, then what the other said; the exit code is that of pytest, 0 when both passed.
Ctrl-C reaches both.
"""

import subprocess
import sys
import tempfile

_STACKS = ("tests/processes", "tests/faults", "tests/e2e")
_CONTRACTS = ("tests/contract", "tests/versions")
_EVEN = ("tests/unit/deploy", "tests/unit/models")
"""So that both end at about the same time."""
HALVES = {
    "not long": (("tests/unit", *(f"--ignore={each}" for each in _EVEN)), (*_EVEN, *_CONTRACTS, *_STACKS)),
    "long and not large": (("tests/conformance", "tests/unit", *_CONTRACTS), _STACKS),
}
"""By what is chosen of them: those that are shown, and those beside them."""


def main(chosen: str) -> int:
    shown, beside = HALVES[chosen]
    pytest = (sys.executable, "-m", "pytest", "-m", chosen)
    with tempfile.TemporaryFile() as said:
        others = subprocess.Popen([*pytest, "-p", "no:cacheprovider", *beside], stdout=said, stderr=said)
        try:
            first = subprocess.run([*pytest, *shown], check=False).returncode
            print("the others go on …", flush=True)
        finally:
            code = others.wait()
            said.seek(0)
            sys.stdout.buffer.write(said.read())
            sys.stdout.flush()
    return first or code


if __name__ == "__main__":
    sys.exit(main("long and not large" if sys.argv[1:] == ["long"] else "not long"))
