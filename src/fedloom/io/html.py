"""Small HTML tables, as notebooks show a value: no scripts, no style sheets."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def html_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]], note: str = "") -> str:
    """Texts are aligned to the left, numbers to the right. A cell that is a `Shade` has a background."""
    first = rows[0] if rows else columns
    head = "".join(f"<th style={_align(value)}>{escape(name)}</th>" for name, value in zip(columns, first, strict=True))
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    below = f"<small>{escape(note)}</small>" if note else ""
    header = f"<thead><tr>{head}</tr></thead>" if columns else ""
    return f"<div><b>{escape(title)}</b><table>{header}<tbody>{body}</tbody></table>{below}</div>"


class Shade(str):
    """A cell's text with the strength of its background, 0 to 1."""

    strength: float

    def __new__(cls, text: str, strength: float) -> Shade:
        made = super().__new__(cls, text)
        made.strength = strength
        return made


def _cell(value: object) -> str:
    style = _align(value)
    if isinstance(value, Shade) and value.strength > 0:
        style = f'"text-align:right;background:rgba(70,130,180,{min(value.strength, 1):.2f})"'
    return f"<td style={style}>{escape(str(value))}</td>"


def _align(value: object) -> str:
    return '"text-align:left"' if any(sign.isalpha() for sign in str(value)) else '"text-align:right"'
