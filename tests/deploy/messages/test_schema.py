"""The parser of all that arrives as text: a typed value within its ranges, or a short sentence; never anything else."""

from __future__ import annotations

import json
import math
import time
from random import Random
from typing import Any

import pytest

pytest.importorskip("flwr", reason='Flower is not installed: pip install "fedloom[flower]"')

from mutations import mutated, mutated_text
from pydantic import BaseModel

from fedloom.deploy.messages.schema import (
    CONTROL,
    MAX_CHARACTERS,
    MAX_CLASSES,
    ORDERS,
    EmptyReport,
    Order,
    Reply,
    SiteFacts,
    StrictModel,
    TaskOrder,
    order_for,
    order_model,
    parse_order,
    parse_reply,
    report_model,
)
from fedloom.engine.tasks import TASKS, Task
from fedloom.errors import FedloomError
from fedloom.recipe import Recipe

REMOTE = {name: task for name, task in TASKS.items() if task.remote}

PIXELS = {"kind": "image", "shape": [1, 8, 8], "dtype": "uint8", "scale": 16.0, "vocabulary": 0, "padding": 0}
FACTS = {
    "name": "site-0",
    "train": 400,
    "test": 90,
    "inputs": PIXELS,
    "schema_digest": "",
    "class_names": ["0", "1"],
    "version": "0.1.0",
    "key": "ecdsa-sha2-nistp384 AAAAE2VjZHNh+/==",
    "signature": "30" * 104,
}
GOOD_REPORTS: dict[str, dict[str, Any]] = {
    "hello": FACTS,
    "join": FACTS,
    "train": {"loss": 2.25, "steps": 14, "seconds": 0.25},
    "refine": {"loss": None, "steps": 3},
    "ask": {},
    "deliver": {},
    "test client": {"correct": 70, "total": 90},
    "keep": {},
    "keys": {},
}
SITES = {"federation": "0123456789abcdef", "data": "sites", "inputs": PIXELS, "test": None}
INFO = {"sites": SITES | {"class_names": ["a", "b"]}, "samples": 900, "public": 0, "labeled": False}
QUESTION = {"federation": "0123456789abcdef", "nonce": "0a" * 16}
WORK = {"federation": "0123456789abcdef", "base": None, "at": 3}
TERMS = {
    "federation": "0123456789abcdef",
    "round": 4,
    "cohort": [[0, 100], [2, 2**64 - 1]],
    "samples": 900,
    "model": "0f" * 32,
}
GOOD_ORDERS: dict[str, dict[str, Any]] = {
    "hello": QUESTION,
    "keys": {"terms": TERMS, "signed": [[0, "30" * 104], [2, "ab"]]},
    "join": QUESTION | {"info": INFO},
    "train": WORK | {"task": "train", "arguments": {"round": 4}, "into": 4, "keep": [2, 3]},
    "refine": WORK
    | {"task": "refine", "arguments": {"round": 4, "part": "fnr", "query": "retrain"}, "base": 4}
    | {"into": 4, "keep": [3], "before": 2},
    "deliver": WORK
    | {"task": "deliver", "arguments": {"round": 4, "part": "fedpac", "query": "combine"}, "base": 4}
    | {"into": 4, "keep": [3], "before": 2},
    "ask": WORK | {"task": "ask", "arguments": {"round": 4, "part": "sphere", "query": "calibrate"}},
    "test client": WORK | {"task": "test client", "arguments": {"round": 4, "personal": True}},
    "keep": WORK,
}
MESSAGES = 100_000
OWN = ("client", "row")  # what a node knows itself
PART = {"round": 4, "part": "sphere", "query": "calibrate"}
ROWS = ("ask", "deliver", "refine", "train")  # tasks of a cohort
WRITES = ("train", "refine", "deliver")  # tasks after which a client's state has a new version


def reply(report: dict[str, Any]) -> dict[str, Any]:
    return {"client": 0, "digest": "0123456789abcdef", "report": report}


def order(kind: str) -> dict[str, Any]:
    return {"kind": "task" if kind in REMOTE else kind, "digest": "0123456789abcdef", **GOOD_ORDERS[kind]}


def order_type(kind: str) -> type[Order]:
    return order_model(REMOTE[kind]) if kind in REMOTE else ORDERS[kind]


