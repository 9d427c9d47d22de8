"""Texts that people write, as plain values: YAML without its traps, and numbers of a bounded length.

YAML can do far more than a recipe needs. What it can do wrong (impossible dates, tags that do not fit, endless nesting,
a few lines that unfold to gigabytes, names of fields that are not text) becomes one sentence here, before a value is made.
"""

from __future__ import annotations

from typing import Any

import yaml

from fedloom.errors import FedloomError, shown

TEXT = 200_000  # characters of a document
NODES = 20_000  # values of a document, with everything that it repeats
DEPTH = 24
DIGITS = 18  # of a whole number: fits 64 bits


class Unreadable(FedloomError):
    """Why a text has no value, to be put behind the name of the text: "is not valid YAML"."""


def parse(text: str) -> Any:
    """The value of a YAML text; raises Unreadable with the reason."""
    if len(text) > TEXT:
        raise Unreadable(f"has {len(text):,} characters; at most {TEXT:,} are read")
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _check(node)
        return loader.construct_document(node)
    except Unreadable:
        raise
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" (line {mark.line + 1})" if mark is not None else ""
        raise Unreadable(f"is not valid YAML{line}") from None
    except RecursionError:
        raise Unreadable(f"is nested more than {DEPTH} deep") from None
    except (ValueError, LookupError, AttributeError, TypeError, ArithmeticError):
        # constructors of tagged values and dates raise whatever their texts lead them to
        raise Unreadable("holds a value that does not fit its type, such as an impossible date") from None


def _check(root: yaml.Node) -> None:
    """Bounds on what the document unfolds to, and text as the name of every field."""
    waiting, seen = [(root, 1)], 0
    while waiting:
        node, depth = waiting.pop()
        seen += 1
        if seen > NODES:
            raise Unreadable(f"unfolds to more than {NODES:,} values")
        if depth > DEPTH:
            raise Unreadable(f"is nested more than {DEPTH} deep")
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
                    name = f" (got {shown(key.value)})" if isinstance(key, yaml.ScalarNode) else ""
                    raise Unreadable(f"has a field whose name is not text{name}; put quotes around it")
                waiting.append((value, depth + 1))
        elif isinstance(node, yaml.SequenceNode):
            waiting += [(item, depth + 1) for item in node.value]
        elif node.tag == "tag:yaml.org,2002:int" and len(node.value) > DIGITS + 2:
            raise Unreadable(f"holds a whole number of {len(node.value)} characters; at most {DIGITS} digits are read")


def whole(text: str) -> int | None:
    """A plain whole number, 0 or more; None for any other text, and for one of more digits than 64 bits hold."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= DIGITS else None
