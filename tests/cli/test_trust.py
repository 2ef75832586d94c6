"""Run folders by unknown hands: nothing in them is executed, and each is refused in a sentence."""

import base64
import itertools
import json
import os
import pickle
import re
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from stable_baselines3.common.save_util import load_from_zip_file

from explore.cli import active as active_command, compare as compare_command, rl as rl_command
from explore.cli.active.experiment import resolve as resolve_active
from explore.cli.compare.experiment import resolve as resolve_compare
from explore.cli.main import main
from explore.cli.report import session
from explore.cli.rl import report
from explore.cli.rl.settings import resolve as resolve_rl
from explore.cli.rl.training import Training
from explore.core import files
from explore.core.errors import InputError
from explore.learning import trust
from explore.runs import record
from explore.runs.recorded import run_id, written

MARKER = Path("executed")
RUN = Path("runs/foreign")
SAC = [
    "rl", "--env", "Pendulum-v1", "--algo", "sac", "--timesteps", "64", "--posterior", "bbb", "--vec-normalize",
    "-p", "vime.interval=32", "-p", "vime.minimum=20", "-p", "vime.updates=2", "--algo-param", "learning_starts=50",
    "--algo-param", "batch_size=8", "--algo-param", "net_arch=8",
]  # fmt: skip
EVIL = f"""
import pathlib
pathlib.Path({str(MARKER)!r}).touch()
"""


@pytest.fixture(autouse=True)
def evil(monkeypatch):
    """A module and a package that can be imported, and leave a mark when they are."""
    Path("evil.py").write_text(EVIL)
    Path("evil2").mkdir()
    Path("evil2/__init__.py").touch()
    Path("evil2/inner.py").write_text(EVIL)
    monkeypatch.syspath_prepend(".")
    for module in ("evil", "evil2", "evil2.inner"):
        monkeypatch.delitem(sys.modules, module, raising=False)


def settings(command):
    """Settings as a run would record them."""
    module, resolve, arguments = {
        "active": (active_command, resolve_active, ["--trials", "2", "--rounds", "2"]),
        "compare": (compare_command, resolve_compare, ["--splits", "2", "--posterior", "map"]),
        "rl": (rl_command, resolve_rl, ["--env", "explore/Chain-v0", "--timesteps", "64"]),
    }[command]
    return written(resolve(module.command.make_context(command, arguments).params))


def replaced(value, *path, by):
    """The settings with another value at a path."""
    first, *rest = path
    return value | {first: replaced(value[first], *rest, by=by) if rest else by}


ATTACKS = [
    ("active", ("posterior",), "evil:Class"),
    ("active", ("acquisition",), "evil:rule"),
    ("active", ("dataset",), "evil:load"),
    ("compare", ("posteriors",), {"evil:Class": {"preset": "paper", "settings": {}}}),
    ("compare", ("dataset",), "evil2.inner:load"),
    ("rl", ("env",), "evil:Chain-v0"),
    ("rl", ("env",), "evil2.inner:explore/Chain-v0"),
    ("rl", ("posterior",), "evil:Class"),
    ("rl", ("vime", "posterior"), "evil:Class"),
    ("rl", ("vime", "encoder"), "evil:encode"),
    ("rl", ("env_kwargs",), {"simulation": "evil:Class"}),
    ("rl", ("env_kwargs",), {"make": [{"env_id": "evil:ID"}]}),
]


def attempts(command):
    yield [command, "--resume", RUN]
    if command == "rl":
        yield [command, "--watch", RUN]


@pytest.mark.parametrize(("command", "path", "value"), ATTACKS)
def test_modules_of_a_run_folder_are_imported_only_when_trusted(explore, command, path, value):
    foreign = replaced(settings(command), *path, by=value)
    record.Run.create(RUN, foreign, {}, {"device": "cpu", "threads": 1}).close()
    module = "evil2.inner" if "evil2" in str(value) else "evil"
    for attempt in attempts(command):
        for trusted in ([], ["--trust", "evi"], ["--trust", "evil.other", "--trust", "evil2.inn"]):
            result = explore(*attempt, *trusted)
            assert (result.exit_code, result.stdout, MARKER.exists()) == (2, "", False)
            assert result.stderr == (
                f"Error: {RUN} imports the module {module!r}, whose code would run. If you trust it, "
                f"add --trust {module} (in Python: trust=[{module!r}])\n"
            )


