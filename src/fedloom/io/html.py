"""Small HTML tables, as notebooks show a value: no scripts, no style sheets."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

LEFT = ' style="text-align:left"'


def html_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], note: str = "") -> str:
    """The first column is text, the others are numbers. A cell that is a `Shade` has a background."""
    head = "".join(f"<th{LEFT if place == 0 else ''}>{escape(name)}</th>" for place, name in enumerate(columns))
    body = "".join(f"<tr>{''.join(_cell(value, place) for place, value in enumerate(row))}</tr>" for row in rows)
    below = f"<br><small>{escape(note)}</small>" if note else ""
    header = f"<thead><tr>{head}</tr></thead>" if columns else ""
    return f"<div><b>{escape(title)}</b><table>{header}<tbody>{body}</tbody></table>{below}</div>"


class Shade(str):
    """A cell's text with the strength of its background, 0 to 1."""

    strength: float

    def __new__(cls, text: str, strength: float) -> Shade:
        made = super().__new__(cls, text)
        made.strength = strength
        return made


def _cell(value: object, place: int) -> str:
    style = LEFT if place == 0 else ""
    if isinstance(value, Shade) and value.strength > 0:
        style = f' style="background:rgba(70,130,180,{min(value.strength, 1):.2f})"'
    return f"<td{style}>{escape(str(value))}</td>"
