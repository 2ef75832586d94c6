"""What a run folder of unknown origin may do: nothing but hand over numbers.

Importing a module runs it, and settings can name modules ("module:Class" for a posterior, "module:ID" for an
environment, or an argument of one). Those that a run folder names are imported only when the user trusts them; on a
command line he names them himself. A run is written into its folder, so nothing in that may point out of it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from explore.errors import InputError, shown

OWN = "explore"
HOW = "add --trust {name}"
# Settings whose texts are read as paths and names of columns, whatever they look like.
TEXTS = set("data target targets id_column drop_columns categorical feature sheet cost overlay images ood".split())


def check(folder: Path, settings: Mapping[str, Any], trusted: Collection[str], how: str = HOW) -> None:
    """Refuse the settings of a run folder that name a module which is not trusted, as it is or with its package.

    `how` says what to do if one trusts it.
    """
    for name in modules(settings):
        if not any(name == module or name.startswith(f"{module}.") for module in trusted):
            raise InputError(
                f"{folder} needs the module {shown(name)}, which its config.json names and which would be run; "
                f"if you trust it, {how.format(name=name)}"
            )


def modules(settings: Mapping[str, Any]) -> list[str]:
    """The modules that settings name before a colon, but for those of explore; sorted."""
    texts = _texts({key: value for key, value in settings.items() if key not in TEXTS})
    named = {module for module, colon, _ in (text.partition(":") for text in texts) if module and colon}
    return sorted(name for name in named if name.partition(".")[0] != OWN)


def check_links(folder: Path) -> None:
    """Refuse a folder in which anything is neither a file nor a folder."""
    for place, folders, files in os.walk(folder):
        for path in (Path(place, name) for name in (*folders, *files)):
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                raise InputError(f"{path} is a link or a device; a run folder has files and folders only")


def _texts(value: Any) -> Iterator[str]:
    """All texts in a value from JSON, keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, dict):
        yield from _texts([*value, *value.values()])
