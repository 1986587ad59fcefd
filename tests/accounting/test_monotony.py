"""A round that hides a client better does not cost more: random settings with at least 20 clients.

Every bound is valid by its own proof. Here bounds are compared with each other: a setting in which
more is there to hide a client, or less to be hidden, must not have a larger epsilon.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace

import numpy as np
import pytest

from fl_shuffle.accounting.bounds.partial_shuffle.curve import nearest_settings
from fl_shuffle.accounting.bounds.partial_shuffle.gaussian_bound import RoundGeometry
from fl_shuffle.accounting.bounds.sum_release.honest import AssumedHonest
from fl_shuffle.accounting.client_classes import ClientClass, ShuffledRound
from fl_shuffle.accounting.rounds.coarser import coarser
from fl_shuffle.accounting.rounds.round_library import RoundLibrary, curve_of
from fl_shuffle.accounting.rounds.shuffled_view import MAX_BALLS_TOLD_APART, ShuffledView

MORE = 1.005
"""A better setting may cost this many times the other one: constants are searched for."""
MORE_ABSENT = 1.10
"""A batch with absences may cost this many times a federation of those who are present."""
DELTA = 1e-6


@dataclass(frozen=True)
class Setting:
    """One client among others; lengths are in noise standard deviations."""

    kind: ShuffledRound
    rounds: int
    delta: float

    @property
    def epsilon(self) -> float:
        return RoundLibrary().epsilon({self.kind: self.rounds}, self.delta)


def random_setting(rng: np.random.Generator, rounds: int = 1) -> Setting:
    """At least 19 others in one to five balls, client or record unit."""
    groups = int(rng.integers(1, 6))
    radii = np.sort(np.exp(rng.uniform(math.log(0.03), math.log(1.2), groups)))
    counts = np.exp(rng.uniform(math.log(20.0), math.log(5000.0), groups)).astype(int)
    radius = float(rng.choice(radii))
    move = 2.0 * radius * (1.0 if rng.random() < 0.5 else float(rng.uniform(0.1, 1.0)))
    others = tuple(zip(radii.tolist(), counts.tolist(), strict=True))
    kind = ShuffledRound("gaussian", 1.0, radius, move, others)
    return Setting(kind, rounds, 10.0 ** float(rng.uniform(-10.0, -3.0)))


def with_more(kind: ShuffledRound, radius: float, count: int) -> ShuffledRound:
    others = dict(kind.others)
    others[radius] = others.get(radius, 0) + count
    return replace(kind, others=tuple(sorted(others.items())))


def better(setting: Setting, way: str, rng: np.random.Generator) -> Setting:
    """A setting that must not cost more."""
    kind = setting.kind
    share = float(rng.uniform(0.01, 1.0))
    some = 1 + int(share * kind.anonymity)
    if way == "more clients":
        return replace(setting, kind=with_more(kind, float(rng.choice(kind.others)[0]), some))
    if way == "wider clients":
        wider = kind.others[-1][0] * (1.0 + share)
        return replace(setting, kind=with_more(kind, wider, some))
    if way == "smaller move":
        return replace(
            setting, kind=replace(kind, sensitivity=kind.sensitivity * (1.0 - 0.3 * share))
        )
    if way == "more noise":
        return replace(setting, kind=replace(kind, scale=kind.scale * (1.0 + 0.3 * share)))
    if way == "larger delta":
        return replace(setting, delta=min(setting.delta * 10.0**share, 0.01))
    if way == "fewer rounds":
        return replace(setting, rounds=max(1, round(setting.rounds * share)))
    raise ValueError(way)


WAYS = ("more clients", "wider clients", "smaller move", "more noise", "larger delta",
        "fewer rounds", "fewer colluders", "absences")  # fmt: skip
SETTINGS = int(os.environ.get("FL_SHUFFLE_SETTINGS", "16"))
"""Of all ways together. A full check takes 300: set FL_SHUFFLE_SETTINGS, and some hours."""


def check(way: str, seed: int) -> None:
    rng = np.random.default_rng([WAYS.index(way), seed])
    if way == "absences":
        check_absences(rng)
        return
    worse = random_setting(rng, rounds=int(rng.integers(2, 20)) if way == "fewer rounds" else 1)
    if way == "fewer colluders":
        # At least 20 clients are left; `worse` has more colluders among the same clients.
        most = worse.kind.anonymity - 20
        many = int(rng.integers(0, most + 1))
        few = int(rng.integers(0, many + 1))
        best = replace(worse, kind=worse.kind.without(few))
        worse = replace(worse, kind=worse.kind.without(many))
    else:
        best = better(worse, way, rng)
    assert best.epsilon <= MORE * worse.epsilon, (best, worse)


def view(radii: list[float], class_of: np.ndarray, honest: AssumedHonest = None) -> ShuffledView:
    classes = [ClientClass("gaussian", 1.0, radius, 2.0 * radius) for radius in radii]
    return ShuffledView(
        classes, class_of, schedule="aggregate", unit="client", assumed_honest=honest
    )


def with_absences(
    radii: list[float],
    class_of: np.ndarray,
    present: np.ndarray,
    honest: AssumedHonest = None,
    delta: float = DELTA,
) -> tuple[list[float], list[float]]:
    """Epsilon of one round for each class that is present: with absences, and of a federation of
    exactly those who are present."""
    whole, fresh = view(radii, class_of, honest), view(radii, class_of[present], honest)
    kinds = whole.round_types(present), fresh.round_types(np.ones(int(present.sum()), dtype=bool))
    costs: tuple[list[float], list[float]] = [], []
    for one in np.unique(class_of[present]).tolist():
        local = replace(next(iter(kinds[0].values())), radius=radii[one],
                        sensitivity=2.0 * radii[one], others=())  # fmt: skip
        for each, accounts, found in zip(
            kinds,
            (whole.account_of[class_of == one], fresh.account_of[class_of[present] == one]),
            costs,
            strict=True,
        ):
            kind = each.get(int(accounts[0]), local)
            found.append(RoundLibrary().epsilon({kind: 1}, delta))
    return costs


def check_absences(rng: np.random.Generator) -> None:
    """Every class has an arrival rate of its own; one in four hardly arrives at all."""
    groups = int(rng.integers(1, 5))
    radii = np.sort(np.exp(rng.uniform(math.log(0.05), math.log(0.8), groups))).tolist()
    counts = np.exp(rng.uniform(math.log(100.0), math.log(3000.0), groups)).astype(int)
    class_of = np.repeat(np.arange(groups), counts)
    rates = np.where(rng.random(groups) < 0.25, 0.02 * rng.random(groups), rng.random(groups))
    rates[rng.integers(groups)] = max(0.3, rates.max())
    present = rng.random(class_of.size) < rates[class_of]
    absent, fresh = with_absences(
        radii, class_of, present, delta=10.0 ** float(rng.uniform(-8.0, -4.0))
    )
    for cost, least in zip(absent, fresh, strict=True):
        assert cost <= MORE_ABSENT * least, (radii, counts, rates)


@pytest.mark.parametrize("way", ["more clients", "wider clients", "fewer colluders"])
def test_a_better_setting_costs_no_more(way: str) -> None:
    check(way, 0)


EACH = [(way, seed) for way in WAYS for seed in range(math.ceil(SETTINGS / len(WAYS)))]
KNOWN: set[tuple[str, int]] = set()
"""Settings that still break the promise by more than the tolerance; valid bounds all the same."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("way", "seed"),
    [
        pytest.param(*each, marks=pytest.mark.xfail(each in KNOWN, reason="open", strict=True))
        for each in EACH
    ],
)
def test_many_better_settings_cost_no_more(way: str, seed: int) -> None:
    check(way, seed)


