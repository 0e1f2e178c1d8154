"""What clients of OpenAI's and of vLLM's chat API may send beside what is honoured, as data.

Nothing is ignored by chance. A field of a body is one of four things: honoured (`openai_chat.ChatBody`); not offered,
and refused by name unless it asks for nothing (`NOT_OFFERED`); a hint that changes no answer and is dropped knowingly
(`HINTS`); or unknown, and refused by name. `null` asks for nothing everywhere.
"""

from collections.abc import Mapping
from typing import Final

from streams.dialects.fields import NotOffered

_FUNCTIONS = "tools have taken its place"
_SAMPLED = "answers are sampled"
_LOGPROBS = "probabilities are of the answer's own tokens"
_REASONING = "how much is reasoned is the model's own"
_TEXT = "prompts and answers are text"
_WHOLE = "a prompt is answered whole or refused"
_TEMPLATE = "the model's own chat template is used as it is"
_TOKENS = "answers are text, without their tokens"
_TEXT_ALONE = "the answer to a raw prompt is text alone"
_GROUPING = "how tokens are grouped is not a client's choice"
_ENGINE = "it is the engine's own"

NOT_OFFERED: Final[Mapping[str, NotOffered]] = {
    # In this order: the first that asks for something is named.
    "functions": NotOffered(([],), _FUNCTIONS),
    "function_call": NotOffered(("none", "auto"), _FUNCTIONS),
    "web_search_options": NotOffered((), "an answer looks nothing up by itself"),
    "use_beam_search": NotOffered((False,), _SAMPLED),
    "length_penalty": NotOffered((1.0,), _SAMPLED),
    "prompt_logprobs": NotOffered((), _LOGPROBS),
    "prompt_logprob_token_ids": NotOffered((), _LOGPROBS),
    "prompt_logprob_start": NotOffered((), _LOGPROBS),
    "logprob_token_ids": NotOffered((), "probabilities are of the likeliest tokens"),
    "flat_logprobs": NotOffered((False,), "probabilities have one form"),
    "reasoning_effort": NotOffered(("none",), _REASONING),
    "include_reasoning": NotOffered((True,), _REASONING),
    "thinking_token_budget": NotOffered((), _REASONING),
    "verbosity": NotOffered(("medium",), "an answer is as long as the model makes it"),
    "audio": NotOffered((), _TEXT),
    "modalities": NotOffered((["text"],), _TEXT),
    "prediction": NotOffered((), _ENGINE),
    "moderation": NotOffered((), "the tenant's own policy holds"),
    "echo": NotOffered((False,), "an answer does not repeat its prompt"),
    "add_generation_prompt": NotOffered((True,), _TEMPLATE),
    "continue_final_message": NotOffered((False,), _TEMPLATE),
    "add_special_tokens": NotOffered((False,), _TEMPLATE),
    "chat_template": NotOffered((), _TEMPLATE),
    "chat_template_kwargs": NotOffered(({},), _TEMPLATE),
    "documents": NotOffered(([],), _TEMPLATE),
    "media_io_kwargs": NotOffered(({},), _TEXT),
    "mm_processor_kwargs": NotOffered(({},), _TEXT),
    "mm_payload": NotOffered(("tensors",), _TEXT),
    "return_mm_kwargs": NotOffered((False,), _TEXT),
    "truncate_prompt_tokens": NotOffered((), _WHOLE),
    "truncation_side": NotOffered((), _WHOLE),
    "return_token_ids": NotOffered((False,), _TOKENS),
    "return_tokens_as_token_ids": NotOffered((False,), _TOKENS),
    "return_token_offsets": NotOffered((False,), _TOKENS),
    "return_prompt_text": NotOffered((False,), _TOKENS),
    "detokenize": NotOffered((True,), _TOKENS),
    "output_kind": NotOffered((), _GROUPING),
    "stream_interval": NotOffered((), _GROUPING),
    "priority": NotOffered((0,), "service_tier chooses the lane"),
    "watermarking": NotOffered((False,), "no engine here is set up for it"),
    "cache_salt": NotOffered((), _ENGINE),
    "kv_transfer_params": NotOffered((), _ENGINE),
    "ec_transfer_params": NotOffered((), _ENGINE),
    "vllm_xargs": NotOffered(({},), _ENGINE),
    "logits_processors": NotOffered(([],), _ENGINE),
    "skip_reading_prefix_cache": NotOffered((False,), _ENGINE),
    "skip_clone": NotOffered((), _ENGINE),
    "extra_args": NotOffered((), _ENGINE),
    "routed_experts_prompt_start": NotOffered((0,), _ENGINE),
    "trace_decode_token_ids": NotOffered((), _ENGINE),
}
"""Every parameter of vLLM is honoured (`Sampling`), a hint, or stands here."""

