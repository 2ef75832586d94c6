"""Typed settings from the texts of `-p key=value`.

    parse(["lr=0.1", "likelihood.noise_std=0.5"], {"": NoisyKFAC, "likelihood": Gaussian})
    -> {"": {"lr": 0.1}, "likelihood": {"noise_std": 0.5}}

A target is a dataclass, or a mapping of types by name. Its prefix is the part of a key before the last dot.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from explore import registry
from explore.core.errors import InputError, one_of, shown
from explore.registry import complete as complete
from explore.runs.recorded import Value as Value
from explore.runs.recorded import Values as Values
from explore.runs.recorded import read as read
from explore.runs.recorded import written as written


def parse(texts: Iterable[str], targets: Mapping[str, Any], option: str = "-p") -> dict[str, dict[str, Value]]:
    """Return typed settings of each target by its prefix, from texts such as "key=value" and "prefix.key=value".

    Raises:
        InputError: for a text that is no KEY=VALUE, an unknown prefix or key, or a value of the wrong type.
    """
    return {prefix: registry.parse(targets[prefix], t) for prefix, t in split(texts, targets, option).items()}


def split(
    texts: Iterable[str], prefixes: Iterable[str], option: str = "-p", mark: str = "=", epochs: int | None = None
) -> dict[str, dict[str, str]]:
    """Return the last value of each key as text, by prefix; `epochs` is the value of --epochs, short for -p epochs."""
    values: dict[str, dict[str, str]] = {prefix: {} for prefix in prefixes}
    for text in texts:
        name, marked, value = text.partition(mark)
        if not (name and marked):
            raise InputError(f"{option} takes KEY{mark}VALUE; got {shown(text)}")
        prefix, _, key = name.rpartition(".")
        if (prefix := registry.hyphened(prefix)) not in values:
            raise one_of("name before a setting", prefix, values.keys() - {""})
        values[prefix][key] = value
    if epochs is not None:
        if "epochs" in values[""]:
            raise InputError("give --epochs or -p epochs=..., not both")
        values[""]["epochs"] = str(epochs)
    return values


def flat(record: Any, prefixes: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of a run for TensorBoard; nested ones are named PREFIX.KEY."""
    plain = written(record)
    settings = {key: value for key, value in plain.items() if key not in (*prefixes, "fingerprint")}
    for key, prefix in prefixes.items():
        settings |= {f"{prefix}.{k}": value for k, value in (plain[key] or {}).items()}
    return settings