def test_wider_clients_beside_the_others_cost_nothing() -> None:
    kind = ShuffledRound("gaussian", 1.0, 0.582, 1.164, ((0.582, 4270),))
    alone = Setting(kind, 1, DELTA).epsilon
    assert Setting(with_more(kind, 0.873, 1423), 1, DELTA).epsilon <= MORE * alone


def test_stricter_clients_that_are_absent_cost_nothing() -> None:
    class_of = np.repeat([0, 1], [50, 450])
    (absent,), (fresh,) = with_absences([0.25, 0.5], class_of, class_of == 1)
    assert absent <= MORE_ABSENT * fresh


@pytest.mark.slow
@pytest.mark.parametrize(
    ("radii", "registered", "arrived", "delta"),
    [
        # A shape that lost half of the nearest two classes was taken for nearly as good.
        ([0.06996, 0.45462, 0.52778], [1001, 305, 328], [105, 203, 73], 2.77e-6),
        ([0.09431, 0.1299, 0.44187, 0.53341], [450, 533, 142, 181], [2, 12, 123, 149], 7.05e-8),
    ],
)
def test_few_reports_of_several_classes_are_hardly_rounded(
    radii: list[float], registered: list[int], arrived: list[int], delta: float
) -> None:
    class_of = np.repeat(np.arange(len(radii)), registered)
    present = np.concatenate([np.arange(n) < k for n, k in zip(registered, arrived, strict=True)])
    absent, fresh = with_absences(radii, class_of, present, delta=delta)
    assert all(a <= 1.06 * b for a, b in zip(absent, fresh, strict=True))


