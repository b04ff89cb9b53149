"""Settings of plugins: declared by an attrs class, checked by name, handed to the plugin's code."""

from __future__ import annotations

from textwrap import dedent
from typing import Any

import pytest

from pegboard.api.platform import Platform
from pegboard.config.engine import EngineConfig
from pegboard.config.plugin_config import parse_plugin_config, plugin_config_of_words
from pegboard.config.plugin_policy import policy_of
from pegboard.errors import ConfigError
from pegboard.plugins import LoadPolicy
from pegboard.runner.place import RankPlace
from pegboard.runner.setup import _runtime

SOURCE = """
from __future__ import annotations
from typing import Literal
import attrs
from pegboard.api.hooks import hookimpl
from pegboard.api.platform import Platform

PEGBOARD_API = {"platform": 0}


@attrs.frozen
class Inner:
    size: int = 1


@attrs.frozen
class Settings:
    depth: int = attrs.field(default=2, validator=attrs.validators.ge(1))
    share: float = 0.5
    name: str | None = None
    eager: bool = False
    mode: Literal["slow", "quick"] = "quick"
    sizes: tuple[int, ...] = ()
    pair: tuple[int, str] = (1, "x")
    either: int | str = 0
    limits: dict[str, int] = attrs.field(factory=dict)
    inner: Inner = Inner()


@hookimpl
def pegboard_settings(ctx):
    assert ctx.settings is None
    return Settings


@hookimpl
def pegboard_platforms(ctx):
    yield Platform(
        name=f"depth-{ctx.settings.depth}", probe="odd_module:no", runtime="odd_module:runtime",
        takes_settings=True,
    )


def runtime(index, settings):
    return index, settings
"""


def policy(**settings: Any) -> LoadPolicy:
    return LoadPolicy(plugin_config={"odd": settings})


def test_a_plugin_gets_its_settings_in_its_hooks_and_in_lazy_code(site: Any) -> None:
    site.add_source(SOURCE)
    board = site.load(policy=policy(depth=7, inner={"size": 3}, sizes=[4, 5]))
    (platform,) = board.registry("platform")
    assert platform.name == "depth-7"
    index, settings = _runtime(board, platform, RankPlace(1, 2))
    assert index == 1
    assert (settings.depth, settings.inner.size, settings.sizes) == (7, 3, (4, 5))
    assert settings is board.settings("platform", "depth-7")


def test_without_values_the_defaults_hold_and_without_a_hook_there_is_nothing(site: Any) -> None:
    site.add_source(SOURCE)
    site.add_platform("plain", "platforms:plain")
    board = site.load()
    assert board.settings("platform", "depth-2").share == 0.5
    assert board.settings("platform", "plain") is None
    assert board.settings("platform", "nobody") is None
    assert board.settings("checkpoint", "hf") is None


def test_a_platform_that_takes_no_settings_is_given_none(site: Any) -> None:
    board = site.load(extra=[("platform", Platform("own", "a:b", "builtins:abs"))])
    assert _runtime(board, board.registry("platform").get("own"), RankPlace(3, 4)) == 3


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"depht": 1}, r"plugin_config\.odd: key 'depht' is not one of .* \(did you mean 'depth'"),
        ({"zzz": 1}, r"plugin_config\.odd: unknown key 'zzz'; there are depth, share"),
        ({"depth": "7"}, r"plugin_config\.odd: depth='7' is not allowed: an integer"),
        ({"depth": True}, r"depth=True is not allowed: an integer"),
        ({"depth": 7.0}, r"depth=7\.0 is not allowed: an integer"),
        ({"depth": 0}, r"plugin_config\.odd: 'depth' must be >= 1: 0"),
        ({"share": "1"}, r"share='1' is not allowed: a number"),
        ({"eager": 1}, r"eager=1 is not allowed: true or false"),
        ({"name": 3}, r"name=3 is not allowed: text or null"),
        ({"mode": "fast"}, r"mode='fast' is not allowed: one of slow, quick"),
        ({"sizes": "12"}, r"sizes='12' is not allowed: a list \(an integer\)"),
        ({"sizes": [1, "2"]}, r"sizes=\[1, '2'\] is not allowed: a list"),
        ({"pair": [1, 2]}, r"pair=\[1, 2\] is not allowed: a list \(an integer, text\)"),
        ({"pair": [1]}, r"pair=\[1\] is not allowed"),
        ({"either": 1.5}, r"either=1\.5 is not allowed: an integer or text"),
        ({"limits": [1]}, r"limits=\[1\] is not allowed"),
        ({"limits": {"a": "b"}}, r"limits=\{'a': 'b'\} is not allowed"),
        ({"inner": {"sise": 1}}, r"inner=.* is not allowed: an object with the keys size"),
        ({"inner": 1}, r"inner=1 is not allowed: an object with the keys size"),
    ],
)
def test_settings_that_are_not_allowed_are_the_operators_error(
    site: Any, given: dict[str, Any], said: str
) -> None:
    site.add_source(SOURCE)
    with pytest.raises(ConfigError, match=said):
        site.load(policy=policy(**given))


