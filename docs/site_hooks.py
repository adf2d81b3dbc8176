"""Adds pages that are not in docs/ to the built site, API pages and linked source files, and draws diagrams.

MkDocs calls the functions ``on_...``, since `mkdocs.yml` names this file. The Markdown files stay readable
on a code host.
"""

import hashlib
import posixpath
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import mermaidx
from markdown import Markdown
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

ROOT = Path(__file__).parents[1]
PROJECT_PAGES = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
"""Files of the repository that are in the navigation, as pages of the folder source/."""

LINK = re.compile(r"(\]\()(?!https?://|#|mailto:)([^)#\s]+)((?:#[^)]*)?\))")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".sh": "bash", ".toml": "toml"}


def api_page(title: str, text: str, modules: Iterable[str], without: Iterable[str] = ()) -> str:
    """The Markdown of an API page: mkdocstrings replaces the lines ``::: module``."""
    shown = (module for module in dict.fromkeys(api_modules(modules)) if module not in without)
    blocks = (f"::: {module}" for module in shown)
    return "\n\n".join([f"# {title}", text, *blocks]) + "\n"


def api_modules(names: Iterable[str]) -> Iterator[str]:
    """Full names of an API page's modules, in the order of the page."""
    for name in names:
        if not name.endswith(".*"):
            yield name
            continue
        package = name.removesuffix(".*")
        for file in sorted((ROOT / package.replace(".", "/")).glob("[a-z]*.py")):
            yield f"{package}.{file.stem}"


# --- Pages ---


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Draw Mermaid fences, and make the anchors that code hosts make."""
    config.mdx_configs["pymdownx.superfences"] = {
        "custom_fences": [{"name": "mermaid", "class": "mermaid", "format": diagram}]
    }
    config.mdx_configs.setdefault("toc", {})["slugify"] = slugify(case="lower")
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the API pages, the project's pages and a page for each file that a page links to outside docs/."""
    for name, about in config.extra["api_pages"].items():
        files.append(File.generated(config, f"api/{name}.md", content=api_page(**about)))
    pages = {
        f"docs/{file.src_uri}": file.content_string
        for file in files.documentation_pages()
        if not file.src_uri.startswith("api/")
    }
    todo = [*PROJECT_PAGES, *(target for source, text in pages.items() for target in outside(source, text))]
    done: set[str] = set()
    while todo:
        target = todo.pop()
        if target in done:
            continue
        done.add(target)
        content = source_page(target)
        files.append(File.generated(config, site_path(target), content=content))
        if target.endswith(".md"):
            todo += outside(target, (ROOT / target).read_text())
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links to files outside docs/ lead to the site's pages of those files."""
    if page.file.src_uri.startswith(("api/", "source/")):
        return markdown
    return with_site_links(f"docs/{page.file.src_uri}", markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Remove the double colons that introduce examples in docstrings."""
    if not page.file.src_uri.startswith("api/"):
        return html
    return re.sub(r"(:):</p>", r"\1</p>", html.replace("<p>::</p>", ""))


def outside(source: str, text: str) -> list[str]:
    """The files outside docs/ that a page links to, as paths in the repository."""
    targets = [
        posixpath.normpath(posixpath.join(posixpath.dirname(source), m[2])) for m in LINK.finditer(text)
    ]
    return [target for target in targets if not target.startswith("docs/") and (ROOT / target).exists()]


def site_path(path: str) -> str:
    """Where a file of the repository is in the site's sources."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"source/{path}" if path.endswith(".md") else f"source/{path}.md"


def with_site_links(source: str, text: str) -> str:
    """A page's text, its links relative to where its file and theirs are in the site."""
    here = posixpath.dirname(site_path(source))

    def lead(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        if not (ROOT / target).exists() or (target.startswith("docs/") and source.startswith("docs/")):
            return match[0]
        return f"{match[1]}{posixpath.relpath(site_path(target), here)}{match[3]}"

    return LINK.sub(lead, text)


def source_page(path: str) -> str:
    """The page of a file outside docs/: its Markdown or its code; for a folder, a list of its files."""
    file = ROOT / path
    if path.endswith(".md"):
        return with_site_links(path, file.read_text())
    head = f"---\nsearch:\n  exclude: true\n---\n\n# `{path}`\n\n"
    if file.is_dir():
        return head + "\n".join(
            f"- `{name.name}`" for name in sorted(file.iterdir()) if name.name[0] not in "_."
        )
    return f"{head}````{LANGUAGES.get(file.suffix, 'text')}\n{file.read_text().rstrip()}\n````\n"


# --- Diagrams ---


def diagram(source: str, language: str, css_class: str, options: Any, md: Markdown, **_: Any) -> str:
    """A Mermaid fence as a drawing. A mistake in it ends the build."""
    svg = mermaidx.render(f'%%{{init: {{"theme": "neutral"}}}}%%\n{source}').svg()
    # The drawing's styles select its element by id, so the id must be unique in the page.
    name = f"diagram-{hashlib.sha256(source.encode()).hexdigest()[:8]}"
    return f'<div class="edl-diagram">{svg.replace("my-svg", name)}</div>'
