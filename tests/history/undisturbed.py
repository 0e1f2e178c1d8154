"""What the simulated engine says to a request if nobody disturbs it: computed, in virtual time, by the engine's own
code. So what that says wrongly is not found here: only what somebody made of it.
"""

from collections.abc import Mapping
from typing import Any

from gpu_consumers.engines.port import EngineRequest
from gpu_consumers.engines.simulated import SimulatedCore
from gpu_consumers.parsing.port import ParserNames
from schemas.request import AdmittedRequest
from streams.engine_args import SimulatedEngineSettings


class Alone:
    """Engines of one pool, each with one request alone. The same request is asked once."""

    def __init__(self, engine_args: Mapping[str, Any]) -> None:
        self._settings = SimulatedEngineSettings.model_validate({**engine_args, "prefix_cache": False})
        self._known: dict[str, list[list[str]]] = {}

    def __call__(self, admitted: Mapping[str, Any]) -> list[list[str]]:
        """Of each choice the text of each token, of a request for answers of text."""
        request = AdmittedRequest.model_validate(admitted)
        name = request.model_dump_json(include={"prompt_token_ids", "sampling", "max_tokens", "endpoint", "choices"})
        if name not in self._known:
            self._known[name] = self._ask(request)
        return self._known[name]

    def _ask(self, request: AdmittedRequest) -> list[list[str]]:
        core = SimulatedCore(self._settings, parsers=ParserNames())
        asked = EngineRequest(
            request.response_id, request.prompt_token_ids, request.sampling, request.max_tokens,
            is_turn=request.endpoint != "completions", choices=request.choices,
        )  # fmt: skip
        core.submit(asked, 0.0)
        texts: list[list[str]] = [[] for _ in range(request.choices)]
        while (due_s := core.next_due_s) is not None:
            for delta in core.step(due_s):
                assert not delta.error, delta.error
                texts[delta.choice] += [
                    delta.text[begin:end] for begin, end in zip([0, *delta.text_ends], delta.text_ends, strict=False)
                ]
        return texts
