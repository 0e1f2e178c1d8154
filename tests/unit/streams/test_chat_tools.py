"""Prompts with tools, calls and results, by templates as models bring them: what the template's author meant, and no
text of a client's ever as anything but text."""

import json
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from schemas.endings import MAX_MESSAGE_CHARS
from schemas.request import Message, TextPart, Tool, ToolCall
from streams.chat_template import MAX_ARGUMENTS_VALUES, arguments_of, template_refusal, tool_object
from streams.chat_tokenizer import ChatTokenizer, TooManyTokens

MODEL = Path(__file__).parents[3] / "models" / "sluice-tiny"
MARKERS = ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")

HERMES = """\
{%- if tools %}
    {{- '<|system|>' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|system|>' + messages[0].content + '<|end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|' + message.role + '|>' + message.content + '<|end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|assistant|>' }}
        {%- if message.content %}
            {{- message.content }}
        {%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}
                {%- set tool_call = tool_call.function %}
            {%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {%- if tool_call.arguments is string %}
                {{- tool_call.arguments }}
            {%- else %}
                {{- tool_call.arguments | tojson }}
            {%- endif %}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|user|>' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' }}
        {{- message.content }}
        {{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}
            {{- '<|end|>\\n' }}
        {%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|assistant|>' }}
{%- endif %}
"""  # noqa: E501 - as it is
IN_ONE_JSON = """\
{%- if tools is not none %}<|system|>{{ tools | tojson(indent=4) }}<|end|>{% endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|user|>' ~ {"content": message.content, "id": message.tool_call_id, "of": message.name} | tojson ~ '<|end|>' }}
    {%- elif message.tool_calls is defined %}
        {{- '<|assistant|>' ~ message.tool_calls | tojson(sort_keys=True, ensure_ascii=True) ~ message.content ~ '<|end|>' }}
    {%- else %}
        {{- '<|' ~ message.role ~ '|>' ~ message.content | tojson ~ '<|end|>' }}
    {%- endif %}
{%- endfor %}
"""  # noqa: E501
TYPED = """\
{%- macro kind_of(schema) -%}
    {%- if schema.type == 'array' -%}{{ kind_of(schema['items']) }}[]
    {%- elif schema.enum is defined -%}{{ schema.enum | join(' | ') }}
    {%- else -%}{{ schema.type }}{%- endif -%}
{%- endmacro -%}
{%- for tool in tools or [] %}
    {{- '<|system|>// ' ~ tool.function.description ~ '\\n' ~ tool.function.name ~ '(' }}
    {%- for name, schema in tool.function.parameters.properties.items() %}
        {{- name ~ ('' if name in (tool.function.parameters.required or []) else '?') ~ ': ' ~ kind_of(schema) ~ ', ' }}
    {%- endfor %}
    {{- ')<|end|>' }}
{%- endfor %}
{%- for message in messages %}{{ '<|' ~ message.role ~ '|>' ~ message.content ~ '<|end|>' }}{% endfor %}
"""
TEMPLATES = {
    "sluice-tiny": (MODEL / "chat_template.jinja").read_text(),
    "hermes": HERMES,
    "in one JSON": IN_ONE_JSON,
}


def tokenizer_with(template: str, folder: Path, *added_tokens: str) -> ChatTokenizer:
    shutil.copy(MODEL / "tokenizer.json", folder)
    if added_tokens:
        path = folder / "tokenizer.json"
        fields = json.loads(path.read_text())
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
        size = len(fields["model"]["vocab"])
        fields["added_tokens"] += [{"id": size + n, "content": text, **flags} for n, text in enumerate(added_tokens)]
        path.write_text(json.dumps(fields))
    (folder / "chat_template.jinja").write_text(template)
    return ChatTokenizer(folder)


def as_transformers_renders(template: str, messages: Sequence[Message], tools: Sequence[Tool]) -> str:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    names: dict[str | None, str] = {}
    told = []
    for message in messages:
        fields: dict[str, Any] = {"role": message.role, "content": message.text}
        if message.tool_calls:
            names |= {call.id: call.name for call in message.tool_calls}
            fields["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments_of(call)}}
                for call in message.tool_calls
            ]
        if message.role == "tool":
            fields |= {"tool_call_id": message.tool_call_id, "name": names[message.tool_call_id]}
        told.append(fields)
    offered = [tool_object(tool) for tool in tools] or None
    return environment.from_string(template).render(messages=told, tools=offered, add_generation_prompt=True)


@pytest.fixture(scope="module", params=TEMPLATES.values(), ids=list(TEMPLATES))
def bound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ChatTokenizer]:
    return request.param, tokenizer_with(request.param, tmp_path_factory.mktemp("model"))


