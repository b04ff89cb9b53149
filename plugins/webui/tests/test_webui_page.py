"""The files of the page: all are served, none loads from elsewhere, none holds inline code."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from html.parser import HTMLParser

import pytest
from starlette.requests import Request
from starlette.responses import Response

from pegboard.api.endpoint import EndpointContext, Route
from pegboard_webui.page import CONTENT_SECURITY_POLICY, HEADERS, read_assets, routes

NAMESPACE = "http://www.w3.org/2000/svg"
VOID = {"input", "img", "link", "meta"}
SINKS = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment"
    r"|\beval\(|new Function|srcdoc|setTimeout\(\s*[\"'`]|setHTMLUnsafe"
)
ASSETS = {asset.path: asset for asset in read_assets()}
SCRIPTS = {path: asset.body.decode() for path, asset in ASSETS.items() if path.endswith(".js")}
STYLES = {path: asset.body.decode() for path, asset in ASSETS.items() if path.endswith(".css")}
PAGE = ASSETS["/ui"].body.decode()


def served() -> dict[str, Route]:
    return {route.path: route for route in routes(EndpointContext(engine=None, server=None))}


def get(path: str, **headers: str) -> Response:
    lines = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "path": path, "headers": lines}
    answer = asyncio.run(served()[path].handler(Request(scope)))  # type: ignore[arg-type]
    assert isinstance(answer, Response)
    return answer


class Tags(HTMLParser):
    """All tags with their attributes; complains of what is not closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.inline: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> in {self.open} at {self.getpos()}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in {"script", "style"}:
            self.inline.append(data)


@pytest.fixture(scope="module")
def tags() -> Tags:
    reader = Tags()
    reader.feed(PAGE)
    reader.close()
    assert reader.open == [], "these are never closed"
    return reader


def test_the_page_and_its_files_are_public_and_can_only_be_read() -> None:
    found = served()
    assert set(found) == set(ASSETS) and len(found) > 10
    assert all(route.public and route.method == "GET" for route in found.values())


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/ui", "text/html; charset=utf-8"),
        ("/ui/app.js", "text/javascript; charset=utf-8"),
        ("/ui/base.css", "text/css; charset=utf-8"),
        ("/ui/icon.svg", "image/svg+xml"),
    ],
)
def test_a_file_is_answered_with_its_type_and_all_headers(path: str, kind: str) -> None:
    answer = get(path)
    assert answer.status_code == 200 and answer.body == ASSETS[path].body
    assert answer.headers["content-type"] == kind
    assert HEADERS.items() <= dict(answer.headers).items()


def test_a_browser_that_has_a_file_gets_it_only_once() -> None:
    tag = get("/ui/app.js").headers["etag"]
    again = get("/ui/app.js", if_none_match=f'"other", W/{tag}')
    assert again.status_code == 304 and again.body == b""
    assert again.headers["content-security-policy"] == CONTENT_SECURITY_POLICY
    assert get("/ui/app.js", if_none_match='"other"').status_code == 200
    assert len({asset.tag for asset in ASSETS.values()}) == len(ASSETS)


def test_the_policy_allows_files_of_this_server_and_nothing_else() -> None:
    rules = dict(rule.split(" ", 1) for rule in CONTENT_SECURITY_POLICY.split("; "))
    sources = {name: value for name, value in rules.items() if name.endswith("-src")}
    assert sources.pop("default-src") == "'none'"
    assert set(sources.values()) == {"'self'"}
    assert rules["require-trusted-types-for"] == "'script'"
    assert rules["frame-ancestors"] == rules["base-uri"] == rules["form-action"] == "'none'"


def test_the_page_is_well_formed_and_has_no_inline_code(tags: Tags) -> None:
    assert not [text for text in tags.inline if text.strip()]
    names = [name for _, attributes in tags.found for name in attributes]
    assert not [name for name in names if name.startswith("on") or name == "style"]
    assert ("html", {"lang": "en"}) in tags.found


def references(tags: Tags) -> Iterator[str]:
    for _, attributes in tags.found:
        yield from (attributes[n] or "" for n in ("src", "href") if n in attributes)


def test_the_page_loads_only_files_that_there_are_by_relative_addresses(tags: Tags) -> None:
    loaded = {link for link in references(tags) if not link.startswith("#")}
    assert {f"/{link}" for link in loaded} <= set(ASSETS)
    assert {"ui/app.js", "ui/theme.js", "ui/base.css"} <= loaded


def test_every_file_is_used() -> None:
    used = {"/ui", *re.findall(r'"(/ui/[\w.]+)"', PAGE.replace('"ui/', '"/ui/'))}
    for text in SCRIPTS.values():
        used |= {f"/ui/{name}" for name in re.findall(r'from "\./([\w.]+)"', text)}
    assert used == set(ASSETS)


def test_no_file_names_an_address_elsewhere() -> None:
    for path, asset in ASSETS.items():
        text = asset.body.decode().replace(NAMESPACE, "")
        found = re.findall(r"(?:https?:)?//[\w-]+\.[\w.-]+", text)
        assert not found, f"{path} names {found}"
    assert not [p for p, text in STYLES.items() if "@import" in text or "url(" in text]


def test_scripts_never_turn_text_into_markup_or_code() -> None:
    for path, text in SCRIPTS.items():
        assert not SINKS.findall(text), path
    assert SINKS.search("node.innerHTML = text")


def test_the_server_is_called_by_relative_addresses() -> None:
    known = {"v1/chat/completions", "v1/models", "plugins", "metrics", "load", "health"}
    calls = [c for t in SCRIPTS.values() for c in re.findall(r"\.(?:send|json|text)\(\"(.*?)\"", t)]
    assert known == set(calls)


def test_ids_are_unique_and_those_that_scripts_look_up_exist(tags: Tags) -> None:
    ids = [attributes["id"] for _, attributes in tags.found if "id" in attributes]
    assert len(ids) == len(set(ids))
    wanted = {n for text in SCRIPTS.values() for n in re.findall(r'byId\("([\w-]+)"\)', text)}
    assert wanted and wanted <= set(ids), wanted - set(ids)
    for _, attributes in tags.found:
        for name in ("aria-controls", "aria-labelledby"):
            assert attributes.get(name, ids[0]) in ids


def test_every_control_has_a_name_that_can_be_read_aloud(tags: Tags) -> None:
    named = {"aria-label", "id"}
    for tag, attributes in tags.found:
        if tag in {"input", "textarea", "progress"}:
            assert "aria-label" in attributes, attributes
        if tag == "button" and "small" in (attributes.get("class") or ""):
            assert named <= set(attributes), attributes
        if tag == "img":
            assert "alt" in attributes


def test_scripts_stay_small_enough_to_be_read() -> None:
    long = {path for path, text in {**SCRIPTS, **STYLES}.items() if text.count("\n") > 320}
    assert not long