@pytest.mark.parametrize("trusted", ["evil2", "evil2.inner"])
def test_a_trusted_module_is_imported(explore, trusted):
    foreign = settings("rl") | {"env": "evil2.inner:explore/Rope-v0"}
    record.Run.create(RUN, foreign, {"positions": []}, {"device": "cpu", "threads": 1}).close()
    result = explore("rl", "--resume", RUN, "--trust", "collections", "--trust", trusted)
    assert result.exit_code == 2 and "unknown environment 'evil2.inner:explore/Rope-v0'" in result.stderr
    assert MARKER.exists()


def test_paths_and_columns_are_no_modules():
    texts = {"data": "C:/d.csv", "target": ["price:usd"], "id_column": "sample:id", "drop_columns": ["a:b"]}
    texts |= {"cost": "price:eur", "targets": "C:/where.csv"}
    assert trust.modules(texts) == []
    assert trust.modules({"posterior": "bbb", "env": "explore/Chain-v0"}) == []
    named = {"env": "explorer:X-v0", "vime": {"encoder": "a.b:f", "samples": 1, "noise_std": None}}
    assert trust.modules(named) == ["a.b", "explorer"]


def link(path):
    """Something outside, in place of what was there."""
    shutil.move(path, "outside") if path.exists() else Path("outside").touch()
    path.symlink_to(Path("outside").resolve())


@pytest.mark.parametrize(
    "name", ["results.csv", "config.json", ".lock", ".config.json.tmp", "models", "tensorboard", "none-seed-0.gif"]
)
def test_a_folder_must_not_point_out_of_itself(explore, name):
    record.Run.create(RUN, settings("rl"), {}, {"device": "cpu", "threads": 1}).close()
    (RUN / "tensorboard").mkdir(exist_ok=True)
    link(RUN / name)
    for attempt in (*attempts("rl"), ["report", RUN]):
        result = explore(*attempt)
        assert (result.exit_code, result.stdout) == (2, "")
        assert f"{RUN / name} is a link or a device." in result.stderr


@pytest.mark.posix
def test_a_run_folder_may_itself_be_a_link_but_hold_no_pipe(explore):
    record.Run.create(Path("real"), settings("rl"), {"done": 1}, {"device": "cpu", "threads": 1}).close()
    RUN.parent.mkdir()
    RUN.symlink_to(Path("real").resolve())
    assert "is a link" not in explore("rl", "--watch", RUN).stderr
    os.mkfifo("real/results2.csv")
    assert f"{RUN}/results2.csv is a link or a device." in explore("rl", "--watch", RUN).stderr


