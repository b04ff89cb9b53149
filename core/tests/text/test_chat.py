"""Chat templates render as transformers renders them, in a sandbox, with messages checked first."""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from pegboard.errors import ConfigError, RequestError
from pegboard.text.chat import MAX_TEMPLATE, ChatTemplate
from pegboard.text.tokenizer import Tokenizer

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

CHATML = """
{%- if messages[0].role != 'system' %}
    {{- '<|im_start|>system\\nBe helpful.<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' }}
{% endfor %}
{% if add_generation_prompt %}
<|im_start|>assistant
{% endif %}
"""
BRACKETS = """{% if messages[0]['role'] == 'system' %}
{% set rest = messages[1:] %}
{% set system = '<<SYS>>\\n' ~ messages[0]['content'] ~ '\\n<</SYS>>\\n\\n' %}
{% else %}{% set rest = messages %}{% set system = '' %}{% endif %}
{% for message in rest %}
{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Roles must alternate') }}{% endif %}
{% set content = system ~ message.content if loop.first else message.content %}
{% if message.role == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{%- elif message.role == 'assistant' %}{{ ' ' + content.strip() + ' ' + eos_token }}{% endif %}
{% endfor %}"""
TOOLS = """{%- macro show(call) %}
<call>{{ {'name': call.name, 'arguments': call.arguments} | tojson }}</call>
{%- endmacro %}
{%- set ns = namespace(count=0, thought='') %}
{%- if tools %}
# {{ strftime_now('%Y') | length }}
{% for tool in tools %}{{ tool | tojson(indent=2) }}
{% endfor %}{% endif %}
{%- for message in messages %}
{%- if message.role == 'skip' %}{% continue %}{% endif %}
{%- set ns.count = ns.count + 1 %}
[{{ ns.count }} {{ message.role | upper }}]
{%- if message.content is string %}{{ message.content | trim }}
{%- elif message.content %}{% for part in message.content %}{{ part.text }};{% endfor %}{% endif %}
{%- if message.tool_calls is defined %}
    {%- for call in message.tool_calls %}{{ show(call.function) }}{% endfor %}
{% endif %}
{%- if message.role == 'assistant' %}
  {% generation %}{{ message.reasoning_content or '' }}{% endgeneration %}{% endif %}
{%- if ns.count > 20 %}{% break %}{% endif %}
{%- endfor %}
{%- if documents %}{{ documents | map(attribute='title') | join(', ') }}{% endif %}
{%- if thinking_off is defined and thinking_off %}<off>{% endif %}
{%- if add_generation_prompt %}<go>{% endif %}"""

TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "You are <b>terse</b> & 'kind'."},
    {"role": "user", "content": " Wie heißt das? 日本 😀 "},
    {"role": "assistant", "content": "Japan\n"},
    {"role": "user", "content": "Danke"},
]
CALL = {
    "id": "1",
    "type": "function",
    "function": {"name": "ls", "arguments": {"path": "ö/x", "n": 1}},
}
TOOL_TALK: list[dict[str, Any]] = [
    {"role": "user", "content": "List"},
    {"role": "skip", "content": "?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning_content": "hm"},
    {"role": "tool", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
]
TOOL = {"type": "function", "function": {"name": "ls", "parameters": {"type": "object", "a": "é"}}}


@pytest.fixture(scope="module")
def reference(byte_level: Tokenizer) -> Callable[..., str]:
    """Transformers' rendering."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    backend = tokenizers.Tokenizer.from_str(byte_level.spec.json)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **SPECIAL)

    def render(source: str, messages: Any, **options: Any) -> str:
        options = {"add_generation_prompt": True, **options}
        text = tokenizer.apply_chat_template(
            messages, chat_template=source, tokenize=False, **options
        )
        assert isinstance(text, str)
        return text

    return render


def template(source: str, **options: Any) -> ChatTemplate:
    return ChatTemplate(source, special_tokens=SPECIAL, **options)


@pytest.mark.parametrize(
    ("source", "messages", "options"),
    [
        (CHATML, TALK, {}),
        (CHATML, TALK[1:], {"add_generation_prompt": False}),
        (CHATML, TALK[:3], {"add_generation_prompt": False, "continue_final_message": True}),
        (BRACKETS, TALK, {}),
        (BRACKETS, TALK[1:2], {}),
        (BRACKETS, TALK[:3], {"add_generation_prompt": False, "continue_final_message": True}),
        (TOOLS, TALK, {}),
        (TOOLS, TOOL_TALK, {"tools": [TOOL]}),
        (TOOLS, TOOL_TALK, {"documents": [{"title": "T", "text": "x"}], "thinking_off": True}),
        (TOOLS, TOOL_TALK, {"add_generation_prompt": False, "continue_final_message": True}),
    ],
)
def test_rendering_equals_transformers(
    reference: Callable[..., str], source: str, messages: Any, options: dict[str, Any]
) -> None:
    expected = reference(source, messages, **options)
    assert template(source).render(messages, **options) == expected


def embedded_template(path: Path) -> str:
    """The text under its key in a GGUF file: key, value type (u32), length (u64), text."""
    key = b"tokenizer.chat_template"
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        start = content.find(key) + len(key)
        kind, size = struct.unpack_from("<IQ", content, start)
        assert kind == 8
        return content[start + 12 : start + 12 + size].decode()


@pytest.mark.model
def test_the_demo_models_template_renders_as_in_transformers(
    reference: Callable[..., str], smollm2_path: Path
) -> None:
    source = embedded_template(smollm2_path)
    for messages in (TALK, TALK[1:], TALK[3:]):
        assert template(source).render(messages) == reference(source, messages)


# What a template is given


def test_the_clock_can_be_set() -> None:
    at_noon = template("{{ strftime_now('%d %b %Y') }}", now=lambda: datetime(2024, 7, 26))
    assert at_noon.render(TALK) == "26 Jul 2024"


def test_variables_of_the_request_come_before_special_tokens() -> None:
    source = template("{{ bos_token }}{{ enable_thinking }}")
    assert source.render(TALK, enable_thinking=False) == "<s>False"
    assert source.render(TALK, bos_token="<x>", enable_thinking=1) == "<x>1"


def test_null_content_reaches_a_template_that_asks_as_null_and_others_as_empty_text() -> None:
    messages: Any = [{"role": "assistant", "content": None}, {"role": "assistant"}]
    asks = "{% for m in messages %}{% if m.content is none %}null {% endif %}{% endfor %}"
    compares = "{% for m in messages %}{{ 'null ' if m['content'] == None }}{% endfor %}"
    joins = "{% for m in messages %}{{ '<' + m.content + '>' }}{% endfor %}"
    assert template(asks).render(messages) == "null null "
    assert template(compares).render(messages) == "null null "
    assert template(joins).render(messages) == "<><>"


def test_null_content_is_empty_text_for_a_template_that_asks_for_both() -> None:
    source = (
        "{% for m in messages %}"
        "{% if (m.content is none or m.content == '') and not m.tool_calls %}"
        "{{ raise_exception('empty') }}{% endif %}"
        "{% if m.content is string and m.content != '' %}{{ m.content }}"
        "{% elif m.content | length > 0 %}parts{% endif %}"
        "{% for call in m.tool_calls or [] %}{{ call.function.name }}{% endfor %}{% endfor %}"
    )
    assert template(source).render([{"role": "assistant", "tool_calls": [CALL]}]) == "ls"
    with pytest.raises(RequestError, match="empty"):
        template(source).render([{"role": "assistant", "content": None}])


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for m in messages %}{{ m.content + '|' }}{% endfor %}", "one\ntwo\nthree|plain|"),
        (
            "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
            "{% for part in m.content %}{{ part.type }}:{{ part.text }} {% endfor %}{% endif %}|"
            "{% endfor %}",
            "text:one text:two text:three |plain|",
        ),
        (
            "{% for m in messages %}{% set parts = m['content'] %}"
            "{% for part in parts | selectattr('type', 'equalto', 'text') %}{{ part.text }} "
            "{% endfor %}|{% endfor %}",
            "one two three |plain |",
        ),
        (
            "{% for m in messages %}{% for part in m.get('content') %}{{ part.text }} {% endfor %}"
            "|{% endfor %}",
            "one two three |plain |",
        ),
    ],
)
def test_o30_parts_are_all_kept_in_order_in_the_form_that_the_template_takes(
    source: str, expected: str
) -> None:
    parts = [{"type": "text", "text": "one"}, "two", {"type": "input_text", "text": "three"}]
    messages: Any = [{"role": "tool", "content": parts}, {"role": "user", "content": "plain"}]
    assert template(source).render(messages) == expected


@pytest.mark.parametrize(
    ("wanted", "shown"),
    [("auto", "text one\ntwo|text plain|"), ("string", "text one\ntwo|text plain|"),
     ("openai", "parts one+two+|parts plain+|")],
)  # fmt: skip
def test_the_form_of_contents_may_be_said(wanted: str, shown: str) -> None:
    source = (
        "{% for m in messages %}{% if m.content is string %}text {{ m.content }}{% else %}parts "
        "{% set c = m['con' ~ 'tent'] %}{% for p in c %}{{ p.text }}+{% endfor %}{% endif %}|"
        "{% endfor %}"
    )
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages: Any = [{"role": "user", "content": parts}, {"role": "user", "content": "plain"}]
    found = template(source).render(messages, chat_template_content_format=wanted)
    assert found == shown
    with pytest.raises(RequestError, match="auto, string, openai"):
        template(source).render(messages, chat_template_content_format="list")


def test_reasoning_is_there_under_both_names() -> None:
    source = template("{{ messages[0].reasoning_content }} {{ messages[0].thinking }}")
    for name in ("reasoning_content", "thinking", "reasoning"):
        assert source.render([{"role": "assistant", "content": "", name: "so"}]) == "so so"


# Tool calls in the history


def history(arguments: Any) -> list[dict[str, Any]]:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    return [{"role": "assistant", "content": None, "tool_calls": [call]}]


ARGUMENTS = "messages[0].tool_calls[0].function.arguments"
READERS = {
    "tojson": f"{{{{ {ARGUMENTS} | tojson }}}}",
    "items": f"{{% for k, v in {ARGUMENTS}.items() %}}{{{{ k }}}}={{{{ v }}}};{{% endfor %}}",
    "plus": f"{{{{ '<' + {ARGUMENTS} + '>' }}}}",
    "tilde": f"{{{{ '<' ~ {ARGUMENTS} ~ '>' }}}}",
    "printed": f"{{{{ {ARGUMENTS} }}}}",
    "whole call": "{{ messages[0].tool_calls[0].function | tojson }}",
    "kind": f"{{{{ {ARGUMENTS} is mapping }}}} {{{{ {ARGUMENTS} is string }}}}",
}


@pytest.mark.parametrize("arguments", ['{"c": "ls ö"}', {"c": "ls ö"}])
def test_o30_arguments_reach_every_kind_of_template_as_an_object(arguments: Any) -> None:
    expected = {
        "tojson": '{"c": "ls ö"}',
        "items": "c=ls ö;",
        "plus": '<{"c": "ls ö"}>',
        "tilde": '<{"c": "ls ö"}>',
        "printed": '{"c": "ls ö"}',
        "whole call": '{"name": "f", "arguments": {"c": "ls ö"}}',
        "kind": "True False",
    }
    for name, source in READERS.items():
        assert template(source).render(history(arguments)) == expected[name], name


@pytest.mark.parametrize("arguments", ["null", "", "  ", None, {}, "{}"])
def test_o30_no_arguments_are_an_empty_object(arguments: Any) -> None:
    assert template(READERS["tojson"]).render(history(arguments)) == "{}"
    assert template(READERS["items"]).render(history(arguments)) == ""
    assert template(READERS["printed"]).render(history(arguments)) == "{}"


@pytest.mark.parametrize("arguments", ["[1]", "{bad", "3", '"text"', 7, [1], "[" * 100_000])
def test_o30_arguments_that_are_no_object_are_refused(arguments: Any) -> None:
    place = r"messages\[0\]\.tool_calls\[0\]\.function\.arguments"
    with pytest.raises(RequestError, match=f"{place}=.* is not allowed: a JSON object") as caught:
        template(READERS["tojson"]).render(history(arguments))
    assert caught.value.field == "messages" and len(str(caught.value)) < 400


def test_the_callers_messages_are_left_alone() -> None:
    messages = history('{"c": 1}')
    before = json.dumps(messages)
    template(READERS["items"]).render(messages)
    assert json.dumps(messages) == before


# Continuing the last message

TRIMS = "{% for m in messages %}<{{ m.role }}>\n\n{{ m.content | trim }}<end>{% endfor %}"
KEEPS = "{% for m in messages %}<{{ m.role }}>\n\n{{ m.content }}<end>{% endfor %}"


@pytest.mark.parametrize("text", ["OK!\n", "OK! ", " OK", "", " ", "same <assistant> same"])
def test_o31_white_space_around_the_message_to_be_continued(text: str) -> None:
    messages = [{"role": "user", "content": "same"}, {"role": "assistant", "content": text}]
    options: Any = {"add_generation_prompt": False, "continue_final_message": True}
    head = "<user>\n\nsame<end><assistant>\n\n"
    assert template(KEEPS).render(messages, **options) == head + text
    assert template(TRIMS).render(messages, **options) == head + text.strip()


def test_o31_a_message_given_in_parts_is_continued_in_its_last_part() -> None:
    source = "{% for m in messages %}{% for p in m.content %}({{ p.text }}){% endfor %}{% endfor %}"
    messages = [
        {
            "role": "assistant",
            "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        }
    ]
    options: Any = {"add_generation_prompt": False, "continue_final_message": True}
    assert template(source).render(messages, **options) == "(a)(b"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].role }}",
        "{{ messages[0].content | replace('b', 'x') }}",
        "{{ messages[0].content[:2] }}",
    ],
)
def test_o31_a_template_that_changes_the_message_is_refused(source: str) -> None:
    with pytest.raises(
        RequestError, match="does not end in the text of the last message"
    ) as caught:
        template(source).render(
            [{"role": "assistant", "content": "abc"}],
            add_generation_prompt=False,
            continue_final_message=True,
        )
    assert caught.value.field == "continue_final_message"


def test_beginning_and_continuing_an_answer_exclude_each_other() -> None:
    with pytest.raises(RequestError, match="cannot both be true"):
        template(KEEPS).render(TALK, continue_final_message=True)


# Bad input


@pytest.mark.parametrize(
    ("messages", "place"),
    [
        ([], r"messages=\[\]"),
        ("hello", "messages='hello'"),
        (["hello"], r"messages\[0\]='hello'"),
        ([{"content": "x"}], r"messages\[0\]\.role=None"),
        ([{"role": 3, "content": "x"}], r"messages\[0\]\.role=3"),
        ([{"role": "user", "content": 3}], r"messages\[0\]\.content=3"),
        ([{"role": "user", "content": [3]}], r"messages\[0\]\.content\[0\]=3"),
        (
            [{"role": "user", "content": [{"type": "text"}]}],
            r"messages\[0\]\.content\[0\]\.text=None",
        ),
        ([{"role": "user", "content": [{"type": "image_url"}]}], r"content\[0\]\.type='image_url'"),
        ([{"role": "user", "content": "", "x": object()}], r"messages\[0\]\.x=<object"),
        ([{"role": "assistant", "tool_calls": {}}], r"messages\[0\]\.tool_calls=\{\}"),
        ([{"role": "assistant", "tool_calls": [{}]}], r"messages\[0\]\.tool_calls\[0\]=\{\}"),
        (
            [{"role": "assistant", "tool_calls": [{"function": {}}]}],
            r"tool_calls\[0\]\.function\.name=None",
        ),
    ],
)
def test_a_malformed_message_is_refused_with_its_place(messages: Any, place: str) -> None:
    with pytest.raises(RequestError, match=f"{place}.* is not allowed: ") as caught:
        template(CHATML).render(messages)
    assert caught.value.field == "messages"


def test_data_nested_without_end_is_refused() -> None:
    loop: dict[str, Any] = {}
    loop["again"] = loop
    with pytest.raises(RequestError, match="nested more than 64 levels deep"):
        template(CHATML).render([{"role": "user", "content": "x", "extra": loop}])


@pytest.mark.parametrize("field", ["tools", "documents"])
def test_tools_and_documents_must_be_lists_of_mappings(field: str) -> None:
    bad: Any
    for bad in ("x", [print], {"a": 1}):
        options: Any = {field: bad}
        with pytest.raises(RequestError, match=f"{field} must be a list of mappings") as caught:
            template(CHATML).render(TALK, **options)
        assert caught.value.field == field
    options = {field: []}
    assert template(f"{{{{ {field} is none }}}}").render(TALK, **options) == "True"


def test_what_the_template_refuses_is_the_requests_fault() -> None:
    with pytest.raises(RequestError, match="refuses these messages: Roles must alternate"):
        template(BRACKETS).render(TALK[2:])
    with pytest.raises(RequestError, match="cannot render these messages: UndefinedError"):
        template("{{ messages[0].nothing.at_all }}").render(TALK)


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ 1", "{% include 'x' %}{% endfor %}", "{% for x in y %}"]
)
def test_a_broken_template_is_refused_with_its_line(source: str) -> None:
    with pytest.raises(ConfigError, match="chat template 'mine' is not valid at line 1"):
        ChatTemplate(source, name="mine")


# Sandbox


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__ }}",
        "{{ ''['__class__'] }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ '' | attr('__class__') }}",
        "{{ raise_exception.__globals__ }}",
        "{{ strftime_now.__globals__ }}",
        "{{ range.__globals__ }}",
        "{{ dict.__init__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update(role='x') }}",
        "{{ '{0.__class__}'.format(1) }}",
        "{{ namespace(__class__=1) }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ cycler.__init__.__globals__ }}",
        "{{ self.__init__.__globals__ }}",
        "{{ joiner(',')._sep.__class__ }}",
    ],
)
def test_a_template_does_not_reach_python(source: str) -> None:
    with pytest.raises(ConfigError, match="does what is not allowed"):
        template(source).render(TALK)


@pytest.mark.parametrize(
    "source", ["{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}"]
)
def test_a_template_does_not_read_files(source: str) -> None:
    with pytest.raises((ConfigError, RequestError)):
        template(source).render(TALK)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(10000) %}{% for b in range(10000) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{{ f(n - 1) ~ f(n - 1) if n }}{% endmacro %}{{ f(40) }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'x' * 10 ** 12 }}",
        "{{ 2 ** 1000000000 }}",
        "{{ [1, 2] * 100000000 }}",
        "{{ '%999999999d' % 1 }}",
        "{{ 'x'.ljust(1000000000) }}",
        "{% set n = namespace(t='x') %}{% for i in range(64) %}{% set n.t = n.t~n.t %}{% endfor %}",
        "{% set n = namespace(t='x') %}{% for i in range(64) %}{% set n.t = n.t+n.t %}{% endfor %}",
        "{% set line = 'x' * 1000000 %}{% for i in range(64) %}{{ line }}{% endfor %}",
        "{% for i in range(100000000) %}{% endfor %}",
    ],
)
def test_a_template_is_bounded_in_time_and_memory(source: str) -> None:
    with pytest.raises((ConfigError, RequestError)):
        template(source).render(TALK)


def test_a_long_conversation_is_within_the_bounds() -> None:
    messages = [
        {"role": "user", "content": "word " * 200},
        {"role": "assistant", "content": "yes"},
    ] * 1500
    assert len(template(TOOLS).render([{"role": "skip", "content": ""}] * 3000 + messages)) > 10_000


def test_a_template_beyond_the_limit_is_refused() -> None:
    with pytest.raises(ConfigError, match=f"at most {MAX_TEMPLATE}"):
        ChatTemplate("x" * (MAX_TEMPLATE + 1))


# Choosing


def test_the_template_is_chosen_by_need_and_name() -> None:
    named = {"default": "D", "tool_use": "T", "rag": "R"}

    def chosen(wanted: str | None = None, with_tools: bool = False) -> tuple[str, str]:
        one = ChatTemplate.choose(wanted, named, with_tools=with_tools, special_tokens=SPECIAL)
        return one.name, one.render(TALK)

    assert chosen() == ("default", "D")
    assert chosen(with_tools=True) == ("tool_use", "T")
    assert chosen("rag", with_tools=True) == ("rag", "R")
    assert chosen("own {{ bos_token }}") == ("given", "own <s>")
    assert ChatTemplate.choose(None, {"default": "D"}, with_tools=True).name == "default"
    assert ChatTemplate.choose(None, {"only": "O"}).name == "only"
    with pytest.raises(RequestError, match=r"'tool-use' is neither .*: default, rag, tool_use"):
        chosen("tool-use")


def test_without_a_template_the_error_says_what_to_do() -> None:
    with pytest.raises(RequestError, match="no chat template: give one as chat_template") as caught:
        ChatTemplate.choose(None, {})
    assert caught.value.field == "chat_template"
    with pytest.raises(RequestError, match="one of a, b"):
        ChatTemplate.choose(None, {"b": "", "a": ""})