def report_type(kind: str) -> type[StrictModel]:
    """The report that answers an order: of a task as it declares it, of the others as the code that sends them asks for."""
    if kind in REMOTE:
        return report_model(REMOTE[kind], Recipe())
    return SiteFacts if kind in ("hello", "join") else EmptyReport


def test_every_good_message_is_read() -> None:
    kinds = (set(ORDERS) - {"task"}) | set(REMOTE)
    assert set(GOOD_REPORTS) == set(GOOD_ORDERS) == kinds
    for kind in kinds:
        assert type(parse_order(json.dumps(order(kind)))) is order_type(kind)
        report = parse_reply(json.dumps(reply(GOOD_REPORTS[kind])), report_type(kind)).report
        assert type(report) is report_type(kind)
        assert set(GOOD_REPORTS[kind]) == set(type(report).model_fields)
    refusal = parse_reply(json.dumps({"client": None, "digest": "", "refused": "has no data"}), report_type("train"))
    assert (refusal.client, refusal.refused) == (None, "has no data")


@pytest.mark.slow
def test_a_hundred_thousand_messages_give_a_typed_value_or_a_sentence() -> None:
    random = Random(20260)
    kinds = sorted(GOOD_ORDERS)
    typed = sentences = 0
    for number in range(MESSAGES):
        kind = random.choice(kinds)
        good = reply(GOOD_REPORTS[kind]) if number % 2 else order(kind)
        text = json.dumps(mutated(good, random)) if random.random() < 0.6 else mutated_text(good, random)
        try:
            value: Any = parse_reply(text, report_type(kind)) if number % 2 else parse_order(text)
        except FedloomError as error:
            sentences += 1
            _harmless(str(error))
        else:
            typed += 1
            assert isinstance(value, Reply if number % 2 else tuple(ORDERS.values()))
            if isinstance(value, TaskOrder):
                assert type(value) is order_model(REMOTE[value.task])
                assert isinstance(value.task_for(3), Task)
            for inner in _values(value):
                _within(inner)
    assert typed > MESSAGES // 50  # or nothing but refusals was tried
    assert sentences > MESSAGES // 2


def _harmless(sentence: str) -> None:
    assert 0 < len(sentence) < 400
    assert not CONTROL.search(sentence)
    sentence.encode()


def _values(value: Any) -> list[Any]:
    if isinstance(value, BaseModel | Reply):
        return [inner for field in vars(value).values() for inner in _values(field)]
    if isinstance(value, tuple):
        assert len(value) <= MAX_CLASSES
        return [inner for item in value for inner in _values(item)]
    return [value]


