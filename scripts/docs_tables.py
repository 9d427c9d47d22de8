"""Write the tables of README.md and docs/*.md from the code's registries, and the recipe's fields as Python keywords.

    python scripts/docs_tables.py            # rewrite every table between its markers
    python scripts/docs_tables.py --check    # change nothing; exit 1 and name the files that are stale

A table stands between `<!-- table: NAME -->` and `<!-- end -->`. TABLES below lists the names.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import keywords
from typer.main import get_command

from fedloom.cli.application import application
from fedloom.cli.examples import EXAMPLES
from fedloom.cli.kinds import KINDS
from fedloom.data.partition.partitioner import Partitioner
from fedloom.data.scheme import SCHEMES
from fedloom.data.shifts.shift import Shift
from fedloom.evaluation.metrics import METRICS, list_metrics
from fedloom.methods import Part
from fedloom.methods.api.grammar import method, summary_of
from fedloom.methods.api.groups import FAMILIES, GROUPS, family_of, group_of
from fedloom.methods.api.hooks import HOOKS
from fedloom.methods.api.hyperparameters import spell
from fedloom.methods.api.registry import ALIASES, PARTS
from fedloom.nets import list_models
from fedloom.papers import PAPERS
from fedloom.papers.listing import list_protocols
from fedloom.recipe import FLAGS
from fedloom.recipe.explain import field_texts
from fedloom.report.reproductions import cells_section, claims_section
from fedloom.studies.tune.rates import ADAM, SGD_MOMENTUM, SGD_PLAIN

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(?P<begin><!-- table: (?P<name>[\w-]+) -->\n).*?(?P<end><!-- end -->)", re.DOTALL)


def group(part: Part) -> str:
    return group_of(type(part))


def ours() -> list[Part]:
    """One of every part that fedloom brings, by group."""
    parts = [part() for part in PARTS.values() if part.__module__.startswith("fedloom.")]
    return sorted(parts, key=lambda part: (GROUPS.index(group(part)), part.name))


def names_of(part: Part) -> list[str]:
    """Aliases of this part alone, with its defaults."""
    return [item.name for item in ALIASES.values() if item.sum == part.name]


def sums() -> Iterator[tuple[str, str, str, str]]:
    """Aliases of sums, or of a part with other values: alias, sum, summary, paper."""
    for item in ALIASES.values():
        if item.sum and item.sum not in PARTS:
            yield item.name, item.sum, item.summary, item.paper or method(item.sum).parts[0].paper


def methods_by_family() -> list[str]:
    """Names alone, in the groups of `fedloom list methods`; a paper's name where a sum has one."""
    names: dict[str, list[str]] = {family: [] for family in FAMILIES}
    names[FAMILIES[0]].append("fedavg")
    for part in ours():
        names[family_of(type(part))].append(next(iter(names_of(part)), part.name))
    for name, total, _, _ in sums():
        names[family_of(type(method(total).parts[0]))].append(name)
    return table(
        ("what", "methods"),
        [(family, ", ".join(f"`{name}`" for name in sorted(set(listed)))) for family, listed in names.items()],
    )


def methods_full() -> list[str]:
    """With defaults, what each part keeps, and what it sends beside the weights."""
    rows = []
    for part in ours():
        defaults = [f"`{name}={spell(value)}`" for name, value in part.values("json").items()]
        keeps = [
            word for word, hook in {"server": "server_state", "clients": "client_state"}.items() if part.defines(hook)
        ]
        sends = [
            word
            for word, hook in {"down": "broadcast", "up": "uploads", "queries": "queries"}.items()
            if part.defines(hook)
        ]
        names = ", ".join(f"`{name}`" for name in [part.name, *names_of(part)])
        cells = (names, group(part), sentence(summary_of(type(part))), "<br>".join(defaults))
        rows.append((*cells, ", ".join(keeps), ", ".join(sends), part.paper))
    return table(("name", "changes", "idea", "defaults", "state", "extra messages", "paper"), rows)


