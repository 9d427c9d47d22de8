"""A split in the terminal: a table of clients, a heat map of clients by classes, and measures of heterogeneity."""

from __future__ import annotations

import numpy as np
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from fedloom.data import ClientViews
from fedloom.data.split.client_names import client_names
from fedloom.data.split.strength import class_counts, earth_mover, entropies, jensen_shannon, strength
from fedloom.report.table import plain_table
from fedloom.runs.split import Split

ROWS = 30  # clients in the table and in the heat map, at most
LONGEST = 24  # letters of a client's name beside the heat map
NAMED = 10  # classes whose numbers stand above their columns


def split_view(split: Split) -> RenderableType:
    shown: list[RenderableType] = []
    for stage in split.stages:
        title = f"{split.spec} on {split.data}, {split.clients} clients, seed {split.seed}"
        if len(split.stages) > 1:
            title += f": from round {stage.begin}"
        shown += [Text(title, style="bold"), client_table(stage), heat_map(stage), strength_table(stage)]
    return Group(*shown)


def client_table(stage: ClientViews) -> Table:
    partition, counts = stage.partition, class_counts(stage)
    pooled = counts.sum(0) / counts.sum()
    names = client_names(stage)
    columns = ["client", *(["name"] if names else []), "train", "test", "classes", "entropy", "JS", "earth"]
    columns += ["sees"] if stage.shifts else []
    table = plain_table("", columns, 2 if names else 1)
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
        viewer = stage.viewer(client, "train")
        sees = ", ".join(shift.describe(viewer, stage.dataset) for shift in stage.shifts)
        row = [str(client), *([escape(names[client])] if names else []), f"{train:,}", f"{test:,}", str(classes)]
        row += [f"{bits:.2f}", f"{js:.2f}", f"{earth:.2f}"]
        table.add_row(*row, *([escape(sees)] if stage.shifts else []))
    return table


def heat_map(stage: ClientViews) -> Text:
    """Brighter cells have more training samples; rows are clients, columns are classes."""
    counts = class_counts(stage)[:ROWS]
    names = [name[:LONGEST] for name in client_names(stage)[:ROWS]] or [str(client) for client in range(len(counts))]
    margin = max(6, *map(len, names))
    classes = counts.shape[1]
    wide = 2 if classes <= 40 else 1
    most = max(int(counts.max()), 1)
    text = Text("clients (rows) by classes (columns); the maximum is ")
    text.append(f"{most:,} training samples\n")
    if classes <= NAMED:
        text.append(" " * (margin + 1) + "".join(f"{c:<{wide}}" for c in range(classes)) + "\n", style="dim")
    for name, row in zip(names, counts, strict=True):
        text.append(f"{name:>{margin}} ")
        for count in row:
            share = float(np.sqrt(count / most))
            block = "·" if count == 0 else "░▒▓█"[min(int(4 * share), 3)]
            text.append(block * wide, style=f"color({233 + round(22 * share)})" if count else "dim")
        text.append("\n")
    classes_named = stage.dataset.class_names
    if classes <= NAMED and any(not name.isdecimal() for name in classes_named):
        text.append(f"classes: {', '.join(f'{c} {name}' for c, name in enumerate(classes_named))}\n")
    if len(counts) < stage.partition.clients:
        text.append(f"     … {stage.partition.clients - len(counts)} more; --picture shows all\n")
    return text


def strength_table(stage: ClientViews) -> Table:
    measures = strength(stage)
    table = plain_table("heterogeneity", ["", "value"])
    bits = f"{measures.class_entropy:.3f} of {measures.pooled_entropy:.3f} bits"
    table.add_row("mean class entropy of a client, and of all", bits)
    table.add_row("mean Jensen-Shannon distance from all (0 to 1)", f"{measures.jensen_shannon:.3f}")
    table.add_row("mean earth mover's distance from all (0 to 1)", f"{measures.earth_mover:.3f}")
    table.add_row("mean number of classes per client", f"{measures.classes_a_client:.2f}")
    table.add_row(
        "sizes, smallest and largest", f"{measures.smallest:,} to {measures.largest:,}, {measures.size_ratio:.2f} x"
    )
    table.add_row("Gini coefficient of sizes (0 even, 1 uneven)", f"{measures.size_gini:.3f}")
    if measures.domain_overlap is not None:
        table.add_row("domain overlap of two clients (0 none, 1 same mix)", f"{measures.domain_overlap:.3f}")
    if measures.unheld:
        table.add_row("training samples that no client has", f"{measures.unheld:,}")
    if measures.shared_tests:
        table.add_row("test samples of several clients", f"{measures.shared_tests:,}")
    return table
