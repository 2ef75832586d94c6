"""Guards for run folders of unknown origin: nothing in them is executed unless the user trusts it.

A setting can name a function as "module:name", for a posterior, a network, an environment, or one of their arguments.
Using the setting imports the module and calls the function. This could run any command, even if the module is one of
explore's. Settings of a run folder may only use registered names, unless the user trusts the module. Since resuming a
run writes into its folder, links in the folder are not allowed.
"""

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from explore.core.errors import InputError, shown
from explore.runs.recorded import read_config, recorded

ENVIRONMENTS = "explore.envs"
# Settings whose strings are paths or column names, even if they look like "module:name".
TEXTS = set(
    "data target targets id_column drop_columns categorical feature sheet keep_na failed cost overlay images".split()
)


def settings(folder: Path, commands: Collection[str], trusted: Collection[str]) -> dict[str, Any]:
    """Read the settings of a run of one of these commands. Raise InputError for links or untrusted modules."""
    check_links(folder)
    content = recorded(folder)
    if content["command"] not in commands:
        allowed = " or ".join(commands)
        raise InputError(f"{folder} was written by explore {content['command']}. Use a run of explore {allowed}")
    if content["command"] != "suggest":  # a campaign has no sessions
        content = read_config(folder)["settings"]
    check(folder, content, trusted)
    return content


def check(folder: Path, settings: Mapping[str, Any], trusted: Collection[str]) -> None:
    """Raise InputError if the settings of a run folder name a function that is not trusted.

    `trusted` contains modules, each including its sub-modules, and functions as "module:name".
    """
    for reference in references(settings):
        name = reference.partition(":")[0]
        if reference not in trusted and not any(name == m or name.startswith(f"{m}.") for m in trusted):
            raise InputError(
                f"{folder} imports the module {shown(name)}, whose code would run. "
                f"If you trust it, add --trust {name} (in Python: trust=[{name!r}])"
            )


def modules(settings: Mapping[str, Any]) -> list[str]:
    """Return the sorted names of the modules in the `references` of these settings."""
    return sorted({reference.partition(":")[0] for reference in references(settings)})


def references(settings: Mapping[str, Any]) -> list[str]:
    """Return the strings "module:name" in settings, sorted, except for registered environments."""
    plain = {key for key in settings if key in TEXTS}
    if isinstance(ood := settings.get("ood"), str) and Path(ood).is_absolute():  # otherwise the name of a data set
        plain.add("ood")
    stack: list[Any] = [{key: value for key, value in settings.items() if key not in plain}]
    names = set()
    while stack:  # not recursively, since a value may be deeply nested
        part = stack.pop()
        if isinstance(part, list):
            stack += part
        elif isinstance(part, dict):
            stack += [*part, *part.values()]
        elif isinstance(part, str) and ":" in part:
            names.add(part)
    if any(name.startswith(f"{ENVIRONMENTS}:") for name in names):
        from explore.envs import ENVS  # imports Gymnasium, so only if needed

        names -= {f"{ENVIRONMENTS}:{identifier}" for identifier in ENVS}
    return sorted(names)


def check_links(folder: Path) -> None:
    """Raise InputError if the folder contains anything except regular files and folders."""
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise InputError(f"{path} is a link or a device. Replace it by a copy: run folders have only files")
