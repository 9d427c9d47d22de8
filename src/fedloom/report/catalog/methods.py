"""Methods as entries of a list, and all that is known of one: claim and equations, hyper-parameters, cost, rates, limits.

The text is the method file's own docstring; everything else is read from the part, or computed by building it.
"""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from fedloom.data.spec import InputSpec
from fedloom.engine.program import Program, build_program
from fedloom.errors import FedloomError
from fedloom.methods import Method, Part, TaskInfo, method
from fedloom.methods.api.grammar import summary_of
from fedloom.methods.api.groups import FAMILIES, family_of
from fedloom.methods.api.hyperparameters import spell
from fedloom.methods.api.registry import ALIASES, PARTS
from fedloom.nearest import unknown_part
from fedloom.recipe import Recipe
from fedloom.report.catalog.entry import Description, Entry, Section

SUMS = "Names of sums, and of parts with other values"
OTHER_NAMES = "Other names"
EXAMPLES = ("lenet", "conv4", "mobilenet")  # the first that a method accepts shows its messages; some need normalizers


def entries() -> list[Entry]:
    """Parts by family, then the names of sums, then other names of single parts."""
    rows = [Entry("fedavg", ALIASES["fedavg"].summary + ".", FAMILIES[0], _facts("", "McMahan et al. 2017", {}))]
    for name, part in PARTS.items():
        defaults = {key: field.default for key, field in part.hyperparameters().items()}
        rows.append(Entry(name, summary_of(part), family_of(part), _facts(name, part.paper, defaults)))
    families = [*FAMILIES, *sorted({row.group for row in rows} - {*FAMILIES})]
    rows.sort(key=lambda row: (families.index(row.group), row.name != "fedavg", row.name))
    sums, names = [], []
    for item in sorted(ALIASES.values(), key=lambda item: item.name):
        if not item.sum:
            continue
        first = method(item.sum).parts[0]
        facts = _facts(item.sum, item.paper or first.paper, {})
        if item.sum in PARTS:
            names.append(Entry(item.name, f"= {item.sum}", OTHER_NAMES, facts))
        else:
            about = item.summary or summary_of(type(first))
            sums.append(Entry(item.name, f"= {item.sum}: {about}", SUMS, facts))
    return [*rows, *sums, *names]


def _facts(total: str, paper: str, parameters: dict[str, Any]) -> dict[str, Any]:
    return {"sum": total, "paper": paper, "parameters": parameters}


def describe(text: str) -> Description:
    """Of a part, an alias or any sum."""
    name = text.strip().lower()
    if name.replace("-", "").replace("_", "").isalnum() and name not in PARTS and name not in ALIASES:
        raise FedloomError(unknown_part(name, sorted({*PARTS, *ALIASES})).replace("method:", "list:", 1))
    whole, known = method(text), ALIASES.get(name)
    sections = [Section("In short", _in_short(name, whole))]
    if not whole.parts:
        sections += [
            Section("A round", "    w <- sum over the cohort of (n_k / n) w_k, after local SGD from w on each client")
        ]
    for part in whole.parts:
        title = "Idea and equations" if len(whole.parts) == 1 else f"Idea and equations of {part.name}"
        sections.append(Section(title, _docstring(type(part))))
    if parameters := [pair for part in whole.parts for pair in _hyperparameters(part, len(whole.parts) > 1)]:
        sections.append(Section("Hyper-parameters", parameters))
    sections.append(Section("Cost, relative to FedAvg", _cost(whole)))
    sections.append(Section("Learning rate", _rates(whole)))
    if limits := _limits(whole):
        sections.append(Section("Limits", limits))
    if papers := list(
        dict.fromkeys([*([known.paper] if known and known.paper else []), *(p.paper for p in whole.parts)])
    ):
        sections.append(Section("Paper", [("", paper) for paper in papers if paper]))
    sections.append(Section("Example", [("", line) for line in _examples(name, whole)]))
    return Description(text.strip(), sections)


def _in_short(name: str, whole: Method) -> list[tuple[str, str]]:
    known = ALIASES.get(name)
    lines = [("", known.summary)] if known and known.summary else []
    lines += [("" if len(whole.parts) == 1 else part.name, summary_of(type(part))) for part in whole.parts]
    if known and known.sum:
        lines.append(("", f"{name} = {known.sum}"))
    other = [item.name for item in ALIASES.values() if item.sum == name]
    lines += [("", f"also called {', '.join(other)}")] if other else []
    return lines


def _docstring(part: type[Part]) -> str:
    """Of its file; of a class that shares its file with others, its own."""
    module = sys.modules[part.__module__]
    return inspect.cleandoc(module.__doc__ or part.__doc__ or "")


