"""How sums of parts are written and read, what may be added to what, and what is said when it may not."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

import pytest
from pydantic import ValidationError
from tiny import fedloom_parts, train
from torch import Tensor

from fedloom import FedloomError, Method, Part, method
from fedloom.methods import Batch, ClientContext, ServerContext, alias, list_methods
from fedloom.methods.exp import Exp
from fedloom.methods.fd import FD
from fedloom.methods.fedrep import FedRep
from fedloom.methods.fn import FN
from fedloom.methods.nova import Nova
from fedloom.methods.prox import Prox
from fedloom.methods.scaffold import Scaffold


class GrammarKinds(Part):
    """A part with hyper-parameters of every kind."""

    share: float | None = None
    count: int = 3
    on: bool = False
    word: str = "off"
    choice: Literal["head", "on", "null"] = "head"
    numbers: tuple[float, ...] = (1.0, 2.5)
    table: dict[str, int] = {}  # noqa: RUF012 (pydantic copies defaults)


class GrammarNeeds(Part):
    """A part without a default."""

    width: int


class GrammarObjective(Part):
    def loss(self, batch: Batch, client: ClientContext) -> Tensor:
        return batch.logits.square().mean()


class GrammarServed(Part):
    def served_weights(self, weights: Tensor, state: Any) -> Tensor:
        return weights


class GrammarNorm(Part):
    replaces: ClassVar[frozenset[str]] = frozenset({"norm"})


class GrammarNormToo(Part):
    replaces: ClassVar[frozenset[str]] = frozenset({"norm"})


class GrammarCombine(Part):
    def aggregate(self, server: ServerContext) -> Tensor:
        return server.weights


class GrammarAlone(Part):
    shares: ClassVar[bool] = False


def other_value(part: Part, name: str) -> Any:
    """A value of a hyper-parameter that is allowed and is not its default."""
    default = part.values()[name]
    allowed = get_args(part.hyperparameters()[name].annotation)
    near: list[Any] = [f"{default}2"] if isinstance(default, str) else []
    if isinstance(default, int | float):
        near = [default + 1, default - 1, default + 1.2345678901234567e-05, default / 2]
    if default is None:
        near = [0.5, 2]
    for value in [*near, *allowed, not default]:
        try:
            changed = type(part)(**{name: value})
        except FedloomError:
            continue
        if changed.values()[name] != default:
            return value
    pytest.fail(f"{part.name}({name}={default!r}): say here which other value it may have")


def refusal(text: str) -> str:
    with pytest.raises(FedloomError) as caught:
        method(text)
    return str(caught.value)


def test_names_are_joined_by_plus_in_any_case_and_spacing() -> None:
    assert method("scaffold + fn").parts == (Scaffold(), FN())
    assert method("  Scaffold+FN\n").parts == (Scaffold(), FN())
    assert method("fn\t+ scaffold ( )").parts == (FN(), Scaffold())


def test_the_order_of_a_sum_is_kept() -> None:
    assert method("scaffold + fn") != method("fn + scaffold")


@pytest.mark.parametrize(
    ("text", "mu"),
    [("1e-3", 1e-3), ("1E-3", 1e-3), ("1e+3", 1e3), ("1.5e+2", 150.0), (".5", 0.5), ("2", 2.0), (" 0.25 ", 0.25)],
)
def test_numbers_are_read_as_people_write_them(text: str, mu: float) -> None:
    assert method(f"prox(mu={text}) + fn").parts == (Prox(mu=mu), FN())


def test_arguments_may_stand_on_several_lines() -> None:
    assert method("prox (\n  mu = 0.5\n)\n+ fd(beta=0.1)").parts == (Prox(mu=0.5), FD(beta=0.1))


def test_aliases_stand_for_their_sums_and_pass_arguments_on() -> None:
    assert method("fedavg").parts == ()
    assert method("fedavg + fedfn") == method("fn")
    assert method("FedProx(mu=0.5)").parts == (Prox(mu=0.5),)
    assert method("feddrplus(beta=0.3) + scaffold") == method("dr + fd(beta=0.3) + scaffold")
    assert method("fedexp") == method(Exp())


def test_every_alias_can_be_read() -> None:
    for row in list_methods():
        if row["sum"] != row["name"]:
            assert method(row["name"]) == (method(row["sum"]) if row["sum"] else Method())


def test_methods_and_parts_are_methods_already() -> None:
    assert method(method("prox + fn")) == method("prox + fn")
    assert method(FedRep(head_epochs=2)) == method("fedrep(head_epochs=2)")


@pytest.mark.parametrize("part", fedloom_parts(), ids=lambda part: part.name)
def test_reading_the_written_form_gives_an_equal_method(part: Part) -> None:
    changed = type(part)(**{name: other_value(part, name) for name in part.hyperparameters()})
    for value in (part, changed):
        assert method(value.spelled()) == method(str(value)) == method(value)
    assert (changed == part) is (not type(part).model_fields)
    assert part.paper and (type(part).__doc__ or "").strip()


@pytest.mark.parametrize(
    "part",
    [
        GrammarKinds(),
        GrammarKinds(share=1e-7, count=-4, on=True, word="plain", choice="on", numbers=(), table={"a": 1, "b": 2}),
        GrammarKinds(word='a, "b" + (c', choice="null", numbers=(1e-9, 3.0)),
        GrammarKinds(word="null"),
        GrammarKinds(word="12"),
        GrammarKinds(word='back\\slash\\"'),
        GrammarKinds(word=""),
        GrammarKinds(word="größer"),
    ],
    ids=str,
)
def test_values_of_every_kind_survive_writing_and_reading(part: Part) -> None:
    both = Scaffold() + part + FN()
    assert method(both.spelled()) == method(str(both)) == both


def test_only_what_differs_from_the_defaults_is_shown() -> None:
    assert str(method("prox(mu=0.01) + fedrep(head_epochs=3)")) == "prox + fedrep(head_epochs=3)"
    assert method("prox + fn").spelled() == "prox(mu=0.01, beta=null) + fn"
    assert str(Method()) == Method().spelled() == "fedavg"
    assert repr(Prox(mu=1)) == "prox(mu=1.0)"


def test_the_run_folder_keeps_the_full_spelling() -> None:
    run = train(GrammarKinds(word="off") + Prox(), rounds=1)
    stored = run.recipe.method
    assert 'word="off"' in stored and "share=null" in stored and "prox(mu=0.01, beta=null)" in stored
    assert method(stored) == GrammarKinds() + Prox()


# what is refused, and how


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("scafold", "method: unknown part 'scafold'; did you mean scaffold?"),
        ("fn + prx(mu=1)", "method: unknown part 'prx'; did you mean prox?"),
        ("prox(nu=1)", "method: prox has no 'nu'; its hyper-parameters are: mu, beta"),
        ("fn(scale=2)", "method: fn has no 'scale'; its hyper-parameters are: none"),
        ("fedavg(mu=1)", "method: fedavg has no 'mu'; its hyper-parameters are: none"),
        ("feddrplus(mu=1)", "method: feddrplus has no 'mu'; its hyper-parameters are: beta"),
        ("prox(mu=-1)", "method: prox(mu=-1): input should be greater than or equal to 0"),
        ("prox(mu=.inf)", "method: prox(mu=inf): input should be a finite number"),
        ("prox(mu=.nan)", "method: prox(mu=nan): input should be a finite number"),
        ("fd(beta=1.5)", "method: fd(beta=1.5): input should be less than or equal to 1"),
        ("exp(eps=0)", "method: exp(eps=0): input should be greater than 0"),
        ("fedrep(head_epochs=0)", "method: fedrep(head_epochs=0): input should be greater than or equal to 1"),
        ("grammarneeds", "method: grammarneeds needs a value for 'width'"),
        ("prox(mu)", "method: cannot read 'mu' in 'prox(mu)'; write key=value"),
        ("prox(mu=)", "method: cannot read 'mu=' in 'prox(mu=)'; write key=value"),
        ("prox(=1)", "method: cannot read '=1' in 'prox(=1)'; write key=value"),
        ("prox(mu=1,)", "method: cannot read '' in 'prox(mu=1,)'; write key=value"),
        ("prox(mu=1, mu=2)", "method: mu stands twice in 'prox(mu=1, mu=2)'; keep one"),
        ("prox(mu=[1)", "method: cannot read the value '[1' in 'prox(mu=[1)'"),
        ("prox(mu=2020-13-45)", "method: cannot read the value '2020-13-45' in 'prox(mu=2020-13-45)'"),
        ("scaffold +", "method: cannot read ''; write name or name(key=value, ...), joined by +"),
        ("prox(mu=1", "method: cannot read 'prox(mu=1'; write name or name(key=value, ...), joined by +"),
        ("prox fn", "method: cannot read 'prox fn'; write name or name(key=value, ...), joined by +"),
        ("  ", "method: an empty text; write fedavg for the empty sum"),
        ("fn + prox + fn", "method: fn stands twice in the sum; keep one"),
        ("fedfn + fn", "method: fn stands twice in the sum; keep one"),
        ("exp + nova", "method: exp and nova both decide how uploads are aggregated; keep one"),
        ("dr + grammarobjective", "method: dr and grammarobjective both decide what the local loss is; keep one"),
        ("grammarserved + exp", "method: grammarserved and exp both decide which weights are served; keep one"),
        ("fn + dr", "method: fn and dr both replace the head; keep one"),
        ("apfl + ditto", "method: apfl and ditto both decide what a client's own model is; keep one"),
        ("fedproto + ditto", "method: fedproto and ditto both decide what a client's own model is; keep one"),
        (
            "disco + krum",
            "method: disco decides how much each upload counts, and krum counts all alike; keep one",
        ),
        (
            "cclip + fedas",
            "method: fedas decides how much each upload counts, and cclip counts all alike; keep one",
        ),
        (
            "fedala + scaffold",
            "method: scaffold computes a client's gradient from its movement, learning rate and number of steps, and "
            "fedala moves the weights before the first step; keep one",
        ),
        (
            "nova + fedas",
            "method: nova measures a client's movement in steps of equal length, and fedas moves the weights before the "
            "first step; keep one",
        ),
        ("grammarnorm + grammarnormtoo", "method: grammarnorm and grammarnormtoo both replace the norm; keep one"),
        (
            "grammarcombine + grammaralone",
            "method: grammarcombine acts on what clients share, and with grammaralone they share nothing; keep one",
        ),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(text: str, said: str) -> None:
    assert refusal(text) == said


def test_a_name_like_no_other_is_answered_by_where_all_are_listed() -> None:
    assert refusal("zzzz") == "method: unknown part 'zzzz'; `fedloom list methods` shows all"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("babu + fedper", "method: babu and fedper both decide what happens to the head; keep one"),
        ("fedrep + fedper", "method: fedrep and fedper both decide what happens to the head; keep one"),
        (
            "dr + babu",
            "method: dr fixes head.weight for good, so babu has nothing left to freeze: dr alone does it; leave babu out",
        ),
    ],
)
def test_parts_that_decide_about_the_same_region_are_refused_before_anything_is_written(text: str, said: str) -> None:
    with pytest.raises(FedloomError) as caught:
        train(text, name="refused")
    assert str(caught.value) == said
    assert not list(Path().iterdir())


def test_a_method_that_trains_nothing_is_refused() -> None:
    with pytest.raises(FedloomError, match="babu leaves nothing to train in linear"):
        train("babu", model="linear")


# in Python


def test_parts_are_added_in_python_as_in_text() -> None:
    assert Scaffold() + FN() == method("scaffold + fn")
    assert Scaffold() + FN() + Prox(mu=1) == method("scaffold + fn + prox(mu=1)")
    assert Scaffold() + (FN() + Prox(mu=1)) == (Scaffold() + FN()) + Prox(mu=1)
    assert Method() + FN() == method("fn") == FN() + Method()


def test_a_sum_in_python_is_refused_as_in_text() -> None:
    with pytest.raises(FedloomError, match="nova and exp both decide how uploads are aggregated; keep one"):
        Nova() + Exp()
    with pytest.raises(FedloomError, match="fn stands twice"):
        FN() + (Prox() + FN())


def test_parts_and_methods_are_equal_and_hashed_by_value() -> None:
    assert Prox(mu=0.5) == Prox(mu=0.5) != Prox(mu=0.6)
    assert FN() != Scaffold()
    assert len({Prox(mu=0.5), Prox(mu=0.5), Prox(), FN(), FN()}) == 3
    assert len({Prox() + FN(), method("fedprox + fedfn"), FN() + Prox()}) == 2


def test_parts_and_methods_cannot_be_changed() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Prox().mu = 3.0
    with pytest.raises(AttributeError):
        method("fn").parts = ()  # type: ignore[misc]


def test_a_bad_value_in_python_is_the_same_sentence_as_in_text() -> None:
    with pytest.raises(FedloomError) as caught:
        Prox(mu=-1)
    assert str(caught.value) == refusal("prox(mu=-1)")
    with pytest.raises(FedloomError, match="prox has no 'nu'"):
        Prox(nu=1)  # type: ignore[call-arg]


def test_a_sum_of_objects_runs_like_its_text() -> None:
    one = train(Prox(mu=0.5) + FN(), rounds=1)
    assert one.summary["digest"] == train("prox(mu=0.5) + fn", rounds=1).summary["digest"]
    assert one.summary["method"] == "prox(mu=0.5) + fn"


# names


def test_a_part_is_called_by_its_class_in_lower_case_unless_it_says_otherwise() -> None:
    class GrammarNamed(Part):
        name = "grammar-named_2"

    class GrammarUnnamed(GrammarNamed):
        pass

    assert method("grammar-named_2 + GrammarUnnamed").parts == (GrammarNamed(), GrammarUnnamed())


def test_a_class_made_again_in_the_same_place_replaces_itself() -> None:
    def make() -> type[Part]:
        class GrammarAgain(Part):
            pass

        return GrammarAgain

    make()
    again = make()
    assert type(method("grammaragain").parts[0]) is again


def test_a_name_that_is_taken_or_cannot_be_written_is_refused() -> None:
    with pytest.raises(FedloomError, match=r"two parts are called 'prox': fedloom\.methods\.prox has it already"):
        type("Prox", (Part,), {"__module__": __name__})
    with pytest.raises(FedloomError, match="'fedavg' is known already, as the empty sum"):
        type("FedAvg", (Part,), {"__module__": __name__})
    for name in ("Upper", "two words", "a.b", "", "x+y", "1st"):
        with pytest.raises(FedloomError, match="one that recipes can write"):
            type(
                "GrammarOdd",
                (Part,),
                {"__module__": __name__, "name": name, "__annotations__": {"name": ClassVar[str]}},
            )
    assert type(method("prox").parts[0]) is Prox


def test_an_alias_of_ones_own_takes_the_arguments_of_its_parts() -> None:
    alias("grammaralias", "prox(mu=2) + fn", "an alias")
    assert method("grammaralias") == Prox(mu=2) + FN()
    assert method("grammaralias(mu=3)") == Prox(mu=3) + FN()


def test_the_list_names_every_part_and_alias_with_its_parameters() -> None:
    rows = {row["name"]: row for row in list_methods()}
    assert list(rows) == sorted(rows)
    assert {part.name for part in fedloom_parts()} <= set(rows)
    assert rows["prox"]["parameters"] == rows["fedprox"]["parameters"] == {"mu": 0.01, "beta": None}
    assert rows["feddrplus"]["sum"] == "dr + fd"
    groups = {
        name: rows[name]["group"] for name in ("prox", "fedlc", "fn", "krum", "disco", "ccvr", "fedproto", "mofedsam")
    }
    assert groups == {
        "prox": "gradient",
        "fedlc": "loss",
        "fn": "head",
        "krum": "aggregation",
        "disco": "aggregation",
        "ccvr": "queries",
        "fedproto": "personal model",
        "mofedsam": "gradient",
    }
    assert rows["fedavg"]["parameters"] == {}
    assert all(rows[part.name]["summary"] and rows[part.name]["paper"] for part in fedloom_parts())


@pytest.mark.parametrize("text", ["moon(projection=true)", "prox(mu=true)", "fd(beta=yes)"])
def test_true_is_not_a_number(text: str) -> None:
    """Else `projection=true` would quietly mean a projection onto a single dimension."""
    with pytest.raises(FedloomError, match="a number is expected, not true or false"):
        method(text)
