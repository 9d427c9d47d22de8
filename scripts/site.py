"""Hooks of the documentation site (mkdocs.yml): pages made from the code, and links into the repository.

- reference/parts.md and python.md are written from the registry of parts and from `fedloom.__all__`.
- A link from a page to a file of the repository (../src/..., ../benchmarks/...) leads to a page with that file, so that the
  site is complete without the repository. A link to a folder leads to a list of its files.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import fedloom as fl
from fedloom.methods.api.groups import GROUPS, group_of
from fedloom.methods.api.registry import ALIASES, PARTS

ROOT = Path(__file__).resolve().parent.parent
OUTSIDE = re.compile(r"\]\(((?:\.\./)+(?!docs/)[^)#\s]+)(#[^)]*)?\)")
PIPED_CODE = re.compile(
    r"`[^`\n]*\\\|[^`\n]*`"
)  # in a cell of a table: GitHub needs the backslash, here it would be shown
TUTORIALS = (
    "quickstart.md",
    "fair_comparison.md",
    "own_data.md",
    "write_a_method.md",
    "reproduce_a_table.md",
    "hospitals.md",
)
LANGUAGES = {".py": "python", ".yaml": "yaml", ".cpp": "cpp", ".toml": "toml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    pages = {"reference/parts.md": _parts(), "reference/python.md": _python()}
    for target in sorted(_linked(Path(config["docs_dir"]))):
        pages[_page_of(target)] = _source(target)
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    page.meta.setdefault("search", _weight(page.file.src_uri))
    up = "../" * page.file.src_uri.count("/")
    here = (Path(config["docs_dir"]) / page.file.src_uri).parent

    def inside(match: re.Match[str]) -> str:
        target = _target(here, match[1])
        return f"]({up}{_page_of(target)})" if target is not None else match[0]

    return PIPED_CODE.sub(lambda code: code[0].replace("\\|", "|"), OUTSIDE.sub(inside, markdown))


def _weight(uri: str) -> dict[str, float | bool]:
    """In the search: pages that explain come before lists, and source files are left out."""
    if uri.startswith("source/"):
        return {"exclude": True}
    return {"boost": 0.4 if uri.startswith("reference/") else 2.0 if uri in TUTORIALS else 1.0}


def _target(folder: Path, link: str) -> Path | None:
    """What a link to the repository names, relative to its root; None if it is no file or folder there, or a page."""
    path = (folder / link).resolve()
    is_page = path.is_relative_to(ROOT / "docs")
    return path.relative_to(ROOT) if path.exists() and path.is_relative_to(ROOT) and not is_page else None


def _linked(docs: Path) -> set[Path]:
    pages = [(page.parent, page.read_text(encoding="utf-8")) for page in docs.rglob("*.md")]
    targets = {_target(folder, match[1]) for folder, text in pages for match in OUTSIDE.finditer(text)}
    return {target for target in targets if target is not None}


def _page_of(target: Path) -> str:
    return f"source/{target.as_posix()}.md" if target.suffix != ".md" else f"source/{target.as_posix()}"


def _source(target: Path) -> str:
    path = ROOT / target
    if path.is_dir():
        names = sorted(p.name for p in path.iterdir() if p.suffix in LANGUAGES and not p.name.startswith("_"))
        return "\n".join([f"# {target}", "", *(f"- `{name}`" for name in names), ""])
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return _plain_links(text)
    return f"# {target}\n\n``````{LANGUAGES.get(path.suffix, 'text')}\n{text}``````\n"


def _plain_links(text: str) -> str:
    """A page of the repository that is no page of the site: its relative links would lead nowhere."""
    return re.sub(r"\[([^\]]+)\]\((?!https?:)[^)]*\)", r"\1", text)


def _parts() -> str:
    """Every part: its claim, equations, departures and defaults, as its file says, and its hyper-parameters."""
    lines = [
        "# Parts, one by one",
        "",
        "What every part's file says: claim, equations, departures, defaults. Parts add up to a method;",
        "[methods](../methods.md) lists all of them in tables.",
        "",
    ]
    for group in GROUPS:
        parts = sorted((p for p in PARTS.values() if group_of(p) == group), key=lambda part: part().name)
        lines += [f"## {group[:1].upper()}{group[1:]}", ""] if parts else []
        for kind in parts:
            part = kind()
            names = [alias.name for alias in ALIASES.values() if alias.sum == part.name]
            also = f" Also called {', '.join(f'`{name}`' for name in names)}." if names else ""
            lines += [f"### {part.name}", "", f"{inspect.getdoc(kind)} *{part.paper}.*{also}", ""]
            lines += _hyperparameters(part)
            lines += [_prose(inspect.getdoc(inspect.getmodule(kind)) or ""), ""]
    return "\n".join(lines)


def _prose(text: str) -> str:
    """A docstring as Markdown: indented lines are equations, the others paragraphs in which no sign has a meaning."""
    lines = text.splitlines()
    return "\n".join(line if line.startswith("    ") else re.sub(r"([*_\[\]<#|])", r"\\\1", line) for line in lines)


def _hyperparameters(part: fl.Part) -> Iterator[str]:
    values = part.hyperparameters()
    if values:
        ranges = type(part).search_ranges
        yield from ("| hyper-parameter | default | range of `fedloom tune` |", "|---|---|---|")
        for name, field in values.items():
            value, span = field.default, ranges.get(name)
            shown = f"`{span}`: {span.source}" if span is not None else ""
            yield f"| `{name}` | `{value}` | {shown} |"
        yield ""


def _python() -> str:
    functions = [name for name in fl.__all__ if inspect.isfunction(getattr(fl, name))]
    classes = [name for name in fl.__all__ if inspect.isclass(getattr(fl, name))]
    lines = ["# Python", "", "`import fedloom as fl`: every public name.", ""]
    for name in [*functions, *classes]:
        thing = getattr(fl, name)
        lines += [f"::: {thing.__module__}.{thing.__qualname__}", ""]
    return "\n".join(lines)
