"""Finding plug-ins and typing their settings."""

import dataclasses
from typing import Literal

import pytest

from explore import registry
from explore.errors import InputError


@pytest.mark.parametrize("kind", registry.KINDS)
def test_every_name_is_described_and_found(kind):
    names = registry.names(kind)
    assert names and list(names) == sorted(names)
    for name, description in names.items():
        assert description and "_" not in name
        assert callable(registry.find(kind, name))


def test_known_names():
    assert {"noisy-kfac", "bbb", "ensemble"} <= registry.names("posteriors").keys()
    assert {"random", "max-variance", "information-gain"} <= registry.names("acquisitions").keys()
    # Helpers in the same folder are no plug-ins.
    assert not {"base", "adam", "kronecker", "structures"} & registry.names("posteriors").keys()


def test_a_new_file_is_a_plug_in(tmp_path, monkeypatch):
    import explore.posteriors

    (tmp_path / "my_own.py").write_text('"""A method of mine.\n\nMore about it."""\n\n\nclass MyOwn:\n    pass\n')
    (tmp_path / "helper.py").write_text("def other(): pass\n")
    monkeypatch.setattr(explore.posteriors, "__path__", [*explore.posteriors.__path__, str(tmp_path)])
    assert registry.names("posteriors")["my-own"] == "A method of mine."
    assert "helper" not in registry.names("posteriors")
    assert registry.find("posteriors", "my-own").__name__ == "MyOwn"


class Point:
    name, value, dist = "theirs", "package.module:Class", None

    def load(self):
        return Point


def test_entry_points(monkeypatch):
    monkeypatch.setattr(registry, "entry_points", lambda group: [Point()] if group == "explore.posteriors" else [])
    assert registry.names("posteriors")["theirs"] == "from another package: package.module:Class"
    assert registry.find("posteriors", "theirs") is Point
    assert "theirs" not in registry.names("acquisitions")


def test_module_and_class():
    assert registry.find("posteriors", "collections:OrderedDict").__name__ == "OrderedDict"
    for name in ("no_such_module:Thing", "collections:NoSuchThing", ":Thing", "collections:", ".relative:Thing"):
        with pytest.raises(InputError, match="cannot load the posterior"):
            registry.find("posteriors", name)


def test_unknown_names_list_the_known_ones():
    with pytest.raises(InputError, match="unknown posterior 'noisy-kfca'; allowed: .*ensemble.*noisy-kfac"):
        registry.find("posteriors", "noisy-kfca")
    cls = registry.find("posteriors", "noisy-kfac")
    with pytest.raises(InputError, match="unknown preset 'big'; allowed: default, .*paper, .*small"):
        registry.preset(cls, "big")


def test_presets():
    cls = registry.find("posteriors", "noisy-kfac")
    assert registry.preset(cls, None) == registry.preset(cls, "default")
    small = registry.preset(cls, "small")
    small["lr"] = 99  # a copy: presets are shared by everyone
    assert registry.preset(cls, "small")["lr"] != 99
    assert registry.preset(int, None) == {}


@dataclasses.dataclass
class Settings:
    net: object
    count: int = 1
    rate: float = 1.0
    flag: bool = False
    mode: Literal["split", "exact"] = "split"
    maybe: float | None = None
    either: int | Literal["auto"] = 1
    many: tuple[int, ...] = ()
    hidden: int = dataclasses.field(default=0, init=False)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("count", "7", 7),
        ("rate", "1e-3", 1e-3),
        ("rate", "2", 2.0),
        ("flag", "True", True),
        ("flag", "false", False),
        ("mode", "exact", "exact"),
        ("maybe", "none", None),
        ("maybe", "0.5", 0.5),
        ("either", "auto", "auto"),
        ("either", "3", 3),
        ("many", "50,20", (50, 20)),
        ("many", "", ()),
    ],
)
def test_parse(key, text, value):
    parsed = registry.parse(Settings, [(key, text)])[key]
    assert parsed == value and type(parsed) is type(value)


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("count", "1.5", "count='1.5' is not valid; allowed: a whole number"),
        ("rate", "fast", "allowed: a number"),
        ("flag", "1", "allowed: true | false"),
        ("mode", "both", "allowed: split | exact"),
        ("maybe", "x", "allowed: a number or none"),
        ("many", "5,x", "allowed: a comma-separated list of a whole number"),
        ("ratee", "1", "unknown setting 'ratee'; allowed: count, either, flag, many, maybe, mode, rate"),
        ("net", "1", "unknown setting 'net'"),
        ("hidden", "1", "unknown setting 'hidden'"),
    ],
)
def test_parse_errors(key, text, message):
    with pytest.raises(InputError) as error:
        registry.parse(Settings, {key: text})
    assert message in str(error.value)
