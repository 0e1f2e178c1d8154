"""What no file of Sluice does, because somebody else's bytes could become code by it, or somebody could look in: held
over the tree, so that a new file is held too.
"""

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.unit.test_knobs import all_metrics

ROOT = Path(__file__).parents[2]
PACKAGES = ("schemas", "streams", "agents", "gpu_consumers", "billing_jobs", "deploy")
MODULES = {
    "pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "jsonpickle", "shelve", "marshal", "dbm", "yaml",
    "ruamel", "xml.dom", "xml.etree", "xml.parsers", "xml.sax.make_parser", "lxml", "xmlrpc", "code", "codeop", "pdb",
    "bdb", "debugpy", "pydevd", "ptvsd", "rpdb", "remote_pdb", "aiomonitor", "aioconsole", "manhole", "rpyc",
    "multiprocessing.managers", "multiprocessing.connection", "multiprocessing.shared_memory", "telnetlib", "ftplib",
    "http.server", "socketserver", "wsgiref", "tarfile", "zipfile", "imp", "flask", "werkzeug",
}  # fmt: skip
"""Those that make objects or code of bytes, unpack archives, open consoles, or serve what is none of our servers."""
CALLS = {
    "eval", "exec", "compile", "__import__", "input", "breakpoint", "os.system", "os.popen", "os.execv", "os.execve",
    "torch.load", "numpy.load", "np.load", "pandas.read_pickle", "pd.read_pickle", "tempfile.mktemp",
    "ssl._create_unverified_context", "asyncio.create_subprocess_shell", "logging.config.listen", "importlib.reload",
}  # fmt: skip
MAY = {
    # The conversation of `sluice chat`: what a person types is sent.
    ("deploy/cli/questions.py", "input"),
    # A maintainer's own: it reads two files of a package, by their names, and checks their digests.
    ("deploy/install/page_library.py", "tarfile"),
}
ARGUMENTS = {("shell", True), ("allow_pickle", True), ("verify", False), ("check_hostname", False), ("debug", True),
             ("reload", True), ("trust_remote_code", True), ("weights_only", False), ("autoescape", False)}  # fmt: skip
SECRET_WORDS = re.compile(r"(^|_)(mac|macs|hmac|signature|password|passwords|secret|secrets|api_key|code_given|proof)$")
LISTENERS = re.compile(
    r"\.(create_server|start_server|start_unix_server|start_http_server|bind|bind_socket)$|^server\.serve$"
)
"""Calls that open a server."""
SERVERS = {
    "streams/health.py": "`health_host`, loopback unless it is said otherwise",
    "streams/gateway/runtime.py": "`gateway.host`, likewise",
    "streams/gateway/__main__.py": "runs that one",
    "billing_jobs/__main__.py": "`billing.host` and `billing.analysts_host`, likewise",
    "deploy/local/ports.py": "looks whether a port is free, and lets go of it",
}
"""Every file that opens one, and where that listens."""


@cache
def trees() -> list[tuple[str, ast.Module]]:
    paths = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    assert len(paths) > 300
    return [(str(path.relative_to(ROOT)), ast.parse(path.read_text())) for path in paths]


def nodes() -> Iterator[tuple[str, ast.AST]]:
    for path, tree in trees():
        for node in ast.walk(tree):
            yield path, node


def modules_of(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [each.name for each in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module, *(f"{node.module}.{each.name}" for each in node.names)]
    return []


def is_forbidden(module: str) -> bool:
    return any(module == each or module.startswith(f"{each}.") for each in MODULES)


def test_nothing_is_imported_that_makes_code_of_bytes_or_lets_somebody_look_in() -> None:
    found = {(path, name) for path, node in nodes() for name in modules_of(node) if is_forbidden(name)}
    assert found - MAY == set()


def test_nothing_is_called_that_runs_a_text_or_asks_a_shell() -> None:
    wrong = []
    for path, node in nodes():
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called in CALLS and (path, called) not in MAY:
            wrong.append((path, node.lineno, called))
        for argument in node.keywords:
            value = argument.value.value if isinstance(argument.value, ast.Constant) else None
            if isinstance(value, bool) and (argument.arg, value) in ARGUMENTS:
                wrong.append((path, node.lineno, f"{called}({argument.arg}={value})"))
    assert wrong == []


def test_what_is_secret_is_compared_in_constant_time() -> None:
    """Never by `==`, `!=` or `in`, which tell by their time how much of a guess is right."""
    wrong = []
    for path, node in nodes():
        if not isinstance(node, ast.Compare) or all(isinstance(op, ast.Is | ast.IsNot) for op in node.ops):
            continue
        for side in (node.left, *node.comparators):
            name = side.attr if isinstance(side, ast.Attribute) else side.id if isinstance(side, ast.Name) else ""
            if SECRET_WORDS.search(name):
                wrong.append(f"{path}:{node.lineno} {ast.unparse(node)}")
    # Of what the operator says twice in settings of one's own.
    assert [each for each in wrong if not each.startswith("streams/secret_files.py")] == []


PROVERS = {
    "streams/keyring.py": "is_proved_by",
    "streams/signing.py": "verify_request",
    "streams/ids.py": "prove",
    "streams/gateway/service/browser_tokens.py": "is_proved",
}
"""Every function that decides whether a secret was shown, or used."""


def test_whoever_proves_a_secret_looks_at_all_of_them_every_time() -> None:
    found = {}
    for path, node in nodes():
        if isinstance(node, ast.FunctionDef) and "compare_digest" in ast.unparse(node):
            found[path] = node.name
            lists = [ast.unparse(each) for each in ast.walk(node) if isinstance(each, ast.ListComp)]
            assert any("compare_digest" in each for each in lists), "a list: none is left out once one is right"
    assert found == PROVERS


def test_every_server_is_known_and_is_told_where_to_listen() -> None:
    found = {path for path, node in nodes() if isinstance(node, ast.Call) and LISTENERS.search(ast.unparse(node.func))}
    assert found == SERVERS.keys()


def test_faust_serves_nothing() -> None:
    [app] = [
        node
        for path, node in nodes()
        if path == "agents/admission/app.py" and isinstance(node, ast.Call) and ast.unparse(node.func) == "faust.App"
    ]
    given = {each.arg: ast.unparse(each.value) for each in app.keywords}
    assert given["web_enabled"] == "False"
    assert not given.keys() & {"debug", "web_port", "web_bind", "value_serializer", "key_serializer"}
    assert given["autodiscover"] == "False"


def test_the_linter_looks_for_more_of_it() -> None:
    """Its `S` rules are bandit's: in every package of ours, and none of them is switched off for all files."""
    linter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["lint"]
    assert "S" in linter["select"]
    assert [rule for rule in linter["ignore"] if rule.startswith("S")] == ["S101"]
    assert {folder for folder, rules in linter["per-file-ignores"].items() if "S" in rules} == {"tests/**"}


LABELS = {
    "asked", "by", "code", "currency", "dependency", "endpoint", "error", "lane", "level", "model", "name",
    "outcome", "pool", "reason", "result", "source", "stage", "status", "step", "table", "tenant", "tier",
}  # fmt: skip
"""By which figures may be told apart: each has few values, and none is what a client says."""


def test_no_figure_is_told_apart_by_what_a_client_says() -> None:
    """Nor by what is secret: a label is shown to whoever reaches the health page, and kept for each of its values."""
    assert {label for metric in all_metrics() for label in metric.labels} - LABELS == set()