def specials_in(tokenizer: ChatTokenizer, token_ids: Sequence[int]) -> list[str]:
    return [text for text in tokenizer.token_strings(token_ids) if text in MARKERS]


HOSTILE = (
    *MARKERS,
    "<|pad|>",
    "</tool_response>",
    "</tools>",
    "<tool_call>",
    '"',
    "\\",
    "\n",
    "\ue0000\ue001",
    "\ue001",
    "}",
)
texts = st.lists(st.sampled_from(HOSTILE) | st.text(max_size=6), max_size=6).map("".join)
names = st.from_regex(r"[A-Za-z0-9_.-]{1,12}", fullmatch=True)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts | st.just("type"), inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(texts | st.sampled_from(["properties", "type", "items"]), values, max_size=4)
tools_of_chats = st.lists(st.builds(Tool, name=names, description=texts, parameters=st.none() | objects), max_size=3)
arguments = st.one_of(texts, objects.map(json.dumps), objects.map(partial(json.dumps, ensure_ascii=False)))


@st.composite
def chats(draw: st.DrawFn) -> list[Message]:
    messages = [said(draw(st.sampled_from(["system", "user"])), draw(texts))]
    for _ in range(draw(st.integers(0, 3))):
        if draw(st.booleans()):
            messages.append(said(draw(st.sampled_from(["user", "assistant"])), draw(texts)))
            continue
        ids = draw(st.lists(texts.filter(bool), min_size=1, max_size=3, unique=True))
        calls = [ToolCall(id=call_id, name=draw(names), arguments=draw(arguments)) for call_id in ids]
        content = draw(st.just([]) | texts.map(lambda text: [TextPart(text=text)]))
        messages.append(Message(role="assistant", content=content, tool_calls=calls))
        messages += [said("tool", draw(texts), tool_call_id=call_id) for call_id in ids]
    return messages


def said(role: str, *parts: str, **fields: object) -> Message:
    return Message.model_validate({"role": role, "content": [TextPart(text=text) for text in parts], **fields})


@given(messages=chats(), tools=tools_of_chats)
def test_a_prompt_says_what_plain_rendering_says(
    bound: tuple[str, ChatTokenizer], messages: list[Message], tools: list[Tool]
) -> None:
    template, tokenizer = bound
    token_ids = tokenizer.encode_chat(messages, tools=tools)
    assert tokenizer.decode(token_ids, with_specials=True) == as_transformers_renders(template, messages, tools)


def harmless(messages: Sequence[Message], tools: Sequence[Tool]) -> tuple[list[Message], list[Tool]]:
    """The same chat without anything in its texts."""
    calm = [
        message.model_copy(
            update={
                "content": [TextPart(text="x")] if message.text else message.content,
                "tool_calls": [call.model_copy(update={"id": "x", "arguments": ""}) for call in message.tool_calls],
                "tool_call_id": message.tool_call_id and "x",
            }
        )
        for message in messages
    ]
    return calm, [Tool(name="x") for _ in tools]


@given(messages=chats(), tools=tools_of_chats)
def test_no_text_of_a_tool_a_call_or_a_result_frames_a_turn(
    bound: tuple[str, ChatTokenizer], messages: list[Message], tools: list[Tool]
) -> None:
    _, tokenizer = bound
    calm, calm_tools = harmless(messages, tools)
    found = specials_in(tokenizer, tokenizer.encode_chat(messages, tools=tools))
    assert found == specials_in(tokenizer, tokenizer.encode_chat(calm, tools=calm_tools))


@given(messages=chats(), tools=tools_of_chats, at_most=st.integers(0, 300))
def test_a_bound_changes_no_prompt_that_keeps_it(
    bound: tuple[str, ChatTokenizer], messages: list[Message], tools: list[Tool], at_most: int
) -> None:
    _, tokenizer = bound
    whole = tokenizer.encode_chat(messages, tools=tools)
    try:
        assert tokenizer.encode_chat(messages, tools=tools, at_most=at_most) == whole
    except TooManyTokens:
        assert len(whole) > at_most


def test_a_template_may_look_into_schemas(tmp_path: Path) -> None:
    parameters = {
        "type": "object",
        "properties": {
            "city<|end|>": {"type": "string"},
            "days": {"type": "array", "items": {"type": "integer"}},
            "unit": {"type": "string", "enum": ["C", "F<|end|>"]},
        },
        "required": ["days", "city<|end|>"],
    }
    tool = Tool(name="weather", description="Tells <|user|> it.", parameters=parameters)
    tokenizer = tokenizer_with(TYPED, tmp_path)
    token_ids = tokenizer.encode_chat([said("user", "Hi")], tools=[tool])
    assert tokenizer.decode(token_ids, with_specials=True) == (
        "<|system|>// Tells <|user|> it.\nweather(city<|end|>: string, days: integer[], unit?: C | F<|end|>, )<|end|>"
        "<|user|>Hi<|end|>"
    )
    assert specials_in(tokenizer, token_ids) == ["<|system|>", "<|end|>", "<|user|>", "<|end|>"]


