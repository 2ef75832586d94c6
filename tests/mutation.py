"""Whether the tests notice when a piece of the mathematics is changed: `python -m tests.mutation`.

A mutant is the code with one change: mutmut's, and a call replaced by its first argument. Left alone are annotations,
texts, raised errors, `strict=`, and defaults and presets, which are choices that no test should repeat. As many mutants
as asked for are drawn by a seed, so that those of a file stay the same when another one changes; for each, the tests of
its file run in a process forked from one that has all modules loaded, until one fails or too much time is used; both
count as noticed. What changes nothing that can be seen stands with its reason in `mutants.toml`. Results are lines of
JSON: a run that was interrupted goes on where it stopped, and a mutant is tested anew when its file has changed.
"""

from __future__ import annotations

import ast
import difflib
import hashlib
import importlib
import json
import os
import re
import resource
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any, NamedTuple, cast

import click
import libcst as cst
import pytest
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation import mutators

ROOT = Path(__file__).parents[1]
EQUIVALENT = ROOT / "tests" / "mutants.toml"
CONTRACT = [f"tests/contracts/test_{name}.py" for name in ("posteriors", "execution", "batch_norm")]
SHARED = "tests/inference/test_shared_settings.py"
CPU_SECONDS = 240  # of the tests of a mutant; without one they take less than half of it

MUTATED = ("acquisitions", "inference", "nets/likelihoods", "posteriors")
# What is changed, and the tests that run: first those beside it, then, where they notice nothing, those of others that
# rest on it; of the contract's the posteriors named.
OTHERS: dict[str, tuple[list[str], list[str]]] = {
    "likelihoods": (
        ["tests/test_likelihoods.py", "tests/contracts/test_likelihoods.py"],
        ["tests/test_predict.py", "tests/posteriors/test_noisy_adam.py"],
    ),
    "predict": (["tests/test_predict.py"], ["tests/test_compare.py", "tests/test_active.py"]),
    "acquisitions": (["tests/acquisitions", "tests/contracts/test_acquisitions.py"], ["tests/test_active.py"]),
}
SHARERS: dict[str, tuple[list[str], str]] = {  # of several posteriors
    "adam": (["adam", "bbb", "map"], "map or ensemble"),
    "base": (["gaussian", "noisy_kfac"], "noisy-kfac or bbb"),
    "gaussian": (["gaussian"], "noisy-kfac or noisy-adam"),
    "kronecker": (["kronecker", "joint_factors", "noisy_ekfac"], "noisy-kfac or noisy-ekfac"),
    "low_rank": (["joint_factors", "slang"], "slang"),
    "natural": (["natural", "shared_settings", "noisy_kfac"], "noisy-kfac or full"),
    "noisy_layers": (["bbb", "whvi", "mc_dropout"], "bbb or mc-dropout"),
    "common": (["batch_norm", "prior"], "noisy-kfac or bbb"),
    "points": (["map", "ensemble", "mc_dropout"], "map or mc-dropout"),
    "reparam": (["bbb", "tensor_factorised", "whvi"], "bbb or tensor-factorised"),
    "steps": (["natural", "shared_settings", "bbb", "vogn"], "noisy-kfac or slang"),
    "structures": (["structures", "vogn", "noisy_ekfac", "full"], "noisy-adam or noisy-ekfac"),
    "context": (["natural", "shared_settings", "map"], "noisy-kfac or map"),
}


def tests_of(file: str) -> tuple[list[str], list[str]]:
    """Arguments for pytest: of the near tests, and of those further away."""
    path = Path(file)
    if path.stem in OTHERS or path.parent.name in OTHERS:
        return OTHERS[path.stem if path.stem in OTHERS else path.parent.name]
    stem = "structures" if path.parts[-2:] == ("structures", "base.py") else path.stem
    near, names = SHARERS.get(stem, ([stem], stem.replace("_", "-")))
    paths = [next((ROOT / "tests").rglob(f"test_{name}.py")) for name in near]
    return [str(p.relative_to(ROOT)) for p in paths], [SHARED, *CONTRACT, "-k", names]


# Mutants ---------------------------------------------------------------------------------------------------


