"""Safe parsing of user-written values: YAML with limits, and integers of bounded length.

YAML allows far more than a recipe needs. Impossible dates, wrong tags, deep nesting, a few lines that expand to gigabytes,
and field names that are not text are refused here with a one-line error, before any value is constructed.
"""

from __future__ import annotations

from typing import Any

import yaml

from fedloom.errors import FedloomError, shown

TEXT = 200_000  # maximum characters of a document
NODES = 20_000  # maximum values of a document, with aliases expanded
DEPTH = 24  # maximum nesting
DIGITS = 18  # maximum digits of an integer: fits 64 bits


class Unreadable(FedloomError):
    """Why a text cannot be parsed. The message follows the name of the text: "recipe.yaml" + "is not valid YAML"."""


def parse(text: str) -> Any:
    """The value of a YAML text; raises Unreadable."""
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
        # constructors of tagged values and dates raise many types
        raise Unreadable("holds a value that does not fit its type, such as an impossible date") from None


def _check(root: yaml.Node) -> None:
    """Limit the size of the expanded document, and require text as the name of every field."""
    waiting, count = [(root, 1)], 0
    while waiting:
        node, depth = waiting.pop()
        count += 1
        if count > NODES:
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
    """An integer of 0 or more, without a sign; None for any other text or more than 18 digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= DIGITS else None
