"""Whatever stands in a field, a log has one line for each thing that happened, of printable ASCII: nobody writes lines
into it, or commands the terminal that shows it.
"""

import json
import string
import subprocess
import sys
from typing import Final

PRINTABLE: Final = frozenset(string.printable) - frozenset("\t\r\n\x0b\x0c")
HOSTILE: Final = (
    'a\n{"event": "forged", "level": "error"}', "a\r\nb", "\x1b[2J\x1b]0;owned\x07", "\x9b31m", "\u2028\u2029\x85",
    "\u202eevil", "\0", '"}', "\\", "\ud800", "\U000e0041", "%s %d", "{event}",
)  # fmt: skip
SAYS: Final = """
import json, logging, sys
import structlog
from streams.observability import configure_logging
configure_logging("process", "info")
log = structlog.get_logger()
for text in json.loads(sys.argv[1]):
    log.info("happened", why=text, **{"custom_id": text})
    log.warning(text)
    log.info("nested", of={"a": [text]}, tuple=(text,))
    log.info("bytes", value=text.encode("utf-8", "surrogatepass"))
    logging.getLogger("a library").error("it said %s", text)
    logging.getLogger("a library").error(text)
    try:
        raise ValueError(text)
    except ValueError:
        log.exception("failed")
"""
LINES_OF_EACH: Final = 7


def test_no_field_writes_a_line_of_its_own_or_a_control_character() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SAYS, json.dumps(HOSTILE)], capture_output=True, timeout=60, check=True
    )
    assert done.stderr == b""
    lines = done.stdout.decode("ascii").split("\n")
    assert lines.pop() == ""
    assert all(PRINTABLE.issuperset(line) for line in lines)
    told = [json.loads(line) for line in lines]
    assert len(told) == LINES_OF_EACH * len(HOSTILE)
    assert [line["why"] for line in told if line["event"] == "happened"] == [*HOSTILE]
    assert "forged" not in {line["event"] for line in told}
