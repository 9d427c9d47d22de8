"""A table as a value, rendered for the terminal, as Markdown or as LaTeX."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from rich.markup import escape
from rich.table import Table

from fedloom.report.table import plain_table


@dataclass(frozen=True)
class SheetEntry:
    text: str
    bold: bool = False
    mark: str = ""  # superscript after the text


@dataclass(frozen=True)
class Sheet:
    """Columns have one or more levels of titles; the first ones hold text, which may be wrapped, the others numbers."""

    title: str
    columns: Sequence[tuple[str, ...]]
    rows: Sequence[Sequence[SheetEntry]]
    notes: Sequence[str] = field(default=())
    caption: str = ""  # sentences that belong to the table wherever it goes
    text_columns: int = 1

    @property
    def levels(self) -> int:
        return max(len(column) for column in self.columns)


def rich_table(sheet: Sheet) -> Table:
    table = plain_table(sheet.title, [escape("\n".join(column)) for column in sheet.columns], sheet.text_columns)
    for row in sheet.rows:
        table.add_row(*(_rich(entry) for entry in row))
    return table


def markdown(sheets: Sequence[Sheet]) -> str:
    blocks = []
    for sheet in sheets:
        lines = [f"**{_plain(sheet.title)}**", ""] if sheet.title else []
        lines.append(_line([_plain(", ".join(column)) for column in sheet.columns]))
        lines.append(_line(["---" if number < sheet.text_columns else "---:" for number in range(len(sheet.columns))]))
        for row in sheet.rows:
            texts = [f"**{_plain(entry.text)}**" if entry.bold else _plain(entry.text) for entry in row]
            lines.append(_line([f"{t} {_plain(e.mark)}".strip() for t, e in zip(texts, row, strict=True)]))
        blocks.append("\n".join(lines))
        blocks.extend(_plain(note) for note in (sheet.caption, *sheet.notes) if note)
    return "\n\n".join(blocks) + "\n"


def latex(sheets: Sequence[Sheet]) -> str:
    """Tables that need only the package booktabs."""
    return "\n".join(_tabular(sheet) for sheet in sheets)


def _tabular(sheet: Sheet) -> str:
    caption = f"{sheet.title}. {sheet.caption}" if sheet.caption else sheet.title
    lines = ["\\begin{table}[t]", "\\centering", f"\\caption{{{tex(caption)}}}"]
    aligned = "l" * sheet.text_columns + "r" * (len(sheet.columns) - sheet.text_columns)
    lines += [f"\\begin{{tabular}}{{{aligned}}}", "\\toprule"]
    for level in range(sheet.levels):
        cells = []
        for title, group in groupby(column[level] if level < len(column) else "" for column in sheet.columns):
            width = len(list(group))
            joined = width > 1 and level < sheet.levels - 1 and title
            cells += [f"\\multicolumn{{{width}}}{{c}}{{{tex(title)}}}"] if joined else [tex(title)] * width
        lines.append(" & ".join(cells) + r" \\")
    lines.append("\\midrule")
    lines += [" & ".join(_tex(entry) for entry in row) + r" \\" for row in sheet.rows]
    lines += ["\\bottomrule", "\\end{tabular}"]
    lines += [f"\\par\\smallskip\\footnotesize {tex(note)}" for note in sheet.notes]
    return "\n".join([*lines, "\\end{table}", ""])


def tex(text: str) -> str:
    """Text with LaTeX's special characters escaped."""
    special = {sign: f"\\{sign}" for sign in "&%$#_{}"} | {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": "$<$",
        ">": "$>$",
        "±": r"$\pm$",
        "–": "--",
        "×": r"$\times$",
    }
    return "".join(special.get(sign, sign) for sign in text)


def _tex(entry: SheetEntry) -> str:
    text = tex(entry.text)
    if entry.bold:
        text = f"\\textbf{{{text}}}"
    return text + (f"$^{{{entry.mark}}}$" if entry.mark else "")


def _rich(entry: SheetEntry) -> str:
    text = escape(entry.text + entry.mark)
    return f"[bold]{text}[/bold]" if entry.bold else text


def _plain(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("_", "\\_").replace("\n", " ")


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