class Mutant(NamedTuple):
    """One change of one file."""

    key: str  # a digest of the file's name and of the change, the same whatever else the file says
    file: str
    line: int
    module: cst.Module
    old: cst.CSTNode
    new: cst.CSTNode

    @property
    def source(self) -> str:
        """The whole file, changed."""
        return cast(cst.Module, self.module.deep_replace(self.old, self.new)).code

    def lines(self) -> tuple[str, str]:
        """What stands there, and what stands there instead."""
        before, after = self.module.code.splitlines(), self.source.splitlines()
        diff = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
        old, new = ("\n".join(d[1:].strip() for d in diff if d[0] == sign) for sign in "-+")
        return old, new


def first_argument(call: cst.Call) -> Iterator[cst.BaseExpression]:
    """`f(x, y)` is x: as if f were not called."""
    if call.args and not call.args[0].star and not call.args[0].keyword:
        yield call.args[0].value


OPERATORS = [pair for pair in mutators.mutation_operators if pair[1] is not mutators.operator_string]
OPERATORS += [(cst.Call, first_argument)]


class Places(cst.CSTVisitor):
    """Every node that can be changed, with what it can become."""

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        self.found: list[tuple[cst.CSTNode, int, Any]] = []
        self.choices: set[cst.CSTNode] = set()

    def on_visit(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Annotation | cst.Raise | cst.Decorator | cst.Import | cst.ImportFrom):
            return False
        if isinstance(node, cst.ClassDef):
            fields = [line for line in node.body.body if isinstance(line, cst.SimpleStatementLine)]
            self.choices |= {part for line in fields for part in line.body if isinstance(part, cst.AnnAssign)}
        if isinstance(node, cst.AnnAssign) and (node in self.choices or getattr(node.target, "value", "") == "PRESETS"):
            return False
        if isinstance(node, cst.Assign) and getattr(node.targets[0].target, "value", "") == "BY_ROWS":
            return False
        for kind, operator in OPERATORS:
            if isinstance(node, kind):
                line = self.get_metadata(PositionProvider, node).start.line
                self.found += [(node, line, changed) for changed in operator(node)]
        return True


STRICT = re.compile(r"strict=\w+|[,\s]")


def files() -> list[str]:
    folder = ROOT / "explore"
    paths = [p for part in MUTATED for p in sorted((folder / part).rglob("*.py")) if p.name != "__init__.py"]
    paths += [folder / "core" / "context.py"]
    return [str(p.relative_to(ROOT)) for p in paths]


def draw(count: int, seed: int) -> tuple[list[Mutant], int]:
    """So many random mutants, and of how many they were drawn: those with the smallest hashes."""
    pool = []
    for file in files():
        wrapper, places = MetadataWrapper(cst.parse_module((ROOT / file).read_text(encoding="utf-8"))), Places()
        wrapper.visit(places)
        seen: Counter[str] = Counter()
        for node, line, changed in places.found:
            old, new = (wrapper.module.code_for_node(n) for n in (node, changed))
            if STRICT.sub("", old) != STRICT.sub("", new):
                name = f"{file}: {old} -> {new}"
                seen[name] += 1
                pool.append(Mutant(sha(f"{name} {seen[name]}"), file, line, wrapper.module, node, changed))
    return sorted(pool, key=lambda mutant: sha(f"{seed} {mutant.key}"))[:count], len(pool)


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# Tests -----------------------------------------------------------------------------------------------------


class FirstFailure:
    """A plug-in of pytest that notes which test failed first."""

    def __init__(self) -> None:
        self.name = ""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.name = self.name or report.nodeid

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.name = self.name or f"{report.nodeid} (import)"


def load() -> None:
    """Everything that tests import, `explore` with its shapes checked as in any test."""
    import scipy.stats  # noqa: F401
    import torch
    from jaxtyping import install_import_hook

    torch.set_num_threads(1)
    torch.testing.assert_close(torch.ones(2).double() @ torch.ones(2).double(), torch.tensor(2.0).double())
    install_import_hook("explore", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))")
    for room in ("core", "execution", "learning", "nets"):
        for path in sorted((ROOT / "explore" / room).glob("*.py")):
            if path.stem != "__init__":
                importlib.import_module(f"explore.{room}.{path.stem}")
    for file in files():
        importlib.import_module(file.removesuffix(".py").replace("/", "."))


