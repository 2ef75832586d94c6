"""Characters of Python's standard library: docstrings to learn from, and code to recognise as something else.

Files are those of the running Python, in the order of their names, without tests. The text depends on its version.
"""

from __future__ import annotations

import ast
import string
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

LETTERS = string.printable[:-2]  # without two kinds of page breaks
CODE = {letter: i for i, letter in enumerate(LETTERS)}
LENGTH = 64  # characters of a context
HELD_OUT = ("asyncio", "email", "tkinter", "unittest")  # packages that are not in pretraining
SKIPPED = {"test", "tests", "idle_test", "site-packages", "lib2to3"}
SMALL, VALIDATION, TEST, OUTSIDE = 4000, 1000, 2000, 500  # contexts; validation takes its part of the small corpus
Contexts = tuple[Tensor, Tensor]  # [n, LENGTH] characters, and [n] the next ones


class Corpus(NamedTuple):
    """The data of one run."""

    train: Contexts
    test: Contexts
    code: Tensor  # [n, LENGTH], contexts of code
    shuffled: Tensor  # contexts of the test set with their characters in random order


def trees(held_out: bool) -> Iterator[ast.Module]:
    """Yield the syntax trees of the packages that are held out, or of all other files."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if SKIPPED.isdisjoint(parts) and (parts[0] in HELD_OUT) == held_out:
            yield ast.parse(path.read_text(encoding="utf-8"))


def nodes(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Yield what has a docstring, and the docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if text := ast.get_docstring(node):
                yield node, text


def docstrings(held_out: bool) -> list[str]:
    """Return all different docstrings, of the packages that are held out or of all others."""
    return list(dict.fromkeys(text for tree in trees(held_out) for _, text in nodes(tree)))


def code() -> str:
    """Return the code of the packages that are held out, without docstrings and comments."""
    texts = []
    for tree in trees(held_out=True):
        for node, _ in list(nodes(tree)):
            node.body = node.body[1:] or [ast.Pass()]  # type: ignore[attr-defined]
        texts.append(ast.unparse(tree))
    return "\n\n".join(texts)


def encoded(text: str) -> Tensor:
    """Return the numbers of characters; others than `LETTERS` are left out."""
    return torch.tensor([CODE[letter] for letter in text if letter in CODE])


def contexts(text: str, n: int, rng: np.random.Generator) -> Contexts:
    """Draw contexts from different places of a text."""
    numbers = encoded(text)
    starts = torch.from_numpy(rng.choice(len(numbers) - LENGTH, n, replace=False))
    windows = numbers[starts[:, None] + torch.arange(LENGTH + 1)]
    return windows[:, :-1], windows[:, -1]


def corpus(tune: bool) -> Corpus:
    """Return the small corpus and the test set or, to tune, three quarters of the small one and contexts of the rest.

    The parts have different docstrings.
    """
    rng = np.random.default_rng(0)
    texts = docstrings(held_out=True)
    order = rng.permutation(len(texts))
    half, part = len(texts) // 2, len(texts) // 8
    joined = ["\n\n".join(texts[i] for i in order[chosen]) for chosen in
              (slice(part, half), slice(part), slice(half, None))]  # fmt: skip
    first, second = contexts(joined[0], SMALL - VALIDATION, rng), contexts(joined[1], VALIDATION, rng)
    train = first if tune else tuple(torch.cat(pair) for pair in zip(first, second, strict=True))
    test = second if tune else contexts(joined[2], TEST, rng)
    outside = contexts(code(), OUTSIDE, rng)[0]
    shuffled = torch.from_numpy(rng.permuted(test[0][:OUTSIDE].numpy(), axis=1))
    return Corpus(train, test, outside, shuffled)  # type: ignore[arg-type]
