"""Tables: columns, clients, test rows, missing values, unknown categories, schemas and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from fedloom.data import Dataset, load
from fedloom.errors import FedloomError

TEST = np.arange(300) % 5 == 0


def patients() -> pd.DataFrame:
    draw = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": draw.normal(60, 10, 300).round(),
            "bmi": draw.normal(27, 4, 300),
            "smoker": draw.choice(["yes", "no", "former"], 300),
            "insured": draw.random(300) < 0.5,
            "hospital": draw.choice(["north", "south", "east"], 300, p=[0.6, 0.3, 0.1]),
            "outcome": draw.choice(["ill", "well"], 300),
        }
    )
    frame.loc[draw.random(300) < 0.1, "bmi"] = np.nan
    frame.loc[draw.random(300) < 0.1, "smoker"] = None
    return frame


def table(frame: pd.DataFrame, path: Path, options: str = "target=outcome&client=hospital") -> Dataset:
    frame.to_csv(path, index=False)
    return load(f"table:{path}?{options}")


def test_columns_are_encoded_as_scikit_learn_does_it_on_training_rows(tmp_path: Path) -> None:
    frame = patients()
    dataset = table(frame, tmp_path / "a.csv")
    columns = ColumnTransformer(
        [
            ("age", StandardScaler(), ["age"]),
            ("bmi", make_pipeline(SimpleImputer(strategy="median"), StandardScaler()), ["bmi"]),
            ("bmi missing", make_pipeline(SimpleImputer(strategy="constant", fill_value=np.inf)), ["bmi"]),
            ("smoker", OneHotEncoder(sparse_output=False, handle_unknown="ignore"), ["smoker"]),
            ("insured", OneHotEncoder(sparse_output=False), ["insured"]),
        ]
    )
    given = frame.assign(smoker=frame["smoker"].astype(object).where(frame["smoker"].notna(), "~missing"))
    train = columns.fit_transform(given[~TEST])
    test = columns.transform(given[TEST])
    for expected, x in ((train, dataset.train_x), (test, dataset.test_x)):
        expected[:, 2] = np.isinf(expected[:, 2])
        assert np.allclose(x.numpy(), expected, atol=1e-6)
    assert dataset.inputs.shape == (1 + 2 + 4 + 2,)
    assert dataset.mean == (0.0,) * 9 and dataset.std == (1.0,) * 9


def test_labels_clients_and_the_every_fifth_rule(tmp_path: Path) -> None:
    frame = patients()
    dataset = table(frame, tmp_path / "a.csv")
    assert dataset.class_names == ("ill", "well") and dataset.client_names == ("east", "north", "south")
    assert dataset.train_client is not None
    assert np.array_equal(np.array(dataset.class_names)[dataset.test_y.numpy()], frame["outcome"][TEST])
    assert np.array_equal(np.array(dataset.client_names)[dataset.train_client.numpy()], frame["hospital"][~TEST])


def test_a_parquet_file_is_the_same_data_as_the_csv_file(tmp_path: Path) -> None:
    frame = patients()
    frame.to_parquet(tmp_path / "a.parquet")
    options = "target=outcome&client=hospital"
    assert load(f"table:{tmp_path}/a.parquet?{options}").digest == table(frame, tmp_path / "a.csv").digest
    frame.to_csv(tmp_path / "b.csv", index=False, sep=";")
    assert load(f"table:{tmp_path}/b.csv?{options}").digest == table(frame, tmp_path / "a.csv").digest


@pytest.mark.parametrize("words", [("train", "test"), (0, 1), (False, True), ("Train", "TEST")])
def test_a_test_column_decides_which_rows_are_for_testing(words: tuple[Any, Any], tmp_path: Path) -> None:
    frame = patients()
    chosen = np.arange(300) >= 200
    frame["part"] = np.where(chosen, words[1], words[0])
    dataset = table(frame, tmp_path / "a.csv", "target=outcome&test=part&drop=hospital")
    assert np.array_equal(np.array(dataset.class_names)[dataset.test_y.numpy()], frame["outcome"][chosen])
    schema = json.loads(dataset.schema)
    assert schema["columns"][0]["mean"] == pytest.approx(frame["age"][:200].mean())


def test_what_is_missing_or_unknown_is_handled_and_reported(tmp_path: Path) -> None:
    frame = patients().assign(empty=np.nan)
    frame.loc[0, "smoker"] = "pipe"  # row 0 is for testing
    frame.loc[[7, 8], "outcome"] = None
    frame.loc[12, "age"] = np.nan  # for testing, once two rows are left out
    dataset = table(frame, tmp_path / "a.csv")
    notes = " | ".join(dataset.notes)
    kept = frame.drop([7, 8]).reset_index(drop=True)
    test = np.arange(298) % 5 == 0
    lost = kept["bmi"].isna()
    assert "left out, since outcome is empty: 2 of 300 rows" in notes
    assert "not used, since no training row has a value: empty" in notes
    assert f"bmi in {lost[~test].sum()} training and {lost[test].sum()} test rows" in notes
    assert "missing categories, encoded as a category of their own: smoker in" in notes
    assert (
        "categories that no training row has, encoded as zeros: smoker in 0 training and 1 test rows, such as pipe"
        in notes
    )
    names = ["age", "bmi", "bmi missing", "former", "no", "yes", "smoker missing"]
    assert dataset.test_x[0, names.index("former") : names.index("smoker missing") + 1].tolist() == [0, 0, 0, 0]
    median = kept["bmi"][~test].median()
    schema = json.loads(dataset.schema)["columns"]
    assert schema[1]["median"] == pytest.approx(median) and schema[1]["indicator"] and not schema[0]["indicator"]


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (np.arange(300) % 3, ("0", "1", "2")),
        (np.arange(300) % 3 + 9, ("9", "10", "11")),
        (np.where(np.arange(300) % 2, 1.0, 2.0), ("1", "2")),
        (np.arange(300) % 2 == 0, ("False", "True")),
        (np.where(np.arange(300) % 2, 1, -1), ("-1", "1")),
    ],
)
def test_targets_are_texts_whole_numbers_or_booleans(
    labels: np.ndarray, names: tuple[str, ...], tmp_path: Path
) -> None:
    assert table(patients().assign(outcome=labels), tmp_path / "a.csv").class_names == names


def test_a_schema_prepares_the_rows_of_another_site_in_the_same_way(tmp_path: Path) -> None:
    frame = patients()
    whole = table(frame, tmp_path / "all.csv")
    (tmp_path / "schema.json").write_text(whole.schema)
    north = frame[frame["hospital"] == "north"].drop(columns="hospital")
    shuffled = north[["outcome", "smoker", "insured", "bmi", "age"]].assign(extra=1)
    own = table(shuffled, tmp_path / "north.csv", f"schema={tmp_path}/schema.json")
    assert own.schema == whole.schema and own.class_names == whole.class_names
    rows = {tuple(np.round(row, 5)) for row in np.concatenate([whole.train_x.numpy(), whole.test_x.numpy()]).tolist()}
    assert {tuple(np.round(row, 5)) for row in own.train_x.numpy().tolist()} <= rows
    assert "not used, since the schema does not name them: extra" in " ".join(own.notes)


@pytest.mark.parametrize(
    ("change", "options", "sentence"),
    [
        ({}, "client=hospital", "no column is named as target; write target=COLUMN, one of age, bmi"),
        ({}, "target=price", "target=price: there is no such column; the columns are age, bmi"),
        ({}, "target=outcome&client=clinic", "client=clinic: there is no such column"),
        ({}, "target=outcome&color=red", "the option color=red is not understood; allowed are target, client"),
        ({}, "target=outcome&target=age", "the option target is given twice"),
        ({}, "target=bmi", "the target 'bmi' holds .*; expected classes: texts, whole numbers or booleans"),
        ({"outcome": "ill"}, "target=outcome", "has one value only, 'ill'"),
        ({"outcome": None}, "target=outcome", "the target 'outcome' has no values"),
        (
            {"note": [f"text {i} of mine" for i in range(300)]},
            "target=outcome",
            "leave it out with drop=note, use text=note",
        ),
        (
            {"patient_id": np.arange(300) * 7},
            "target=outcome",
            "names rows rather than describing them; .* drop=patient_id",
        ),
        ({"row": np.arange(300)}, "target=outcome", "a different number in each of 300 rows"),
        (
            {"hospital": [None, *["a"] * 299]},
            "target=outcome&client=hospital",
            "client=hospital is empty in 1 rows, row 0",
        ),
        ({"part": "maybe"}, "target=outcome&test=part", "test=part holds 'maybe' in row 0; expected train or test"),
        ({"age": np.inf}, "target=outcome", "the column 'age' holds an infinite value in row 0"),
        ({}, "target=outcome&length=9", "length goes with text=COLUMN"),
        ({}, "target=outcome&text=smoker&length=0", "length is '0'; allowed are whole numbers from 1"),
        ({}, "target=outcome&schema=absent.json", "schema .*absent.json' cannot be read"),
    ],
)
def test_a_table_that_cannot_be_used_is_refused_in_a_sentence(
    change: dict[str, Any], options: str, sentence: str, tmp_path: Path
) -> None:
    with pytest.raises(FedloomError, match=sentence):
        table(patients().assign(**change), tmp_path / "a.csv", options)


def test_an_identifier_is_used_where_one_insists(tmp_path: Path) -> None:
    frame = patients().assign(day=np.arange(300))
    assert table(frame, tmp_path / "a.csv", "target=outcome&drop=hospital&keep=day").inputs.shape == (10,)


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("a.csv", b"", "cannot be read as a table"),
        ("b.csv", b"x,y\n", "has no rows"),
        ("c.csv", b'x,y\n1,2\n"3,4\n', "cannot be read as a table"),
        ("d.parquet", b"PAR1 nonsense", "cannot be read as a table"),
        ("e.txt", b"x,y\n1,2\n", "is neither a .csv nor a .parquet file"),
        ("f.csv", b"x,y\n\xff\xfe,2\n", "cannot be read as a table"),
    ],
)
def test_a_file_that_is_no_table_is_refused_in_a_sentence(
    name: str, content: bytes, sentence: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(FedloomError, match=sentence):
        load(f"table:{tmp_path / name}?target=y")
    with pytest.raises(FedloomError, match="does not exist"):
        load(f"table:{tmp_path}/absent.csv?target=y")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"inputs": "features"}', "[" * 100_000, '{"inputs": "sound"}', "\x00", "nul", '{"inputs":1}'],
)
def test_a_damaged_schema_is_refused_in_a_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text(text)
    with pytest.raises(FedloomError, match=r"is not a schema as a run writes it|nested too deeply"):
        table(patients(), tmp_path / "a.csv", f"target=outcome&schema={tmp_path}/schema.json")


def test_a_schema_with_other_columns_or_classes_is_refused_by_name(tmp_path: Path) -> None:
    frame = patients()
    (tmp_path / "schema.json").write_text(table(frame, tmp_path / "a.csv").schema)
    options = f"schema={tmp_path}/schema.json"
    with pytest.raises(FedloomError, match="the column 'bmi' of the schema is missing"):
        table(frame.drop(columns="bmi"), tmp_path / "b.csv", options)
    with pytest.raises(FedloomError, match="the column 'age' holds 'old'; the schema has numbers there"):
        table(frame.assign(age="old"), tmp_path / "c.csv", options)
    with pytest.raises(FedloomError, match="the label 'dead' is not in class_names, which are ill, well"):
        table(frame.assign(outcome="dead"), tmp_path / "d.csv", options)
