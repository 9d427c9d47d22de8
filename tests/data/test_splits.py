from __future__ import annotations

from collections import Counter
from math import gcd
from pathlib import Path
from time import perf_counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedloom.data import Dataset, InputSpec, Partition, check_spec, list_splits, split
from fedloom.errors import FedloomError
from fedloom.rng import numpy_generator

few = settings(max_examples=40, deadline=None)
seeds = st.integers(0, 2**31)


def made(train_counts: list[int], test_counts: list[int], seed: int = 0) -> Dataset:
    """Blank images in random order, with these numbers of each class."""
    random = numpy_generator(seed, "made")
    train, test = (
        torch.from_numpy(random.permutation(np.repeat(np.arange(len(counts)), counts)))
        for counts in (train_counts, test_counts)
    )
    return Dataset(
        name="made",
        train_x=torch.zeros(len(train), 1, 1, 1, dtype=torch.uint8),
        train_y=train,
        test_x=torch.zeros(len(test), 1, 1, 1, dtype=torch.uint8),
        test_y=test,
        classes=len(train_counts),
        class_names=tuple(map(str, range(len(train_counts)))),
        inputs=InputSpec.image((1, 1, 1)),
        mean=(0.0,),
        std=(1.0,),
        digest="",
    )


def same(a: Partition, b: Partition) -> bool:
    names = ("train_index", "train_offsets", "test_index", "test_offsets")
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


def table(y: torch.Tensor, parts: list[NDArray[np.int64]], classes: int) -> NDArray[np.int64]:
    """Images by client and class."""
    return np.stack([np.bincount(y.numpy()[part], minlength=classes) for part in parts])


def both(partition: Partition) -> tuple[list[NDArray[np.int64]], list[NDArray[np.int64]]]:
    everyone = range(partition.clients)
    return [partition.train(k) for k in everyone], [partition.test(k) for k in everyone]


@few
@given(train=st.integers(1, 200), test=st.integers(1, 60), clients=st.integers(1, 40), seed=seeds)
def test_iid_gives_each_image_to_one_client_and_equal_sizes(train: int, test: int, clients: int, seed: int) -> None:
    clients = min(clients, train)
    partition = split("iid", made([train], [test]), clients, seed)
    assert partition.clients == clients
    assert sorted(partition.train_index) == list(range(train))
    assert sorted(partition.test_index) == list(range(test))
    for offsets in (partition.train_offsets, partition.test_offsets):
        assert np.ptp(np.diff(offsets)) <= 1


@st.composite
def sharded(draw: st.DrawFn) -> tuple[Dataset, int, int]:
    """A set, a number of shards and a number of clients that fit each other."""
    classes, shards = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    clients = classes // gcd(shards, classes) * draw(st.integers(1, 4))
    each = shards * clients // classes
    train = draw(st.lists(st.integers(each, 4 * each + 3), min_size=classes, max_size=classes))
    test = draw(st.lists(st.integers(1, 3 * each), min_size=classes, max_size=classes))
    return made(train, test, draw(seeds)), shards, clients


def cut(y: NDArray[np.int64], label: int, pieces: int) -> list[list[int]]:
    """Consecutive equal shards of a class in file order; what is left over goes one each to the first."""
    members = [place for place, value in enumerate(y.tolist()) if value == label]
    size = len(members) // pieces
    shards = [members[number * size : (number + 1) * size] for number in range(pieces)]
    for number, left in enumerate(members[pieces * size :]):
        shards[number].append(left)
    return shards


@few
@given(case=sharded(), seed=seeds)
def test_shards_are_those_of_a_direct_computation(case: tuple[Dataset, int, int], seed: int) -> None:
    images, shards, clients = case
    each = shards * clients // images.classes
    partition = split(f"shards:{shards}", images, clients, seed)
    classes = np.tile(np.arange(images.classes), each)
    numpy_generator(seed, "split", "shards", "classes").shuffle(classes)
    for y, parts in zip((images.train_y, images.test_y), both(partition), strict=True):
        remaining = {label: cut(y.numpy(), label, each) for label in range(images.classes)}
        for row, part in zip(classes.reshape(clients, shards), parts, strict=True):
            held = part.tolist()
            for label in row:
                # The client's next images must be one of the shards of this class that nobody has taken yet.
                taken = [shard for shard in remaining[label] if held[: len(shard)] == shard]
                shard = max(taken, key=len)
                remaining[label].remove(shard)
                held = held[len(shard) :]
            assert held == []
        assert all(left == [] for left in remaining.values())


