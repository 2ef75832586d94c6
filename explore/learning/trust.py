"""Guards for run folders of unknown origin: nothing in them is executed unless the user trusts it.

A setting can name a function as "module:name": a posterior, a network, an environment, or an argument of one. Using it
means importing the module and calling the function, and even a module of explore could run any command that way. From a
run folder only registered names are used, unless the user trusts the module. A run is written into its folder, so that
nothing in the folder may point out of it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from explore.core.errors import InputError, shown
from explore.runs.recorded import read_config, recorded

ENVIRONMENTS = "explore.envs"
# Settings whose texts are paths and names of columns, whatever they look like.
TEXTS = set(
    "data target targets id_column drop_columns categorical feature sheet keep_na failed cost overlay images".split()
)


def settings(folder: Path, commands: Collection[str], trusted: Collection[str]) -> dict[str, Any]:
    """Read the settings of a run of one of some commands, if its folder has no links and needs no other module."""
    check_links(folder)
    content = recorded(folder)
    if content["command"] not in commands:
        raise InputError(
            f"{folder} was written by explore {content['command']}. Use a run of explore {' or '.join(commands)}"
        )
    if content["command"] != "suggest":  # whose settings a campaign's log does not depend on
        content = read_config(folder)["settings"]
    check(folder, content, trusted)
    return content


def check(folder: Path, settings: Mapping[str, Any], trusted: Collection[str]) -> None:
    """Refuse settings of a run folder that name a function which is not trusted.

    `trusted` has modules, which include their sub-modules, and functions as "module:name".
    """
    for reference in references(settings):
        name = reference.partition(":")[0]
        if reference not in trusted and not any(name == m or name.startswith(f"{m}.") for m in trusted):
            raise InputError(
                f"{folder} imports the module {shown(name)}, whose code would run. "
                f"If you trust it, add --trust {name} (in Python: trust=[{name!r}])"
            )


def modules(settings: Mapping[str, Any]) -> list[str]:
    """Return the modules of the `references` of settings, sorted."""
    return sorted({reference.partition(":")[0] for reference in references(settings)})


def references(settings: Mapping[str, Any]) -> list[str]:
    """Return the texts "module:name" in settings, sorted, without the registered environments."""
    plain = {key for key in settings if key in TEXTS}
    if isinstance(ood := settings.get("ood"), str) and Path(ood).is_absolute():  # else it is the name of a set
        plain.add("ood")
    texts = _texts({key: value for key, value in settings.items() if key not in plain})
    return sorted({text for text in texts if ":" in text and not _is_registered(text)})


def _is_registered(text: str) -> bool:
    """Return whether a text is an environment of explore's, as Gymnasium alone would find it."""
    module, _, identifier = text.partition(":")
    if module != ENVIRONMENTS:
        return False
    from explore.envs import ENVS  # and with it Gymnasium

    return identifier in ENVS


def check_links(folder: Path) -> None:
    """Refuse a folder in which anything is neither a file nor a folder."""
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise InputError(
                    f"{path} is a link or a device. Run folders may have only files and folders; replace it by a copy"
                )


def _texts(value: Any) -> Iterator[str]:
    """Yield all texts in a value from JSON, keys too; not recursive, since the value may be nested deeply."""
    stack = [value]
    while stack:
        part = stack.pop()
        if isinstance(part, str):
            yield part
        elif isinstance(part, list):
            stack += part
        elif isinstance(part, dict):
            stack += [*part, *part.values()]
