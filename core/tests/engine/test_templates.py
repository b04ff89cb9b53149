"""Chat templates of the operator and of requests: what is none is refused, by name and early."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import pytest

from pegboard.engine.templates import TemplateBook, read_template, template_variables
from pegboard.errors import ConfigError, RequestError

SOURCE = "{% for m in messages %}[{{ m['content'] }}]{% endfor %}"
TALK = [{"role": "user", "content": "hi"}]


def book(own: str | None = None) -> TemplateBook:
    return TemplateBook(own, {"default": "{{ 'usual' }}", "other": "{{ 'other' }}"}, {})


@pytest.mark.parametrize(
    ("own", "wanted", "text"),
    [
        (None, None, "usual"),
        (None, "other", "other"),
        ("other", None, "other"),
        (SOURCE, None, "[hi]"),
        (SOURCE, "default", "usual"),
    ],
)
def test_a_request_wins_over_the_operator_and_both_over_the_model(
    own: str | None, wanted: str | None, text: str
) -> None:
    assert book(own).get(wanted, with_tools=False).render(TALK) == text


@pytest.mark.parametrize("own", ["chatml", "{% for x %}", "./no/such.jinja", ""])
def test_an_operators_template_that_is_none_is_found_at_once(own: str) -> None:
    with pytest.raises(ConfigError, match="template"):
        book(own)


@pytest.mark.parametrize("wanted", ["", 5, ["x"], b"{{ x }}", True])
def test_a_requests_template_of_a_wrong_type_is_refused_by_name(wanted: Any) -> None:
    with pytest.raises(RequestError, match="chat_template=") as caught:
        book().get(wanted, with_tools=False)
    assert caught.value.field == "chat_template"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("enable_thinking", "a mapping"),
        ([("a", 1)], "a mapping"),
        (5, "a mapping"),
        ({1: 2}, "1 is no name"),
        ({"messages": []}, "'messages' is an argument of its own"),
        ({"chat_template": "x"}, "'chat_template' is an argument of its own"),
    ],
)
def test_variables_that_are_none_are_refused_by_name(given: Any, said: str) -> None:
    with pytest.raises(RequestError, match="chat_template_kwargs=") as caught:
        template_variables(given)
    assert said in str(caught.value) and caught.value.field == "chat_template_kwargs"


def test_variables_may_be_left_out() -> None:
    assert template_variables(None) == {}
    assert template_variables({"enable_thinking": False}) == {"enable_thinking": False}


@pytest.mark.parametrize("flag", ["add_generation_prompt", "continue_final_message"])
@pytest.mark.parametrize("value", ["no", 0, None])
def test_flags_are_true_or_false(flag: str, value: Any) -> None:
    with pytest.raises(RequestError, match=f"{flag}=.*True or False") as caught:
        book().get(None, with_tools=False).render(TALK, **{flag: value})
    assert caught.value.field == flag


def test_a_template_file_is_read_and_a_source_is_kept(tmp_path: Path) -> None:
    file = tmp_path / "mine.jinja"
    file.write_text(SOURCE)
    assert read_template(str(file)) == read_template(SOURCE) == SOURCE
    assert read_template("default") == "default"
    assert read_template(None) is None


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "not of a file"), (b"\xff", "cannot be read"), (b"no template", "holds no template")],
)
def test_a_path_that_gives_no_template_is_refused(
    content: bytes | None, said: str, tmp_path: Path
) -> None:
    place = tmp_path / "mine.jinja"
    if content is None:
        place.mkdir()
    else:
        place.write_bytes(content)
    with pytest.raises(ConfigError, match=said) as caught:
        read_template(str(place))
    assert f"chat_template={str(place)!r}" in str(caught.value)


def test_a_template_file_that_may_not_be_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise PermissionError(13, "Permission denied")

    file = tmp_path / "mine.jinja"
    file.write_text(SOURCE)
    monkeypatch.setattr(builtins, "open", refuse)
    with pytest.raises(ConfigError, match=r"chat_template=.*Permission denied"):
        read_template(str(file))


def test_however_many_templates_requests_bring_few_are_kept() -> None:
    kept = book()
    for number in range(500):
        source = "{{ 'x' }}" + f"{number}"
        assert kept.get(source, with_tools=False).render(TALK) == f"x{number}"
        assert len(kept._made) <= 64
    assert kept.get(None, with_tools=False).render(TALK) == "usual"