@few
@given(case=sharded(), seed=seeds)
def test_shards_own_all_and_test_the_classes_they_train(case: tuple[Dataset, int, int], seed: int) -> None:
    images, shards, clients = case
    partition = split(f"shards:{shards}", images, clients, seed)
    train, test = both(partition)
    assert sorted(partition.train_index) == list(range(len(images.train_y)))
    assert sorted(partition.test_index) == list(range(len(images.test_y)))
    trained, tested = table(images.train_y, train, images.classes), table(images.test_y, test, images.classes)
    assert ((trained > 0).sum(1) <= shards).all()
    assert not (tested[trained == 0]).any()
    each = shards * clients // images.classes
    if images.test_y.bincount().min() >= each:
        assert ((tested > 0) == (trained > 0)).all()


def test_shards_of_even_classes_are_of_equal_size() -> None:
    partition = split("shards:2", made([100] * 10, [20] * 10), 20, 0)
    assert set(np.diff(partition.train_offsets)) == {50}
    assert set(np.diff(partition.test_offsets)) == {10}


def test_every_shard_of_a_class_can_go_to_every_client() -> None:
    images = made([4], [4])
    seen = Counter(tuple(split("shards:1", images, 4, seed).train_index.tolist()) for seed in range(300))
    assert len(seen) == 24
    assert max(seen.values()) < 40


@settings(max_examples=40, deadline=None)
@given(
    counts=st.lists(st.integers(40, 120), min_size=2, max_size=5),
    tests=st.integers(1, 30),
    clients=st.integers(1, 5),
    concentration=st.sampled_from([0.5, 1.0, 10.0]),
    seed=seeds,
)
def test_dirichlet_owns_all_within_cap_and_minimum(
    counts: list[int], tests: int, clients: int, concentration: float, seed: int
) -> None:
    images = made(counts, [tests] * len(counts))
    partition = split(f"dirichlet:{concentration}", images, clients, seed)
    train, test = both(partition)
    assert sorted(partition.train_index) == list(range(len(images.train_y)))
    trained = table(images.train_y, train, images.classes)
    assert trained.sum(1).min() >= 10
    before = np.cumsum(trained, axis=1) - trained
    assert (before[trained > 0] < sum(counts) / clients).all()
    assert (table(images.test_y, test, images.classes) == np.minimum(trained, tests)).all()
    assert all(len(set(part.tolist())) == len(part) for part in test)


def test_dirichlet_gives_a_full_client_nothing_by_rounding() -> None:
    images = made([40, 40], [1, 1])
    for seed in range(60):
        trained = table(images.train_y, both(split("dirichlet:0.5", images, 3, seed))[0], 2)
        assert not trained[trained[:, 0] >= 80 / 3, 1].any()


def test_dirichlet_is_even_for_a_large_number_and_skewed_for_a_small_one() -> None:
    images = made([500] * 10, [100] * 10)
    even = table(images.train_y, both(split("dirichlet:100000", images, 10, 0))[0], 10)
    skewed = table(images.train_y, both(split("dirichlet:0.1", images, 10, 0))[0], 10)
    assert np.abs(even - 50).max() <= 5
    assert (skewed.max(1) / skewed.sum(1)).mean() > 0.4


def test_dirichlet_shuffles_each_class() -> None:
    images = made([400], [10])
    partition = split("dirichlet:1", images, 2, 0)
    assert not (np.diff(partition.train(0)) > 0).all()


def test_dirichlet_test_images_may_be_shared_by_clients() -> None:
    partition = split("dirichlet:1", made([100, 100], [10, 10]), 4, 0)
    assert len(partition.test_index) > len(set(partition.test_index.tolist()))


@pytest.mark.parametrize("spec", ["iid", "shards:2", "dirichlet:0.5"])
def test_a_split_depends_on_the_seed_alone(digits: Dataset, spec: str) -> None:
    first = split(spec, digits, 20, 7)
    np.random.seed(1)  # noqa: NPY002
    state = np.random.get_state()[1].copy()  # type: ignore[index] # noqa: NPY002
    torch.manual_seed(1)
    assert same(first, split(spec, digits, 20, 7))
    assert np.array_equal(state, np.random.get_state()[1])  # type: ignore[index] # noqa: NPY002
    other = split(spec, digits, 20, 8)
    assert not np.array_equal(first.train_index, other.train_index)
    assert not np.array_equal(first.test_index, other.test_index)
    assert set(first.train_index.tolist()) == set(range(1437))
    assert first.train_index.dtype == first.test_index.dtype == np.int64


