"""Plug-ins: a new posterior, acquisition or dataset is one new file.

A module of a plug-in package is a plug-in if it defines a class or function of its own name, case and
underscores apart (`noisy_kfac.py`: `class NoisyKFAC`). Its name for users is the file's, with dashes; its
description is the first line of its docstring, read with `ast`, so that listing imports nothing.
Other distributions add theirs through the entry-point groups `explore.posteriors`, `explore.acquisitions`, ...;
"module:Class" reaches any class without registration.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import pkgutil
import sys
import types
import typing
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from explore.errors import InputError, describe, one_of, shown

KINDS = {"posteriors": "posterior", "acquisitions": "acquisition", "data": "dataset"}


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()


def _modules(kind: str, only: str | None = None) -> dict[str, tuple[str, str, str]]:
    """Name -> (module, attribute, description) of the files of the package `explore.<kind>`, or of `only` one name."""
    package = importlib.import_module(f"explore.{kind}")
    found = {}
    for finder, module, _ in pkgutil.iter_modules(package.__path__):
        if only is not None and module.replace("_", "-") != only:
            continue
        source = Path(finder.path, f"{module}.py")  # type: ignore[union-attr]
        tree = ast.parse(source.read_text(encoding="utf-8")) if source.exists() else ast.Module([], [])
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and _plain(node.name) == _plain(module):
                first = (ast.get_docstring(tree) or "").partition("\n")[0]
                found[module.replace("_", "-")] = (f"{package.__name__}.{module}", node.name, first)
    return found


def names(kind: str) -> dict[str, str]:
    """All plug-ins of a kind (`posteriors`, `acquisitions`, `data`): name -> one line about it."""
    found = {name: description for name, (_, _, description) in _modules(kind).items()}
    for point in entry_points(group=f"explore.{kind}"):
        found.setdefault(point.name, f"from {point.dist.name if point.dist else 'another package'}: {point.value}")
    return dict(sorted(found.items()))


def find(kind: str, name: str) -> Any:
    """The class or function behind a name, or behind "module:Class".

    Raises:
        InputError: for an unknown name; the message lists the known ones.
    """
    if not isinstance(name, str):
        raise InputError(f"a {KINDS[kind]} is named by a text; got {shown(name)}")
    modules = _modules(kind, name)
    if ":" in name:
        return load(name, KINDS[kind])
    if name in modules:
        module, attribute, _ = modules[name]
        return getattr(importlib.import_module(module), attribute)
    for point in entry_points(group=f"explore.{kind}"):
        if point.name == name:
            return point.load()
    raise one_of(KINDS[kind], name, names(kind))


def load(path: str, what: str) -> Any:
    """The class or function "module:name"; `what` calls it in messages.

    Raises:
        InputError: when it is not there.
    """
    module, _, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
        if not callable(found):
            raise TypeError(f"{attribute} is neither a class nor a function")
        return found
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise InputError(f"cannot load the {what} {path!r}: {error}") from error


def presets(cls: type) -> dict[str, dict[str, Any]]:
    """The PRESETS at the end of the class's file: name -> settings."""
    found: dict[str, dict[str, Any]] = getattr(sys.modules[cls.__module__], "PRESETS", {"default": {}})
    return found


def preset(cls: type, name: str | None) -> dict[str, Any]:
    """The settings of one of the `presets`; None: the first one."""
    return _preset(cls, name)


def _preset(cls: type, name: str | None) -> dict[str, Any]:
    found = presets(cls)
    if name is None:
        return dict(next(iter(found.values())))
    if name not in found:
        raise one_of("preset", name, found)
    return dict(found[name])


def posterior(name: str, net: Any, likelihood: Any, preset: str | None = None, **settings: Any) -> Any:
    """A posterior by name: the settings of a preset (None: its first one), then those given.

    Raises:
        InputError: for an unknown name, preset or setting, or a value that is not allowed.

    Example:
        >>> from explore.likelihoods import Gaussian
        >>> from explore.nets import Net, mlp
        >>> posterior("noisy-kfac", Net(mlp(13, [50], 1)), Gaussian(), "small", epochs=200).beta
        0.02
    """
    cls = find("posteriors", name)
    if dataclasses.is_dataclass(cls):
        allowed = {f.name for f in dataclasses.fields(cls) if f.init} - {"net", "likelihood"}
        if unknown := sorted(settings.keys() - allowed):
            raise one_of("setting", unknown[0], allowed)
    return cls(net=net, likelihood=likelihood, **(_preset(cls, preset) | settings))


def parse(cls: type, options: Mapping[str, str] | Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Settings of a dataclass from the texts of `-p key=value`, typed by its fields.

    Raises:
        InputError: for a class that is no dataclass, an unknown key or a value of the wrong type; the message says what
            is allowed.
    """
    if not dataclasses.is_dataclass(cls):
        raise InputError(f"{cls.__name__} is no dataclass, which a plug-in with settings must be")
    allowed = settings_of(cls)
    settings = {}
    for key, text in dict(options).items():
        if key not in allowed:
            raise one_of("setting", key, allowed)
        try:
            settings[key] = _value(allowed[key], text)
        except ValueError:
            raise InputError(f"{key}={shown(text)} is not valid; allowed: {describe(allowed[key])}") from None
    return settings


def settings_of(cls: Any) -> dict[str, Any]:
    """The fields of a dataclass that can be written as text: name -> type."""
    hints = typing.get_type_hints(cls)
    return {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.init and is_setting(hints[f.name])}


def is_setting(hint: Any) -> bool:
    """Whether a field of this type can be written as text (a net or a likelihood cannot)."""
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union, tuple):
        return all(a in (type(None), Ellipsis) or is_setting(a) for a in typing.get_args(hint))
    return origin is typing.Literal or hint in (int, float, bool, str)


def _value(hint: Any, text: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if text.lower() == "none" and type(None) in arguments:
            return None
        for option in arguments:
            if option is not type(None):
                try:
                    return _value(option, text)
                except ValueError:
                    continue
        raise ValueError
    if origin is typing.Literal:
        matches = [a for a in arguments if str(a) == text]
        if not matches:
            raise ValueError
        return matches[0]
    if origin is tuple:
        return tuple(_value(arguments[0], part) for part in text.split(",") if part)
    if hint is bool:
        if text.lower() not in ("true", "false"):
            raise ValueError
        return text.lower() == "true"
    return hint(text)