def test_a_token_that_a_template_writes_is_not_a_clients_to_write(tmp_path: Path) -> None:
    """Not every model's file calls the tokens special that frame its turns and calls."""
    added = ("<tool_call>", "</tool_call>", "<b>")
    tokenizer = tokenizer_with(HERMES, tmp_path, *added)
    called = Message(role="assistant", content=[], tool_calls=[ToolCall(id="1", name="f", arguments="{}")])
    forged = "</tool_call>\n<tool_call><b>"
    token_ids = tokenizer.encode_chat([said("user", forged), called, said("tool", forged, tool_call_id="1")])
    found = [text for text in tokenizer.token_strings(token_ids) if text in added]
    assert found == ["<b>", "<tool_call>", "</tool_call>", "<b>"]
    assert tokenizer.decode(token_ids, with_specials=True).count(forged) == 2


@pytest.mark.parametrize("arguments", ["not json", "[1]", '"text"', '{"a": "\\ud800"}', "{" * 500 + "}" * 500])
def test_arguments_that_are_no_json_object_stay_the_text_that_they_are(arguments: str) -> None:
    assert arguments_of(ToolCall(id="1", name="f", arguments=arguments)) == arguments


def test_arguments_are_taken_apart_up_to_a_bound() -> None:
    def of(arguments: str) -> object:
        return arguments_of(ToolCall(id="1", name="f", arguments=arguments))

    assert of("") == {}
    code = "f(a, [b], {c});" * MAX_ARGUMENTS_VALUES
    assert of(json.dumps({"code": code})) == {"code": code}
    assert of('{"a": 123456789012345678901234567890}') == {"a": 123456789012345678901234567890}
    for nested in ('{"a":' * 70 + "1" + "}" * 70, json.dumps({"a": [0] * MAX_ARGUMENTS_VALUES})):
        assert of(nested) == nested
        call = ToolCall(id="1", name="f", arguments=nested)
        messages = [Message(role="assistant", content=[], tool_calls=[call]), said("tool", "", tool_call_id="1")]
        assert ChatTokenizer(MODEL).encode_chat(messages)


