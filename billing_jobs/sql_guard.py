"""Which SQL the operator's endpoint lets through: one SELECT over tables, without anything that reaches outside.

The engine's own `readonly` is not enough. Verified on the embedded one: `readonly=2` reads files of the machine through
`file()`, and even `readonly=1` lets the scalar `file()` read and `INTO OUTFILE` write them. So the text is tokenised
strictly, what the tokeniser does not know is refused, and the engine's limits stand behind it.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

MAX_SQL_CHARS = 20_000

HARMLESS_TABLE_FUNCTIONS = frozenset(
    {"numbers", "numbers_mt", "zeros", "zeros_mt", "generateseries", "generate_series", "values", "view", "null"}
)
"""The only table functions let through; they read nothing."""

KNOWN_TABLE_FUNCTIONS = frozenset(
    {
        "arrowstream", "azureblobstorage", "bigquery", "cluster", "clusterallreplicas", "cosn", "deltalake",
        "dictionary", "eval", "executable", "file", "filecluster", "filesystem", "format", "gcs", "hdfs", "hudi",
        "iceberg", "icebergs3", "input", "jdbc", "loop", "merge", "mongodb", "mysql", "odbc", "oss", "paimon",
        "postgresql", "python", "redis", "remote", "remotesecure", "s3", "s3cluster", "sqlite", "url", "urlcluster",
        "viewexplain", "viewifpermitted", "ytsaurus",
    }
)  # fmt: skip
"""Refused whatever the engine says that it has; the engine's own list comes on top."""

_FORBIDDEN_NAMES = frozenset(
    {
        # Scalar functions that read files, or connect. Also as `APPLY(file)`, so without a parenthesis of their own.
        "file", "hascolumnintable", "catboostevaluate", "getclienthttpheader", "aigenerate", "aiembed", "aiclassify",
        "aiextract", "aifilter", "airedact", "aisimilarity", "aitranslate",
    }
)  # fmt: skip
_FORBIDDEN_WORDS = frozenset({"into", "outfile", "insert", "settings", "format"})

_Kind = Literal["word", "quoted", "string", "number", "sign"]
_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+)
      | (?P<word>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<quoted>`[^`\\]*`|"[^"\\]*")
      | (?P<string>'(?:[^'\\]|\\.|'')*')
      | (?P<number>0[xX][0-9A-Fa-f]+(?![A-Za-z0-9_])|[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![A-Za-z0-9_]))
      | (?P<sign>[()\[\],.+*/%=<>!:?|;-])""",
    re.VERBOSE | re.DOTALL,
)


class SqlRefused(ValueError):
    """The text is not a query that the endpoint runs; the message says why."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: _Kind
    text: str

    @property
    def name(self) -> str | None:
        """Lower-case name of an identifier or keyword, quoted or not."""
        if self.kind == "word":
            return self.text.lower()
        return self.text[1:-1].lower() if self.kind == "quoted" else None


def _tokens(sql: str) -> list[_Token]:
    tokens: list[_Token] = []
    at = 0
    while at < len(sql):
        if sql.startswith(("--", "/*"), at):
            raise SqlRefused("comments are not accepted")
        match = _TOKEN.match(sql, at)
        if match is None:
            raise SqlRefused(f"unexpected character {sql[at]!r} at position {at + 1}")
        kind = match.lastgroup
        if kind in ("word", "quoted", "string", "number", "sign"):
            tokens.append(_Token(kind, match.group()))  # type: ignore[arg-type]
        at = match.end()
    return tokens


def check_select(sql: str, table_functions: Iterable[str] = ()) -> str:
    """The query without a trailing `;`. Raises SqlRefused.

    `table_functions` are the names that the engine has; all but the harmless are refused.
    """
    if len(sql) > MAX_SQL_CHARS:
        raise SqlRefused(f"longer than {MAX_SQL_CHARS} characters")
    text = sql.strip()
    text = text.removesuffix(";")
    tokens = _tokens(text)
    if not tokens or tokens[0].kind != "word" or tokens[0].name not in ("select", "with"):
        raise SqlRefused("only SELECT (or WITH … SELECT) is accepted")
    refused_calls = (KNOWN_TABLE_FUNCTIONS | {name.lower() for name in table_functions}) - HARMLESS_TABLE_FUNCTIONS
    following = [*tokens[1:], None]
    for token, after in zip(tokens, following, strict=True):
        sign = after.text if after is not None and after.kind == "sign" else ""
        if token.text == ";":
            raise SqlRefused("one statement at a time")
        if token.kind == "word" and token.name in _FORBIDDEN_WORDS:
            raise SqlRefused(f"{token.text} is not accepted")
        if token.name in _FORBIDDEN_NAMES or (sign == "(" and token.name in refused_calls):
            raise SqlRefused(f"function {token.name} is not accepted")
        if token.name == "default" and sign == ".":
            raise SqlRefused("database default is not accepted")
        if token.kind == "word" and token.name in ("from", "join") and after is not None and after.kind == "string":
            raise SqlRefused("a table is a name, not a string")
    return text
