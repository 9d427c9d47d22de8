"""Who holds what: priors by client, sizes, domains, writers, stored files, and sums of them."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from making import made_set
from numpy.typing import NDArray

from fedloom.data import Dataset, Partition, check_spec, split, stages
from fedloom.errors import FedloomError
from fedloom.rng import numpy_generator

few = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**31)


def same(a: Partition, b: Partition) -> bool:
    names = ("train_index", "train_offsets", "test_index", "test_offsets")
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


def sizes(partition: Partition) -> NDArray[np.int64]:
    return np.diff(partition.train_offsets)


def counts(images: Dataset, partition: Partition, part: str = "train") -> NDArray[np.int64]:
    """Images by client and class."""
    y = getattr(images, f"{part}_y").numpy()
    held = [getattr(partition, part)(k) for k in range(partition.clients)]
    return np.stack([np.bincount(y[index], minlength=images.classes) for index in held])


@few
@given(
    train=st.lists(st.integers(30, 90), min_size=2, max_size=5),
    clients=st.integers(1, 6),
    concentration=st.sampled_from([1e-4, 0.1, 1.0, 100.0]),
    seed=seeds,
)
def test_priors_by_client_give_every_image_to_one_client_and_equal_sizes(
    train: list[int], clients: int, concentration: float, seed: int
) -> None:
    images = made_set(train, [7] * len(train))
    partition = split(f"dirichlet-client:{concentration}", images, clients, seed)
    assert sorted(partition.train_index) == list(range(sum(train)))
    assert np.ptp(sizes(partition)) <= 1
    expected = np.minimum(counts(images, partition), 7)
    assert np.array_equal(counts(images, partition, "test"), expected)


def test_priors_by_client_are_those_that_were_drawn() -> None:
    """With enough images that no class runs out, class shares are the drawn priors, up to the noise of sampling."""
    images = made_set([20_000] * 4, [10] * 4)
    partition = split("dirichlet-client:50", images, 8, 3)
    prior = numpy_generator(3, "split", "dirichlet-client", "priors").dirichlet(np.full(4, 50.0), 8)
    shares = counts(images, partition) / sizes(partition)[:, None]
    early = np.abs(shares - prior).max(1)
    assert early.mean() < 0.03
    assert prior.std(0).min() > 0.02  # so the priors do differ


def test_lognormal_sizes_have_the_deviation_that_was_asked_for() -> None:
    images = made_set([4000] * 5, [10] * 5)
    partition = split("dirichlet-client:1:0.5", images, 100, 0)
    assert sizes(partition).sum() == 20_000
    assert sizes(partition).min() >= 10
    assert np.log(sizes(partition)).std() == pytest.approx(0.5, abs=0.1)


@few
@given(count=st.integers(60, 300), clients=st.integers(1, 5), seed=seeds)
def test_quantity_cuts_train_and_test_by_the_same_shares(count: int, clients: int, seed: int) -> None:
    partition = split("quantity:2", made_set([count], [count]), clients, seed)
    assert sorted(partition.train_index) == sorted(partition.test_index) == list(range(count))
    assert np.array_equal(partition.train_offsets, partition.test_offsets)
    assert sizes(partition).min() >= 10
    assert same(partition, split("iid+quantity:2", made_set([count], [count]), clients, seed))


def test_quantity_is_uneven_for_a_small_number() -> None:
    images = made_set([5000], [100])
    uneven, even = (sizes(split(f"quantity:{b}", images, 10, 0)) for b in ("0.5", "1000"))
    assert uneven.max() > 5 * uneven.min()
    assert even.max() < 1.3 * even.min()


@few
@given(
    shards=st.integers(1, 4),
    classes=st.integers(2, 6),
    groups=st.integers(1, 3),
    seed=seeds,
)
def test_shards_and_quantity_give_each_client_its_classes_unevenly(
    shards: int, classes: int, groups: int, seed: int
) -> None:
    shards, clients = min(shards, classes), classes * groups
    images = made_set([200] * classes, [200] * classes)
    partition = split(f"shards:{shards}+quantity:1", images, clients, seed)
    assert sorted(partition.train_index) == list(range(200 * classes))
    held = counts(images, partition)
    assert ((held > 0).sum(1) == shards).all()  # exactly this number, none twice
    assert ((held > 0).sum(0) == shards * clients // classes).all()
    assert held.sum(1).min() >= 10
    assert np.array_equal(counts(images, partition, "test"), held)  # as many test samples, so the same shares
    if clients * shards > classes:
        assert len(np.unique(held[held > 0])) > 1


@pytest.mark.parametrize("inner", ["", "+iid", "+dirichlet:0.5", "+dirichlet-client:0.5", "+quantity:1", "+shards:2"])
def test_clients_of_a_domain_hold_that_domain_alone(inner: str) -> None:
    images = made_set([240] * 4, [60] * 4, domains=3)
    partition = split(f"domains{inner}", images, 6, 0)
    assert sorted(partition.train_index) == list(range(960))
    assert images.train_domain is not None
    assert images.test_domain is not None
    for client in range(6):
        assert set(images.train_domain.numpy()[partition.train(client)]) == {client // 2}
        assert set(images.test_domain.numpy()[partition.test(client)]) == {client // 2}
    if "shards" in inner:
        assert ((counts(images, partition) > 0).sum(1) <= 2).all()
    if inner in ("", "+iid"):
        assert same(partition, split("domains", images, 6, 0))


def test_one_client_per_domain_holds_all_of_it() -> None:
    images = made_set([100] * 3, [30] * 3, domains=5)
    partition = split("domains", images, 5, 0)
    assert images.train_domain is not None
    for client in range(5):
        assert sorted(partition.train(client)) == np.flatnonzero(images.train_domain == client).tolist()


def test_writers_are_clients_and_some_are_drawn_when_there_are_more() -> None:
    images = made_set([100] * 3, [40] * 3, writers=9)
    assert images.train_client is not None
    assert images.test_client is not None
    everyone = split("writers", images, 9, 0)
    for client in range(9):
        assert everyone.train(client).tolist() == np.flatnonzero(images.train_client == client).tolist()
        assert everyone.test(client).tolist() == np.flatnonzero(images.test_client == client).tolist()
    chosen = set()
    for seed in range(8):
        partition = split("writers", images, 4, seed)
        writers = [set(images.train_client.numpy()[partition.train(k)].tolist()) for k in range(4)]
        assert all(len(each) == 1 for each in writers)
        order = [each.pop() for each in writers]
        assert order == sorted(set(order))
        chosen.add(tuple(order))
    assert len(chosen) > 3


@pytest.mark.parametrize(
    ("terms", "canonical"),
    [
        (("shards:2", "quantity:0.5", "noise:0.1"), "shards:2+quantity:0.5+noise:0.1"),
        (("domains", "dirichlet:2", "rotate"), "domains+dirichlet:2+rotate"),
        (("noise:0.1", "rotate:90", "permute:0.5"), "iid+rotate:90+noise:0.1+permute:0.5"),
    ],
)
def test_the_order_of_a_sum_does_not_matter(terms: tuple[str, ...], canonical: str) -> None:
    images = made_set([240] * 4, [60] * 4, domains=2, shape=(4, 4, 1))
    first = stages("+".join(terms), images, 4, 5)[0]
    for order in permutations(terms):
        assert check_spec("+".join(order)) == canonical
        other = stages("+".join(order), images, 4, 5)[0]
        assert same(other.partition, first.partition)
        mine, theirs = first.train(3), other.train(3)
        assert np.array_equal(mine.x[mine.rows], theirs.x[theirs.rows])
        assert np.array_equal(mine.y, theirs.y)


@pytest.mark.parametrize(
    ("spec", "clients", "sentence"),
    [
        (
            "domains",
            5,
            "has 3 domains, so the number of clients must be 3 or a multiple of it; what works: 3 or 6 clients",
        ),
        ("domains", 2, "what works: 3 or 6 clients"),
        ("writers", 9, "has training samples of 4 writers; use at most 4 clients"),
        ("domains+writers", 3, "domains and writers both decide who holds what; keep one"),
        ("domains+file:a.npz", 3, "domains and file both decide"),
        ("domains+domains", 3, "domains occurs twice"),
        ("dirichlet:0.5+quantity:0.5", 3, "dirichlet and quantity both decide who holds what"),
        ("quantity:0", 3, "must be a number above 0"),
        ("dirichlet-client:0.3:-1", 3, "the deviation of sizes must be 0 or more"),
        ("dirichlet-client:0.3:1:2", 3, "dirichlet-client needs at most 2 numbers"),
        ("dirichlet-client", 3, "dirichlet-client needs a number; write dirichlet-client:0.3"),
        ("file:", 3, "file needs a path; write file:split.npz"),
        ("file:absent.npz", 3, "absent.npz is not a partition"),
        ("noise:0.1+noise:0.2", 3, "noise occurs twice; keep one"),
        ("noise:-1", 3, "the deviation must be 0 to 10"),
        ("corrupt:0", 3, "the severity must be 1 to 5"),
        ("corrupt:2.5", 3, "corrupt needs an integer"),
        ("corrupt:2", 3, "needs images of 4 x 4 pixels or more"),
        ("permute:1.5", 3, "the share of clients must be 0 to 1"),
        ("permute:0.5:1", 3, "at least two classes"),
        ("permute:0.5:9", 3, "has 2 classes"),
        ("rotate:400", 3, "the angle must be -360 to 360"),
        ("color", 3, "needs images with three channels; made has 1"),
        ("iid; shards:2", 3, "after the semicolon, expected a round (2 or more), a colon and a split"),
        ("iid; 1: shards:2", 3, "after the semicolon, expected a round (2 or more)"),
        ("iid; 5: iid; 5: iid", 3, "the first rounds of its stages must increase"),
        ("iid; 5: same+shards:2", 3, "same and shards both decide"),
        ("same", 3, "there is no term 'same'"),
    ],
)
def test_an_impossible_split_is_refused_with_a_reason(spec: str, clients: int, sentence: str) -> None:
    images = made_set([60, 60], [20, 20], domains=3, writers=4)
    with pytest.raises(FedloomError) as error:
        split(spec, images, clients, 0)
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_datasets_without_domain_or_writer_labels_are_refused() -> None:
    for spec, sentence in (("domains", "has no domain labels"), ("writers", "has no writer labels")):
        with pytest.raises(FedloomError, match=sentence):
            split(spec, made_set([60], [20]), 1, 0)


@pytest.mark.parametrize(
    ("spec", "clients"), [("dirichlet:0.01", 40), ("quantity:0.05", 40), ("domains+quantity:0.05", 40)]
)
def test_what_is_advised_does_work(spec: str, clients: int) -> None:
    images = made_set([200] * 5, [20] * 5, domains=2)
    with pytest.raises(FedloomError, match="what works: ") as error:
        split(spec, images, clients, 0)
    advice = str(error.value).partition("what works: ")[2].split(", or ")
    assert len(advice) == 2
    for phrase in advice:
        other, number = phrase.removesuffix(" clients").split(" with ")
        assert (other == spec) != (int(number) == clients)
        assert split(other, images, int(number), 0).clients == int(number)


def test_a_stored_split_is_used_as_it_is(tmp_path: Path) -> None:
    images = made_set([60, 60], [20, 20])
    partition = split("dirichlet:1", images, 4, 7)
    partition.save(tmp_path / "p.npz", data="made", data_digest=images.digest)
    assert same(partition, split(f"file:{tmp_path / 'p.npz'}", images, 4, 0))
    with pytest.raises(FedloomError, match="is for 4 clients, not for 3"):
        split(f"file:{tmp_path / 'p.npz'}", images, 3, 0)
    partition.save(tmp_path / "other.npz", data="elsewhere", data_digest="of other images")
    with pytest.raises(FedloomError, match=r"made for other data than made \(elsewhere\)"):
        split(f"file:{tmp_path / 'other.npz'}", images, 4, 0)
    pool = np.setdiff1d(np.arange(120), partition.train(0)[:1])
    with pytest.raises(FedloomError, match="held back for validation"):
        split(f"file:{tmp_path / 'p.npz'}", images, 4, 0, pool)


@pytest.mark.parametrize(
    ("train", "offsets", "words"),
    [
        ([0, 1, 2], [0, 3, 3], "client 1 has no training samples"),
        ([0, 1, 1], [0, 2, 3], "two clients hold the same training sample"),
    ],
)
def test_a_stored_split_that_makes_no_sense_is_refused(
    tmp_path: Path, train: list[int], offsets: list[int], words: str
) -> None:
    path = tmp_path / "p.npz"
    np.savez(path, train_index=train, train_offsets=offsets, test_index=[0], test_offsets=[0, 1, 1])
    with pytest.raises(FedloomError, match=words):
        split(f"file:{path}", made_set([60], [20]), 2, 0)


def test_a_later_stage_draws_again_or_keeps_the_partition() -> None:
    images = made_set([60, 60], [20, 20], shape=(4, 4, 1))
    first, again, noisy, plain = stages("iid; 5: iid; 8: noise:0.1; 9: same", images, 4, 0)
    assert [stage.begin for stage in (first, again, noisy, plain)] == [1, 5, 8, 9]
    assert not same(first.partition, again.partition)
    assert same(again.partition, noisy.partition)
    assert same(again.partition, plain.partition)
    assert [len(stage.shifts) for stage in (first, again, noisy, plain)] == [0, 0, 1, 0]
    assert same(first.partition, split("iid", images, 4, 0))


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [
        ("iid;30:shards:2", "iid; 30: shards:2"),
        ("iid; 5: same+noise:.1; 07 : same", "iid; 5: noise:0.1; 7: same"),
        ("noise:0.1", "iid+noise:0.1"),
        ("dirichlet-client:0.3:0", "dirichlet-client:0.3"),
        ("permute:0.5:3", "iid+permute:0.5:3"),
    ],
)
def test_stages_and_sums_have_one_spelling(spec: str, canonical: str) -> None:
    assert check_spec(spec) == canonical
    assert check_spec(canonical) == canonical