def test_a_coarser_batch_keeps_the_nearest_classes() -> None:
    """Which prefix of the radii is the best one changes with epsilon: all of them are kept."""
    radii = (0.06996, 0.45462, 0.52778)

    def kind(*counts: int) -> ShuffledRound:
        others = tuple(zip(radii, counts, strict=True))
        return ShuffledRound("gaussian", 1.0, radii[2], 2.0 * radii[2], others)

    found = np.cumsum(
        [count for _, count in coarser(kind(105, 203, 72), kind(1001, 305, 327)).others]
    )
    assert np.all(found >= 0.92 * np.cumsum([105, 203, 72]))


@pytest.mark.slow
@pytest.mark.parametrize("honest", [800, 0.7])
def test_honest_reports_of_those_present_are_counted(honest: AssumedHonest) -> None:
    """Hardly anybody of the strict class arrives, and some who arrive may be colluders."""
    class_of = np.repeat([0, 1], [300, 700])
    present = np.arange(1000) >= 295
    absent, fresh = with_absences([0.3, 0.5], class_of, present, honest)
    assert all(a <= MORE_ABSENT * b for a, b in zip(absent, fresh, strict=True))


def test_the_strictest_of_many_radii_keeps_its_ball() -> None:
    """Forty radii are too many to tell apart; the smallest is far from all others."""
    radii = [0.02, *np.linspace(0.3, 0.6, 40).tolist()]
    class_of = np.repeat(np.arange(41), [200] + [20] * 40)
    found = view(radii, class_of)
    kinds = found.round_types(np.ones(class_of.size, dtype=bool))
    assert len(kinds) <= MAX_BALLS_TOLD_APART
    own = kinds[int(found.account_of[0])]
    assert isinstance(own, ShuffledRound) and own.radius == 0.02
    for client in range(class_of.size):
        kind, radius = kinds[int(found.account_of[client])], radii[class_of[client]]
        assert isinstance(kind, ShuffledRound) and radius <= kind.radius <= 1.06 * radius


def test_many_sensitivities_of_one_radius_stay_apart() -> None:
    """Record unit: one clip, and a number of records for every client."""
    records = np.geomspace(2.0, 200.0, 50)
    classes = [ClientClass("gaussian", 1.0, 0.3, 0.6 / each) for each in records.tolist()]
    class_of = np.repeat(np.arange(50), 10)
    found = ShuffledView(classes, class_of, schedule="aggregate", unit="record")
    kinds = found.round_types(np.ones(class_of.size, dtype=bool))
    for client, one in enumerate(class_of.tolist()):
        kind = kinds[int(found.account_of[client])]
        assert isinstance(kind, ShuffledRound)
        assert classes[one].sensitivity <= kind.sensitivity <= 1.5 * classes[one].sensitivity


@pytest.mark.slow
def test_a_move_just_below_the_largest_costs_no_more() -> None:
    """The record unit's boxes fit less closely than those of the client unit."""
    largest = Setting(ShuffledRound("gaussian", 1.0, 0.3, 0.6, ((1.0, 2000),)), 1, DELTA)
    nearly = replace(largest, kind=replace(largest.kind, sensitivity=0.97 * 0.6))
    assert nearly.epsilon <= MORE * largest.epsilon


