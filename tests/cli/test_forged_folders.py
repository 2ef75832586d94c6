"""Run folders by unknown hands name functions in their settings: none of them is imported or called."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import explore as package
from explore.cli.active import command as active
from explore.cli.active.experiment import resolve as resolve_active
from explore.cli.classify import command as classify
from explore.cli.classify.experiment import resolve as resolve_classify
from explore.cli.compare import command as compare
from explore.cli.compare.experiment import resolve as resolve_compare
from explore.cli.rl import command as rl
from explore.cli.rl.settings import resolve as resolve_rl
from explore.cli.suggest import command as suggest
from explore.cli.suggest.settings import resolve as resolve_suggest
from explore.core.errors import InputError
from explore.learning import trust
from explore.runs import record
from explore.runs.recorded import CONFIG, written

RUN, MARKER = Path("runs/foreign"), Path("executed")
POOL = Path("pool.csv")
BEGUN = {
    "active": (active, resolve_active, ["--trials", "2", "--rounds", "2"]),
    "images": (active, resolve_active, ["--dataset", "digits", "--net", "mlp"]),
    "classify": (classify, resolve_classify, ["--dataset", "digits", "--net", "mlp", "--ood", "mnist"]),
    "compare": (compare, resolve_compare, ["--splits", "2", "--posterior", "map"]),
    "rl": (rl, resolve_rl, ["--env", "explore/Chain-v0", "--timesteps", "64"]),
    "suggest": (suggest, resolve_suggest, [str(POOL), "--target", "y"]),
}
MAIN = "explore.cli.main:main"
OURS = {"net": MAIN, "net_settings": {"args": ["predict", "inner", "x.npz", "--trust", "os"]}}
FORGED = [
    ("images", OURS, "explore.cli.main"),
    ("classify", OURS, "explore.cli.main"),
    ("classify", {"net": "explore:import_module", "net_settings": {"name": "evil"}}, "explore"),
    ("classify", {"ood": "evil:load"}, "evil"),
    ("classify", {"ood": "explore.images:read"}, "explore.images"),
    ("classify", {"dataset": "explore.images:load"}, "explore.images"),
    ("active", {"dataset": "explore.data:load_table"}, "explore.data"),
    ("active", {"posterior": "explore.posteriors.bbb:BBB"}, "explore.posteriors.bbb"),
    ("active", {"acquisition": "explore.registry:load"}, "explore.registry"),
    ("active", {"acquisition": "power", "acquisition_settings": {"rule": "evil:rule"}}, "evil"),
    ("compare", {"posteriors": {"explore.cli.main:main": {"preset": "paper", "settings": {}}}}, "explore.cli.main"),
    ("rl", {"env": "explore.cli.main:explore/Chain-v0"}, "explore.cli.main"),
    ("rl", {"env": "explore.envs:explore/Unheard-v0"}, "explore.envs"),
    ("rl", {"env": "explore.envs:evil:Chain-v0"}, "explore.envs"),
    ("rl", {"env": ":evil:Chain-v0"}, ""),
    ("rl", {"env_kwargs": {"simulation": "explore.cli.main:main"}}, "explore.cli.main"),
    ("rl", {"vime": {"encoder": "explore:import_module"}}, "explore"),
    ("rl", {"vime": {"posterior": "explore.posteriors.bbb:BBB"}}, "explore.posteriors.bbb"),
    ("suggest", {"posterior": "explore.posteriors.bbb:BBB"}, "explore.posteriors.bbb"),
    ("suggest", {"acquisition": "explore.cli.main:main"}, "explore.cli.main"),
    ("suggest", {"acquisition": "evil:rule"}, "evil"),
]
# Texts that name a function where no colon stands, and settings that are not of the function's type.
MISTYPED = [
    ("rl", {"env_kwargs": {"simulation": "evil"}}, "cannot load the simulation 'evil': it must be module:name"),
    ("rl", {"vime": {"encoder": "evil"}}, "cannot load the encoder 'evil': it must be module:name"),
    ("rl", {"algo_settings": {"n_steps": "evil"}}, "n_steps of trpo is 'evil'; it must be a whole number"),
    ("classify", {"net_settings": {"hidden": "evil"}}, "hidden of mlp is 'evil'; it must be a comma-separated list"),
    ("classify", {"net_settings": {"args": ["evil"]}}, "unknown setting of mlp 'args'; allowed: hidden"),
    ("classify", {"posterior_settings": {"lr": "evil"}}, "lr of noisy-kfac is 'evil'; it must be a number"),
    ("active", {"posterior_settings": {"net": "evil"}}, "unknown setting of gp 'net'"),
    ("active", {"likelihood_settings": {"noise_std": "evil"}}, "noise_std of heteroscedastic is 'evil'"),
    ("active", {"acquisition": "power", "acquisition_settings": {"rule": 1}}, "rule of power is 1; it must be"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def evil(monkeypatch):
    """A module that leaves a mark when it is imported."""
    Path("evil.py").write_text(f"import pathlib\npathlib.Path({str(MARKER)!r}).touch()\n")
    monkeypatch.syspath_prepend(".")
    monkeypatch.delitem(sys.modules, "evil", raising=False)
    POOL.write_text("x,y\n1,2\n3,\n5,\n")


def forge(kind, changes):
    """A folder of a run with other settings, and the commands that read it."""
    command, resolve, arguments = BEGUN[kind]
    settings = written(resolve(command.make_context(kind, list(arguments)).params))
    for key, value in changes.items():
        partial = isinstance(value, dict) and key in ("vime", "algo_settings")
        settings[key] = {**settings[key], **value} if partial else value
    if kind == "suggest":
        folder = POOL.with_suffix(".explore")
        folder.mkdir()
        learnt: dict[str, list[str]] = {"features": [], "left_out": []}
        content = {"format": CONFIG, "settings": settings, "rows": 3, "learnt": learnt}
        (folder / "config.json").write_text(json.dumps(content))
        return folder, [["suggest", POOL], ["suggest", POOL, "--status"], ["predict", folder, POOL]]
    state: dict[str, Any] = {"positions": []} if kind == "rl" else {}
    record.Run.create(RUN, settings, state, {"device": "cpu", "threads": 1}).close()
    name = settings["command"]
    more = [["rl", "--watch", RUN]] if kind == "rl" else [["predict", RUN, POOL]]
    return RUN, [[name, "--resume", RUN], *more]


@pytest.mark.parametrize(("kind", "changes", "module"), FORGED)
def test_functions_that_a_folder_names_are_taken_only_when_trusted(explore, kind, changes, module):
    folder, attempts = forge(kind, changes)
    for attempt in attempts:
        for more in ([], ["--trust", "evi"], ["--trust", "explore.cl"]):
            result = explore(*attempt, *more)
            assert (result.exit_code, result.stdout, MARKER.exists()) == (2, "", False)
            assert f"Error: {folder} imports the module {module!r}" in result.stderr
            assert result.stderr.endswith(f"If you trust it, add --trust {module} (in Python: trust=[{module!r}])\n")
    if kind != "rl":
        with pytest.raises(InputError, match="imports the module '.*in Python: trust="):
            package.load_run(folder)


@pytest.mark.parametrize(("kind", "changes", "message"), MISTYPED)
def test_settings_of_a_folder_are_of_their_types_before_anything_is_called(explore, kind, changes, message):
    _, (resume, *_) = forge(kind, changes)
    result = explore(*resume)
    assert (result.exit_code, result.stdout, MARKER.exists()) == (2, "", False)
    assert message in result.stderr


def test_a_report_takes_no_function_of_a_folder(explore):
    """The settings of a run, from which every section is drawn."""
    from explore.cli.report.session import Opened

    folder, _ = forge("classify", OURS)
    with pytest.raises(InputError, match=f"{folder} imports the module 'explore.cli.main'"):
        _ = Opened("x", folder, "classify", {}, (), {}).settings


def test_a_listed_environment_is_registered_and_what_the_command_line_names_is_trusted(explore):
    assert trust.modules({"env": "explore.envs:explore/Chain-v0", "posterior": "bbb"}) == []
    assert trust.modules({"ood": "/images:of/others", "images": "C:/x"}) == []
    given = "explore.posteriors.bbb:BBB"
    trust.check(RUN, {"posterior": given}, [given])
    for trusted in (["explore"], ["explore.posteriors.bbb"]):
        trust.check(RUN, {"posterior": given}, trusted)
    with pytest.raises(InputError, match="imports the module 'explore.posteriors.bbb'"):
        trust.check(RUN, {"posterior": given, "acquisition": "explore.posteriors.bbb:dataclass"}, [given])
