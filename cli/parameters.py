"""Typed settings: from the texts of `-p key=value`, and from the JSON of a run folder.

    parse(["lr=0.1", "likelihood.noise_std=0.5"], {"": NoisyKFAC, "likelihood": Gaussian})
    -> {"": {"lr": 0.1}, "likelihood": {"noise_std": 0.5}}

A target is a dataclass or, where settings have no class of their own, their types by name. Its prefix is what stands
before the last dot of a key. `complete` fills in the defaults of a dataclass, so that a run records every setting.
"""

from __future__ import annotations

import contextlib
import json
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, asdict, fields, is_dataclass, make_dataclass
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from explore import registry
from explore.core.errors import InputError, describe, fits, listed, one_of, shown

Value = bool | int | float | str | tuple[Any, ...] | None
Values = Mapping[str, Value]  # the settings of a plug-in, by name
Target = type | Mapping[str, Any]
Record = TypeVar("Record")


def parse(texts: Iterable[str], targets: Mapping[str, Target], option: str = "-p") -> dict[str, dict[str, Value]]:
    """Typed settings of each target by its prefix, from texts such as "key=value" and "prefix.key=value".

    Raises:
        InputError: for a text that is no KEY=VALUE, an unknown prefix or key, or a value of the wrong type.
    """
    return {prefix: typed(targets[prefix], own) for prefix, own in split(texts, targets, option).items()}


def split(
    texts: Iterable[str], prefixes: Iterable[str], option: str = "-p", mark: str = "=", epochs: int | None = None
) -> dict[str, dict[str, str]]:
    """The same, with the values as they were written: the last one of each key.

    `epochs` is the value of `--epochs`, which is short for `-p epochs=...`.
    """
    written: dict[str, dict[str, str]] = {prefix: {} for prefix in prefixes}
    for text in texts:
        name, marked, value = text.partition(mark)
        if not (name and marked):
            raise InputError(f"{option} takes KEY{mark}VALUE; got {shown(text)}")
        prefix, _, key = name.rpartition(".")
        if (prefix := registry.hyphened(prefix)) not in written:
            raise one_of("name before a setting", prefix, written.keys() - {""})
        written[prefix][key] = value
    if epochs is not None:
        if "epochs" in written[""]:
            raise InputError("give --epochs or -p epochs=..., not both")
        written[""]["epochs"] = str(epochs)
    return written


def typed(target: Target, texts: Mapping[str, str]) -> dict[str, Value]:
    """The values of texts by key, as the target types them."""
    record = make_dataclass("Target", list(target.items())) if isinstance(target, Mapping) else target
    return registry.parse(record, texts)


def complete(cls: type, given: Values) -> Values:
    """The settings given, and the defaults of all others that a dataclass has."""
    known = registry.settings_of(cls)
    defaults = {f.name: f.default for f in fields(cls) if f.name in known and f.default is not MISSING}
    return defaults | dict(given)


def written(record: Any) -> dict[str, Any]:
    """A dataclass of settings as JSON can hold it."""
    plain: dict[str, Any] = json.loads(json.dumps(asdict(record)))
    return plain


def read(cls: type[Record], recorded: Any, name: str) -> Record:
    """A dataclass of settings from what `written` made of it; `name` is where, for messages.

    Those that have a default may be missing, which a warning says: a run of an earlier version has not the settings
    that came after it, whose defaults are what was done before.

    Raises:
        InputError: where another one is missing, there is one more, or a value is not of its type.
    """
    hints = get_type_hints(cls)
    defaults = {f.name: f.default for f in fields(cls) if f.default is not MISSING}  # type: ignore[arg-type]
    if not isinstance(recorded, dict) or not hints.keys() - defaults.keys() <= recorded.keys() <= hints.keys():
        given = listed(recorded) if isinstance(recorded, dict) else shown(recorded)
        raise InputError(f"{name} must have the settings {listed(hints)}; got {given}")
    if later := defaults.keys() - recorded.keys():
        taken = ", ".join(f"{key} {shown(defaults[key])}" for key in hints if key in later)
        warnings.warn(
            f"{name} is of an earlier version of explore; what it does not have is taken as {taken}", stacklevel=2
        )
    return cls(**{key: _read(hints[key], value, f"{name}: {key}") for key, value in recorded.items()})


def _read(hint: Any, value: Any, name: str) -> Any:
    if is_dataclass(hint):
        return read(hint, value, name)  # type: ignore[arg-type]
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is UnionType:
        for option in arguments:
            with contextlib.suppress(InputError):
                return _read(option, value, name)
    elif origin is Mapping and isinstance(value, dict):
        return {key: _read(arguments[1], v, f"{name}.{key}") for key, v in value.items()}
    elif hint is Any:
        return value
    elif origin is not Mapping and fits(hint, value):
        return tuple(value) if isinstance(value, list) else value  # JSON has no tuples
    raise InputError(f"{name} is {shown(value)}; it must be {describe(hint)}")
