"""`vllm bench serve`, run as docs/frontends.md tells, over chats, completions and Responses."""

import json
import os
import tempfile
from pathlib import Path

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

URL, KEY, MODEL = os.environ["SLUICE_URL"], os.environ["SLUICE_KEY"], os.environ["SLUICE_MODEL"]
PROMPTS, TOKENS = 6, 8


def measured(backend, endpoint):
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    with tempfile.TemporaryDirectory() as folder:
        arguments = [
            "--backend", backend, "--base-url", URL, "--endpoint", endpoint, "--header", f"Authorization=Bearer {KEY}",
            "--model", MODEL, "--tokenizer", os.environ["SLUICE_MODEL_PATH"], "--dataset-name", "random",
            "--random-input-len", "32", "--random-output-len", str(TOKENS), "--num-prompts", str(PROMPTS),
            "--disable-tqdm", "--save-result", "--save-detailed", "--result-dir", folder,
            "--result-filename", "result.json",
        ]  # fmt: skip
        main(parser.parse_args(arguments))
        result = json.loads((Path(folder) / "result.json").read_text())
    return {
        "asked": [PROMPTS, PROMPTS * TOKENS],
        "answered": [result["completed"], result["total_output_tokens"]],
        "errors": [error for error in result["errors"] if error],
        "texts": result["generated_texts"],
    }


def chats():
    return measured("openai-chat", "/v1/chat/completions")


def completions():
    return measured("openai", "/v1/completions")


def responses():
    return measured("openai-responses", "/v1/responses")


ABILITIES = (chats, completions, responses)