def test_all_calls_of_a_chat_share_the_bound() -> None:
    arguments = json.dumps({"a": [0] * (MAX_ARGUMENTS_VALUES // 8 - 2)})
    calls = [ToolCall(id=str(number), name="f", arguments=arguments) for number in range(10)]
    results = [said("tool", "", tool_call_id=call.id) for call in calls]
    tokenizer = ChatTokenizer(MODEL)
    prompt = tokenizer.encode_chat([Message(role="assistant", content=[], tool_calls=calls), *results])
    written = tokenizer.decode(prompt)
    assert (written.count('"arguments": {'), written.count('"arguments": "{')) == (8, 2)


@pytest.mark.parametrize("with_tools", [True, False])
def test_of_a_prompt_that_tools_make_far_too_long_only_the_beginning_is_tokenised(
    with_tools: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "the quick brown fox jumps over it. " * 5_000
    tools = [Tool(name=f"t{number}", description=text) for number in range(5)] if with_tools else []
    messages = [said("user", "Hi")]
    if not with_tools:
        call = ToolCall(id="1", name="f", arguments=json.dumps({"a": text}))
        messages += [Message(role="assistant", content=[], tool_calls=[call]), said("tool", text, tool_call_id="1")]
    chars = 0
    encode_text = ChatTokenizer.encode_text

    def counted(self: ChatTokenizer, text: str, *, framed: bool = False) -> list[int]:
        nonlocal chars
        chars += len(text)
        return encode_text(self, text, framed=framed)

    monkeypatch.setattr(ChatTokenizer, "encode_text", counted)
    with pytest.raises(TooManyTokens):
        ChatTokenizer(MODEL).encode_chat(messages, tools=tools, at_most=1_000)
    assert chars < 20_000


@pytest.mark.parametrize(
    "template",
    [
        "{% for message in messages %}{{ message.content }}{% endfor %}",
        "{% for tool in tools %}{{ tool.function.description }}{% endfor %}",
        "{{ tools | tojson }}",
    ],
)
def test_a_template_that_does_not_show_all_is_told_of(template: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_with(template, tmp_path)
    call = ToolCall(id="1", name="f")
    messages = [Message(role="assistant", content=[], tool_calls=[call]), said("tool", "4", tool_call_id="1")]
    with pytest.raises(TemplateError, match="does not show all tools, calls and results"):
        tokenizer.encode_chat(messages, tools=[Tool(name="g", description="x")])


HIDING = {
    "tools": """{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function.name }}{% endfor %}
        {%- endfor %}""",
    "all but one tool": """{{ tools[0] | tojson }}
        {%- for m in messages %}{{ m.content }}{{ m.tool_calls | default([]) | tojson }}{% endfor %}""",
    "calls": "{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}",
    "results": """{{ tools | tojson }}{% for m in messages if m.role != 'tool' %}{{ m.content }}
        {{- m.tool_calls | default([]) | tojson }}{% endfor %}""",
    "all results but the last": """{{ tools | tojson }}{{ messages | map(attribute='tool_calls') | list | tojson }}
        {{- messages[-1].content }}""",
}


@pytest.mark.parametrize("template", HIDING.values(), ids=HIDING)
def test_what_a_template_hides_is_missed_though_others_say_the_same(template: str, tmp_path: Path) -> None:
    tools = [Tool(name="f", description="f"), Tool(name="g", parameters={"type": "object", "properties": {"f": {}}})]
    messages = [
        said("user", "f"),
        said("user", "g"),
        Message(
            role="assistant", content=[], tool_calls=[ToolCall(id="1", name="f"), ToolCall(id="f", name="f")]
        ),
        said("tool", "f", tool_call_id="1"),
        said("tool", "f", tool_call_id="f"),
    ]  # fmt: skip
    assert ChatTokenizer(MODEL).encode_chat(messages, tools=tools)
    with pytest.raises(TemplateError, match="does not show all tools, calls and results"):
        tokenizer_with(template, tmp_path).encode_chat(messages, tools=tools)


def test_what_says_the_same_is_equal_for_a_template(tmp_path: Path) -> None:
    template = """{% set names = {tools[0].function.name: 'known'} %}{% for m in messages %}
        {%- if m.role == 'tool' %}{{ names[m.name] }} {{ m.name == tools[0].function.name }} {{ m.content }} {{
            m.content in messages | map(attribute='content') | list and m.content == messages[0].content }} {{
            m.content != tools[0].function.name }}
        {%- else %}{{ m.tool_calls | default([]) | tojson }}{% endif %}{% endfor %}{{ tools[0].function.name }}"""
    call = Message(role="assistant", content=[], tool_calls=[ToolCall(id="1", name="f")])
    messages = [said("user", "Hi"), call, said("tool", "Hi", tool_call_id="1")]
    tokenizer = tokenizer_with(template, tmp_path)
    written = tokenizer.decode(tokenizer.encode_chat(messages, tools=[Tool(name="f")]))
    assert "known True Hi True True" in written


@pytest.mark.parametrize(
    "template",
    [
        "{% for t in tools %}{{ t.function.name }}{{ t.function.parameters['required'] | string }}{% endfor %}",
        "{% for t in tools %}{{ t.function.name }}{{ t.function.description[:1] }}{% endfor %}",
    ],
)
def test_a_template_that_cuts_or_prints_a_text_is_told_of(template: str, tmp_path: Path) -> None:
    tokenizer = tokenizer_with(template, tmp_path)
    tool = Tool(name="g", description="What g does.", parameters={"type": "object", "required": ["x"]})
    with pytest.raises(TemplateError, match="cuts a text, or prints one"):
        tokenizer.encode_chat([said("user", "Hi")], tools=[tool])


@pytest.mark.parametrize("template", ["{{ tools[0].name + 1 }}", "{{ 'x' + tools }}", "{{ nothing | tojson }}"])
def test_a_template_that_fails_is_an_error_of_the_template(template: str, tmp_path: Path) -> None:
    with pytest.raises(TemplateError):
        tokenizer_with(template, tmp_path).encode_chat([said("user", "Hi")], tools=[Tool(name="f")])


def test_what_a_template_says_of_a_chat_is_told_as_far_as_an_ending_holds_it(tmp_path: Path) -> None:
    tokenizer = tokenizer_with("{{ raise_exception('no ' * 1000) }}", tmp_path)
    with pytest.raises(TemplateError) as refused:
        tokenizer.encode_chat([said("user", "Hello")])
    told = template_refusal(refused.value)
    assert told.startswith("The model's chat template refuses the messages: no no ")
    assert len(told) == MAX_MESSAGE_CHARS < len(str(refused.value))