@pytest.mark.parametrize("spec", ["iid", "shards:2", "dirichlet:0.5"])
def test_only_the_pool_is_given_away(digits: Dataset, spec: str) -> None:
    pool = numpy_generator(0, "pool").permutation(1437)[:1000]
    partition = split(spec, digits, 10, 0, pool)
    assert sorted(partition.train_index) == sorted(pool)
    assert same(partition, split(spec, digits, 10, 0, np.sort(pool)))


@pytest.mark.parametrize(
    "pool", [np.array([0, 0, 1]), np.array([-1, 2]), np.array([5000]), np.array([]), np.ones((2, 2))]
)
def test_a_pool_must_hold_indices_each_once(digits: Dataset, pool: NDArray[np.int64]) -> None:
    with pytest.raises(FedloomError, match="pool must"):
        split("iid", digits, 1, 0, pool)


def test_many_clients_cost_little() -> None:
    images = made([30_000] * 10, [2_000] * 10)
    start = perf_counter()
    partition = split("iid", images, 100_000, 0)
    assert perf_counter() - start < 1
    assert partition.clients == 100_000
    assert set(np.diff(partition.train_offsets)) == {3}


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [
        ("iid", "iid"),
        (" shards : 2 ", "shards:2"),
        ("dirichlet:.50", "dirichlet:0.5"),
        ("dirichlet:1", "dirichlet:1"),
        ("dirichlet:1e+1", "dirichlet:10"),
        ("dirichlet:0.125", "dirichlet:0.125"),
    ],
)
def test_a_split_has_one_spelling(spec: str, canonical: str) -> None:
    assert check_spec(spec) == canonical
    assert check_spec(canonical) == canonical


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("shard:2", "there is no term 'shard'; did you mean shards? allowed are color, corrupt, dirichlet, "),
        ("", "there is no term ''; allowed are"),
        ("iid+", "there is no term ''; allowed are"),
        ("iid:3", "iid takes no number; write iid"),
        ("shards", "shards needs an integer; write shards:2"),
        ("shards:2.5", "shards needs an integer; write shards:2"),
        ("shards:0", "a client needs at least one shard"),
        ("dirichlet:much", "dirichlet needs a number; write dirichlet:0.5"),
        ("dirichlet:nan", "dirichlet needs a number"),
        ("dirichlet:0", "must be a number above 0"),
        ("dirichlet:-0.5", "must be a number above 0"),
        ("dirichlet:1e999", "must be a number above 0"),
        ("dirichlet:0.5+shards:2", "dirichlet and shards both decide who holds what; keep one"),
    ],
)
def test_a_split_that_is_not_understood_is_refused(spec: str, sentence: str) -> None:
    with pytest.raises(FedloomError) as error:
        check_spec(spec)
    assert sentence in str(error.value)
    assert "split" in str(error.value)


@pytest.mark.parametrize(
    ("spec", "clients", "sentence"),
    [
        (
            "shards:3",
            17,
            "51 shards cannot be taken evenly from 10 classes; what works: shards:3 with 10 or 20 clients",
        ),
        ("shards:3", 17, "clients, or shards:10 with 17 clients"),
        ("shards:2", 200, "class 3 has 30 training samples for 40 shards; what works: shards:2 with 150 clients"),
        ("shards:2", 200, "clients, or shards:1 with 200 clients"),
        ("dirichlet:0.5", 94, "930 training samples are too few for 94 clients; use at most 93 clients"),
        ("dirichlet:0.01", 60, "what works: dirichlet:1 with 60 clients, or dirichlet:0.01 with 9 clients"),
        ("iid", 0, "clients is 0; allowed is 1 to 930"),
        ("iid", 931, "clients is 931; allowed is 1 to 930"),
    ],
)
def test_an_impossible_split_proposes_what_works(spec: str, clients: int, sentence: str) -> None:
    images = made([100, 100, 100, 30, 100, 100, 100, 100, 100, 100], [10] * 10)
    with pytest.raises(FedloomError) as error:
        split(spec, images, clients, 0)
    assert sentence in str(error.value)


