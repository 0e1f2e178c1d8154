"""schemathesis: what it finds that the OpenAPI document does not say, in every operation of it."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.parse import urlsplit
from xml.etree import ElementTree

import requests

URL, KEY = os.environ["SLUICE_URL"], os.environ["SLUICE_BRIEF_KEY"]
MODEL, EMBEDS = os.environ["SLUICE_MODEL"], os.environ["SLUICE_EMBEDS"]
CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
    "response_headers_conformance", "unsupported_method", "allow_header_conformance", "ignored_auth",
)  # fmt: skip
BODIES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "Hi"}]},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/messages": {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8},
    "/v1/responses": {"input": "Hi", "background": True},
}


def configuration(known, lines):
    """By parameter of a path: what there is of it. By chance it would hardly be found, nor a model for a body."""
    values_of = {**known, "chats": [MODEL], "embeds": [EMBEDS], "lines": lines}
    told = [f"[dictionaries.{name}]\nvalues = {json.dumps(values)}" for name, values in values_of.items()]
    told.append("[parameters]")
    told += [f'"path.{name}" = {{ dictionary = "{name}", probability = 0.5 }}' for name in known]
    told.append('"body.model" = { dictionary = "chats", probability = 0.9 }')
    told.append('"body.input_file_id" = { dictionary = "lines", probability = 0.9 }')
    told += ["[[operations]]", 'include-path = "/v1/embeddings"', "[operations.parameters]"]
    told.append('"body.model" = { dictionary = "embeds", probability = 0.9 }')
    return "\n".join(told)


def uploaded(headers):
    """A file of one line."""
    asked = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    line = json.dumps({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": asked})
    sent = requests.post(
        f"{URL}/v1/files", data={"purpose": "batch"}, files={"file": line}, headers=headers, timeout=60
    )
    return sent.json()["id"]


def everything():
    headers = {"authorization": f"Bearer {KEY}"}
    # One is deleted in the course of this; the other is not, for it is not told where files are deleted.
    file_id, lines_id = uploaded(headers), uploaded(headers)
    batch = {"input_file_id": lines_id, "endpoint": "/v1/chat/completions", "completion_window": "1h"}
    batch_id = requests.post(f"{URL}/v1/batches", json=batch, headers=headers, timeout=60).json()["id"]
    answers = [
        requests.post(URL + path, json={"model": MODEL, **body}, headers=headers, timeout=60)
        for path, body in BODIES.items()
    ]
    ids = [answer.json()["id"] for answer in answers]
    known = {"response_id": ids, "file_id": [file_id], "batch_id": [batch_id]}
    models = [each["id"] for each in requests.get(f"{URL}/v1/models", headers=headers, timeout=60).json()["data"]]
    document = requests.get(f"{URL}/openapi.json", timeout=60).json()
    documented = [f"{method.upper()} {path}" for path, methods in document["paths"].items() for method in methods]
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "schemathesis.toml"
        config.write_text(configuration({"model": models, **known}, [lines_id]))
        report, log = Path(folder) / "told.xml", Path(folder) / "log.har"
        command = [
            str(Path(sys.executable).with_name("st")), "--config-file", str(config), "run", f"{URL}/openapi.json",
            "--header", f"Authorization: Bearer {KEY}", "--checks", ",".join(CHECKS), "--mode", "all",
            # One worker: threads that parse Python at once fail in some releases of 3.11.
            "--continue-on-failure", "--max-examples", "20", "--workers", "1", "--seed", "7", "--request-timeout", "60",
            "--report-junit-path", str(report), "--report-har-path", str(log), "--no-color",
            "--generation-database", "none",
        ]  # fmt: skip
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        cases = list(ElementTree.parse(report).iter("testcase"))
        exchanges = json.loads(log.read_text())["log"]["entries"]
    taken = {
        f"{each['request']['method']} {urlsplit(each['request']['url']).path}"
        for each in exchanges
        if each["response"]["status"] == 200
    }
    return {
        "documented": sorted(documented),
        "tried": sorted({case.get("name") for case in cases} & {*documented}),
        "never_taken": sorted({each for each in documented if "{" not in each} - taken),
        "found": [
            f"{case.get('name')}: {told.get('message') or told.text}"
            for case in cases
            for told in (*case.iter("failure"), *case.iter("error"))
        ],
        "exit": done.returncode,
        "said": done.stdout[-6_000:] + done.stderr[-2_000:],
    }


ABILITIES = (everything,)
