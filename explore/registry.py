"""Plug-ins: a new posterior, acquisition or dataset is one new file.

A file in a plug-in package is a plug-in if it defines a class or function with the file's name, ignoring case and
underscores (`noisy_kfac.py`: `class NoisyKFAC`). Users write the name with hyphens or underscores. The description is
the first line of the file's docstring, read with `ast`, so listing imports nothing. A file without such a class or
function is an error, unless it defines `__all__`, which marks a helper. A package may also list similar plug-ins in a
table, `PLUG_INS`: name -> callable with a `description`. Other distributions use the entry-point groups
`explore.posteriors`, `explore.acquisitions`, ...; "module:Class" selects any class without registration.
"""

import ast
import contextlib
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

from explore.core.errors import InputError, check_known, check_settings, describe, one_of, raised, shown

FOR_ROWS = ("small", "hundreds", "classes")  # presets that `recommended_settings` selects by the number of rows
POSTERIOR = ("init", "update", "sample", "finish")  # required methods
KINDS = {
    "posteriors": "posterior", "likelihoods": "likelihood", "acquisitions": "acquisition", "data": "dataset",
    "images": "set of images", "bonuses": "bonus",
}  # fmt: skip
HOMES = {  # default: the kind itself
    "likelihoods": "nets.likelihoods", "data": "data.sets", "images": "images.sets", "bonuses": "vime.bonuses"
}  # fmt: skip
TABLED = ("data", "images")  # kinds with a table of plug-ins
Options = Mapping[str, str] | Iterable[tuple[str, str]]  # of -p key=value


def hyphened(name: str) -> str:
    """Replace underscores in the name of a plug-in or preset by hyphens; "module:Class" is unchanged."""
    return name if ":" in name else name.replace("_", "-")


def _files(kind: str, only: str | None = None) -> dict[str, tuple[str, str, str]]:
    """Return name -> (module, class or function, description) of a kind's files, or only of the file named `only`."""
    home, plug_ins = f"explore.{HOMES.get(kind, kind)}", {}
    package = sys.modules.get(home)  # not imported if it is not yet: explore.vime imports torch
    paths = package.__path__ if package else [str(Path(__file__).parents[1].joinpath(*home.split(".")))]
    for finder, module, _ in pkgutil.iter_modules(paths):
        source = Path(finder.path, f"{module}.py")  # type: ignore[union-attr]
        if only in (None, hyphened(module)) and source.exists():
            attribute, description, is_shared = _parsed(source)
            if attribute:
                plug_ins[hyphened(module)] = (f"{home}.{module}", attribute, description)
            elif not is_shared:
                wanted = f"class {module.title().replace('_', '')} or function {module}"
                raise InputError(
                    f"{source} must define {wanted} for the {KINDS[kind]} {hyphened(module)}. If it is only a helper "
                    "module, define __all__ instead"
                )
    return plug_ins