def test_how_to_continue_names_the_modules(explore, monkeypatch):
    Path("chains.py").write_text("import explore.envs\n")  # its name is no other test's: it stays imported
    monkeypatch.setattr(report, "write", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    result = explore("rl", "--env", "chains:explore/Chain-v0", "--timesteps", 64, "--posterior", "none", "--name", "x")
    assert result.exit_code == 130
    assert "Continue: explore rl --resume runs/rl-x --trust chains\n" in result.stderr


@pytest.mark.parametrize(
    "line",
    [
        "[" * 100_000, "[]", "1", '{"step": 1}', '{"series": ["a"], "step": 1}', '{"series": "a", "step": "1"}',
        '{"series": "a", "step": 1, "t": "x"}', '{"series": "a", "step": 1, "t": []}',
        '{"series": "\\u001b[2J", "step": 1}',
        '{"series": "a", "step": 1, "t": 1' + "0" * 400 + "}",
    ],
)  # fmt: skip
def test_foreign_curves_are_numbers(line):
    with record.Run.create(RUN, settings("rl"), {}, {"device": "cpu", "threads": 1}) as run:
        (RUN / "metrics.jsonl").write_text(line + "\n")
        run.checkpoint({}, 1)
    with pytest.raises(InputError, match=f"{RUN} is not a run folder, or it is damaged:"):
        session._open(RUN, ()).curves()


def test_foreign_names_are_no_markup(explore):
    name = "[/red]$\\frac"
    with record.Run.create(RUN, settings("compare"), {}, {"device": "cpu", "threads": 1}) as run:
        run.scalars(name, 1, {"test/rmse": 0.5})
        run.rows("results.csv", [{"posterior": name, "split": 1, "rmse": 0.5, "seconds": 1}])
        run.checkpoint({}, 1)
    result = explore("report", RUN)
    assert result.exit_code == 0, result.stderr
    assert f"<td>{name}</td>" in Path("report.html").read_text()


class Payload:
    """Leaves the mark when it is unpickled."""

    def __reduce__(self):
        return (Path.touch, (MARKER,))


def pickled(path, kind):
    path.write_bytes(pickle.dumps({"policy": Payload()}))


def zipped(path, kind):
    torch.save({"kind": kind, "format": 1, "content": Payload()}, path)


def signed(path, kind):
    files.save(path, kind, record.FORMAT if kind == "checkpoint" else 1, {"policy": Payload(), "state": Payload()})


def for_sb3(path, kind):
    """What stable-baselines3 reads as a model: its own format with a pickle in it."""
    attack = {":type:": "x", ":serialized:": base64.b64encode(pickle.dumps(Payload())).decode()}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data", json.dumps({"policy_class": attack}))


KINDS = {"checkpoint.pt": "checkpoint", "model.pt": "model", "bonus.pt": "bonus", "replay_buffer.pt": "replay buffer"}
WRITERS = (pickled, zipped, signed, for_sb3)


def test_the_payload_works():
    for write in WRITERS:
        write(Path("x"), "checkpoint")
        if write is pickled:
            pickle.loads(Path("x").read_bytes())
        elif write is for_sb3:
            load_from_zip_file("x")
        else:
            torch.load("x", weights_only=False)
        assert MARKER.exists()
        MARKER.unlink()


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory):
    """A run with every file that there can be, stopped half way."""
    keep, left = Training._record, iter(range(1))

    def interrupt(*arguments):
        if next(left, None) is None:
            raise KeyboardInterrupt
        keep(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("interrupted"))
        patch.setattr(Training, "_record", interrupt)
        result = CliRunner().invoke(main, [*SAC, "--name", "x"])
        assert result.exit_code == 130, result.output
        return Path("runs/rl-x").resolve()


RESUME, WATCH, REPORT = ["rl", "--resume", RUN], ["rl", "--watch", RUN], ["report", RUN]
FILES = {
    "checkpoint.pt": (WRITERS, [RESUME, REPORT]),
    "models/bbb-seed-0/32/model.pt": (WRITERS, [RESUME, WATCH]),
    "models/bbb-seed-0/32/bonus.pt": (WRITERS, [RESUME]),
    "models/bbb-seed-0/32/replay_buffer.pt": (WRITERS, [RESUME]),
    "config.json": ([pickled], [RESUME, WATCH, REPORT]),
    "metrics.jsonl": ([pickled], [RESUME, REPORT]),
    "results.csv": ([pickled], [RESUME]),
}


@pytest.mark.parametrize("name", FILES)
def test_a_malicious_file_is_refused(explore, interrupted, name):
    writers, commands = FILES[name]
    for write, command in itertools.product(writers, commands):
        shutil.rmtree("runs", ignore_errors=True)
        shutil.copytree(interrupted, RUN)
        saved = files.load(RUN / "checkpoint.pt", "checkpoint", record.FORMAT)
        saved["state"]["digests"] = {}  # else the checkpoint's word that the file is another would refuse it first
        files.save(RUN / "checkpoint.pt", "checkpoint", record.FORMAT, saved, run_id(RUN))
        write(RUN / name, KINDS.get(Path(name).name, ""))
        result = explore(*command)
        assert (result.exit_code, result.stdout, MARKER.exists()) == (2, "", False)
        assert re.fullmatch(r"Error: .*\n", result.stderr), result.stderr
        assert "weights_only" not in result.stderr and "trust" not in result.stderr


