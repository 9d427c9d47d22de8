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

from fedloom.deploy.schema import CLASSES, CONTROL, LONGEST, ORDERS, REPORTS, Reply, parse_order, parse_reply
from fedloom.errors import FedloomError

FACTS = {
    "name": "site-0",
    "train": 400,
    "test": 90,
    "shape": [1, 8, 8],
    "class_names": ["0", "1"],
    "version": "0.1.0",
    "key": "ecdsa-sha2-nistp384 AAAAE2VjZHNh+/==",
    "signature": "30" * 104,
}
GOOD_REPORTS: dict[str, dict[str, Any]] = {
    "hello": FACTS,
    "join": FACTS,
    "train": {"loss": 2.25, "steps": 14, "seconds": 0.25},
    "act": {"loss": None, "steps": 3},
    "tell": {},
    "client": {"correct": 70, "total": 90},
    "keep": {},
    "keys": {},
}
SITES = {"federation": "0123456789abcdef", "data": "sites", "shape": [3, 32, 32], "scale": 255.0, "test": None}
CARD = {"sites": SITES | {"class_names": ["a", "b"]}, "samples": 900, "public": 0, "labelled": False}
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
    "join": QUESTION | {"card": CARD},
    "train": WORK | {"arguments": {"round": 4}, "into": 4, "keep": [2, 3]},
    "act": WORK | {"arguments": {"round": 4, "part": "fnr"}, "base": 4, "into": 4, "keep": [3], "before": 2},
    "tell": WORK | {"arguments": {"round": 4, "part": "sphere"}},
    "client": WORK | {"arguments": {"round": 4, "personal": True}},
    "keep": WORK | {"arguments": {}},
}
MESSAGES = 100_000


def reply(report: dict[str, Any]) -> dict[str, Any]:
    return {"client": 0, "digest": "0123456789abcdef", "report": report}


def order(kind: str) -> dict[str, Any]:
    return {"kind": kind, "digest": "0123456789abcdef", **GOOD_ORDERS[kind]}


def test_every_good_message_is_read() -> None:
    assert set(GOOD_REPORTS) == set(REPORTS)
    assert set(GOOD_ORDERS) == set(ORDERS)
    for kind in ORDERS:
        assert isinstance(parse_order(json.dumps(order(kind))), ORDERS[kind])
        assert isinstance(parse_reply(json.dumps(reply(GOOD_REPORTS[kind])), kind).report, REPORTS[kind])
    refusal = parse_reply(json.dumps({"client": None, "digest": "", "refused": "has no data"}), "train")
    assert (refusal.client, refusal.refused) == (None, "has no data")


def test_a_hundred_thousand_messages_give_a_typed_value_or_a_sentence() -> None:
    random = Random(20260)
    kinds = sorted(ORDERS)
    typed = sentences = 0
    for number in range(MESSAGES):
        kind = random.choice(kinds)
        good = reply(GOOD_REPORTS[kind]) if number % 2 else order(kind)
        text = json.dumps(mutated(good, random)) if random.random() < 0.6 else mutated_text(good, random)
        try:
            found: Any = parse_reply(text, kind) if number % 2 else parse_order(text)
        except FedloomError as error:
            sentences += 1
            _harmless(str(error))
        else:
            typed += 1
            assert isinstance(found, Reply | ORDERS[kind]) or type(found) in ORDERS.values()
            for value in _values(found):
                _within(value)
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
        assert len(value) <= CLASSES
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
        *(("client", "total", value) for value in (10**400, -1, 2**41)),
        *(("hello", "train", value) for value in (10**400, 10**13, -1, 0.5, None, True)),
        *(("hello", "test", value) for value in (10**400, 10**13, -1)),
        *(
            ("hello", "shape", value)
            for value in ([1, 8, 10**400], [1, 8], [1, 8, 0], [4096, 4096, 2], "188", [1, 8, True])
        ),
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
        parse_reply(json.dumps(reply(GOOD_REPORTS[kind] | {field: value})), kind)


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        *(("act", {"before": value}, "its before is") for value in (-1, 2.0, True, "2", 10**400)),
        *(("hello", {"nonce": value}, "its nonce is") for value in ("", "0a" * 17, "0A" * 16, 7, None)),
        *(("hello", {"federation": value}, "its federation is") for value in ("../x", "", None)),
        ("join", {"federation": "fedcba9876543210"}, "its federation is not that of its card"),
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
    ],
)
def test_a_field_of_an_order_out_of_range_is_named(kind: str, changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(FedloomError, match=reason):
        parse_order(json.dumps(order(kind) | changes))


def test_a_refusal_without_a_word_is_no_refusal() -> None:
    with pytest.raises(FedloomError, match="its refused is ''"):
        parse_reply(json.dumps({"client": 1, "digest": "0123456789abcdef", "refused": ""}), "join")


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
        ('"' + "x" * LONGEST + '"', "characters"),
        ("[" + "0," * 300_000 + "0]", "more than 250000 values"),
        (json.dumps({str(n): n for n in range(40)}), "an object of 40 fields"),
    ],
)
def test_a_text_that_is_too_much_or_no_json_is_refused_soon(text: str, reason: str) -> None:
    began = time.process_time()
    with pytest.raises(FedloomError, match=reason):
        parse_reply(text, "hello")
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "text", ['"' + '\\"' * (LONGEST // 2 - 2), '"' * LONGEST, "\\" * LONGEST, "[]," * (LONGEST // 3)]
)
def test_the_time_for_a_text_grows_no_faster_than_its_length(text: str) -> None:
    began = time.process_time()
    with pytest.raises(FedloomError):
        parse_order(text)
    assert time.process_time() - began < 5


def test_words_of_a_refusal_are_shortened_and_made_harmless() -> None:
    said = parse_reply(
        json.dumps({"client": 1, "digest": "\ud800", "refused": "no\x1b[2J\n\ud800" + "x" * 9999}), "train"
    )
    assert said.refused is not None
    assert said.refused.startswith("no\ufffd[2J\ufffd\ufffdxx")
    assert len(said.refused) == 500
    assert said.digest == "\ufffd"
