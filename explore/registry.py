"""Plug-ins: a new posterior, acquisition or dataset is one new file.

A file of a plug-in package is a plug-in if it defines a class or function of its own name, case and underscores apart
(`noisy_kfac.py`: `class NoisyKFAC`). Its name for users is the file's, with hyphens or underscores; its description is
the first line of its docstring, read with `ast`, so that listing imports nothing. A file that plug-ins share says so by
an `__all__`; any other file that defines nothing of its name is a mistake. Plug-ins that are alike may stand in a table
of their package, `PLUG_INS`: name -> callable with a `description`.
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
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, NamedTuple

from explore.core.errors import InputError, check_settings, describe, one_of, raised, shown

FOR_ROWS = ("small", "hundreds", "classes")  # presets that `recommended_settings` chooses by the number of rows
POSTERIOR = ("init", "update", "sample", "end_epoch")  # what a class must have to be one
KINDS = {
    "posteriors": "posterior", "likelihoods": "likelihood", "acquisitions": "acquisition", "data": "dataset",
    "images": "set of images",
}  # fmt: skip
HOMES = {"likelihoods": "nets.likelihoods", "data": "data.sets", "images": "images.sets"}  # else the kind's own name


def hyphened(name: str) -> str:
    """A plug-in's or preset's name as it is listed: underscores are hyphens, but for those of a "module:Class"."""
    return name if ":" in name else name.replace("_", "-")


class _File(NamedTuple):
    """A plug-in of the package itself."""

    module: str
    attribute: str
    description: str


def _files(kind: str, only: str | None = None) -> dict[str, _File]:
    """Name -> plug-in, of all files of the package of a kind, or of the one file of the name `only`."""
    package = importlib.import_module(f"explore.{HOMES.get(kind, kind)}")
    plug_ins = {}
    for finder, module, _ in pkgutil.iter_modules(package.__path__):
        source = Path(finder.path, f"{module}.py")  # type: ignore[union-attr]
        if only in (None, hyphened(module)) and source.exists():
            tree = _parsed(source)
            if attribute := _defined(tree, module):
                first = (ast.get_docstring(tree) or "").partition("\n")[0]
                plug_ins[hyphened(module)] = _File(f"{package.__name__}.{module}", attribute, first)
            elif not _shared(tree):
                wanted = f"class {module.title().replace('_', '')} or function {module}"
                raise InputError(
                    f"{source} defines no {wanted}, which would be the {KINDS[kind]} {hyphened(module)}: define it, "
                    "or, if the file only serves others, list what it gives them in __all__"
                )
    return plug_ins


def _parsed(source: Path) -> ast.Module:
    try:
        return ast.parse(source.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise InputError(f"{source} is not valid Python: {error}") from None


def _defined(tree: ast.Module, module: str) -> str | None:
    plain = module.replace("_", "").lower()
    names = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    return next((name for name in names if name.replace("_", "").lower() == plain), None)


def _shared(tree: ast.Module) -> bool:
    targets = [target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)


def _table(kind: str) -> dict[str, Any]:
    """Name -> plug-in, of the table in the package of a kind."""
    return dict(getattr(importlib.import_module(f"explore.{HOMES.get(kind, kind)}"), "PLUG_INS", {}))


def _points(kind: str) -> dict[str, EntryPoint]:
    """Name -> plug-in, of other distributions."""
    return {hyphened(point.name): point for point in entry_points(group=f"explore.{kind}")}


def names(kind: str) -> dict[str, str]:
    """All plug-ins of a kind (of `KINDS`): name -> one line about it.

    Raises:
        InputError: for a file of the package that is no plug-in and no helper.
    """
    described = {name: plug_in.description for name, plug_in in (_table(kind) | _files(kind)).items()}
    for name, point in _points(kind).items():
        described.setdefault(name, f"from {point.dist.name if point.dist else 'another package'}: {point.value}")
    return dict(sorted(described.items()))


def find(kind: str, name: str) -> Any:
    """The class or function behind a name, or behind "module:Class".

    Raises:
        InputError: for an unknown name; the message lists the known ones.
    """
    if not isinstance(name, str):
        raise InputError(f"a {KINDS[kind]} is named by a text; got {shown(name)}")
    if ":" in name:
        return load(name, KINDS[kind])
    known = hyphened(name)
    if file := _files(kind, known).get(known):
        return getattr(importlib.import_module(file.module), file.attribute)
    if plug_in := _table(kind).get(known):
        return plug_in
    if point := _points(kind).get(known):
        try:
            return point.load()
        except (ImportError, AttributeError) as error:
            raise InputError(f"cannot load the {KINDS[kind]} {known} ({point.value}): {error}") from error
    raise one_of(KINDS[kind], name, names(kind))


def load(path: str, what: str) -> Any:
    """The class or function at "module:name"; messages call it a `what`.

    Raises:
        InputError: when it is not there, or the text names no module or nothing in it.
    """
    module, _, attribute = path.partition(":")
    try:
        if not (module and attribute):  # to import it would run it
            raise ValueError("it must be module:name")
        loaded = getattr(importlib.import_module(module), attribute)
        if not callable(loaded):
            raise TypeError(f"{attribute} is neither a class nor a function")
        return loaded
    except Exception as error:  # it runs the module
        raise InputError(f"cannot load the {what} {path!r}: {unimported(error)}") from error


def unimported(error: Exception) -> str:
    """Why an import failed; of a module that is not found also where it would be, as commands see no working folder."""
    hint = "; install it, or put its folder on the path (PYTHONPATH=. for this one)"
    return f"{raised(error)}{hint if isinstance(error, ModuleNotFoundError) else ''}"


def presets(cls: Any) -> dict[str, dict[str, Any]]:
    """The PRESETS at the end of the file of a class or function: name -> settings.

    There is always `plain`: the fields alone, where the file does not say otherwise.
    """
    written: dict[str, dict[str, Any]] = getattr(sys.modules[cls.__module__], "PRESETS", {"default": {}})
    known = {hyphened(name): settings for name, settings in written.items()}
    return known | {"plain": known.get("plain", {})}


def listed_presets(cls: Any) -> list[str]:
    """The `presets` that messages list: not those that are recommended by the number of rows."""
    return [name for name in presets(cls) if name not in FOR_ROWS]


def settings_in(cls: Any, preset: str | None) -> dict[str, Any]:
    """The settings of one of the `presets`; None: the first one.

    Raises:
        InputError: for an unknown preset; the message lists the `listed_presets`.
    """
    known = presets(cls)
    if preset is None:
        return dict(next(iter(known.values())))
    if hyphened(str(preset)) not in known:
        raise one_of("preset", preset, listed_presets(cls))
    return dict(known[hyphened(preset)])


class Configured(NamedTuple):
    """A plug-in with the settings that were asked for."""

    name: str  # as it is listed
    make: Any  # the class or function
    preset: str
    settings: dict[str, Any]  # those of the preset, replaced by those that were given


def configured(
    kind: str,
    name: str,
    options: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    preset: str | None = None,
) -> Configured:
    """A plug-in by name, with the settings of a preset and of `-p key=value`, in one look-up.

    Args:
        kind: of `KINDS`.
        name: of the plug-in.
        options: texts, see `parse`.
        preset: None: the plug-in's first one.

    Raises:
        InputError: for an unknown name, preset or setting, or a value of the wrong type.
    """
    make, own = find(kind, name), dict(options)
    chosen = next(iter(presets(make))) if preset is None else hyphened(preset)
    if own and not isinstance(make, type):
        raise InputError(f"{hyphened(name)} has no settings")
    settings = settings_in(make, chosen) | (parse(make, own) if own else {})
    return Configured(hyphened(name), make, chosen, settings)


def posterior(name: str, net: Any, likelihood: Any = "gaussian", preset: str | None = None, **settings: Any) -> Any:
    """A posterior by name: the settings of a preset (None: its first one), then those given.

    Args:
        name: of `explore list posteriors`.
        net: a `Net`.
        likelihood: how targets scatter: a name of `explore list likelihoods`, or a likelihood with settings of its own.
            One by name with a prior on the noise has that of the preset (`noise_for` of `explore.inference.presets`).
        preset: of the posterior.
        **settings: that are to be others.

    Raises:
        InputError: for an unknown name, preset, likelihood or setting, or a value that is not allowed.

    Example:
        >>> from explore.nets.net import Net, mlp
        >>> posterior("noisy-kfac", Net(mlp(13, [50], 1)), "gaussian", "small", epochs=200).beta
        0.02
    """
    cls = find("posteriors", name)
    if isinstance(likelihood, str):
        kind = find("likelihoods", likelihood)
        noise_for = importlib.import_module("explore.inference.presets").noise_for
        likelihood = kind(**noise_for(preset or next(iter(presets(cls)))) if hasattr(kind, "prior_shape") else {})
    if dataclasses.is_dataclass(cls):
        allowed = {f.name for f in dataclasses.fields(cls) if f.init} - {"net", "likelihood"} | _beside(cls).keys()
        if unknown := sorted(settings.keys() - allowed):
            raise one_of("setting", unknown[0], allowed)
    return build(cls, net, likelihood, settings_in(cls, preset) | settings)


def build(cls: Any, net: Any, likelihood: Any, settings: Mapping[str, Any]) -> Any:
    """A posterior of a class; with `members`, where these are none of its fields, a mixture of so many fits.

    Raises:
        InputError: for a class that is no posterior, or a value that is not allowed.
    """
    abstract = getattr(cls, "__abstractmethods__", ())
    if lacking := [part for part in POSTERIOR if part in abstract or not hasattr(cls, part)]:
        raise InputError(f"{cls.__name__} is no posterior: it has no {', '.join(lacking)}")
    beside = {key: value for key, value in settings.items() if key in _beside(cls)}
    made = cls(net=net, likelihood=likelihood, **{k: v for k, v in settings.items() if k not in beside})
    return importlib.import_module("explore.inference.members").mixture(made, **beside) if beside else made


def _beside(cls: Any) -> dict[str, type]:
    """Settings of a posterior that are no fields of its class: name -> type."""
    fields = {f.name for f in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {"members"}
    return {"members": int} if hasattr(cls, "no_mixture") and "members" not in fields else {}


def acquisition(name: str, **settings: Any) -> Any:
    """An acquisition by name: a function as it is, a class with its settings.

    Raises:
        InputError: for an unknown name, settings of a rule that has none, or a setting that is unknown or mistyped.
    """
    rule = find("acquisitions", name)
    allowed = settings_of(rule) if isinstance(rule, type) and dataclasses.is_dataclass(rule) else {}
    if settings and not allowed:
        raise InputError(f"{name} has no settings")
    check_settings(name, allowed, settings)
    try:
        return rule(**settings) if isinstance(rule, type) else rule
    except TypeError as error:
        raise InputError(f"{name} cannot be made an acquisition: {raised(error)}") from error


def parse(cls: Any, options: Mapping[str, str] | Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Settings of a dataclass from the texts of `-p key=value`, typed by its fields.

    Raises:
        InputError: for a class that is no dataclass, an unknown key or a value of the wrong type; the message says what
            is allowed.
    """
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
    """The fields of a dataclass that can be written as text, and a posterior's `members`: name -> type.

    Raises:
        InputError: for a class that is no dataclass.
    """
    if not dataclasses.is_dataclass(cls):
        raise InputError(f"{getattr(cls, '__name__', cls)} is no dataclass, which a plug-in with settings must be")
    hints = typing.get_type_hints(cls)
    own = {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.init and is_setting(hints[f.name])}
    return own | _beside(cls)


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