def test_what_is_written_for_stable_baselines3_is_never_read(explore, interrupted):
    shutil.copytree(interrupted, RUN)
    for name, write in (("model.zip", for_sb3), ("vecnormalize.pkl", pickled)):
        path = RUN / "models/bbb-seed-0/32" / name
        assert path.exists()
        write(path, "")
    for command in (WATCH, RESUME):
        assert (explore(*command).exit_code, MARKER.exists()) == (0, False)


@pytest.mark.parametrize("command", ["active", "compare"])
def test_a_malicious_checkpoint(explore, command):
    for write in WRITERS:
        shutil.rmtree("runs", ignore_errors=True)
        record.Run.create(RUN, settings(command), {}, {"device": "cpu", "threads": 1}).close()
        write(RUN / "checkpoint.pt", "checkpoint")
        result = explore(command, "--resume", RUN)
        assert (result.exit_code, result.stdout, MARKER.exists()) == (2, "", False)
        assert re.fullmatch(f"Error: {RUN}/checkpoint.pt (is|was) .*\n", result.stderr), result.stderr


TAMPERED = [
    ("active", {"trials": "x"}, {}),
    ("active", {"hidden": None}, {}),
    ("active", {"posterior_settings": {"no": 1}}, {}),
    ("active", {"likelihood": "x"}, {}),
    ("active", {"more": 1}, {}),
    ("active", {"acquisition_settings": {"power": 1}}, {}),
    ("compare", {"posteriors": {"map": {"preset": "default"}}}, {}),
    ("active", {}, {}),
    ("active", {}, {"learner": {"x": 1}, "history": {}, "seconds": 0.0}),
    ("compare", {"posteriors": []}, {}),
    ("compare", {"splits": {}}, {}),
    ("compare", {}, {}),
    ("rl", {"env": 5}, {}),
    ("rl", {"env_kwargs": 5}, {}),
    ("rl", {"n_envs": "many"}, {}),
    ("rl", {"algo": "reinforce"}, {}),
    ("rl", {"algo_settings": {"n_steps": 8, "tensorboard_log": "elsewhere"}}, {}),
    ("rl", {"algo_settings": {"n_steps": 8, "batch_size": 80, "net_arch": "x"}}, {}),
    ("rl", {"vec_normalize": True, "env": "FrozenLake-v1"}, {}),
    ("rl", {"vime": {"seed": 1}}, {}),
    ("rl", {"conditions": 5}, {}),
    ("rl", {"conditions": {"a": 5}}, {}),
    ("rl", {"conditions": {"a": {"seed": 1}}}, {}),
    ("rl", {"conditions": {"../../a": {"seed": 1}}}, {}),
    ("rl", {"conditions": {}}, {}),
    ("rl", {"seed": "x"}, {}),
    ("rl", {}, {"done": "x"}),
    ("rl", {}, {"timesteps": "../../outside"}),
    ("rl", {}, {"timesteps": -1}),
    ("rl", {}, {"where": 1}),
]


@pytest.mark.parametrize(("command", "changes", "state"), TAMPERED)
def test_settings_and_checkpoints_that_make_no_run(explore, command, changes, state):
    record.Run.create(RUN, settings(command) | changes, state, {"device": "cpu", "threads": 1}).close()
    for attempt in attempts(command):
        result = explore(*attempt)
        assert (result.exit_code, result.stdout) == (2, "")
        assert re.fullmatch(r"Error: .*\n", result.stderr), result.stderr
    assert not Path("elsewhere").exists()


def test_texts_of_cells_and_names_of_columns_are_no_modules():
    texts = {"failed": ["broke:again"], "keep_na": ["site:name"], "feature": ["run:order"], "sheet": "a:b"}
    assert trust.references(texts | {"posterior": "evil:Posterior"}) == ["evil:Posterior"]
