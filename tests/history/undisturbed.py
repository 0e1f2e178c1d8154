"""What the simulated engine says to a request if nobody disturbs it: computed, in virtual time."""

from collections.abc import Mapping
from typing import Any

from gpu_consumers.engines.port import EngineRequest
from gpu_consumers.engines.simulated import SimulatedCore, SimulatedEngineSettings
from gpu_consumers.parsing.port import ParserNames
from schemas.request import AdmittedRequest


class Alone:
    """Engines of one pool, each with one request alone. The same request is asked once."""

    def __init__(self, engine_args: Mapping[str, Any]) -> None:
        self._settings = SimulatedEngineSettings.model_validate({**engine_args, "prefix_cache": False})
        self._known: dict[str, list[str]] = {}

    def __call__(self, admitted: Mapping[str, Any]) -> list[str]:
        """The text of each token, of a request for one answer of text."""
        request = AdmittedRequest.model_validate(admitted)
        name = request.model_dump_json(include={"prompt_token_ids", "sampling", "max_tokens", "endpoint"})
        if name not in self._known:
            self._known[name] = self._ask(request)
        return self._known[name]

    def _ask(self, request: AdmittedRequest) -> list[str]:
        core = SimulatedCore(self._settings, parsers=ParserNames())
        is_turn = request.endpoint != "completions"
        asked = EngineRequest(
            request.response_id, request.prompt_token_ids, request.sampling, request.max_tokens, is_turn=is_turn
        )
        core.submit(asked, 0.0)
        texts: list[str] = []
        while (due_s := core.next_due_s) is not None:
            for delta in core.step(due_s):
                assert not delta.error, delta.error
                texts += [
                    delta.text[begin:end] for begin, end in zip([0, *delta.text_ends], delta.text_ends, strict=False)
                ]
        return texts
