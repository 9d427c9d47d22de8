"""Progress in a notebook: one HTML bar that is updated in place. Needs IPython alone, no widgets.

It has the interface of rich's Progress as far as the bars of progress.py and tuning.py use it. rich's own needs ipywidgets.
"""

from __future__ import annotations

import html
import time
from importlib import import_module
from typing import Any

INTERVAL = 0.2  # seconds between updates


class NotebookProgress:
    disable = False

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {"description": "", "completed": 0.0, "left": "", "status": ""}
        self._began, self._shown = time.monotonic(), 0.0
        self._handle: Any = None
        self._shell: Any = None

    def add_task(self, description: str, **fields: Any) -> int:
        self._fields |= {"description": description, **fields}
        return 0

    def start(self) -> None:
        self._shell = import_module("IPython.display")  # where there is a notebook, it is installed
        self._handle = self._shell.display(self._shell.HTML(self._html()), display_id=True)

    def update(self, _: int, **fields: Any) -> None:
        self._fields |= fields
        now = time.monotonic()
        if now - self._shown > INTERVAL or self._fields["completed"] >= 1:
            self._shown = now
            self._show(self._html())

    def stop(self) -> None:
        """The bar is replaced by its last words; by nothing, where nothing was done."""
        if not self._fields["description"]:
            self._show("")
            return
        words = [self._fields["description"], self._fields["status"], f"{time.monotonic() - self._began:.1f} s"]
        self._show(f"<small>{html.escape('  '.join(word for word in words if word))}</small>")

    def _show(self, text: str) -> None:
        if self._handle is not None:
            self._handle.update(self._shell.HTML(text))

    def _html(self) -> str:
        fields = self._fields
        words = [f"{100 * fields['completed']:.0f} %", fields["left"], fields["status"]]
        rest = html.escape("  ".join(word for word in words if word))
        bar = f'<progress value="{fields["completed"]:.4f}" max="1"></progress>'
        return f"<small>{html.escape(fields['description'])} {bar} {rest}</small>"
