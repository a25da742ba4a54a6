"""Hooks of mkdocs: documents stay where they are in the repository, and become the site's pages.

`docs/X.md` is the page `X.md`; `README.md` is the home page; every other document keeps its path,
and so does every file that a document links to. Links between files become links between pages.
The pages of the commands are written from the commands themselves.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parent))

from command_reference import command_pages, command_table, commands

ROOT = Path(__file__).parents[1]
DOCUMENTS = ["*.md", "examples/*.md", "examples/*/*.md"]
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)#\s]+)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the pages of the commands to the navigation."""
    for section in config.nav or []:
        if "Commands" in section:
            section["Commands"] += [f"commands/{name}.md" for name in commands()]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the documents outside of docs/, the files that are linked to, and the commands."""
    documents = [path for pattern in DOCUMENTS for path in ROOT.glob(pattern)]
    for path in documents:
        files.append(_file(path, config))
    for path in [*documents, *ROOT.glob("docs/**/*.md")]:
        for linked in _linked_files(path):
            if files.get_file_from_path(_uri(linked)) is None:
                files.append(_file(linked, config))
    for name, text in command_pages().items():
        files.append(File.generated(config, f"commands/{name}.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links between files of the repository into links between pages."""
    if page.file.generated_by and page.file.src_uri.startswith("commands/"):
        return markdown
    here = Path(str(page.file.abs_src_path)).parent
    start = posixpath.dirname(page.file.src_uri) or "."

    def link(match: re.Match[str]) -> str:
        return posixpath.relpath(_uri(_target(here, match[1])), start)

    return LINK.sub(link, markdown.replace("<!-- commands -->", command_table()))


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Mark long pieces of code, which may be broken into lines."""
    return re.sub(r"<code>(?=[^<]{40,}</code>)", '<code class="long">', html)


def _linked_files(document: Path) -> Iterator[Path]:
    for link in LINK.findall(document.read_text(encoding="utf-8")):
        path = _target(document.parent, link)
        if path.is_file() and path.suffix != ".md":
            yield path


def _target(directory: Path, link: str) -> Path:
    path = (directory / link).resolve()
    return path / "README.md" if path.is_dir() else path


def _uri(path: Path) -> str:
    return path.relative_to(ROOT).as_posix().removeprefix("docs/")


def _file(path: Path, config: MkDocsConfig) -> File:
    return File.generated(config, _uri(path), abs_src_path=str(path))