@few
@given(
    shards=st.integers(1, 30), clients=st.integers(1, 60), counts=st.lists(st.integers(1, 40), min_size=1, max_size=6)
)
def test_what_a_refused_sharding_advises_does_work(shards: int, clients: int, counts: list[int]) -> None:
    images = made(counts, counts)
    clients = min(clients, sum(counts))
    try:
        split(f"shards:{shards}", images, clients, 0)
    except FedloomError as error:
        advice = str(error).partition("what works: ")[2]
        for phrase in advice.split(", or ") if "with more images" not in advice else []:
            before, after = phrase.split(" with ")
            for spec in before.split(" or "):
                for number in after.removesuffix(" clients").split(" or "):
                    assert split(spec, images, int(number), 0).clients == int(number)
        if f"shards:{shards} with" not in advice:
            for fewer in range(1, sum(counts) + 1):
                with pytest.raises(FedloomError):
                    split(f"shards:{shards}", images, fewer, 0)


def test_a_tiny_dirichlet_number_ends_with_a_sentence() -> None:
    with pytest.raises(FedloomError, match="in 2000 draws some client always held fewer than 10"):
        split("dirichlet:1e-300", made([20, 20], [5, 5]), 3, 0)


def test_a_partition_is_saved_and_loaded_whole(tmp_path: Path, digits: Dataset) -> None:
    partition = split("dirichlet:0.5", digits, 10, 0)
    partition.save(tmp_path / "partition.npz")
    partition.save(tmp_path / "partition.npz")
    assert [path.name for path in tmp_path.iterdir()] == ["partition.npz"]
    assert same(partition, Partition.load(tmp_path / "partition.npz", digits))
    with np.load(tmp_path / "partition.npz", allow_pickle=False) as archive:
        held = archive["train_index"][archive["train_offsets"][3] : archive["train_offsets"][4]]
    assert np.array_equal(held, partition.train(3))


def test_a_client_that_is_not_there_is_an_index_error(digits: Dataset) -> None:
    partition = split("iid", digits, 5, 0)
    for client in (-1, 5):
        with pytest.raises(IndexError):
            partition.train(client)
        with pytest.raises(IndexError):
            partition.test(client)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train_offsets": [0, 3, 2, 4]}, "train_offsets must rise from 0"),
        ({"train_offsets": [1, 2, 3, 4]}, "train_offsets must rise from 0"),
        ({"test_offsets": [0, 1, 2, 3]}, "test_offsets must rise from 0 to the length of test_index, 2"),
        ({"test_offsets": [0, 2]}, "different numbers of clients"),
        ({"train_index": [0, 1, -2, 3]}, "train_index holds -2"),
        ({"train_index": [0, 1, 2, 5000]}, "train_index holds 5000, but digits has 1437 train samples"),
        ({"test_index": [0.5, 1.5]}, "test_index is float64"),
        ({"test_index": None}, "not a partition"),
        ({"test_index": [None, None]}, "not a partition"),
    ],
)
def test_a_partition_that_does_not_fit_is_refused(
    tmp_path: Path, digits: Dataset, changes: dict[str, list[int] | None], words: str
) -> None:
    sound = {
        "train_index": [0, 1, 2, 3],
        "train_offsets": [0, 1, 2, 4],
        "test_index": [5, 6],
        "test_offsets": [0, 1, 1, 2],
    }
    arrays = {name: np.array(values) for name, values in (sound | changes).items() if values is not None}
    np.savez(tmp_path / "bad.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(FedloomError) as error:
        Partition.load(tmp_path / "bad.npz", digits)
    assert "bad.npz" in str(error.value)
    assert words in str(error.value)


def test_a_partition_file_that_is_damaged_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.npz").write_bytes(b"PK\x03\x04 and then nothing")
    with pytest.raises(FedloomError, match="not a partition"):
        Partition.load(tmp_path / "bad.npz")
    with pytest.raises(FedloomError, match="not a partition"):
        Partition.load(tmp_path / "absent.npz")


def test_the_list_has_every_term_with_a_summary_and_an_example_that_parses() -> None:
    listed = {row["name"]: row for row in list_splits()}
    assert {"iid", "shards", "dirichlet"} <= set(listed)
    for name, row in listed.items():
        assert row["summary"]
        assert name in check_spec(row["example"])
