"""How records are cut into clients: every record once, as skewed as asked, and no client's number
decides what it gets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.data.partitions import Partition, make_partition
from fl_shuffle.errors import FlShuffleError

LABELS = np.repeat(np.arange(10), 100)
MANY = np.random.default_rng(4).permutation(np.repeat(np.arange(10), 600))


def cut(labels: NDArray[Any] = LABELS, clients: int = 20, **more: Any) -> Partition:
    return make_partition(DataSection(clients=clients, **more), labels, 10)


def held(parts: Partition, labels: NDArray[Any]) -> list[NDArray[Any]]:
    """Each client's labels."""
    return np.split(labels[parts.order], parts.offsets[1:-1])


def top_shares(parts: Partition, labels: NDArray[Any]) -> NDArray[np.float64]:
    """The share of each client's most frequent class."""
    return np.array([np.bincount(own).max() / len(own) for own in held(parts, labels)])


@pytest.mark.parametrize(
    ("partition", "fewest", "most"),
    [("iid", 8, 10), ("dirichlet", 1, 6), ("shards", 1, 4), ("dirichlet-by-class", 1, 6),
     ("classes", 2, 2)],
)  # fmt: skip
def test_partitions_are_disjoint_repeatable_and_skewed(
    partition: str, fewest: int, most: int
) -> None:
    wanted: dict[str, Any] = {"partition": partition, "dirichlet_alpha": 0.05}
    parts = cut(**wanted)
    if partition not in ("dirichlet-by-class", "classes"):
        assert parts.sizes.tolist() == [50] * 20
    assert parts.sizes.min() >= 1 and parts.sizes.sum() == 1000
    assert np.array_equal(np.sort(parts.order), np.arange(1000))
    assert (parts.order == cut(**wanted).order).all()
    assert not np.array_equal(parts.order, cut(**wanted, seed=1).order)
    classes = [len(np.unique(own)) for own in held(parts, LABELS)]
    assert fewest <= np.mean(classes) <= most


@pytest.mark.slow
@pytest.mark.parametrize("partition", ["dirichlet", "dirichlet-by-class"])
def test_dirichlet_has_no_trend_by_client_number(partition: str) -> None:
    """Of 100 clients the first twenty and the last twenty are as skewed: over 40 seeds their
    difference is within five standard errors of 0."""
    differences = []
    for seed in range(40):
        shares = top_shares(
            cut(MANY, 100, partition=partition, dirichlet_alpha=0.1, seed=seed), MANY
        )
        differences.append(shares[:20].mean() - shares[-20:].mean())
    error = np.std(differences) / np.sqrt(len(differences))
    assert abs(np.mean(differences)) < 5 * error < 0.05


@pytest.mark.parametrize("partition", ["dirichlet", "dirichlet-by-class"])
def test_dirichlet_is_the_more_skewed_the_smaller_alpha(partition: str) -> None:
    def skew(alpha: float) -> float:
        seeds = range(5)
        cuts = [
            cut(MANY, 60, partition=partition, dirichlet_alpha=alpha, seed=seed) for seed in seeds
        ]
        return float(np.mean([top_shares(parts, MANY).mean() for parts in cuts]))

    found = [skew(alpha) for alpha in (100.0, 1.0, 0.1, 1e-3, 1e-8, 1e-300)]
    assert found[0] < found[1] < found[2] < found[3]
    # Below, clients have one class each where there are enough of it: nothing is left to gain.
    assert found[4] > found[3] - 0.03 and found[5] > found[3] - 0.03


@pytest.mark.slow
def test_dirichlet_shares_have_the_right_moments() -> None:
    """Of one client among two classes the share is Beta(alpha, alpha): variance 1 / (8 alpha + 4).
    With 4,000 clients of 50 of plenty of records its estimate is within five standard errors."""
    labels = np.repeat([0, 1], 1_000_000)
    parts = make_partition(
        DataSection(
            clients=4000, records_per_client=50, partition="dirichlet", dirichlet_alpha=0.5
        ),
        labels,
        2,
    )
    ones = labels[parts.order].reshape(4000, 50).mean(axis=1)
    # Of binomial draws: the variance of the share, and that of drawing.
    variance = 1 / 8
    expected = variance + (1 / 4 - variance) / 50
    assert abs(ones.mean() - 0.5) < 5 * np.sqrt(expected / 4000)
    error = np.std((ones - 0.5) ** 2) / np.sqrt(4000)
    assert abs(np.mean((ones - 0.5) ** 2) - expected) < 5 * error


def test_by_class_leaves_no_client_without_a_record() -> None:
    parts = cut(clients=300, partition="dirichlet-by-class", dirichlet_alpha=0.01)
    assert parts.sizes.min() == 1 and parts.sizes.max() > 10
    assert np.array_equal(np.sort(parts.order), np.arange(1000))


@pytest.mark.parametrize("each", [1, 3, 10])
def test_classes_gives_each_client_so_many_classes(each: int) -> None:
    parts = cut(clients=37, partition="classes", classes_per_client=each)
    owned = [np.unique(own) for own in held(parts, LABELS)]
    assert {len(own) for own in owned} == {each}
    # Classes have as many clients but for one.
    counts = np.bincount(np.concatenate(owned), minlength=10)
    assert counts.max() - counts.min() <= each and parts.sizes.sum() == 1000
    other = cut(clients=37, partition="classes", classes_per_client=each, seed=9)
    assert any(
        not np.array_equal(a, np.unique(b))
        for a, b in zip(owned, held(other, LABELS), strict=True)
    ) or each == 10  # fmt: skip


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "ordered"])
def test_sizes_by_dirichlet(partition: str) -> None:
    def sizes(alpha: float) -> NDArray[np.int64]:
        return cut(partition=partition, sizes="dirichlet", sizes_alpha=alpha).sizes

    for alpha in (1e-6, 0.3, 1e6):
        assert sizes(alpha).min() >= 1 and 980 <= sizes(alpha).sum() <= 1000
    assert sizes(1e-6).max() > 950 and sizes(1e6).max() <= 51
    assert np.std(sizes(0.3)) > 20


def test_what_the_partition_decides_is_no_setting() -> None:
    for partition in ("dirichlet-by-class", "classes", "natural"):
        for more in ({"records_per_client": 5}, {"sizes": "unequal"}):
            with pytest.raises(FlShuffleError, match="changes nothing with data.partition"):
                parse_config({"data": {"partition": partition, **more}})
    for partition in ("dirichlet-by-class", "classes"):
        config = parse_config({"data": {"partition": partition}})
        assert config.relation.endswith("after the partition by label")