NOT_OFFERED_WITH_A_PROMPT: Final[Mapping[str, NotOffered]] = {
    **NOT_OFFERED,
    "suffix": NotOffered(("",), "an answer goes on behind its prompt"),
    "store": NotOffered((False,), "chats and responses are stored"),
    "top_logprobs": NotOffered((0,), "logprobs says how many are told"),
    "tools": NotOffered(([],), _TEXT_ALONE),
    "tool_choice": NotOffered(("none", "auto"), _TEXT_ALONE),
    "parallel_tool_calls": NotOffered((True, False), _TEXT_ALONE),
    "add_special_tokens": NotOffered((True,), "a prompt is framed as the model's tokenizer does"),
    "prompt_embeds": NotOffered((), _TEXT),
}
"""The same where the prompt is no chat."""

HINTS: Final[Mapping[str, type]] = {
    # OpenAI's and vLLM's hints for caches and routing, beside `prompt_cache_key`: what is cached stays while there is
    # room, and who goes on with what is seen by how it begins.
    "prompt_cache_retention": str,
    "prompt_cache_options": dict,
    "session_id": str,
    # Responses have an id of their own.
    "request_id": str,
}
"""Dropped, whatever they say: names with the JSON type that they must have."""

NOT_OFFERED_IN_MESSAGE: Final[Mapping[str, NotOffered]] = {
    "tool_calls": NotOffered(([],), "only an assistant's turn calls tools"),
    "tool_call_id": NotOffered((), "only a tool's turn is the result of a call"),
    "function_call": NotOffered((), _FUNCTIONS),
    "refusal": NotOffered((), _TEXT),
    "audio": NotOffered((), _TEXT),
    "annotations": NotOffered(([],), _TEXT),
    "prefix": NotOffered((False,), _TEMPLATE),
}
HINTS_IN_MESSAGE: Final[Mapping[str, type]] = {
    # Reasoning of earlier turns, as other servers gave it: a template leaves it out of the prompt.
    "reasoning": str,
    "reasoning_content": str,
    "reasoning_details": list,
    "thinking_blocks": list,
    "cache_control": dict,
    "provider_specific_fields": dict,
    # What `parse` of OpenAI's packages has made of the text.
    "parsed": object,
}
"""What clients echo of an answer, or say to another provider's cache."""
HINTS_IN_PART: Final[Mapping[str, type]] = {"cache_control": dict, "annotations": list}

NOT_OFFERED_IN_STRUCTURED_OUTPUTS: Final[Mapping[str, NotOffered]] = {
    "structural_tag": NotOffered((), "an answer is bound as a whole"),
    "disable_any_whitespace": NotOffered((False,), _ENGINE),
    "disable_additional_properties": NotOffered((False,), _ENGINE),
    "whitespace_pattern": NotOffered((), _ENGINE),
}
NOT_OFFERED_IN_STREAM_OPTIONS: Final[Mapping[str, NotOffered]] = {
    "include_obfuscation": NotOffered((False,), "an event is as long as its text")
}
NOT_OFFERED_ROLES: Final = ("function",)
NOT_OFFERED_PARTS: Final = ("image_url", "input_audio", "file", "refusal")

NOT_OFFERED_TOOLS: Final = ("custom",)
"""Beside functions."""
NOT_OFFERED_IN_TOOL: Final[Mapping[str, NotOffered]] = {
    "defer_loading": NotOffered((False,), "every tool stands in the prompt"),
}
NOT_OFFERED_CHOICES: Final = ("allowed_tools", "custom")
HINTS_IN_TOOL: Final[Mapping[str, type]] = {"cache_control": dict}
HINTS_IN_CALL: Final[Mapping[str, type]] = {"index": int, "provider_specific_fields": dict, "extra_content": dict}
"""What clients echo of a call beside what it was."""
HINTS_IN_CALLED: Final[Mapping[str, type]] = {"parsed_arguments": object}
"""The same of the function that it calls: what `parse` of OpenAI's packages has made of the arguments."""
