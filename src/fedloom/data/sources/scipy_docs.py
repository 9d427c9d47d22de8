"""Sentences of SciPy's documentation by the section that they are from: no download needed.

Each sample is a sentence of a docstring. Its class is the section of the docstring: summary, parameters, returns, notes or
examples. Natural clients are SciPy's subpackages (stats, signal, optimize, …), which differ in words, number of sentences and
mix of sections. Docstrings are read from the installed source files without importing them; a sentence that occurs several
times is used once. The content depends on the version of SciPy, which is part of its identity. Every fifth sentence is for
testing.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedloom.data.arrays import HOLD_OUT, Content, ordered
from fedloom.data.sources.source import DataSource, data_name
from fedloom.data.text.tokenize import TextOptions, tokens
from fedloom.errors import FedloomError

SECTIONS = {
    "Parameters": "parameters",
    "Returns": "returns",
    "Notes": "notes",
    "Examples": "examples",
}
INDENTED = ("parameters", "returns")  # their descriptions are indented below a name
WORDS = range(5, 41)  # length of a sentence
FEWEST = 100  # sentences of a client
OPTIONS = TextOptions(length=40, vocabulary=5000)
_UNDERLINE = re.compile(r"\s*-{3,}\s*")
_PROSE_ENDS = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")


@data_name(
    "scipy_docs",
    "sentences of SciPy's documentation, 5 classes (sections); natural clients: subpackages; bundled with SciPy",
    bundled=True,
)
def open_scipy_docs() -> DataSource:
    try:
        version = metadata.version("scipy")
    except metadata.PackageNotFoundError as error:
        raise FedloomError('data "scipy_docs" needs scipy, which is missing: pip install scipy') from error
    return DataSource("scipy_docs", "scipy_docs", ("scipy_docs", version, str(OPTIONS)), lambda _: _read())


def _read() -> Content:
    spec = find_spec("scipy")
    if spec is None or not spec.submodule_search_locations:
        raise FedloomError('data "scipy_docs" needs the source files of scipy, which are missing')
    once: dict[str, tuple[str, str]] = {}
    for client, section, sentence in _sentences(Path(spec.submodule_search_locations[0])):
        once.setdefault(sentence, (client, section))
    counts = Counter(client for client, _ in once.values())
    rows = [(text, *place) for text, place in once.items() if counts[place[0]] >= FEWEST]
    texts, clients, sections = zip(*rows, strict=True)
    training = [text for row, text in enumerate(texts) if row % HOLD_OUT]
    schema = OPTIONS.fit("sentence", "section", ordered(sections), training)
    content, _ = tokens(texts, schema)
    return content | {
        "y": np.array(sections),
        "client": np.array(clients),
        "schema": np.array(schema.model_dump_json()),
    }


def _sentences(root: Path) -> Iterator[tuple[str, str, str]]:
    """Subpackage, section and sentence, in the order of the files."""
    for path in sorted(root.rglob("*.py")):
        *folders, _ = path.relative_to(root).parts
        if not folders or folders[0].startswith("_") or "tests" in folders:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes that newer versions of Python advise against
            tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and (docstring := ast.get_docstring(node)):
                for section, paragraph in _paragraphs(docstring):
                    for sentence in _PROSE_ENDS.split(" ".join(paragraph.split())):
                        if len(sentence.split()) in WORDS and sentence[0].isupper():
                            yield folders[0], section, sentence


def _paragraphs(docstring: str) -> Iterator[tuple[str, str]]:
    """Section and text of each paragraph of a docstring that has sections."""
    lines = docstring.split("\n")
    begins = [row for row in range(len(lines) - 1) if lines[row].strip() and _UNDERLINE.fullmatch(lines[row + 1])]
    if not begins:
        return
    for begin, end in zip([-2, *begins], [*begins, len(lines)], strict=True):
        section = "summary" if begin < 0 else SECTIONS.get(lines[begin].strip())
        if section is None:
            continue
        body = lines[begin + 2 : end]
        if section in INDENTED:
            body = [line for line in body if line.startswith("    ") or not line.strip()]
        prose = [line for line in body if not line.strip().startswith((">>>", "..", ":math:"))]
        for paragraph in re.split(r"\n\s*\n", "\n".join(prose)):
            if paragraph.strip():
                yield section, paragraph
