"""Errors of ClickHouse's interface, as its clients know them: a number, its name, a sentence and an HTTP status."""

import re
from typing import Final

CODES: Final[dict[str, int]] = {
    "UNKNOWN_TABLE": 60,
    "SYNTAX_ERROR": 62,
    "UNKNOWN_FORMAT": 73,
    "UNKNOWN_DATABASE": 81,
    "TIMEOUT_EXCEEDED": 159,
    "TOO_DEEP_AST": 167,
    "TOO_MANY_SIMULTANEOUS_QUERIES": 202,
    "MEMORY_LIMIT_EXCEEDED": 241,
    "QUERY_IS_TOO_LARGE": 307,
    "QUERY_WAS_CANCELLED": 394,
    "SETTING_CONSTRAINT_VIOLATION": 452,
    "ACCESS_DENIED": 497,
    "AUTHENTICATION_FAILED": 516,
    "NETWORK_ERROR": 210,
    "NOT_IMPLEMENTED": 48,
    "UNKNOWN_COMPRESSION_METHOD": 89,
    "CANNOT_DECOMPRESS": 271,
    "TOO_MANY_ROWS_OR_BYTES": 396,
}
"""Those that are said here; the engine's own are passed on."""

_STATUS: Final[dict[str, int]] = {
    name: status
    for status, names in {
        400: "BAD_ARGUMENTS CANNOT_PARSE_TEXT CANNOT_PARSE_ESCAPE_SEQUENCE CANNOT_PARSE_QUOTED_STRING CANNOT_PARSE_DATE"
        " CANNOT_PARSE_DATETIME CANNOT_PARSE_NUMBER CANNOT_PARSE_DOMAIN_VALUE_FROM_STRING CANNOT_PARSE_IPV4"
        " CANNOT_PARSE_IPV6 CANNOT_PARSE_UUID CANNOT_PARSE_INPUT_ASSERTION_FAILED CANNOT_COMPILE_REGEXP"
        " DUPLICATE_COLUMN ILLEGAL_COLUMN THERE_IS_NO_COLUMN UNKNOWN_ELEMENT_IN_AST UNKNOWN_TYPE_OF_AST_NODE"
        " TOO_DEEP_AST TOO_BIG_AST UNEXPECTED_AST_STRUCTURE VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE SYNTAX_ERROR"
        " INCORRECT_DATA TYPE_MISMATCH",
        401: "REQUIRED_PASSWORD",
        403: "UNKNOWN_USER WRONG_PASSWORD AUTHENTICATION_FAILED SET_NON_GRANTED_ROLE ACCESS_DENIED",
        404: "UNKNOWN_TABLE UNKNOWN_FUNCTION UNKNOWN_IDENTIFIER UNKNOWN_TYPE UNKNOWN_STORAGE UNKNOWN_DATABASE"
        " UNKNOWN_SETTING UNKNOWN_DIRECTION_OF_SORTING UNKNOWN_AGGREGATE_FUNCTION UNKNOWN_FORMAT"
        " UNKNOWN_DATABASE_ENGINE UNKNOWN_TYPE_OF_QUERY UNKNOWN_ROLE",
        408: "TIMEOUT_EXCEEDED",
        413: "QUERY_IS_TOO_LARGE",
        501: "NOT_IMPLEMENTED",
        503: "SOCKET_TIMEOUT CANNOT_OPEN_FILE CANNOT_SCHEDULE_TASK NETWORK_ERROR TOO_MANY_SIMULTANEOUS_QUERIES",
    }.items()
    for name in names.split()
}
"""As `exceptionCodeToHTTPStatus` of ClickHouse has them; all others are 500. Of the last two names it says 500 as well:
here they are said where asking again later helps.
"""

_ENGINES = re.compile(r"^Code: (\d+)\. DB::Exception: (.*?)(?:\(version [^)]*\)\.? ?)?\(([A-Z0-9_]+)\)\s*$", re.DOTALL)
MAX_MESSAGE_CHARS = 4_000


class ClickHouseFailed(Exception):
    """A statement was not answered. `code` and `name` as ClickHouse numbers and calls them."""

    def __init__(self, code: int, name: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.name = name

    @property
    def status(self) -> int:
        return _STATUS.get(self.name, 500)

    def body(self) -> str:
        """What clients read."""
        return f"Code: {self.code}. DB::Exception: {self} ({self.name})\n"


class Refused(ClickHouseFailed):
    """Before the engine was asked."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(CODES[name], name, message)


def of_the_engine(text: str) -> ClickHouseFailed:
    """What the engine said, without its version."""
    found = _ENGINES.match(text.strip().removeprefix("Failed to execute query: "))
    if found is None:
        return ClickHouseFailed(49, "LOGICAL_ERROR", text.strip()[:MAX_MESSAGE_CHARS])
    return ClickHouseFailed(int(found[1]), found[3], found[2].strip()[:MAX_MESSAGE_CHARS])
