"""Finding plug-ins and typing their settings."""

import dataclasses
import sys
from importlib.metadata import EntryPoint
from typing import Literal

import pytest

from explore import registry
from explore.core.errors import InputError
from explore.nets.likelihoods import Bernoulli, Gaussian
from explore.nets.net import Net, mlp


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
    (tmp_path / "helper.py").write_text("__all__ = ['other']\n\n\ndef other(): pass\n")
    monkeypatch.setattr(explore.posteriors, "__path__", [*explore.posteriors.__path__, str(tmp_path)])
    assert registry.names("posteriors")["my-own"] == "A method of mine."
    assert "helper" not in registry.names("posteriors")
    assert registry.find("posteriors", "my-own").__name__ == "MyOwn"


def test_an_entry_of_a_table_is_a_plug_in_unless_a_file_is(tmp_path, monkeypatch):
    import explore.data.sets as package

    entry = package.PLUG_INS["yacht"]._replace(name="my-own", description="A set of mine.")
    monkeypatch.setitem(package.PLUG_INS, "my-own", entry)
    assert registry.names("data")["my-own"] == "A set of mine."
    assert registry.find("data", "my_own") is registry.find("data", "my-own") is entry
    (tmp_path / "my_own.py").write_text('"""Of a file."""\n\n\ndef my_own(folder=None): pass\n')
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(tmp_path)])
    assert registry.names("data")["my-own"] == "Of a file."
    assert registry.find("data", "my-own").__name__ == "my_own"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("class Mine:\n    pass\n", "my_own.py must define class MyOwn or function my_own for the posterior my-own"),
        ("from elsewhere import MyOwn\n", "my_own.py must define class MyOwn"),
        ("class MyOwn(\n", "my_own.py is not valid Python: .*line 1"),
    ],
)
def test_a_file_that_is_no_plug_in_is_reported(tmp_path, monkeypatch, source, message):
    import explore.posteriors

    (tmp_path / "my_own.py").write_text(source)
    monkeypatch.setattr(explore.posteriors, "__path__", [*explore.posteriors.__path__, str(tmp_path)])
    for look_up in (lambda: registry.names("posteriors"), lambda: registry.find("posteriors", "my-own")):
        with pytest.raises(InputError, match=message):
            look_up()
    assert registry.find("posteriors", "bbb").__name__ == "BBB"  # which has nothing to do with it


def test_underscores_are_hyphens():
    for kind, one, other in (
        ("posteriors", "noisy-kfac", "noisy_kfac"),
        ("acquisitions", "max-variance", "max_variance"),
        ("data", "breast-cancer", "breast_cancer"),
    ):
        assert registry.find(kind, one) is registry.find(kind, other)
    cls = registry.find("posteriors", "noisy_kfac")
    assert registry.settings_in(cls, "paper_batch_100") == registry.settings_in(cls, "paper-batch-100")
    assert registry.hyphened("my_module:My_Class") == "my_module:My_Class"


def test_configured():
    asked = registry.configured("posteriors", "noisy_kfac", [("lr", "0.5")], "small")
    assert (asked.name, asked.make.__name__, asked.preset) == ("noisy-kfac", "NoisyKFAC", "small")
    assert asked.settings == registry.settings_in(asked.make, "small") | {"lr": 0.5}
    assert registry.configured("posteriors", "noisy-kfac", preset="paper_batch_100").preset == "paper-batch-100"
    assert registry.configured("acquisitions", "random") == (
        "random",
        registry.find("acquisitions", "random"),
        "default",
        {},
    )
    with pytest.raises(InputError, match="unknown preset 'big'"):
        registry.configured("posteriors", "noisy-kfac", preset="big")


def test_entry_points(monkeypatch):
    theirs = EntryPoint("the_irs", "collections:OrderedDict", "explore.posteriors")
    monkeypatch.setattr(registry, "entry_points", lambda group: [theirs] if group == theirs.group else [])
    assert registry.names("posteriors")["the-irs"] == "from another package: collections:OrderedDict"
    for name in ("the_irs", "the-irs"):
        assert registry.find("posteriors", name).__name__ == "OrderedDict"
    assert "the-irs" not in registry.names("acquisitions")


