"""What clients of the Responses API may send beside what is honoured, as data: see `openai_parameters`."""

from collections.abc import Mapping
from typing import Final

from streams.dialects import openai_parameters
from streams.dialects.fields import NotOffered

_STORED = "previous_response_id goes on with what is stored"
_HOSTED = "tools run at the client"
_LOGPROBS = "probabilities are told of chats and legacy completions"
_REASONING = "reasoning is not controlled here"
_WHOLE = "a prompt is answered whole or refused"

_OF_VLLM: Final = (
    "include_reasoning", "chat_template_kwargs", "media_io_kwargs", "mm_processor_kwargs", "mm_payload",
    "return_mm_kwargs", "priority", "watermarking", "cache_salt", "kv_transfer_params", "ec_transfer_params",
    "vllm_xargs",
)  # fmt: skip

NOT_OFFERED: Final[Mapping[str, NotOffered]] = {
    "prompt": NotOffered((), "prompts are not stored here"),
    "context_management": NotOffered(([],), _WHOLE),
    "truncation": NotOffered(("disabled",), _WHOLE),
    "top_logprobs": NotOffered((0,), _LOGPROBS),
    "moderation": NotOffered((), "the tenant's own policy holds"),
    "max_tokens": NotOffered((), "max_output_tokens bounds an answer"),
    "logprobs": NotOffered((), _LOGPROBS),
    "enable_response_messages": NotOffered((False,), _STORED),
    "previous_input_messages": NotOffered((), _STORED),
    **{name: openai_parameters.NOT_OFFERED[name] for name in _OF_VLLM},
}

HINTS: Final[Mapping[str, type]] = {
    "prompt_cache_retention": str,
    "prompt_cache_options": dict,
    "client_metadata": dict,
    "session_id": str,
    "request_id": str,
}

INCLUDABLE: Final = frozenset(
    {
        # Of tools that do not run here, and of parts that are not taken: there is nothing to include.
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        "code_interpreter_call.outputs",
        "computer_call_output.output.image_url",
        "message.input_image.image_url",
        # A reasoning item that comes back is left out of the prompt, so nothing need be carried in it.
        "reasoning.encrypted_content",
    }
)
"""What may be asked for in `include`, and asks for nothing."""

NOT_OFFERED_IN_REASONING: Final[Mapping[str, NotOffered]] = {
    "effort": NotOffered(("none",), _REASONING),
    "summary": NotOffered((), "reasoning is not summed up"),
    "generate_summary": NotOffered((), "reasoning is not summed up"),
}
NOT_OFFERED_IN_TEXT: Final[Mapping[str, NotOffered]] = {
    "verbosity": NotOffered(("medium",), "an answer is as long as the model makes it"),
}
NOT_OFFERED_IN_TOOL: Final[Mapping[str, NotOffered]] = {
    "defer_loading": NotOffered((False,), _HOSTED),
    "allowed_callers": NotOffered((["direct"],), _HOSTED),
    "output_schema": NotOffered((), "results of tools are text"),
}
HINTS_IN_TOOL: Final[Mapping[str, type]] = {"cache_control": dict}

HINTS_IN_ITEM: Final[Mapping[str, type]] = {
    # What clients echo of an answer's items.
    "id": str,
    "status": str,
    "phase": str,
    "name": str,
    "namespace": str,
    "caller": dict,
    "created_by": str,
    "parsed_arguments": object,
}
"""Those of its fields that an item honours are no hints there."""
HINTS_IN_PART: Final[Mapping[str, type]] = {
    "annotations": list,
    "logprobs": list,
    "prompt_cache_breakpoint": dict,
    # What `parse` of OpenAI's packages has made of the text.
    "parsed": object,
}
