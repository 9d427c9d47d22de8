"""A split in the terminal: numbers, a table of clients, and a heat map of clients by classes."""

from __future__ import annotations

import numpy as np
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fedloom.data import Holding
from fedloom.data.splits.strength import class_counts, earth_mover, entropies, jensen_shannon, strength
from fedloom.report.table import plain_table
from fedloom.splitting import Split

ROWS = 30  # clients in the table and in the heat map


def split_view(split: Split) -> RenderableType:
    shown: list[RenderableType] = []
    for holding in split.stages:
        title = f"{split.spec} on {split.data}, {split.clients} clients, seed {split.seed}"
        if len(split.stages) > 1:
            title += f": from round {holding.begin}"
        shown += [Text(title, style="bold"), client_table(holding), heat_map(holding), strength_table(holding)]
    return Group(*shown)


def client_table(holding: Holding) -> Table:
    partition, counts = holding.partition, class_counts(holding)
    pooled = counts.sum(0) / counts.sum()
    columns = ["client", "train", "test", "classes", "entropy", "JS", "earth"]
    columns += ["sees"] if holding.changes else []
    table = plain_table("", columns)
    numbers = zip(
        np.diff(partition.train_offsets),
        np.diff(partition.test_offsets),
        (counts > 0).sum(1),
        entropies(counts),
        jensen_shannon(counts, pooled),
        earth_mover(counts, pooled),
        strict=True,
    )
    for client, (train, test, classes, bits, js, earth) in enumerate(numbers):
        if client == ROWS and partition.clients > ROWS + 1:
            table.add_row(f"… {partition.clients - ROWS} more", *[""] * (len(columns) - 1))
            break
        viewer = holding.viewer(client, "train")
        sees = ", ".join(change.told(viewer, holding.images) for change in holding.changes)
        row = [str(client), f"{train:,}", f"{test:,}", str(classes), f"{bits:.2f}", f"{js:.2f}", f"{earth:.2f}"]
        table.add_row(*row, *([escape(sees)] if holding.changes else []))
    return table


def heat_map(holding: Holding) -> Text:
    """Darker to brighter by the number of training images; rows are clients, columns classes."""
    counts = class_counts(holding)[:ROWS]
    classes = counts.shape[1]
    wide = 2 if classes <= 40 else 1
    most = max(int(counts.max()), 1)
    text = Text("clients (rows) by classes (columns); the fullest cell is ")
    text.append(f"{most:,} images\n")
    for client, row in enumerate(counts):
        text.append(f"{client:>6} ")
        for count in row:
            share = float(np.sqrt(count / most))
            block = "·" if count == 0 else "░▒▓█"[min(int(4 * share), 3)]
            text.append(block * wide, style=f"color({233 + round(22 * share)})" if count else "dim")
        text.append("\n")
    if len(counts) < holding.partition.clients:
        text.append(f"     … {holding.partition.clients - len(counts)} more; --picture shows all\n")
    return text


def strength_table(holding: Holding) -> Table:
    found = strength(holding)
    table = plain_table("how strongly clients disagree", ["", "value"])
    bits = f"{found.class_entropy:.3f} of {found.pooled_entropy:.3f} bits"
    table.add_row("mean class entropy of a client, and of all", bits)
    table.add_row("mean Jensen-Shannon distance from all (0 to 1)", f"{found.jensen_shannon:.3f}")
    table.add_row("mean earth mover's distance from all (0 to 1)", f"{found.earth_mover:.3f}")
    table.add_row("classes a client, mean", f"{found.classes_a_client:.2f}")
    table.add_row("sizes, smallest and largest", f"{found.smallest:,} to {found.largest:,}, {found.size_ratio:.2f} x")
    table.add_row("Gini coefficient of sizes (0 even, 1 uneven)", f"{found.size_gini:.3f}")
    if found.domain_overlap is not None:
        table.add_row("domain overlap of two clients (0 none, 1 same mix)", f"{found.domain_overlap:.3f}")
    if found.unheld:
        table.add_row("training images that nobody holds", f"{found.unheld:,}")
    if found.shared_tests:
        table.add_row("test images with several holders", f"{found.shared_tests:,}")
    return table
