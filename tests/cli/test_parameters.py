"""Settings from `-p key=value`, and from the JSON of a run folder."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from explore import registry
from explore.cli import problem
from explore.core.errors import InputError
from explore.runs.recorded import Values, read, read_part, written


@dataclass(frozen=True)
class Rule:
    power: float = 1.0
    widths: tuple[int, ...] = (1, 2)


@dataclass(frozen=True, kw_only=True)
class Settings:
    command: Literal["x"] = "x"
    trials: int
    hidden: tuple[int, ...]
    seed: int | None
    own: Values
    rules: Mapping[str, Rule]
    anything: Mapping[str, Any] | None
    later: int = 7


MADE = Settings(
    trials=2, hidden=(4, 3), seed=None, own={"lr": 0.1, "widths": (1,), "name": None}, rules={"a": Rule(2.0)},
    anything={"list": [1, {"b": [2]}]},
)  # fmt: skip


def test_each_target_types_its_own_keys():
    targets: dict[str, Any] = {
        "": Rule,
        "likelihood": {"noise": float | None, "mode": Literal["a", "b"]},
        "more-rules": Rule,
    }
    texts = ["power=2", "likelihood.noise=none", "more_rules.widths=3,4", "power=3", "likelihood.mode=b"]
    assert problem.parse(texts, targets) == {
        "": {"power": 3.0}, "likelihood": {"noise": None, "mode": "b"}, "more-rules": {"widths": (3, 4)},
    }  # fmt: skip
    assert registry.complete(Rule, {"power": 3.0}) == {"power": 3.0, "widths": (1, 2)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("power", "-x must be KEY=VALUE; got 'power'"),
        ("=1", "-x must be KEY=VALUE; got '=1'"),
        ("rule.power=1", "unknown name before a setting 'rule'; allowed: likelihood"),
        ("likelihood.power=1", "unknown setting 'power'; allowed: noise"),
        ("power=high", "power='high' is not valid; allowed: a number"),
    ],
)
def test_what_no_target_takes(text, message):
    with pytest.raises(InputError) as raised:
        problem.parse([text], {"": Rule, "likelihood": {"noise": float}}, "-x")
    assert str(raised.value) == message


def test_epochs_are_a_setting_given_once():
    assert problem.split(["a=1"], [""], epochs=3) == {"": {"a": "1", "epochs": "3"}}
    with pytest.raises(InputError, match="--epochs and -p epochs=... exclude each other. Pass only one of them"):
        problem.split(["epochs=3"], [""], epochs=3)


def test_what_is_written_is_read_again():
    plain = written(MADE)
    assert read(Settings, json.loads(json.dumps(plain)), "here") == MADE


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trials": "2"}, "here: trials is '2'; it must be a whole number"),
        ({"trials": True}, "here: trials is True; it must be a whole number"),
        ({"hidden": [4, "x"]}, "here: hidden is [4, 'x']; it must be a comma-separated list of whole numbers"),
        ({"seed": 1.5}, "here: seed is 1.5; it must be a whole number or none"),
        ({"command": "y"}, "here: command is 'y'; it must be x"),
        ({"own": {"lr": {"a": 1}}}, "here: own.lr is {'a': 1}; it must be "),
        ({"own": [1]}, "here: own is [1]; it must be "),
        ({"rules": {"a": {"force": 1.0}}}, "here: rules.a must have the settings power, widths; got force"),
        ({"rules": {"a": 3}}, "here: rules.a must have the settings power, widths; got 3"),
        ({"more": 1}, "here must have the settings command, trials, hidden, seed, own, rules, anything, later; got "),
    ],
)
def test_what_is_no_such_dataclass_is_refused(changes, message):
    with pytest.raises(InputError) as raised:
        read(Settings, written(MADE) | changes, "here")
    assert str(raised.value).startswith(message)


def test_a_setting_that_is_missing_is_refused():
    plain = written(MADE)
    for key in plain.keys() - {"command"}:
        with pytest.raises(InputError, match="here must have the settings command, "):
            read(Settings, {k: v for k, v in plain.items() if k != key}, "here")


@dataclass(frozen=True)
class Part:
    trials: int
    more: str = "default"


def test_a_part_of_the_settings_is_read_without_the_others():
    plain = written(MADE)
    assert read_part(Part, plain | {"seed": "no seed"}, "here") == Part(MADE.trials)
    with pytest.raises(InputError, match="here: trials is 'x'; it must be a whole number"):
        read_part(Part, plain | {"trials": "x"}, "here")