def _hyperparameters(part: Part, several: bool) -> list[tuple[str, str]]:
    about = meanings(type(part))
    pairs = []
    for name, value in part.values("json").items():
        field = part.hyperparameters()[name]
        range_ = part.search_ranges.get(name)
        texts = [field.description or about.get(name, ""), f"tuned over {range_}" if range_ is not None else ""]
        key = f"{part.name}.{name}" if several else name
        pairs.append((f"{key}={spell(value)}", "; ".join(text for text in texts if text)))
    return pairs


def meanings(part: type[Part]) -> dict[str, str]:
    """What hyper-parameters mean: the texts below them in the class body."""
    texts: dict[str, str] = {}
    for base in reversed(part.__mro__):
        if base is Part or not issubclass(base, Part):
            continue
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0]
        except (OSError, TypeError, SyntaxError, IndexError):  # typed at a prompt
            continue
        items = body.body if isinstance(body, ast.ClassDef) else []
        for item, below in pairwise(items):
            described = isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name) and described:
                name, field = item.target.id, base.model_fields.get(item.target.id)
                texts[(field.alias if field else None) or name] = " ".join(str(below.value.value).split())  # type: ignore[attr-defined]
    return texts


def _cost(whole: Method) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    if not whole.parts:
        return [("", "it is the measure: the weights down and up once per client and round")]
    for model in EXAMPLES:
        try:
            program, plain = _program(str(whole), model), _program("fedavg", model)
        except FedloomError:
            continue
        for title, own, other in (
            ("down", program.messages.download, plain.messages.download),
            ("up", program.messages.up.payload, plain.messages.up.payload),
        ):
            lines.append((title, f"{own / other:.2f} times the bytes ({model} on 32x32x3 images, 10 classes)"))
        if program.messages.queries:
            asked = sum(program.messages.message.payload_of(name) for name in program.messages.queries)
            replied = sum(program.messages.reply.payload_of(name) for name in program.messages.queries)
            base = plain.messages.up.payload
            lines.append(
                ("queries", f"{asked / base:.2f} times the bytes down and {replied / base:.2f} up, when it asks")
            )
        if kept := program.messages.state.payload:
            lines.append(("kept by clients", f"{kept / plain.messages.up.payload:.2f} times the weights"))
        break
    lines += [("work" if len(whole.parts) == 1 else f"work of {p.name}", p.work) for p in whole.parts if p.work]
    return lines or [("", "as FedAvg")]


def _program(text: str, model: str) -> Program:
    task = TaskInfo(
        InputSpec.image((3, 32, 32)), 10, 100, 50_000, 100, 0, held=1000, public=1000, labeled=True, cohort=10
    )
    return build_program(Recipe(method=text, model=model, momentum=0.0, rounds=100, clients=100), task)


def _rates(whole: Method) -> str:
    scales = [(part.name, part.rate_scale) for part in whole.parts if part.rate_scale is not None]
    if not scales:
        return "that of FedAvg; `fedloom tune` searches the same range"
    lines = [
        f"{name}: {scale.least:g} to {scale.most:g} times that of FedAvg"
        + (f" ({scale.source})" if scale.source else "")
        for name, scale in scales
    ]
    return "; ".join(lines)


def _limits(whole: Method) -> list[tuple[str, str]]:
    lines = [("", f"needs plain SGD: it {part.plain_sgd}") for part in whole.parts if part.plain_sgd]
    lines += [("", f"{part.name} shares nothing: there is no global model") for part in whole.parts if not part.shares]
    lines += [
        ("", f"{part.name} gives the server {part.central_data} of the clients' training samples")
        for part in whole.parts
        if part.central_data != "none"
    ]
    refusals: dict[str, list[str]] = {}
    names = [part.name for part in whole.parts]
    for other in sorted(set(PARTS) - {*names}):
        try:
            Method((*whole.parts, PARTS[other]()))
        except FedloomError as error:
            refusals.setdefault(_short(str(error), other, names), []).append(other)
    lines += [("", f"not with {', '.join(others)}: {reason}") for reason, others in refusals.items()]
    return lines


def _short(refusal: str, other: str, names: Sequence[str]) -> str:
    """The reason without the names of the two parts."""
    text = refusal.removeprefix("method: ").removesuffix("; keep one")
    for name in names:
        text = text.replace(f"{name} and {other} both ", "both ").replace(f"{other} and {name} both ", "both ")
    return text.removeprefix(f"{other} ").replace(f"{other} ", "the other ")


def _examples(name: str, whole: Method) -> list[str]:
    text = name if name in ALIASES or name in PARTS else str(whole)
    quoted = f'"{text}"' if " " in text or "(" in text else text
    lines = [f"fedloom run --method {quoted}"]
    open_values = [key for part in whole.parts for key in part.search_ranges]
    if open_values and (name in PARTS or name in ALIASES):
        lines.append(f'fedloom tune --methods "fedavg; {name}({", ".join(f"{key}=?" for key in open_values)})"')
    return lines
