"""Check the files in dist/: their names, sizes and contents, and the version if a tag is given."""

import re
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

LIMIT = 2_000_000  # bytes, of each file
DATA = {
    "explore/data/sets/boston.csv.gz",
    "explore/data/sets/published.toml",
    "explore/images/sets/published.toml",
}
CODE = {".py", ".typed", ".html"}
SOURCES = {"explore", "cli", "envs", "README.md", "LICENSE", "pyproject.toml", "PKG-INFO", ".gitignore"}

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
version, name = project["version"], project["name"].replace("-", "_")
tag = sys.argv[1] if len(sys.argv) > 1 else ""
errors = []


def is_test(path: PurePosixPath) -> bool:
    """Return whether a file is a test, an experiment or their configuration."""
    return bool({"tests", "experiments"} & set(path.parts)) or path.name.startswith(("test_", "conftest"))


wheel, sdist = Path(f"dist/{name}-{version}-py3-none-any.whl"), Path(f"dist/{name}-{version}.tar.gz")
if set(Path("dist").iterdir()) != {wheel, sdist}:
    sys.exit(f"dist/ must contain {wheel.name} and {sdist.name}, nothing else.")
with zipfile.ZipFile(wheel) as archive:
    in_wheel = [PurePosixPath(item) for item in archive.namelist()]
with tarfile.open(sdist) as archive:
    in_sdist = [PurePosixPath(item).relative_to(f"{name}-{version}") for item in archive.getnames()]

for path, files in ((wheel, in_wheel), (sdist, in_sdist)):
    size = path.stat().st_size
    print(f"{path}: {size:,} bytes, {len(files)} files")
    if size >= LIMIT:
        errors.append(f"{path} has {size:,} bytes. The limit is {LIMIT:,}.")
    errors += [f"{path} contains {file}, a test or an experiment." for file in files if is_test(file)]
modules = [file for file in in_wheel if file.parts[0] != f"{name}-{version}.dist-info"]
errors += [f"{wheel} contains {file}, outside of the package." for file in modules if file.parts[0] != "explore"]
data = {str(file) for file in modules if file.suffix not in CODE}
if data != DATA:
    errors.append(f"{wheel} contains the data {sorted(data)}. It must contain {sorted(DATA)}.")
errors += [f"{sdist} contains {file}." for file in in_sdist if file.parts[0] not in SOURCES]

if tag and tag != f"v{version}":
    errors.append(f"The tag is {tag}, but pyproject.toml has version {version}.")
changes = Path("CHANGELOG.md").read_text(encoding="utf-8")
if tag and not re.search(rf"^## \[{re.escape(version)}\]", changes, re.MULTILINE):
    errors.append(f"CHANGELOG.md has no section [{version}].")
if errors:
    sys.exit("\n".join(errors))