def test_an_entry_point_that_cannot_be_loaded(monkeypatch):
    broken = EntryPoint("theirs", "no_such_module:Class", "explore.posteriors")
    monkeypatch.setattr(registry, "entry_points", lambda group: [broken])
    with pytest.raises(InputError, match="cannot load the posterior theirs .no_such_module:Class.: No module named"):
        registry.find("posteriors", "theirs")


def test_module_and_class():
    assert registry.find("posteriors", "collections:OrderedDict").__name__ == "OrderedDict"
    for name in ("no_such_module:Thing", "collections:NoSuchThing", ":Thing", "collections:", ".relative:Thing"):
        with pytest.raises(InputError, match="cannot load the posterior"):
            registry.find("posteriors", name)


def test_unknown_names_list_the_known_ones():
    with pytest.raises(InputError, match="unknown posterior 'noisy-kfca'; allowed: .*ensemble.*noisy-kfac"):
        registry.find("posteriors", "noisy-kfca")
    cls = registry.find("posteriors", "noisy-kfac")
    with pytest.raises(InputError, match="unknown preset 'big'; allowed: .*default, .*paper, .*plain, vime") as refused:
        registry.settings_in(cls, "big")
    # Not those that are recommended by the number of rows, which stay accepted.
    assert not any(name in str(refused.value) for name in registry.FOR_ROWS)
    assert all(registry.settings_in(cls, name) for name in registry.FOR_ROWS)


def test_presets():
    cls = registry.find("posteriors", "noisy-kfac")
    assert registry.settings_in(cls, None) == registry.settings_in(cls, "default")
    small = registry.settings_in(cls, "small")
    small["lr"] = 99  # a copy: presets are shared by everyone
    assert registry.settings_in(cls, "small")["lr"] != 99
    assert registry.settings_in(int, None) == registry.settings_in(int, "plain") == {}
    assert registry.settings_in(cls, "plain") == {}


def test_a_likelihood_by_name_has_the_noise_of_the_preset():
    net = Net(mlp(2, [3], 1))
    priors = {
        preset: (made.likelihood.prior_shape, made.likelihood.prior_rate)
        for preset in (None, "default", "hundreds", "small", "plain")
        for made in [registry.posterior("noisy-kfac", net, "gaussian", preset)]
    }
    table, papers = (1.0, 0.01), (6.0, 6.0)
    assert priors == {None: table, "default": table, "hundreds": table, "small": papers, "plain": papers}
    assert registry.posterior("noisy-kfac", net).likelihood == Gaussian(prior_shape=1.0, prior_rate=0.01)
    assert registry.posterior("vogn", net, "bernoulli").likelihood == Bernoulli()
    with pytest.raises(InputError, match="unknown likelihood 'normal'; allowed: bernoulli, categorical, gaussian"):
        registry.posterior("vogn", net, "normal")


def test_a_preset_plain_of_ones_own_stays(monkeypatch):
    cls = registry.find("posteriors", "map")
    monkeypatch.setattr(sys.modules[cls.__module__], "PRESETS", {"plain": {"lr": 0.5}, "other": {}})
    assert registry.presets(cls) == {"plain": {"lr": 0.5}, "other": {}}


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
        ("many", "5,x", "allowed: a comma-separated list of whole numbers"),
        ("ratee", "1", "unknown setting 'ratee'; allowed: count, either, flag, many, maybe, mode, rate"),
        ("net", "1", "unknown setting 'net'"),
        ("hidden", "1", "unknown setting 'hidden'"),
    ],
)
def test_parse_errors(key, text, message):
    with pytest.raises(InputError) as error:
        registry.parse(Settings, {key: text})
    assert message in str(error.value)