def _within(value: Any) -> None:
    assert value is None or isinstance(value, bool | int | float | str)
    if isinstance(value, str):
        assert len(value) <= 4096
        assert not CONTROL.search(value)
        value.encode()
    elif value is not None:
        assert math.isfinite(value)
        assert abs(value) <= (2**64 if isinstance(value, int) else 1e39)


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        *(("train", "loss", value) for value in (10**400, -(10**400), True, "1", [], 1e300)),
        *(("train", "steps", value) for value in (10**400, -1, 1.0, True, None, 2**41)),
        *(("train", "seconds", value) for value in (10**400, -1, None, 1e10)),
        *(("test client", "total", value) for value in (10**400, -1, 2**41)),
        *(("hello", "train", value) for value in (10**400, 10**13, -1, 0.5, None, True)),
        *(("hello", "test", value) for value in (10**400, 10**13, -1)),
        *(
            ("hello", "inputs", PIXELS | {"shape": value})
            for value in ([1, 8, 10**400], [1, 8], [1, 8, 0], [4096, 4096, 2], "188", [1, 8, True], [], [1] * 7)
        ),
        *(
            ("hello", "inputs", value)
            for value in (
                PIXELS | {"kind": "tokens"},
                PIXELS | {"kind": "sound"},
                PIXELS | {"dtype": "int32"},
                PIXELS | {"scale": 0.0},
                PIXELS | {"vocabulary": 9},
                {"kind": "image"},
                {**PIXELS, "kind": "features", "dtype": "uint8"},
                {**PIXELS, "kind": "tokens", "dtype": "int32", "shape": [8], "vocabulary": 10**9},
                {**PIXELS, "kind": "tokens", "dtype": "int32", "shape": [8], "vocabulary": 5, "padding": 5},
                [],
                None,
            )
        ),
        *(("hello", "schema_digest", value) for value in ("0f", "xyz", 7, None, "0" * 17)),
        *(
            ("hello", "class_names", value)
            for value in ([], ["9" * 5000], ["a\n"], ["\ud800"], [1], "ab", ["x"] * 100_001)
        ),
        *(
            ("join", "key", value)
            for value in ("", "x" * 401, "ssh-ed25519 AAAA", "ecdsa-sha2-nistp384 \ud800", 7, None)
        ),
        *(("hello", "signature", value) for value in ("", "0", "0g", "AB", "00" * 129, 7, None)),
        *(("hello", "name", value) for value in ("x" * 81, "\x1b[2J", "\ud800", 7, None)),
    ],
)
def test_a_number_or_text_out_of_range_is_named(kind: str, field: str, value: Any) -> None:
    with pytest.raises(FedloomError, match=f"its {field}"):
        parse_reply(json.dumps(reply(GOOD_REPORTS[kind] | {field: value})), report_type(kind))


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        *(("refine", {"before": value}, "its before is") for value in (-1, 2.0, True, "2", 10**400)),
        *(("hello", {"nonce": value}, "its nonce is") for value in ("", "0a" * 17, "0A" * 16, 7, None)),
        *(("hello", {"federation": value}, "its federation is") for value in ("../x", "", None)),
        ("join", {"federation": "fedcba9876543210"}, "its federation is not that of its info"),
        *(("keys", {"terms": value}, "its terms is") for value in ([], 7, "x")),
        *(("keys", {"terms": TERMS | {"round": value}}, "its terms.round is") for value in (-1, None, True, 10**10)),
        *(("keys", {"terms": TERMS | {"samples": value}}, "its terms.samples is") for value in (-1, 0.5, 2**61)),
        *(
            ("keys", {"terms": TERMS | {"model": value}}, "its terms.model is")
            for value in ("", "0f" * 33, "0F" * 32, 3)
        ),
        *(
            ("keys", {"terms": TERMS | {"federation": value}}, "its terms.federation is")
            for value in ("../x", "", None)
        ),
        *(
            ("keys", {"terms": TERMS | {"cohort": value}}, "its terms.cohort")
            for value in (None, {"0": 100}, [[0]], [[0, 1, 2]], [[0, -1]], [[0, 2**64]], [[0, 1.0]], [[0, 1]] * 10_001)
        ),
        ("keys", {"terms": TERMS | {"cohort": [[0, 1], [0, 2]]}}, "its terms name a client or node twice"),
        ("keys", {"terms": TERMS | {"cohort": [[0, 1], [2, 1]]}}, "its terms name a client or node twice"),
        ("keys", {"terms": TERMS | {"more": 1}}, "terms.more was not asked for"),
        *(
            ("keys", {"signed": value}, "its signed")
            for value in (None, {"0": "ab"}, [["0", "ab"]], [[0, "abc"]], [[0, "AB"]], [[0, "ab" * 129]], [[0, ""]])
        ),
        ("keys", {"signed": [[1, "ab"], [1, "cd"]]}, "its signed names a client twice"),
        ("train", {"terms": TERMS}, "terms was not asked for"),
        *(
            ("train", {"arguments": {"round": value}}, "its arguments.round is")
            for value in (-1, 2.0, True, None, "4", 10**400)
        ),
        *(("train", {"arguments": {"round": 4, own: 1}}, f"arguments.{own} was not asked for") for own in OWN),
        *(("train", {"arguments": value}, "its arguments is") for value in (None, [], 7, "x")),
        ("train", {"arguments": {}}, "its arguments.round is missing"),
        *(("ask", {"arguments": PART | {"part": value}}, "its arguments.part is") for value in ("x" * 81, "\x1b", 7)),
        *(("ask", {"arguments": PART | {"query": value}}, "its arguments.query is") for value in ("x" * 81, "\n", [])),
        *(
            ("test client", {"arguments": {"round": 4, "personal": value}}, "its arguments.personal is")
            for value in (1, None, "yes")
        ),
        *(
            (kind, {field: value}, f"its {field} is")
            for kind in WRITES
            for field, value in (("into", None), ("keep", 3))
        ),
        *((kind, {"into": -1}, "its into is -1") for kind in WRITES),
        ("train", {"keep": [1] * 65}, "its keep is"),
        *(("ask", {field: 3}, f"{field} was not asked for") for field in ("into", "before")),
        ("test client", {"keep": [3]}, "keep was not asked for"),
        ("train", {"before": 3}, "before was not asked for"),
        *(
            ("train", {"task": value}, "its task is .*, which nodes do not perform")
            for value in ("test", "train together", "server training", "fine-tune", "", None, 7, ["train"], "x" * 9999)
        ),
        *(("train", {"kind": value}, "its kind is .*; allowed are hello, keys") for value in ("train", None, 7, [])),
    ],
)
def test_a_field_of_an_order_out_of_range_is_named(kind: str, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(FedloomError, match=reason):
        parse_order(json.dumps(order(kind) | changes))


@pytest.mark.parametrize("kind", sorted(REMOTE))
@pytest.mark.parametrize("missing", ["federation", "task", "arguments", "into", "keep", "digest"])
def test_an_order_for_a_task_needs_all_that_the_task_writes(kind: str, missing: str) -> None:
    text = json.dumps({name: value for name, value in order(kind).items() if name != missing})
    if missing in order(kind):
        with pytest.raises(FedloomError, match=f"its {missing} is"):
            parse_order(text)
    else:
        assert isinstance(parse_order(text), TaskOrder)


@pytest.mark.parametrize("kind", sorted(REMOTE))
def test_a_task_comes_out_of_its_order_with_the_node_s_own_client_and_row(kind: str) -> None:
    sent = REMOTE[kind](**GOOD_ORDERS[kind]["arguments"], **{"client": 7} | ({"row": 5} if kind in ROWS else {}))
    content = order(kind) | order_for(sent)
    assert content == order(kind)  # neither client nor row is sent
    arrived = parse_order(json.dumps(content))
    assert isinstance(arrived, TaskOrder)
    task = arrived.task_for(2)
    assert isinstance(task, REMOTE[kind])
    assert vars(task) == vars(sent) | {"client": 2} | ({"row": 0} if kind in ROWS else {})


def test_a_refusal_without_a_word_is_no_refusal() -> None:
    with pytest.raises(FedloomError, match="its refused is ''"):
        parse_reply(json.dumps({"client": 1, "digest": "0123456789abcdef", "refused": ""}), report_type("join"))


@pytest.mark.parametrize("federation", ["../../outside", "", "x", "0123456789ABCDEF", "0123456789abcdef\n", "/etc", 7])
def test_a_federation_cannot_name_another_folder(federation: Any) -> None:
    with pytest.raises(FedloomError, match="its federation is"):
        parse_order(json.dumps(order("train") | {"federation": federation}))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not JSON"),
        ("[1]", "is not an object"),
        ('{"client": NaN}', "has NaN, which is not JSON"),
        ('{"client": -Infinity}', "has -Infinity"),
        ('{"client": 1, "client": 2}', "a field twice"),
        ('{"client": ' + "1" * 5000 + "}", "is not JSON"),
        ("[" * 100_000, "is nested more than 8 deep"),
        ('{"a": [' * 9 + "]}" * 9, "is nested more than 8 deep"),
        ('"' + "x" * MAX_CHARACTERS + '"', "characters"),
        ("[" + "0," * 300_000 + "0]", "more than 250000 values"),
        (json.dumps({str(n): n for n in range(40)}), "an object of 40 fields"),
    ],
)
def test_a_text_that_is_too_much_or_no_json_is_refused_soon(text: str, reason: str) -> None:
    began = time.process_time()
    with pytest.raises(FedloomError, match=reason):
        parse_reply(text, report_type("hello"))
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "text",
    [
        '"' + '\\"' * (MAX_CHARACTERS // 2 - 2),
        '"' * MAX_CHARACTERS,
        "\\" * MAX_CHARACTERS,
        "[]," * (MAX_CHARACTERS // 3),
    ],
)
def test_the_time_for_a_text_grows_no_faster_than_its_length(text: str) -> None:
    began = time.process_time()
    with pytest.raises(FedloomError):
        parse_order(text)
    assert time.process_time() - began < 5


def test_words_of_a_refusal_are_shortened_and_made_harmless() -> None:
    refusal = parse_reply(
        json.dumps({"client": 1, "digest": "\ud800", "refused": "no\x1b[2J\n\ud800" + "x" * 9999}), report_type("train")
    )
    assert refusal.refused is not None
    assert refusal.refused.startswith("no\ufffd[2J\ufffd\ufffdxx")
    assert len(refusal.refused) == 500
    assert refusal.digest == "\ufffd"