@pytest.mark.slow
@pytest.mark.parametrize(
    ("radius", "share", "others", "delta"),
    [
        (0.93591, 0.908, ((0.21809, 59), (0.47995, 4608), (0.73017, 506), (0.74669, 602)), 4.94e-7),
        (0.93591, 0.85, ((0.47995, 4608), (0.93591, 193)), 1e-6),
    ],
)
def test_a_smaller_move_of_wide_reports_costs_no_more(
    radius: float, share: float, others: tuple[tuple[float, int], ...], delta: float
) -> None:
    largest = Setting(ShuffledRound("gaussian", 1.0, radius, 2.0 * radius, others), 1, delta)
    smaller = replace(largest, kind=replace(largest.kind, sensitivity=share * 2.0 * radius))
    assert smaller.epsilon <= MORE * largest.epsilon


@pytest.mark.parametrize("share", [0.5, 0.8, 0.99])
def test_wider_covers_hold_every_configuration(share: float) -> None:
    setting = RoundGeometry(2.0 * 0.3 * share, 0.3, ((0.2, 100), (1.0, 50)))
    found = setting.wider_covers
    assert len(found) == 2 and (found[0] is None) == (share == 0.5)
    for each, (other, _) in zip(found, setting.groups, strict=True):
        assert each is None or (each.own, each.other, each.move) == (0.3, other, 0.6)


@pytest.mark.slow
def test_check_in_beside_wider_clients_costs_nothing() -> None:
    kind = ShuffledRound("gaussian", 1.0, 0.3, 0.6, ((0.3, 2000),), 0.1)
    alone = curve_of(kind).epsilon(DELTA)
    beside = curve_of(with_more(kind, 0.6, 500)).epsilon(DELTA)
    # Not less either: those further away are told to the attacker.
    assert alone / MORE <= beside <= MORE * alone


@pytest.mark.parametrize("seed", range(5))
def test_nearest_settings_never_count_more(seed: int) -> None:
    """Within every radius; and the client itself is not made smaller."""
    rng = np.random.default_rng(seed)
    radii, counts = np.sort(rng.uniform(0.05, 1.0, 9)), rng.integers(1, 500, 9)
    settings = nearest_settings(0.4, 0.3, radii, counts)
    assert len(settings) > 1
    for setting in settings:
        assert (setting.move, setting.own) == (0.4, 0.3)
        sizes, numbers = np.array(setting.groups).T
        for reach in (*radii.tolist(), *sizes.tolist()):
            assert numbers[sizes <= reach].sum() <= counts[radii <= reach].sum()


@pytest.mark.parametrize("seed", range(40))
def test_a_coarser_batch_never_counts_more(seed: int) -> None:
    rng = np.random.default_rng(seed)
    radii = np.sort(rng.uniform(0.1, 1.0, int(rng.integers(1, 7)))).tolist()
    there = rng.integers(1, 2000, len(radii))
    lost = int(rng.integers(0, 50))
    here = rng.binomial(there, np.where(rng.random(len(radii)) < 0.3, 0.01, rng.random()))
    noise = str(rng.choice(["gaussian", "laplace"]))
    batch, whole = (
        ShuffledRound(
            noise, 1.0, radii[-1], 2.0 * radii[-1],
            tuple((r, n) for r, n in zip(radii, counts.tolist(), strict=True) if n),
        )
        for counts in (here, there)
    )  # fmt: skip
    found = coarser(batch, whole.without(lost))
    assert found.is_dominated_by(batch)
    assert found == coarser(batch, whole.without(lost))


def test_batches_that_are_alike_share_few_kinds() -> None:
    """A hundred rounds in which each of 2,000 clients is absent one time in ten."""
    rng = np.random.default_rng(0)
    class_of = np.repeat([0, 1], [800, 1200])
    found = view([0.3, 0.5], class_of)
    kinds = {
        kind for _ in range(100) for kind in found.round_types(rng.random(2000) < 0.9).values()
    }
    assert len(kinds) <= 12