@pytest.mark.parametrize(
    "given", [{"share": 1}, {"name": None}, {"either": "x"}, {"pair": [2, "y"]}, {"mode": "slow"}]
)
def test_what_fits_the_type_is_taken(site: Any, given: dict[str, Any]) -> None:
    site.add_source(SOURCE)
    settings = site.load(policy=policy(**given)).settings("platform", "depth-2")
    ((name, value),) = given.items()
    found = getattr(settings, name)
    assert found == (tuple(value) if isinstance(value, list) else value)


def test_settings_of_a_plugin_that_is_not_there_are_refused_with_the_nearest(site: Any) -> None:
    site.add_source(SOURCE)
    with pytest.raises(ConfigError, match=r"plugin_config: .*'ood'.*did you mean 'odd'"):
        site.load(policy=LoadPolicy(plugin_config={"ood": {}}))


def test_settings_for_a_plugin_without_any_are_refused(site: Any) -> None:
    site.add_platform("plain", "platforms:plain")
    with pytest.raises(ConfigError, match=r"plugin_config\.plain: the plugin has no settings.* x"):
        site.load(policy=LoadPolicy(plugin_config={"plain": {"x": 1}}))


@pytest.mark.parametrize(
    ("hook", "said"),
    [
        ("return 3", "must return an attrs class, not 3"),
        ("return Settings()", "must return an attrs class"),
        ("return Needy", r"plugin_config\.odd: the key 'must' is missing"),
        ("return Broken", "'depth' must be >= 1"),
    ],
)
def test_a_plugin_whose_settings_cannot_be_made_without_values_has_failed(
    site: Any, hook: str, said: str
) -> None:
    more = """
    Needy = attrs.make_class("Needy", {"must": attrs.field(type=int)})

    def Broken():
        return Settings(depth=0)
    """
    wrong = SOURCE.replace("return Settings\n", f"{hook}\n").replace(
        "@hookimpl\ndef pegboard_settings", f"{dedent(more)}\n@hookimpl\ndef pegboard_settings"
    )
    wrong = wrong.replace("return Broken", "return Broken()")
    site.add_source(wrong)
    (record,) = site.load().plugins
    assert record.state == "failed"
    assert said.replace("\\", "") in record.reason


def test_a_type_that_plain_values_cannot_become_is_the_plugins_fault(site: Any) -> None:
    site.add_source(SOURCE.replace("share: float = 0.5", "share: object.__class__ = int"))
    (record,) = site.load(policy=policy(share=1)).plugins
    assert record.state == "failed" and "setting 'share'" in record.reason


def test_words_of_the_command_line_are_json_or_text() -> None:
    words = ["a.depth=3", "a.name=null", "b.c.sizes=[1, 2]", "a.mode=quick", "a.empty=", "a.eq=x=y"]
    assert plugin_config_of_words(words) == {
        "a": {"depth": 3, "name": None, "mode": "quick", "empty": "", "eq": "x=y"},
        "b.c": {"sizes": [1, 2]},
    }


@pytest.mark.parametrize("word", ["a=1", "a.b", ".b=1", "a.=1", ""])
def test_a_word_of_another_form_is_refused(word: str) -> None:
    with pytest.raises(ConfigError, match=r"id\.key=value"):
        plugin_config_of_words([word])


def test_a_setting_given_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"a\.b is given twice"):
        plugin_config_of_words(["a.b=1", "a.b=1"])


def test_the_engine_takes_a_mapping_or_its_json_and_hands_it_on() -> None:
    given = {"odd": {"depth": 3}}
    config = EngineConfig(model="m", plugin_config='{"odd": {"depth": 3}}')
    assert config.plugin_config == given == parse_plugin_config(given)
    assert policy_of(config).plugin_config == given
    assert EngineConfig(model="m").plugin_config == {}


@pytest.mark.parametrize("given", [3, "{", '{"a": 1}', {"a": {1: 2}}, {1: {}}, None])
def test_anything_else_is_refused(given: Any) -> None:
    with pytest.raises(ConfigError, match="plugin_config"):
        EngineConfig(model="m", plugin_config=given)