def forget(module: str) -> None:
    """Take a module, and what imports it, out of what is loaded."""
    importers: dict[str, set[str]] = {}
    for name, loaded in list(sys.modules.items()):
        if name.startswith("explore.") and loaded.__file__:
            for node in ast.walk(ast.parse(Path(loaded.__file__).read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom):
                    for other in (node.module or "", *(f"{node.module}.{a.name}" for a in node.names)):
                        importers.setdefault(other, set()).add(name)
    gone, left = set(), [module]
    while left:
        name = left.pop()
        if name not in gone:
            gone.add(name)
            left += importers.get(name, ())
    for name in gone & sys.modules.keys():
        parent, _, own = name.rpartition(".")
        vars(sys.modules[parent]).pop(own, None)
    for name in gone:
        sys.modules.pop(name, None)


def change(mutant: Mutant) -> None:
    """Give every later import the mutant's source."""
    target, data, stats = str(ROOT / mutant.file), SourceFileLoader.get_data, SourceFileLoader.path_stats

    def get_data(self: Any, path: str) -> bytes:
        return mutant.source.encode() if str(path) == target else data(self, path)

    def path_stats(self: Any, path: str) -> Any:
        if str(path) == target:
            raise OSError("no bytecode of a mutant")
        return stats(self, path)

    SourceFileLoader.get_data = get_data  # type: ignore[method-assign]
    SourceFileLoader.path_stats = path_stats  # type: ignore[method-assign]
    forget(mutant.file.removesuffix(".py").replace("/", "."))


def first_failure(arguments: list[str], mutant: Mutant | None) -> str:
    """The test that fails first, in a process of its own; "time" where they take too long, "" where none fails."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1), os.dup2(null, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
        noticed = FirstFailure()
        try:
            if mutant:
                change(mutant)
            options = ["-o", "addopts=", "--import-mode=importlib", "-m", "not slow", "-x", "-q"]
            options += ["-p", "no:randomly", "-p", "no:cacheprovider", "-p", "no:xdist"]
            options += ["-W", "ignore:Module already imported:pytest.PytestAssertRewriteWarning"]  # they are loaded
            status = pytest.main([*options, *arguments], plugins=[noticed])
            name = noticed.name or ("" if status == 0 else f"pytest ended with {status!s}")
        except BaseException as error:
            name = repr(error)
        os.write(writer, (name or "passed").encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return {"": "time", "passed": ""}.get(said, said)


# Command ---------------------------------------------------------------------------------------------------


def equivalents() -> set[str]:
    """The keys of those that are listed."""
    return {entry["key"] for entry in tomllib.loads(EQUIVALENT.read_text(encoding="utf-8"))["equivalent"]}


def test(mutant: Mutant, sound: set[str]) -> str:
    """The first test that notices; "" where none does. `sound` are the tests that pass without a mutant."""
    for arguments in tests_of(mutant.file):
        if by := first_failure(arguments, mutant):
            if (key := str(arguments)) not in sound:
                if broken := first_failure(arguments, None):
                    raise click.ClickException(f"without a mutant fails {broken}")
                sound.add(key)
            return by
    return ""


@click.command()
@click.option("--count", default=300, show_default=True, help="Mutants.")
@click.option("--seed", default=0, show_default=True)
@click.option("--results", type=click.Path(path_type=Path), default="mutation.jsonl", show_default=True)
@click.option("--again", is_flag=True, help="Test those anew that survived.")
def main(count: int, seed: int, results: Path, again: bool) -> None:
    """Test random mutants, or the rest of them."""
    lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    done = {(line["key"], line["code"]): line for line in lines}  # of several the last
    known, code = equivalents(), {file: sha((ROOT / file).read_text(encoding="utf-8")) for file in files()}
    mutants, pool = draw(count, seed)
    load()
    sound: set[str] = set()
    survived = []
    for mutant in (m for m in mutants if m.key not in known):
        result = done.get((mutant.key, code[mutant.file]))
        if result is None or (again and not result["by"]):
            start, (old, new) = time.monotonic(), mutant.lines()
            result = {
                "key": mutant.key, "file": mutant.file, "code": code[mutant.file], "line": mutant.line, "old": old,
                "new": new, "by": test(mutant, sound), "seconds": round(time.monotonic() - start, 1),
            }  # fmt: skip
            with results.open("a") as file:
                file.write(json.dumps(result) + "\n")
        if not result["by"]:
            survived.append(result)
            click.echo(f"{mutant.key} {mutant.file}:{mutant.line}\n- {result['old']}\n+ {result['new']}")
    same = sum(m.key in known for m in mutants)
    click.echo(
        f"{count} mutants of {pool}, seed {seed}: {same} equivalent, {len(survived)} of the others survived "
        f"({len(survived) / max(1, count - same):.1%})"
    )


if __name__ == "__main__":
    main()
