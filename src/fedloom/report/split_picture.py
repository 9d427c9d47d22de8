"""A split as a picture: clients (rows) by classes (columns), with training samples as the area of a bubble or the shade of a
cell; the same way round as in the terminal and on the page.

Bubbles for up to 40 clients, as in figure 2 of FNR-FL; cells for more. One list of shapes is written as SVG, or as PNG
with pillow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from xml.sax.saxutils import escape

import numpy as np

from fedloom.data import ClientViews
from fedloom.data.split.client_names import client_names
from fedloom.data.split.strength import class_counts
from fedloom.errors import FedloomError

BUBBLES = 40
NAMED = 20  # classes whose names stand above their columns; of more, numbers
TICK = (60, 60, 60)
INK, PAPER, RULE = (38, 70, 120), (255, 255, 255), (225, 228, 232)
Color = tuple[int, int, int]


@dataclass(frozen=True)
class Shape:
    kind: str  # circle | cell | line | text
    x: float
    y: float
    width: float  # the radius of a circle; the font size of a text
    height: float = 0.0
    color: Color = INK
    text: str = ""
    middle: bool = False  # a text is centered at x, otherwise it ends there
    hint: str = ""


@dataclass(frozen=True)
class Picture:
    width: int
    height: int
    shapes: tuple[Shape, ...]


def picture(stage: ClientViews, title: str) -> Picture:
    counts = class_counts(stage)
    clients, classes = counts.shape
    bubbles, named = clients <= BUBBLES, classes <= NAMED
    names = stage.dataset.class_names
    column = max(28.0, 6.5 * max(map(len, names), default=0) + 10) if named else max(640.0 / classes, 6.0)
    row = 28.0 if bubbles else max(900.0 / clients, 1.0)
    called = client_names(stage) if bubbles else ()  # rows of many clients are too low for names
    left = max(64.0, 6.5 * max(map(len, called), default=0) + 16)
    top, most = 62.0, max(int(counts.max()), 1)
    shapes = [Shape("text", left, 22, 14, color=(30, 30, 30), text=title, hint="title")]
    for k in range(0, clients, max(1, math.ceil(13 / row))):
        shapes.append(
            Shape("text", left - 8, top + (k + 0.5) * row + 4, 11, color=TICK, text=called[k] if called else str(k))
        )
    for c in range(0, classes, max(1, math.ceil(26 / column))):
        shapes.append(
            Shape(
                "text",
                left + (c + 0.5) * column,
                top - 8,
                11,
                color=TICK,
                text=names[c] if named else str(c),
                middle=True,
            )
        )
    for k in range(clients):
        y = top + (k + 0.5) * row
        if bubbles:
            shapes.append(Shape("line", left, y, classes * column, color=RULE))
        for c in np.flatnonzero(counts[k]).tolist():
            count, x = int(counts[k, c]), left + (c + 0.5) * column
            hint = f"{called[k] if called else f'client {k}'}, {names[c]}: {count}"
            if bubbles:  # the area is proportional to the count
                shapes.append(
                    Shape("circle", x, y, max(1.0, 0.5 * min(column, row) * (count / most) ** 0.5), hint=hint)
                )
            else:
                shade = _shade((count / most) ** 0.5)
                shapes.append(Shape("cell", x - column / 2, y - row / 2, column, row, shade, hint=hint))
    foot = f"clients (rows) by classes (columns); the maximum is {most:,} training samples"
    low, wide = top + clients * row + 24, left + classes * column + 16
    shapes.append(Shape("text", left, low, 11, color=TICK, text=foot, hint="title"))
    longest = max(8 * len(title), 6.2 * len(foot)) + left
    return Picture(round(max(wide, longest)), round(low + 14), tuple(shapes))


def write_picture(stage: ClientViews, title: str, path: Path) -> None:
    if path.suffix not in (".svg", ".png"):
        raise FedloomError(f"picture: {path} must end in .svg or .png")
    drawing = picture(stage, title)
    try:
        if path.suffix == ".svg":
            path.write_text(svg(drawing), encoding="utf-8")
        else:
            _png(drawing, path)
    except OSError as error:
        raise FedloomError(f"picture: {path} cannot be written ({error.strerror or error})") from None


def svg(drawing: Picture) -> str:
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{drawing.width}" height="{drawing.height}" '
        f'viewBox="0 0 {drawing.width} {drawing.height}" font-family="sans-serif">',
        f'<rect width="{drawing.width}" height="{drawing.height}" fill="white"/>',
    ]
    for s in drawing.shapes:
        fill = f'fill="rgb{s.color}"'
        hint = f"<title>{escape(s.hint)}</title>" if s.hint else ""
        if s.kind == "circle":
            lines.append(f'<circle cx="{s.x:.2f}" cy="{s.y:.2f}" r="{s.width:.2f}" {fill}>{hint}</circle>')
        elif s.kind == "cell":
            size = f'width="{s.width:.2f}" height="{s.height:.2f}"'
            lines.append(f'<rect x="{s.x:.2f}" y="{s.y:.2f}" {size} {fill}>{hint}</rect>')
        elif s.kind == "line":
            lines.append(f'<path d="M{s.x:.2f} {s.y:.2f}h{s.width:.2f}" stroke="rgb{s.color}"/>')
        else:
            anchor = "middle" if s.middle else "start" if s.hint == "title" else "end"
            place = f'x="{s.x:.2f}" y="{s.y:.2f}" font-size="{s.width:g}" text-anchor="{anchor}"'
            lines.append(f"<text {place} {fill}>{escape(s.text)}</text>")
    return "\n".join([*lines, "</svg>", ""])


def _png(drawing: Picture, path: Path, zoom: int = 2) -> None:
    try:
        image_module, draw_module, font_module = (
            import_module(f"PIL.{name}") for name in ("Image", "ImageDraw", "ImageFont")
        )
    except ImportError as error:
        raise FedloomError("picture: a png needs pillow (pip install pillow); an svg needs nothing") from error
    image = image_module.new("RGB", (drawing.width * zoom, drawing.height * zoom), PAPER)
    draw = draw_module.Draw(image)
    for s in drawing.shapes:
        x, y, width, height = (value * zoom for value in (s.x, s.y, s.width, s.height))
        if s.kind == "circle":
            draw.ellipse((x - width, y - width, x + width, y + width), fill=s.color)
        elif s.kind == "cell":
            draw.rectangle((x, y, x + width, y + height), fill=s.color)
        elif s.kind == "line":
            draw.line((x, y, x + width, y), fill=s.color, width=zoom)
        else:
            anchor = "ms" if s.middle else "ls" if s.hint == "title" else "rs"
            draw.text((x, y), s.text, fill=s.color, font=font_module.load_default(size=width), anchor=anchor)
    image.save(path)


def _shade(share: float) -> Color:
    red, green, blue = (round(paper + (ink - paper) * share) for paper, ink in zip((235, 240, 247), INK, strict=True))
    return red, green, blue
