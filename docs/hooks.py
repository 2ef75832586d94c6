"""Makes the site of the repository's own pages, where they stand, and of the library's docstrings.

Pages keep their paths, so that one relative link works on the site and in a clone.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority, get_plugin_logger
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LOG = get_plugin_logger("hooks")
ROOT = Path(__file__).parents[1]
SHOWN = (
    "*.md", "docs/**/*.md", "docs/tutorial/*.py", "docs/**/*.png", "experiments/**/*.md", "experiments/**/*.png",
    "experiments/**/*.csv",
)  # fmt: skip


def modules() -> dict[str, list[str]]:
    """Package -> its modules, the package first; all of `explore` but the command line."""
    packages = [ROOT / "explore", *sorted(path.parent for path in ROOT.glob("explore/*/__init__.py"))]
    found = {}
    for package in packages:
        if package.name != "cli":
            name = ".".join(package.relative_to(ROOT).parts)
            files = sorted(path.stem for path in package.glob("*.py") if path.stem != "__init__")
            found[name] = [name, *(f"{name}.{file}" for file in files)]
    return found


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """A page of reference for each package."""
    pages = [{name: f"docs/reference/{name}.md"} for name in modules()]
    config.nav = [*(config.nav or []), {"Reference": pages}]
    return config


@event_priority(100)  # before mkdocs-jupyter, which makes pages of the tutorials
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Every page and picture by its path in the repository, in place of those of `docs` by their path in there."""
    for file in list(files):
        if file.abs_src_path and Path(file.abs_src_path).is_relative_to(ROOT / "docs"):
            files.remove(file)
    for path in sorted({path for pattern in SHOWN for path in ROOT.glob(pattern)}):
        files.append(File(path.relative_to(ROOT).as_posix(), str(ROOT), config.site_dir, config.use_directory_urls))
    for package, contents in modules().items():
        text = f"# {package}\n\n" + "\n".join(f"::: {name}\n" for name in contents)
        files.append(File.generated(config, f"docs/reference/{package}.md", content=text))
    return files


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links of a tutorial at pages, as MkDocs does in Markdown; warn of a page that does not exist."""
    if not page.file.src_uri.endswith(".py"):
        return html

    def linked(match: re.Match[str]) -> str:
        target = files.get_file_from_path(posixpath.normpath(f"{posixpath.dirname(page.file.src_uri)}/{match[1]}"))
        if target is None:
            LOG.warning(f"{page.file.src_uri} links to {match[1]}, which does not exist")
            return match[0]
        return f'href="{target.url_relative_to(page.file)}{match[2] or ""}"'

    return re.sub(r'href="([^":#]+\.(?:md|py))(#[^"]*)?"', linked, html)
