"""What the pages say: their examples run as they stand there, but for the number of steps; their commands exist."""

import ast
import importlib
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

import explore
from explore import registry
from explore.acquisitions.base import needs_of
from explore.cli.main import main

ROOT = Path(explore.__file__).parent.parent
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
}
EXAMPLES = {
    name: text for page in PAGES.values() for name, text in re.findall(
        r"<!-- example: (.+?) -->\n```\w+\n(.*?)```", page, re.DOTALL
    )
}  # fmt: skip
PLUG_INS = dict(re.findall(r"<!-- plug-in: (.+?) -->\n```python\n(.*?)```", PAGES["CONTRIBUTING.md"], re.DOTALL))
COMMANDS = [
    pytest.param(words[1:], id=f"{page}: {shlex.join(words)}")
    for page, text in PAGES.items()
    for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL)
    for line in re.split(r"\n|&&", block)
    if (words := shlex.split(line, comments=True))[:1] == ["explore"]
]


def shortened(text, *changes):
    """The text with fewer steps: pairs of what stands there and what runs here."""
    for steps, fewer in changes:
        assert steps in text
        text = text.replace(steps, fewer)
    return text


SMALL = ('"small")', '"small", epochs=200)')
ROLLOUT = [
    ("50_000", "512"),
    ("interval=2000", "interval=500"),
    ('"MlpPolicy", env)', '"MlpPolicy", env, n_steps=512)'),
]


def python(*arguments, cwd):
    return subprocess.run([sys.executable, *arguments], cwd=cwd, check=True, capture_output=True, text=True)


@pytest.fixture
def shown(tmp_path, monkeypatch, capsys):
    """Runs code in an empty folder, and gives what it prints."""
    monkeypatch.chdir(tmp_path)

    def run(code):
        exec(compile(code, "<example>", "exec"), {"__name__": "__main__"})
        return capsys.readouterr().out

    return run


def test_every_python_block_is_an_example_that_runs_here():
    for name, page in PAGES.items():
        assert page.count("```python") == len(
            re.findall(r"<!-- (?:example: .+?|plug-in: .+?|signatures) -->\n```python", page)
        ), name
    source = Path(__file__).read_text(encoding="utf-8")
    assert not [name for name in EXAMPLES if f'"{name}"' not in source]


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_is_understood(words, tmp_path, monkeypatch):
    """Its options and settings exist and take these values; nothing is run."""
    monkeypatch.chdir(tmp_path)
    for table in ("houses.csv", "new.csv"):
        (tmp_path / table).write_text("price,house,street,size\n" + "1,2,3,4\n5,6,7,8\n" * 50)
    (tmp_path / "pool.csv").write_text("yield,price\n")
    (tmp_path / "next.csv").touch()
    for folder in ("photos", "new-photos", "imagenet", "pool", "pool.explore"):
        (tmp_path / folder).mkdir()
    for name in words:
        if name.startswith("runs/"):
            (tmp_path / name).mkdir(parents=True)
    context = click.Context(main)
    name, command, rest = main.resolve_command(context, words)
    assert command is not None
    options = command.make_context(name, rest, parent=context).params
    if not (name in ("list", "predict") or options.get("resume") or options.get("watch") or options.get("runs")):
        # Boston needs no download, nor do digits.
        instead: dict[str | None, dict[str, object]] = {
            "suggest": {"target": ["yield"]},
            "classify": {"dataset": "digits", "images": None, "size": None},
            "active": {"dataset": "digits", "net": "mlp"} if options.get("net") else {},
        }
        module = "settings" if name == "suggest" else "experiment"
        resolve = importlib.import_module(f"explore.cli.{name}.{module}").resolve
        resolve(options | {"dataset": None} | instead.get(name, {}))


SKELETONS = {
    "explore/posteriors/online_gauss_newton.py": "online-gauss-newton",
    "explore/nets/likelihoods/exponential.py": "exponential",
    "explore/acquisitions/maximin.py": "maximin",
    "explore/acquisitions/least_confident.py": "least-confident",
    "explore/vime/bonuses/fixed_landmarks.py": "fixed-landmarks",
    "explore/data/sets/parabola.py": "parabola",
    "envs/random_walk.py": "RandomWalk",
}