def _parsed(source: Path) -> tuple[str | None, str, bool]:
    """Return (name of the plug-in class or function, or None; description; whether `__all__` is defined) of a file."""
    try:
        tree = ast.parse(source.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError) as error:
        raise InputError(f"{source} is not valid Python: {error}") from None
    defined = [node.name for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    plain = source.stem.replace("_", "").lower()
    attribute = next((name for name in defined if name.replace("_", "").lower() == plain), None)
    assigned = [ast.unparse(target) for node in tree.body if isinstance(node, ast.Assign) for target in node.targets]
    description = (ast.get_docstring(tree) or "").partition("\n")[0]
    for node in (part for each in tree.body if isinstance(each, ast.ClassDef) for part in each.body):
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "prior_error" and node.value:
            description += f" Without data it does not keep the prior: {ast.literal_eval(node.value)}."
    return attribute, description, "__all__" in assigned


def _table(kind: str) -> dict[str, Any]:
    """Return a copy of `PLUG_INS`, the table of plug-ins in a kind's package; {} if there is none."""
    return dict(importlib.import_module(f"explore.{HOMES[kind]}").PLUG_INS) if kind in TABLED else {}


def _points(kind: str) -> dict[str, EntryPoint]:
    """Return the plug-ins of other distributions, from their entry points."""
    return {hyphened(point.name): point for point in entry_points(group=f"explore.{kind}")}


def names(kind: str) -> dict[str, str]:
    """Return name -> description of a kind in `KINDS`. Raise InputError for a file that is no plug-in and no helper."""
    described = {name: plug_in.description for name, plug_in in _table(kind).items()}
    described |= {name: description for name, (_, _, description) in _files(kind).items()}
    for name, point in _points(kind).items():
        described.setdefault(name, f"from {point.dist.name if point.dist else 'another package'}: {point.value}")
    return dict(sorted(described.items()))


def find(kind: str, name: str) -> Any:
    """Return a plug-in by name or "module:Class". Raise InputError if there is none, or if it cannot be loaded."""
    if not isinstance(name, str):
        raise InputError(f"the name of a {KINDS[kind]} must be a string; got {shown(name)}")
    if ":" in name:
        return load(name, KINDS[kind])
    listed = hyphened(name)
    for module, attribute, _ in _files(kind, listed).values():
        return getattr(importlib.import_module(module), attribute)
    if plug_in := _table(kind).get(listed):
        return plug_in
    if point := _points(kind).get(listed):
        try:
            return point.load()
        except (ImportError, AttributeError) as error:
            raise InputError(f"cannot load the {KINDS[kind]} {listed} ({point.value}): {error}") from error
    raise one_of(KINDS[kind], name, names(kind))


def load(path: str, kind: str) -> Any:
    """Return the class or function at "module:name". Raise InputError, which calls it `kind`, if that fails."""
    module, _, attribute = path.partition(":")
    try:
        if not (module and attribute):  # before the import, which runs code
            raise ValueError("it must be module:name")
        loaded = getattr(importlib.import_module(module), attribute)
        if not callable(loaded):
            raise TypeError(f"{attribute} is neither a class nor a function")
        return loaded
    except Exception as error:  # the import runs any code
        raise InputError(f"cannot load the {kind} {path!r}: {unimported(error)}") from error


def unimported(error: Exception) -> str:
    """Describe why an import failed; for a module that was not found, add how to make it available."""
    hint = "; install it, or add its folder to PYTHONPATH (PYTHONPATH=. for the current one)"
    return f"{raised(error)}{hint if isinstance(error, ModuleNotFoundError) else ''}"


def presets(cls: Any) -> dict[str, dict[str, Any]]:
    """Return the `PRESETS` of a plug-in's module: name -> settings. If `plain` is missing, add it without settings."""
    written: dict[str, dict[str, Any]] = getattr(sys.modules[cls.__module__], "PRESETS", {"default": {}})
    named = {hyphened(name): settings for name, settings in written.items()}
    return named | {"plain": named.get("plain", {})}


def settings_in(cls: Any, preset: str | None) -> dict[str, Any]:
    """Return the settings of a preset (None: the first one). Raise InputError for an unknown preset."""
    allowed = presets(cls)
    name = next(iter(allowed)) if preset is None else hyphened(str(preset))
    if name not in allowed:
        raise one_of("preset", str(preset), allowed.keys() - {*FOR_ROWS})
    return dict(allowed[name])


class Configured(NamedTuple):
    """A plug-in with its settings."""

    name: str  # as listed, with hyphens
    make: Any  # the class or function
    preset: str
    settings: dict[str, Any]  # of the preset, overridden by -p


def configured(kind: str, name: str, options: Options = (), preset: str | None = None) -> Configured:
    """Return a plug-in by name, with the settings of a preset (None: the first one) overridden by `-p key=value`.

    Raise InputError for an unknown name, preset or setting, or a value of the wrong type.
    """
    make, texts = find(kind, name), dict(options)
    chosen = next(iter(presets(make))) if preset is None else hyphened(preset)
    if texts and not isinstance(make, type):
        raise InputError(f"{hyphened(name)} has no settings")
    settings = settings_in(make, chosen) | (parse(make, texts) if texts else {})
    return Configured(hyphened(name), make, chosen, settings)


def posterior(name: str, net: Any, likelihood: Any = "gaussian", preset: str | None = None, **settings: Any) -> Any:
    """Create a posterior by name, with the settings of a preset (None: the first one) and overrides.

    Args:
        name: a name from `explore list posteriors`.
        net: a `Net`.
        likelihood: a name from `explore list likelihoods`, or a likelihood object. If a likelihood
            given by name has a noise prior, it uses the prior of the preset (`explore.inference.presets.noise_for`).
        preset: name of a preset of the posterior. None: the first one, for a trained `net` with the settings `TRAINED`
            of the posterior's module, so that the first epochs do not make the network worse.
        **settings: settings of the posterior, which override those of the preset.

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
        check_known("setting", sorted(settings), allowed)
    chosen = settings_in(cls, preset)
    if preset is None and getattr(net, "trained", False):
        chosen |= getattr(sys.modules[cls.__module__], "TRAINED", {})
    return build(cls, net, likelihood, chosen | settings)


def build(cls: Any, net: Any, likelihood: Any, settings: Mapping[str, Any]) -> Any:
    """Create a posterior of a class. If `members` is set and is not a field of the class, create a mixture of fits.

    Raise InputError for a class that is not a posterior, or a value that is not allowed.
    """
    abstract = getattr(cls, "__abstractmethods__", ())
    if lacking := [part for part in POSTERIOR if part in abstract or not hasattr(cls, part)]:
        raise InputError(f"{cls.__name__} is not a posterior: it lacks {', '.join(lacking)}")
    beside = {key: value for key, value in settings.items() if key in _beside(cls)}
    one = cls(net=net, likelihood=likelihood, **{k: v for k, v in settings.items() if k not in beside})
    return importlib.import_module("explore.inference.members").mixture(one, **beside) if beside else one


def _beside(cls: Any) -> dict[str, type]:
    """Return name -> type for the settings of a posterior class that are not its fields: `members`, or none."""
    fields = {f.name for f in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else {"members"}
    return {"members": int} if hasattr(cls, "mixture_error") and "members" not in fields else {}


def acquisition(name: str, **settings: Any) -> Any:
    """Return an acquisition by name: the function, or an instance of the class with these settings.

    Raise InputError for an unknown name, an invalid setting, or any setting of an acquisition that has none.
    """
    rule = find("acquisitions", name)
    allowed = settings_of(rule) if isinstance(rule, type) and dataclasses.is_dataclass(rule) else {}
    if settings and not allowed:
        raise InputError(f"{name} has no settings")
    check_settings(name, allowed, settings)
    try:
        return rule(**settings) if isinstance(rule, type) else rule
    except TypeError as error:
        raise InputError(f"cannot create the acquisition {name}: {raised(error)}") from error


def parse(target: Any, options: Options) -> dict[str, Any]:
    """Convert the strings of `-p key=value` to settings of `target`, a dataclass or a mapping from names to types.

    Raise InputError for a class that is not a dataclass, an unknown key or a value of the wrong type.
    """
    allowed = target if isinstance(target, Mapping) else settings_of(target)
    texts, settings = dict(options), {}
    check_known("setting", texts, allowed)
    for key, text in texts.items():
        try:
            settings[key] = _value(allowed[key], text)
        except (ValueError, KeyError):
            raise InputError(f"{key}={shown(text)} is not valid; allowed: {describe(allowed[key])}") from None
    return settings


def settings_of(cls: Any) -> dict[str, Any]:
    """Return name -> type for each field of the dataclass `cls` whose value can be given as a string.

    For a posterior, this includes `members`, the number of fits in a mixture. Raise InputError for another class.
    """
    if not dataclasses.is_dataclass(cls):
        raise InputError(f"{getattr(cls, '__name__', cls)} must be a dataclass to have settings")
    hints = typing.get_type_hints(cls)
    fields = {f.name: hints[f.name] for f in dataclasses.fields(cls) if f.init and is_setting(hints[f.name])}
    return fields | _beside(cls)


def complete(cls: type, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Add the defaults of all fields missing in `settings`, so that a run records every setting of the dataclass."""
    allowed = settings_of(cls)
    fields = [f for f in dataclasses.fields(cls) if f.name in allowed and f.default is not dataclasses.MISSING]
    return {f.name: f.default for f in fields} | dict(settings)


def is_setting(hint: Any) -> bool:
    """Return whether a field of this type can be given as a string; networks and likelihoods cannot."""
    origin = typing.get_origin(hint)
    if origin in (types.UnionType, typing.Union, tuple):
        return all(a in (type(None), Ellipsis) or is_setting(a) for a in typing.get_args(hint))
    return origin is typing.Literal or hint in (int, float, bool, str)


def _value(hint: Any, text: str) -> Any:
    """Convert a string to a value of type `hint`. Raise ValueError or KeyError if that is impossible."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if text.lower() == "none" and type(None) in arguments:
            return None
        for option in arguments:
            if option is not type(None):
                with contextlib.suppress(ValueError, KeyError):
                    return _value(option, text)
        raise ValueError
    if origin is typing.Literal:
        return {str(a): a for a in arguments}[text]
    if origin is tuple:
        return tuple(_value(arguments[0], part) for part in text.split(",") if part)
    if hint is bool:
        return {"true": True, "false": False}[text.lower()]
    return hint(text)
