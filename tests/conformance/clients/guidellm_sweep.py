"""guidellm: a short sweep over chats, over completions, and over Responses."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

URL, KEY, MODEL = os.environ["SLUICE_URL"], os.environ["SLUICE_KEY"], os.environ["SLUICE_MODEL"]
# Its torch is the one that is installed beside Sluice: another would be several GB.
PROGRAM = f"import sys; sys.path.append({os.environ['TORCH_PATH']!r}); from guidellm.__main__ import cli; cli()"
ONE_PROCESS = {"GUIDELLM__MAX_WORKER_PROCESSES": "1"}


def swept(path):
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "told.json"
        backend = {"kind": "openai_http", "target": URL, "model": MODEL, "api_key": KEY, "request_format": path}
        arguments = [
            "run", "--backend", json.dumps(backend),
            "--data", "kind=synthetic_text,prompt_tokens=32,output_tokens=8",
            "--tokenizer", f"kind=huggingface_auto,model={os.environ['SLUICE_MODEL_PATH']}",
            "--data-loader", "kind=pytorch,prefetch_factor=32",
            "--profile", "kind=sweep,sweep_size=3,max_concurrency=8", "--constraint", "kind=max_requests,count=6",
            "--output", f"kind=json,path={file}",
        ]  # fmt: skip
        command = [sys.executable, "-I", "-c", PROGRAM, *arguments]
        done = subprocess.run(command, env=os.environ | ONE_PROCESS, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-4_000:]
        told = json.loads(file.read_text())
    totals = [benchmark["metrics"]["request_totals"] for benchmark in told["benchmarks"]]
    return {
        "successful": [total["successful"] for total in totals],
        "errored": sum(total["errored"] for total in totals),
    }


def chats():
    return swept("/v1/chat/completions")


def completions():
    return swept("/v1/completions")


def responses():
    return swept("/v1/responses")


ABILITIES = (chats, completions, responses)