def search_ranges() -> list[str]:
    """Where `fedloom tune` searches by default: the rates of optimizers, then what parts declare."""
    rows = [("sgd with momentum 0.5 or more", "`lr`", f"`{SGD_MOMENTUM}`", sentence(SGD_MOMENTUM.source))]
    rows += [("sgd", "`lr`", f"`{SGD_PLAIN}`", sentence(SGD_PLAIN.source))]
    rows += [("adam, adamw", "`lr`", f"`{ADAM}`", sentence(ADAM.source))]
    for part in sorted(ours(), key=lambda part: part.name):
        if scale := part.rate_scale:
            times = f"{scale.least:g} to {scale.most:g} times that of sgd"
            rows.append((f"`{part.name}`", "`lr`", times, sentence(scale.source)))
        for name, values in part.search_ranges.items():
            rows.append((f"`{part.name}`", f"`{part.name}.{name}`", f"`{values}`", sentence(values.source)))
    return table(("optimizer or part", "setting", "range", "source"), rows)


def work() -> list[str]:
    """What parts compute beside FedAvg's steps; those that compute the same share a row."""
    parts: dict[str, list[str]] = {}
    for part in ours():
        if part.work:
            parts.setdefault(part.work, []).append(f"`{part.name}`")
    return table(("method", "work"), [(", ".join(names), sentence(text)) for text, names in parts.items()])


def commands() -> list[str]:
    """Every command: what it does, examples, arguments and flags; those of the recipe are on a page of their own."""
    lines: list[str] = []
    root = get_command(application())
    for name, command in _commands(root):
        lines += ["", f"### fedloom {name}", "", " ".join(str(command.help).split("\n\n")[0].split()), ""]
        if examples := EXAMPLES.get(name):
            lines += [*(f"    {line}" for line in examples), ""]
        rows = [row for parameter in command.params if (row := _parameter(parameter))]
        lines += table(("argument or flag", "type", "meaning"), rows) if rows else []
        if any(parameter.name == "weight_decay" for parameter in command.params):
            lines += ["", "Also the flags of the recipe: [recipe](recipe.md)."]
    return lines[1:]


def _commands(group: Any, inside: str = "") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from _commands(command, f"{inside}{name} ")
        else:
            yield f"{inside}{name}", command


