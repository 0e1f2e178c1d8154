"""What clients of Anthropic's Messages API may send beside what is honoured, as data: as in `openai_parameters`."""

from collections.abc import Mapping
from typing import Final

from streams.dialects.fields import NotOffered

_REASONING = "a model reasons as it is set up to"
_TOOLS = "tools run where the client is"
_SCHEMA = "a tool is its name, description and input_schema"
_WHOLE = "a prompt is answered whole or refused"
_CACHE = "what a cache holds is not told"
_MODEL = "the model that is named answers"
_TERMS = "the tenant's own terms hold"

NOT_OFFERED: Final[Mapping[str, NotOffered]] = {
    "thinking": NotOffered(({"type": "disabled"}, {"type": "adaptive"}), _REASONING),
    "mcp_servers": NotOffered(([],), _TOOLS),
    "container": NotOffered((), _TOOLS),
    "output_format": NotOffered((), "output_config.format has taken its place"),
    "context_management": NotOffered(({}, {"edits": []}), _WHOLE),
    "compaction": NotOffered((), _WHOLE),
    "thread": NotOffered((), "a request has all of its messages"),
    "diagnostics": NotOffered(({}, {"previous_message_id": None}), _CACHE),
    "fallbacks": NotOffered(([],), _MODEL),
    "fallback_credit_token": NotOffered((), _MODEL),
    "speed": NotOffered(("standard",), "service_tier chooses the lane"),
    "inference_geo": NotOffered(("global",), "answers are made in the gateway's own region"),
    "billing_policy": NotOffered((), _TERMS),
}
HINTS: Final[Mapping[str, type]] = {"cache_control": dict}
"""Dropped, whatever they say: names with the JSON type that they must have. Placement makes no use of them yet."""

NOT_OFFERED_IN_OUTPUT_CONFIG: Final[Mapping[str, NotOffered]] = {
    "effort": NotOffered(("high",), _REASONING),
    "task_budget": NotOffered((), "max_tokens bounds an answer"),
}
NOT_OFFERED_IN_TOOL: Final[Mapping[str, NotOffered]] = {
    "defer_loading": NotOffered((False,), "a prompt shows all tools"),
    "allowed_callers": NotOffered((["direct"],), _TOOLS),
    "input_examples": NotOffered(([],), _SCHEMA),
    "eager_input_streaming": NotOffered((True, False), "inputs are told as they are made"),
}
NOT_OFFERED_IN_TOOL_USE: Final[Mapping[str, NotOffered]] = {
    "caller": NotOffered(({"type": "direct"},), _TOOLS),
    "toolset_name": NotOffered((), _SCHEMA),
}
NOT_OFFERED_IN_TOOL_RESULT: Final[Mapping[str, NotOffered]] = {"toolset_name": NotOffered((), _SCHEMA)}
HINTS_IN_TEXT: Final[Mapping[str, type]] = {"cache_control": dict, "citations": list}
"""What clients say to a cache, or echo of an answer."""