def test_a_skeleton_is_all_that_a_plug_in_needs(tmp_path):
    """Its one file, in a copy of the project, is found by the tests that all plug-ins of its kind must pass."""
    for folder in ("explore", "cli", "envs", "tests"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for file in SKELETONS:
        (tmp_path / file).write_text(PLUG_INS[file], encoding="utf-8")
    tests = ["tests/contracts", "tests/data/test_sets.py", "tests/envs/test_gymnasium.py", "tests/vime/test_bonuses.py"]
    only = ["-k", f"({' or '.join(SKELETONS.values())}) and not of_a_user"]
    command = [sys.executable, "-m", "pytest", "-v", "-n", "0", "-p", "no:cacheprovider", *only, *tests]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    for name in SKELETONS.values():
        assert re.search(rf"::.*{name}.* PASSED", result.stdout), result.stdout


def signature(file, name):
    """How a function, method or class is called, as the source says; annotations only of what it returns."""
    node = ast.parse((ROOT / file).read_text(encoding="utf-8"))
    for part in name.split("."):
        node = next(n for n in node.body if getattr(n, "name", "") == part)
    returns = ""
    if isinstance(node, ast.ClassDef):
        start = [n for n in node.body if getattr(n, "name", "") == "__init__"]
        if not start:
            fields = [n for n in node.body if isinstance(n, ast.AnnAssign) and "ClassVar" not in ast.unparse(n)]
            values = [f"={ast.unparse(f.value)}" if f.value else "" for f in fields]
            return f"{name}({', '.join(ast.unparse(f.target) + v for f, v in zip(fields, values, strict=True))})"
        node = start[0]
    elif node.returns:
        returns = f" -> {ast.unparse(node.returns)}"
    every = node.args.posonlyargs + node.args.args + node.args.kwonlyargs + [node.args.vararg, node.args.kwarg]
    for argument in filter(None, every):
        argument.annotation = None
    return f"{name}({re.sub(r'^(self|cls)(, )?', '', ast.unparse(node.args))}){returns}"


def test_signatures_are_those_of_the_code():
    blocks = re.findall(r"<!-- signatures -->\n```python\n(.*?)```", PAGES["docs/architecture.md"], re.DOTALL)
    file, said, found = "", [], []
    for line in "".join(blocks).splitlines():
        if line.startswith("# "):
            file = line[2:]
        else:
            said.append(line.partition("  #")[0].replace('"', "'"))
            found.append(signature(file, said[-1].partition("(")[0]))
    assert len(said) > 10 and said == found


def test_the_page_has_every_rule_and_what_it_says_of_itself():
    pattern = r"^\| `([\w-]+)` \| .*? \| (both|numbers|classes) \| (jointly|one by one) \|"
    rows = re.findall(pattern, PAGES["docs/active.md"], re.MULTILINE)
    said = {}
    for name in registry.names("acquisitions").keys() - {"random"}:
        needs = needs_of(registry.acquisition(name))
        targets = {"any": "both"}.get(needs.targets, needs.targets)
        said[name] = (targets, "one by one" if needs.alone else "jointly")
    on_page = {name: (targets, batches) for name, targets, batches in rows}
    assert on_page == said, "each acquisition has a row in the table of docs/active.md"


def test_the_page_of_results_names_every_experiment():
    page = PAGES["docs/results.md"]
    for folder in (ROOT / "experiments").glob("*/README.md"):
        assert f"(../experiments/{folder.parent.name}/README.md)" in page


def test_every_skeleton_is_tested():
    assert SKELETONS.keys() == PLUG_INS.keys()


def test_the_package_of_ones_own_is_the_one_that_is_installed_and_tested():
    package = ROOT / "tests" / "plugin_package"
    assert EXAMPLES["own package"] == (package / "test_toy_plugins.py").read_text(encoding="utf-8")
    toml = re.search(r"```toml\n(.*?)```", PAGES["CONTRIBUTING.md"], re.DOTALL)
    assert toml and toml[1] in (package / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_names_and_files_on_a_page_exist(page):
    for name in re.findall(r"`(explore(?:\.\w+)+)`", PAGES[page]):
        pkgutil.resolve_name(name)
    files = re.findall(r"\b(?:explore|tests|cli|envs|experiments|docs)/[\w/-]+(?:\.\w+)?", PAGES[page])
    unknown = [file for file in files if not (ROOT / file).exists() and file not in PLUG_INS]
    assert not [file for file in unknown if not file.endswith("-v0")]


def test_a_fitted_model(shown, tmp_path):
    said = shown(EXAMPLES["fitted model"])
    assert "coverage_95" in said and (tmp_path / "model.pt").exists()


def test_a_posterior_around_a_trained_module(shown):
    said = shown(EXAMPLES["trained module"])
    scores = re.fullmatch(r"\{.*'rmse': tensor\(\[(.+?)\]\).*\}\n", said)
    assert scores and float(scores[1]) < 0.2  # the noise's deviation is 0.1


TRAINED = """
import torch
from sklearn.datasets import load_digits
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
images, classes = (torch.as_tensor(values) for values in load_digits(return_X_y=True))
images = images.float() / 16
train = DataLoader(TensorDataset(images[:1200], classes[:1200]), batch_size=64, shuffle=True)
test, other = DataLoader(TensorDataset(images[1200:], classes[1200:]), batch_size=200), [torch.rand(200, 64)]
module = torch.nn.Sequential(torch.nn.Linear(64, 50), torch.nn.ReLU(), torch.nn.Linear(50, 10))
optimiser = torch.optim.Adam(module.parameters(), lr=0.005)
for x, y in [batch for _ in range(15) for batch in train]:
    optimiser.zero_grad()
    torch.nn.functional.cross_entropy(module(x), y).backward()
    optimiser.step()
"""


def test_training_on_a_loader(shown):
    code = EXAMPLES["training on a loader"]
    assert len(code.splitlines()) <= 12
    scores = ast.literal_eval(
        shown(TRAINED + code + "\nassert len(modules) == 10 and probabilities.shape == (1, 597, 10)")
    )
    assert scores["error"] < 0.12 and scores["ece"] < 0.06 and scores["auroc_entropy"] > 0.7


def test_in_your_own_loop(shown):
    code = EXAMPLES["in your own loop"]
    scores = ast.literal_eval(shown(TRAINED + code + "\nassert len(members) == 10"))
    assert scores["error"] < 0.12 and scores["log_likelihood"] > -0.5


def test_what_gets_a_distribution(shown):
    said = shown(EXAMPLES["what gets a distribution"])
    counts = re.findall(r"Net of (\d+) weights.*; besides, (\d+) trained as point estimates", said)
    assert counts == [("17", "112"), ("97", "32"), ("97", "32"), ("17", "112")]


def test_ask_and_tell(shown):
    said = shown(shortened(EXAMPLES["ask and tell"], ("range(9)", "range(1)"), SMALL))
    assert 2 < float(said) < 9  # predicting the mean gives 9


def test_a_table_of_ones_own(shown):
    said = shown(EXAMPLES["schema"])
    assert "Column 'heat': imputed 1 empty cell with the median, 35." in said
    assert "Column 'solvent': encoded 1 unknown value" in said


def test_estimators(shown):
    code = shortened(EXAMPLES["estimators"], ("epochs=100", "epochs=5"))
    code += "\nassert ((low < y_test) & (y_test < high)).mean() > 0.6 and (std > 0).all() and labels.shape == (111, 20)"
    shown(code + "\nassert search.predict(X_test).shape == mean.shape == (111,)")


def test_predicting_with_a_run(shown, tmp_path):
    (tmp_path / "houses.csv").write_text(
        "price,size,street\n" + "".join(f"{i},{i * 7 % 90},Elm\n{i},{i},Oak\n" for i in range(40))
    )
    command = (
        "active --data houses.csv --target price --trials 1 --rounds 1 --test-size 9 --epochs 2 --name houses --quiet"
    )
    assert CliRunner().invoke(main, command.split()).exit_code == 0
    said = shown(EXAMPLES["predict"] + "\nassert samples.shape == (1, 1000, 2, 1)")
    assert "arm variance-reduction, trial 1 of 1; fitted to 20 examples" in said and "q0.5" in said


def test_a_module_of_ones_own(shown):
    code = shortened(EXAMPLES["own module"], SMALL)
    shown(code + "\nassert len(set(points.tolist()) - set(range(20))) == 1, points")


def test_an_environment_of_ones_own(shown):
    code = shortened(EXAMPLES["own environment"], *ROLLOUT)
    shown(code + "\nassert 'vime/dyn_nll_after' in env.bonus.metrics, env.bonus.metrics")


def test_environments(shown):
    shown(EXAMPLES["environments"] + "\nassert env.reset()[0].shape and many.num_envs == 1024")


def test_stable_baselines3(shown):
    assert "vime/dyn_nll_after" in shown(shortened(EXAMPLES["stable-baselines3"], *ROLLOUT))


def test_a_loop_of_ones_own(shown):
    # With other actions the last step may be a reset, which pays nothing.
    actions = ("envs.reset(seed=1)", "envs.reset(seed=1); envs.action_space.seed(1)")
    code = shortened(EXAMPLES["vector loop"], ("5_000", "300"), actions)
    shown(code + "\nassert learn_from[2].all(), learn_from")


PAID = """
from stable_baselines3.common.callbacks import BaseCallback


class Paid(BaseCallback):
    rewards = []

    def _on_step(self):
        self.rewards.append(float(self.locals["rewards"][0]))
        return True

    def _on_training_end(self):
        paid = [step for step, reward in enumerate(self.rewards, 1) if reward]
        print(f"{len(paid)} rewards, at steps {paid[0]} to {paid[-1]}")
"""


def test_the_zoo(tmp_path):
    """A bonus is paid from the first training on; alone the environment pays nothing before its goal."""
    (tmp_path / "paid.py").write_text(PAID)
    text = shortened(
        EXAMPLES["zoo"], ("n_timesteps: 50000", "n_timesteps: 512\n  n_steps: 512"), ("interval: 2000", "interval: 500")
    )
    (tmp_path / "vime.yml").write_text(text + "  callback: paid.Paid\n")
    words = EXAMPLES["zoo command"].split()
    more = ["--log-folder", "logs", "--eval-freq", "-1", "--seed", "1"]
    shown = python(*words[1:], *more, cwd=tmp_path)
    assert "12 rewards, at steps 501 to 512\n" in shown.stdout
    assert list(tmp_path.glob("logs/ppo/*/explore-SparseMountainCar-v0.zip")), shown.stdout[-2000:]