def _parameter(parameter: Any) -> tuple[str, str, str] | None:
    """A row; None for help, for flags that every command has, and for those of the recipe."""
    if parameter.name in ("help", "quiet", "json", "protocol", "parts") or parameter.name in FLAGS:
        return None
    plain = re.sub(r"\\\[", "[", parameter.help or "")
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`", "", plain
    flags = ", ".join(f"`{flag}`" for flag in [*parameter.opts, *parameter.secondary_opts])
    kind = "" if parameter.is_flag else f"`{parameter.metavar or parameter.type.name.upper()}`"
    return flags, kind, plain


def splits(kind: type[Any]) -> list[str]:
    rows = []
    for name, scheme in sorted(SCHEMES.items()):
        if issubclass(scheme, kind):
            rows.append((f"`{name}`", f"`{scheme.example.partition(',')[0]}`", sentence(scheme.summary), scheme.paper))
    return table(("name", "example", "definition", "paper"), rows)


def models() -> list[str]:
    rows = [
        (
            f"`{row['name']}`",
            str(row["line"]),
            str(row["inputs"]),
            f"`{row['options']}`" if row["options"] else "",
            f"{row['parameters']:,}",
            f"{row['smallest']} px" if "image" in str(row["inputs"]) else "",
            str(row["origin"]),
        )
        for row in list_models()
    ]
    return table(
        ("name", "architecture", "inputs", "parameters", "weights", "smallest image", "as in"), rows, right=(4,)
    )


def hooks() -> list[str]:
    rows = []
    for name, hook in HOOKS.items():
        function = getattr(Part, name)
        arguments = ", ".join(list(inspect.signature(function).parameters)[1:])
        words = " ".join((function.__doc__ or "").split())
        rows.append((f"`{name}({arguments})`", hook.place, words, hook.rule))
    return table(("hook", "place", "when it is called, and what it does", "in a sum"), rows)


def recipe() -> list[str]:
    rows = [
        (
            f"`{text.name}`",
            f"`{text.type}`",
            f"`{text.default}`" if text.default else "",
            text.meaning if text.changes_result else f"{text.meaning} (changes no result)",
        )
        for text in field_texts()
    ]
    return table(("field", "type", "default", "description"), rows)


def sentence(text: str) -> str:
    """For a table cell: a capital at the start, no period at the end."""
    return (text[:1].upper() + text[1:]).rstrip(".")


def table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> list[str]:
    rule = ["--:" if place in right else "---" for place in range(len(head))]
    cells = ([cell.replace("|", r"\|") for cell in row] for row in rows)
    return [_row(head), "|" + "|".join(rule) + "|", *(_row(row) for row in cells)]


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def metrics() -> list[str]:
    columns = ("name", "title", "better", "format")
    rows = [
        (f"`{row['name']}`", *(row[column] for column in columns[1:]), sentence(row["summary"]))
        for row in list_metrics()
        if type(METRICS[row["name"]]).__module__.startswith("fedloom.")
    ]
    return table((*columns, "what it is"), rows)


def protocol_table() -> list[str]:
    rows = [(f"`{row['name']}`", row["paper"], row["about"]) for row in list_protocols()]
    return table(("protocol", "paper", "what it is"), rows)


def lists() -> list[str]:
    rows = [(f"`fedloom list {name}`", sentence(kind.about)) for name, kind in KINDS.items()]
    return table(("command", "lists"), rows)


def _lines(section: Callable[[str, Path], str], key: str) -> list[str]:
    return section(key, RESULTS).splitlines()


RESULTS = ROOT / "benchmarks" / "results" / "reproductions"


TABLES: dict[str, Callable[[], list[str]]] = {
    "methods-by-family": methods_by_family,
    "methods-full": methods_full,
    "search-ranges": search_ranges,
    "work": work,
    "commands": commands,
    "lists": lists,
    "partitioners": lambda: splits(Partitioner),
    "shifts": lambda: splits(Shift),
    "models": models,
    "hooks": hooks,
    "metrics": metrics,
    "recipe": recipe,
    "protocols": protocol_table,
    **{f"reproduced-{key}": partial(_lines, cells_section, key) for key in PAPERS},
    **{f"claims-{key}": partial(_lines, claims_section, key) for key in PAPERS},
}


def written(text: str) -> str:
    """A page with its tables as the code has them."""

    def block(match: re.Match[str]) -> str:
        if match["name"] not in TABLES:
            raise SystemExit(f"there is no table {match['name']!r}; known are {', '.join(TABLES)}")
        return match["begin"] + "\n" + "\n".join(TABLES[match["name"]]()) + "\n\n" + match["end"]

    return BLOCK.sub(block, text)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a table is stale")
    parser.add_argument("--root", type=Path, default=ROOT, help="folder that holds README.md and docs/")
    given = parser.parse_args(arguments)
    stale = []
    pages = [given.root / "README.md", *sorted((given.root / "docs").glob("*.md"))]
    for path in [*pages, *given.root.glob(keywords.PATH)]:
        text = path.read_text(encoding="utf-8")
        new = keywords.source() if path not in pages else written(text)
        if new != text:
            stale.append(str(path.relative_to(given.root)))
            if not given.check:
                path.write_text(new, encoding="utf-8")
    if stale:
        print(f"{'stale' if given.check else 'rewritten'}: {', '.join(stale)}", file=sys.stderr)
    if stale and given.check:
        print("run: python scripts/docs_tables.py", file=sys.stderr)
    return int(bool(stale and given.check))


if __name__ == "__main__":
    raise SystemExit(main())
