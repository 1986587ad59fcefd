"""The accountant: headline, columns, several reports a round, own randomizers, recognition; a
client's history of rounds: reference values, the order of types, many clips, class tables."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pytest import MonkeyPatch
from scipy.stats import chi2

import fl_shuffle.accounting.accountant as module
from fl_shuffle.accounting.accountant import Accountant
from fl_shuffle.accounting.bounds.laplace_mechanism import laplace_epsilon
from fl_shuffle.accounting.bounds.sum_release.honest import AssumedHonest
from fl_shuffle.accounting.bounds.vector import VectorCurve
from fl_shuffle.accounting.client_classes import (
    ClientClass,
    DeclaredRound,
    LocalMechanism,
    ShuffledRound,
)
from fl_shuffle.accounting.distributions.gaussian_mechanism import gaussian_epsilon
from fl_shuffle.accounting.lower_bounds import certain_loss
from fl_shuffle.accounting.lower_bounds.certain_loss import Crowd, recognition_epsilon
from fl_shuffle.accounting.lower_bounds.likelihood_ratio import attack_epsilon
from fl_shuffle.accounting.rounds import local_guarantees
from fl_shuffle.accounting.rounds.class_table import ClassTable
from fl_shuffle.accounting.rounds.coarser import coarser
from fl_shuffle.accounting.rounds.round_library import AnyRound, RoundLibrary, outweighs
from fl_shuffle.accounting.rounds.shuffled_view import ShuffledView
from fl_shuffle.accounting.rounds.threat_model import ThreatModel
from fl_shuffle.accounting.rounds.words import DECLARED_BUDGET
from fl_shuffle.errors import InvalidValueError, NotApplicableError
from tests.oracles import composed


def make(classes: list[ClientClass], class_of: np.ndarray, **also: Any) -> Accountant:
    settings = {"unit": "client", "schedule": "aggregate", "delta": 1e-5, **also}
    return Accountant(classes, class_of, **settings)


def kind(radius: float = 0.5, scale: float = 1.0, noise: str = "gaussian") -> ClientClass:
    return ClientClass(noise, scale, radius, 2.0 * radius, 1.0, 1e-5)


def some_class(rng: np.random.Generator, noise: str, scale: float) -> ClientClass:
    radius = float(rng.uniform(0.05, 0.3))
    return ClientClass(noise, scale, radius, 2 * radius, float(rng.uniform(0.01, 2)), 0.0, 1)


@pytest.mark.parametrize("seed", [*(pytest.param(s, marks=pytest.mark.slow) for s in (0, 1)), 2])
def test_the_headline_covers_clients_that_are_not_listed(
    seed: int, coarse_pairs: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LISTED_CLASSES", 2)
    rng = np.random.default_rng(seed)
    scales = [1.0, 1.3, 0.2 if seed % 2 else 1.0]
    noises = [["gaussian"], ["laplace"], ["gaussian", "laplace", "user"]][seed % 3]
    classes = [some_class(rng, str(rng.choice(noises)), float(rng.choice(scales)))
               for _ in range(4)]  # fmt: skip
    class_of = rng.integers(0, len(classes), 60)
    accountant = make(classes, class_of)
    for number in range(1, 3):
        present = rng.random(len(class_of)) < 0.8
        spend = accountant.preview(number, present).spend
        each = accountant.preview(number, present).client_epsilons()
        assert len(spend.columns["shuffled"].epsilon) == 2
        assert each.max() * (1 - 1e-9) <= spend.headline <= each.max() * 1.02
        accountant.commit(accountant.preview(number, present))
        local = accountant.client_totals().local
        assert spend.columns["local"].worst == pytest.approx(local.max(), rel=1e-9)


def test_argument_and_its_old_name_together_are_refused() -> None:
    models: Any = {"trust": ThreatModel(assumed_honest=3), "threat_model": ThreatModel()}
    with pytest.raises(TypeError, match="threat_model and trust, its old name"):
        Accountant([kind()], np.zeros(50, int), delta=1e-5, unit="client", **models)


def test_commit_takes_a_preview_of_what_was_counted_so_far() -> None:
    accountant = make([kind()], np.zeros(50, int))
    present = np.ones(50, dtype=bool)
    first, other = accountant.preview(1, present), accountant.preview(1, np.arange(50) < 9)
    present[:] = False  # a preview keeps its own
    accountant.commit(first)
    assert first.spend.num_reports == 50 and first.spend is first.spend
    with pytest.raises(InvalidValueError, match="is out of date: a later round was counted"):
        accountant.commit(other)
    with pytest.raises(InvalidValueError, match="must be left out: the preview has clients"):
        accountant.commit(accountant.preview(2, np.arange(50) < 9), np.arange(50) < 40)
    accountant.take_back()
    with pytest.raises(NotApplicableError, match="no round has been counted"):
        accountant.take_back()
    accountant.commit(other)
    assert accountant.client_totals().rounds.sum() == 9
    assert np.array_equal(other.client_epsilons(), accountant.client_totals().headline)
    with pytest.raises(AttributeError):
        other.unusable = 1  # type: ignore[misc]


def test_previews_and_commits_of_0_2_work_and_warn() -> None:
    now, old = (make([kind()], np.zeros(50, int)) for _ in range(2))
    present = np.arange(50) < 30
    preview = now.preview(1, present)
    now.commit(preview)
    with pytest.warns(DeprecationWarning, match=r"commit\(preview\(number, present\)\)"):
        old.commit(1, present)
    assert old.client_totals().headline.tolist() == now.client_totals().headline.tolist()
    with pytest.warns(DeprecationWarning, match=r"Preview.headline is now called Preview.spend.he"):
        assert preview.headline == preview.spend.headline
    with pytest.warns(DeprecationWarning, match="Preview.num_reports"):
        assert preview.num_reports == 30
    with pytest.raises(AttributeError, match="no attribute 'epsilon0'"):
        _ = preview.epsilon0
    with pytest.raises(InvalidValueError, match="must be what `preview` returned"):
        now.commit(2)


def test_a_preview_for_others_leaves_no_numbers_behind() -> None:
    classes = [ClientClass("gaussian", scale, 1.0, 2.0, 1.0, 1e-5, 1) for scale in (2.0, 2.2)]
    everybody, most = np.ones(40, dtype=bool), np.arange(40) >= 3
    class_of = most.astype(np.int64)
    plain, ahead = (make(classes, class_of, schedule="sequential", dimension=3) for _ in range(2))
    assert ahead.preview(1, everybody).spend.num_reports == 40
    for one in (plain, ahead):
        # The class that an attack serves best stays away.
        one.commit(one.preview(1, most))
    assert ahead.preview(2, most).spend == plain.preview(2, most).spend
    assert ahead.lower_bounds() == plain.lower_bounds()
    assert plain.lower_bounds()["shuffled_lower"].epsilon[1] > 0.5


def test_the_attack_column_is_what_the_attack_reaches_and_no_more() -> None:
    accountant = make([kind()], np.zeros(50, int))
    batch = ShuffledRound.of([replace(kind(), count=50)], 0)
    for number in (1, 2):
        reached = attack_epsilon(batch, number, 1e-5)
        accountant.commit(accountant.preview(number, np.ones(50, dtype=bool)))
        found = accountant.lower_bounds()["shuffled_lower"].worst
        assert found == pytest.approx(reached, rel=1e-6) and found > 0.0


def test_attack_column_is_never_less_than_that_on_sums() -> None:
    """Of two clients in thirty rounds the sums tell more than the attack in logarithms finds."""
    classes, class_of = [kind()], np.zeros(2, int)
    accountant = make(classes, class_of)
    for number in range(1, 31):
        accountant.commit(accountant.preview(number, np.ones(2, dtype=bool)))
    columns = accountant.lower_bounds()
    reached = attack_epsilon(ShuffledRound.of([replace(kind(), count=2)]), 30, 1e-5)
    assert 0.0 < reached < columns["shuffled_lower"].worst == columns["sum_lower"].worst
    assert columns["sum_lower"].source in columns["shuffled_lower"].source


# --- Several reports a round --------------------------------------------------------------------

LIBRARY = RoundLibrary()
PRESENT = [np.ones(20, dtype=bool), np.arange(20) % 7 != 2]


def played(noise: str, release: str, reports: int, rounds: int) -> Accountant:
    """`rounds` rounds of `reports` each; every second one lacks some clients."""
    classes = [
        ClientClass(noise, 4.0, 1.0, 0.5, 1.0, 1e-5, 4),
        ClientClass(noise, 6.0 if noise == "gaussian" else 4.0, 1.0, 0.5, 0.7, 1e-5, 4),
    ]
    trust = replace(ThreatModel(), release=release, reports_per_round=reports)
    class_of = np.repeat([0, 1], [19, 1])
    accountant = make(
        classes, class_of, unit="record", dimension=3, threat_model=trust, library=LIBRARY
    )
    for number in range(rounds):
        present = PRESENT[number % 2] if reports > 1 else PRESENT[number // 3 % 2]
        accountant.commit(accountant.preview(number + 1, present))
    return accountant


@pytest.mark.usefixtures("coarse_pairs")
@pytest.mark.parametrize("noise", ["gaussian", pytest.param("laplace", marks=pytest.mark.slow)])
@pytest.mark.parametrize("release", ["reports", "sum"])
def test_three_reports_in_each_of_four_rounds_cost_what_twelve_rounds_do(
    noise: str, release: str
) -> None:
    several, single = played(noise, release, 3, 4), played(noise, release, 1, 12)
    found, wanted = several.client_totals(), single.client_totals()
    assert found.rounds[0] == 4 and wanted.rounds[0] == 12
    assert np.array_equal(found.shuffled, wanted.shuffled)
    assert np.array_equal(found.local, wanted.local)
    # The squared parameters of sums are added up in another order.
    assert np.allclose(found.sum, wanted.sum, rtol=1e-12, equal_nan=True)
    ours, theirs = several.lower_bounds(), single.lower_bounds()
    for name in ours:
        assert ours[name].epsilon == pytest.approx(theirs[name].epsilon, rel=1e-9)
    # One more round of three is three more rounds of one, in all columns.
    more = several.preview(5, PRESENT[0]).spend
    for number in (13, 14):
        single.commit(single.preview(number, PRESENT[0]))
    last = single.preview(15, PRESENT[0]).spend
    for name, column in more.columns.items():
        assert column.epsilon == pytest.approx(last.columns[name].epsilon, rel=1e-12)


# --- Own randomizers: amplified from declared budgets, where any two reports share one ----------


def declared(epsilon0: float = 1.0, radius: float = 1.0, **also: Any) -> ClientClass:
    return ClientClass("user", 0.0, radius, 2 * radius, epsilon0, **also)


def headline(
    classes: list[ClientClass], counts: list[int], unit: str = "client", discrete: bool = False
) -> tuple[float, str, str]:
    """(epsilon, note, source) of one round of everybody."""
    class_of, everybody = np.repeat(np.arange(len(classes)), counts), np.ones(sum(counts), bool)
    accountant = make(
        classes, class_of, unit=unit, delta=1e-6, threat_model=ThreatModel(discrete=discrete)
    )
    spend = accountant.preview(1, everybody).spend
    accountant.commit(accountant.preview(1, everybody))
    assert accountant.client_totals()[1].max() == pytest.approx(spend.headline)
    if discrete:
        texts = " ".join(each.source + each.note for each in spend.columns.values())
        assert "declared" not in texts and "not known" not in texts and "the user's" not in texts
    column = spend.columns["shuffled"]
    return spend.headline, column.note, column.source


def test_a_declared_budget_of_a_whole_report_is_amplified_and_says_on_what_it_rests() -> None:
    found, note, source = headline([declared()], [10_000])
    assert 0.0079 < found <= 0.0442  # 2-ary randomized response reaches about .0079 or more
    assert note == DECLARED_BUDGET.shuffled_note and "docs/research/proofs" in source
    # A delta0 above the target is never amplified away, nor a budget for one of several records.
    assert math.isinf(headline([declared(delta0=1e-5)], [1_000])[0])
    found, note, _ = headline([declared(records=6)], [1_000], unit="record")
    assert found == 1.0 and "one of several records" in note
    assert headline([declared()], [1_000], unit="record")[0] < 0.3


def test_other_budgets_and_clips_hide_nobody() -> None:
    alone = headline([declared()], [200])[0]
    others = [declared(0.5), declared(delta0=1e-9), declared(radius=0.5)]
    mixed = [headline([declared(), other], [200, 2_000])[0] for other in others]
    assert mixed[0] == pytest.approx(alone, rel=1e-9)
    assert min(mixed[1:]) >= alone * (1 - 1e-9)


def test_discrete_noise_counts_alike_in_words_of_its_own() -> None:
    for count, epsilon, records in ((10_000, 1.0, 1), (1_000, 1.0, 6), (2, 9.0, 1)):
        asked = [declared(epsilon, records=records)], [count], "record"
        (found, note, _), (plain, other, _) = headline(*asked, discrete=True), headline(*asked)
        assert found == plain and note != other
        assert "the distribution of the discrete noise is known" in note


@pytest.mark.parametrize(("epsilon0", "delta0", "rounds"), [(0.7, 0.0, 3), (1.3, 0.01, 4)])
def test_local_composition_against_enumeration(epsilon0: float, delta0: float, rounds: int) -> None:
    law, likely = LocalMechanism("user", epsilon0, delta0), (1 - delta0) / (1 + math.exp(-epsilon0))
    # The worst pair: an outcome that is certain loss, and randomized response with the rest.
    pair = [math.inf, epsilon0, -epsilon0], [delta0, likely, 1 - delta0 - likely]
    for epsilon in (0.0, 0.5, 1.9, 3.0):
        exact = composed([pair] * rounds, epsilon)
        found = local_guarantees.local_delta(law, rounds, epsilon)
        assert exact * (1 - 1e-12) <= found <= exact * (1 + 1e-6) + 1e-15
        assert local_guarantees.local_epsilon(law, rounds, found * (1 + 1e-6)) <= epsilon + 1e-4


@pytest.mark.parametrize("rounds", [1, 2, 7])
def test_reports_that_have_spent_delta_have_no_finite_epsilon(rounds: int) -> None:
    """Each may break its promise with its own delta0: at any epsilon that many do is certain."""
    delta0 = 1e-3
    law, certain = LocalMechanism("user", 1.3, delta0), 1.0 - (1.0 - delta0) ** rounds
    assert local_guarantees.local_delta(law, rounds, 40.0) == pytest.approx(certain)
    for share in (0.1, 0.3, 0.6, 0.999):
        assert local_guarantees.local_epsilon(law, rounds, share * certain) == math.inf
    assert local_guarantees.local_epsilon(law, rounds, 1.001 * rounds * delta0) <= 1.3 * rounds


# --- A lower bound is claimed only where its attack is certain ----------------------------------

TARGET = ClientClass("gaussian", 1.0, 6.0, 0.3, 1.0, 1e-5, 1)


def recognised_epsilon(other: ClientClass, counts: list[int], **of: int) -> float | None:
    table = ClassTable.of([TARGET, other])
    return recognition_epsilon(table, Crowd.of(table, np.array(counts)), 0, 1, 1e-2, **of) or None


def test_recognition_is_not_claimed_among_smaller_balls_or_larger_noise() -> None:
    counts = [1, 1000]
    assert recognised_epsilon(replace(TARGET, records=2), counts) is not None
    assert recognised_epsilon(replace(TARGET, radius=1e-3, sensitivity=1e-3), counts) is None
    noisy = replace(TARGET, scale=30.0)
    assert recognised_epsilon(noisy, counts) is None
    # One coordinate says nothing about the scale; many do.
    assert recognised_epsilon(noisy, counts, dimension=2) is None
    assert recognised_epsilon(noisy, counts, dimension=600) is not None
    assert recognised_epsilon(replace(TARGET, noise="laplace"), counts) is None


@pytest.mark.parametrize("dimension", [None, 600])
def test_recognition_by_groups_claims_no_more_than_by_class(
    dimension: int | None, monkeypatch: MonkeyPatch
) -> None:
    """Among classes of many radii and scales; groups of several classes each, and one of all."""
    rng, claimed = np.random.default_rng(3), list[int]()
    for spread in (0.02, 0.3, 1.0):
        others = [
            replace(TARGET, scale=1.0 + spread * a, radius=6.0 - 2.0 * spread * b)
            for a, b in rng.random((40, 2))
        ]
        table, counts = ClassTable.of([TARGET, *others]), rng.integers(0, 30, 41)
        counts[0] = 2
        found = []
        for groups in (1024, 20, 5, 1):
            monkeypatch.setattr(certain_loss, "MOST_GROUPS", groups)
            crowd = Crowd.of(table, counts)
            assert len(crowd.counts) <= groups and crowd.counts.sum() == counts.sum()
            found.append(
                [recognition_epsilon(table, crowd, i, 1, 1e-2, dimension) for i in range(41)]
            )
        for coarse in found[1:]:
            assert np.all(np.array(coarse) <= found[0])
        claimed += [sum(value > 0.0 for value in each) for each in found]
    assert claimed[0] > 0 and claimed[1] > 0


@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_where_recognition_is_claimed_the_attacker_picks_the_right_report(scale: float) -> None:
    """The claim is an error below 1e-7 a round: none may be seen in 2,000."""
    dimension, rounds, others = 600, 2000, 1000
    other = replace(TARGET, scale=scale, records=2)
    assert recognised_epsilon(other, [1, others], dimension=dimension) is not None
    rng = np.random.default_rng(5)
    tau = chi2.isf(1e-12, dimension - 1)
    along = 6.0 - 0.3 + rng.standard_normal(rounds)
    orthogonal = rng.chisquare(dimension - 1, rounds)
    assert np.all(orthogonal <= tau)
    for index in range(rounds):
        rival = -6.0 + scale * rng.standard_normal(others)
        short = scale**2 * rng.chisquare(dimension - 1, others) <= tau
        assert not np.any(short & (rival >= along[index]))


# --- A client's history of rounds -----------------------------------------------------------------


def test_without_credit_the_local_composition_is_exact() -> None:
    library = RoundLibrary()
    gaussian, laplace = (ShuffledRound(noise, 4.0, 1.0, 2.0) for noise in ("gaussian", "laplace"))
    assert library.epsilon({gaussian: 50}, 1e-5) == gaussian_epsilon(1e-5, 0.5 * math.sqrt(50))
    assert library.epsilon({laplace: 7}, 1e-5) == laplace_epsilon(1e-5, 0.5, 7)
    assert library.profile({laplace: 1}, [0.2])[0] == pytest.approx(-math.expm1(-0.15))


@pytest.mark.parametrize(
    ("gaussian", "laplace", "declared"),
    [(1, 1, 0), (3, 1, 0), (1, 0, 1), (0, 1, 1), (2, 1, 1), (0, 0, 2)],
)
def test_the_local_column_of_several_kinds_of_reports_holds_at_its_delta(
    gaussian: int, laplace: int, declared: int
) -> None:
    """Against the exact composition: Gaussian reports, a Laplace report one coordinate apart,
    and reports of another kind that, as they declare, are recognized with probability delta0."""
    delta, mu, ratio = 1e-6, 0.2, 0.5
    rounds = [
        (ShuffledRound("gaussian", 10.0, 1.0, 10.0 * mu), gaussian),
        (ShuffledRound("laplace", 4.0, 1.0, 4.0 * ratio), laplace),
    ]
    spent: dict[AnyRound, int] = {each: times for each, times in rounds if times}
    laws = []
    for share in [0.3] if declared == 1 else [0.8, 0.7][:declared]:
        spent[DeclaredRound(1e-9 * share, share * delta, 0)] = 1
        laws.append((np.array([math.inf, 0.0]), np.array([share * delta, 1.0 - share * delta])))
    claimed = RoundLibrary().local_epsilon(spent, delta)
    if declared == 2:
        # Either is within delta, both together recognize a client more often than that.
        assert math.isinf(claimed) and composed(laws, 1e3) > delta
        return
    if gaussian:  # The losses on a fine grid.
        z, width = np.linspace(-9.0, 9.0, 3001), mu * math.sqrt(gaussian)
        density = np.exp(-0.5 * z * z)
        laws.append((width * z + 0.5 * width**2, density / density.sum()))
    if laplace:  # Losses r, -r, and exponential ones between the two.
        inner = np.linspace(-ratio, ratio, 1001)
        centre = 0.5 * (inner[:-1] + inner[1:])
        between = 0.25 * np.exp(0.5 * (centre - ratio)) * np.diff(inner)
        ends = [0.5, 0.5 * math.exp(-ratio)]
        laws.append((np.append([ratio, -ratio], centre), np.append(ends, between)))
    assert composed(laws, claimed) <= delta * (1.0 + 1e-4)


@st.composite
def batches(draw: st.DrawFn) -> list[tuple[float, int]]:
    radii = draw(st.lists(st.sampled_from([0.1, 0.2, 0.5, 1.0]), min_size=1, max_size=3))
    return [(radius, draw(st.integers(1, 40))) for radius in sorted(set(radii))]


def a_type(others: list[tuple[float, int]]) -> ShuffledRound:
    return ShuffledRound("laplace", 4.0, 1.0, 2.0, tuple(others))


@settings(max_examples=40, deadline=None)
@given(batches(), batches())
def test_the_order_of_types_is_sound(first: list, second: list) -> None:
    """Where one batch is called not better than another, its curve is not below."""
    a, b = a_type(first), a_type(second)
    assert a.is_dominated_by(a)
    whole = a_type([(radius, 40 * count) for radius, count in second])
    large = a_type([(radius, 13 * count) for radius, count in second])
    assert coarser(large, whole).is_dominated_by(large)
    assert coarser(whole, whole) == whole
    within = {r: sum(n for x, n in second if x <= r) for r in (0.1, 0.2, 0.5, 1.0)}
    mine = {r: sum(n for x, n in first if x <= r) for r in (0.1, 0.2, 0.5, 1.0)}
    assert a.is_dominated_by(b) == all(mine[r] <= within[r] for r in mine)
    if a.is_dominated_by(b):
        assert VectorCurve(a).delta(0.1) >= VectorCurve(b).delta(0.1) * (1 - 2.5e-3)


def test_a_type_stands_for_clients_of_the_same_noise_that_can_move_less() -> None:
    """(scale, radius, sensitivity) of the client, among more reports than the type has."""
    for *own, stands in (
        (4.0, 0.5, 2.0, True), (4.0, 1.5, 2.0, False), (4.0, 1.0, 2.5, False),
        (4.1, 1.0, 2.0, False),
    ):  # fmt: skip
        other = ShuffledRound("laplace", *own, ((1.0, 50),))
        assert a_type([(1.0, 5)]).is_dominated_by(other) is stands


# --- A thousand distinct clipping norms: one certified curve holds for the most exposed client
# all ---


def test_every_client_s_true_round_is_within_what_is_certified() -> None:
    classes = [kind(radius, 8.0) for radius in np.linspace(0.05, 1.0, 300).tolist()]
    view = ShuffledView(classes, np.arange(300), schedule="aggregate", unit="client")
    kinds = view.round_types(np.ones(300, dtype=bool))
    top = kinds[max(kinds)]
    assert len(kinds) == 20
    for client in range(300):
        found = kinds[int(view.account_of[client])]
        assert isinstance(found, ShuffledRound) and isinstance(top, ShuffledRound)
        assert found.is_dominated_by(ShuffledRound.of(classes, client))
        assert top.is_dominated_by(found)


def test_histories_are_matched_round_by_round() -> None:
    batch = [kind(radius, 8.0) for radius in (1.0, 2.0, 3.0)]
    small, middle, large = (ShuffledRound.of(batch, i).in_smallest_place() for i in range(3))
    assert outweighs({large: 3}, {small: 1, middle: 2})
    assert outweighs({large: 1, middle: 1}, {middle: 1, small: 1})
    assert not outweighs({large: 2}, {small: 1, middle: 2})
    assert not outweighs({middle: 3}, {large: 1})
    assert outweighs({large: 2}, {large: 1})


# --- Classes as arrays --------------------------------------------------------------------------


def some_classes(count: int, noise: str) -> ClassTable:
    rng = np.random.default_rng(count)
    rows = rng.uniform(0.1, 2.0, (count, 4)).tolist()
    return ClassTable.of(ClientClass(noise, *row, 1e-5, i + 1) for i, row in enumerate(rows))


@pytest.mark.parametrize(
    ("name", "value"),
    [("scale", 0.0), ("scale", math.nan), ("radius", -1.0), ("sensitivity", math.inf),
     ("delta0", 1.5), ("epsilon0", math.nan), ("noise", "gausian")],
)  # fmt: skip
def test_a_wrong_class_is_named(name: str, value: float) -> None:
    with pytest.raises(InvalidValueError, match=name):
        replace(kind(), **{name: value})
    if name != "noise":
        table = some_classes(9, "gaussian")
        column = getattr(table, name).copy()
        column[1] = value
        with pytest.raises(InvalidValueError, match=name):
            replace(table, **{name: column})


@pytest.mark.parametrize("noise", ["laplace", "user"])
def test_many_local_laws_are_rounded_up_a_little(noise: str) -> None:
    """Nobody is accounted better than its own noise allows, and the most exposed exactly."""
    few, many = (some_classes(count, noise) for count in (100, 400))
    assert local_guarantees.accounted_locally(few) is few
    rounded = local_guarantees.accounted_locally(many)
    assert np.all(rounded.exposure >= many.exposure)
    assert np.all(rounded.exposure <= many.exposure * 1.0101)
    assert rounded.exposure.max() == pytest.approx(many.exposure.max(), rel=1e-15)
    assert len(np.unique(rounded.exposure)) < 400 and np.array_equal(rounded.scale, many.scale)
    clients = np.array([int(np.argmax(many.exposure)), 0, 1])
    own, accounted = (
        local_guarantees.local_epsilons(table, clients, np.array([1, 1, 1]), 1e-3)
        for table in (many, rounded)
    )
    assert accounted[0] == pytest.approx(own[0], rel=1e-13) and np.all(accounted >= own)


# --- Colluders' reports hide nobody: `shuffled` is that of a batch without those that help most ---


def types(
    classes: list[ClientClass], counts: list[int], honest: AssumedHonest = None, arrived: int = 0
) -> dict[int, AnyRound]:
    """What the round is to each group: everybody, or the first `arrived` clients, took part."""
    class_of = np.repeat(np.arange(len(counts)), counts)
    view = ShuffledView(classes, class_of, schedule="aggregate", unit="client",
                        assumed_honest=honest)  # fmt: skip
    return view.round_types(np.arange(len(class_of)) < (arrived or len(class_of)))


@pytest.mark.parametrize(
    ("honest", "arrived", "left"),
    [(600, 1000, 600), (0.6, 1000, 600), (0.5999, 1000, 599), (600, 700, 600), (0.5, 700, 350)],
)
@pytest.mark.parametrize("noise", ["gaussian", "user"])
def test_colluders_and_drop_outs_are_left_out(
    noise: str, honest: AssumedHonest, arrived: int, left: int
) -> None:
    """A share is of what arrived. A type that similar batches share is about 5% smaller at most."""
    found = types([kind(noise=noise)], [1000], honest, arrived)[0]
    others = found.others if isinstance(found, DeclaredRound) else sum(n for _, n in found.others)
    shared = noise == "user" or arrived < 1000
    assert (0.94 if shared else 1.0) * (left - 1) <= others <= left - 1


@pytest.mark.parametrize("release", ["reports", "sum"])
@pytest.mark.parametrize(
    ("honest", "unusable", "left"), [(None, 3, 37), (0.5, 4, 16), (30, 12, 18), (None, 40, 1)]
)
def test_unusable_reports_hide_nobody(
    release: str, honest: AssumedHonest, unusable: int, left: int
) -> None:
    """As colluders' reports; also where a round is taken back and counted anew."""
    everybody, class_of = np.ones(40, dtype=bool), np.zeros(40, dtype=np.int64)
    library = RoundLibrary()
    found, again, whole, wanted = (
        make(
            [kind(scale=4.0)], class_of, threat_model=ThreatModel(release, assumed), library=library
        )
        for assumed in (honest, honest, honest, left)
    )
    found.commit(found.preview(1, everybody))
    found.take_back()
    for number in (1, 2):
        spend = found.preview(number, everybody, unusable).spend
        right = wanted.preview(number, everybody).spend
        for name in ("shuffled", "sum", "local"):
            assert spend.columns[name].worst == right.columns[name].worst
        epsilons = found.preview(number, everybody, unusable).client_epsilons()
        assert np.array_equal(epsilons, wanted.preview(number, everybody).client_epsilons())
        found.commit(found.preview(number, everybody, unusable))
        wanted.commit(wanted.preview(number, everybody))
        whole.commit(whole.preview(number, everybody))
    totals = found.client_totals().headline
    assert np.array_equal(totals, wanted.client_totals().headline)
    # So a run that goes on counts them.
    assert again.count([(number, everybody, unusable) for number in (1, 2)]) == spend
    assert np.array_equal(again.client_totals().headline, totals)
    # A count of honest reports below the usable ones stays what it was.
    assert (totals > whole.client_totals().headline).all()


def test_those_are_left_out_that_help_most() -> None:
    """Small balls hide better: 150 colluders of either class leave the wide ones; and all may be of
    the client's own noise."""
    found = types([kind(0.2), kind(0.5), kind(0.5, scale=3.0)], [150, 400, 300], 850 - 150)
    narrow, wide, other = (found[index] for index in range(3))
    assert isinstance(narrow, ShuffledRound) and narrow.others == ((0.5, 399),)
    assert isinstance(wide, ShuffledRound) and wide.others == ((0.5, 399),)
    assert isinstance(other, ShuffledRound) and other.others == ((0.5, 149),)


@pytest.mark.parametrize("lost", range(7))
def test_no_subset_of_the_batch_is_worse_than_what_is_left(lost: int) -> None:
    """Against every choice of colluders: the type kept is not better than what is really left."""
    radii = [0.1, 0.1, 0.2, 0.3, 0.3, 0.3]

    def batch(found: list[float]) -> ShuffledRound:
        others = tuple((r, found.count(r)) for r in sorted(set(found)))
        return ShuffledRound("gaussian", 1.0, 0.2, 0.4, others)

    kept = batch(radii).without(lost)
    assert sum(count for _, count in kept.others) == 6 - lost
    for chosen in itertools.combinations(radii, 6 - lost):
        assert kept.is_dominated_by(batch(list(chosen)))


def test_colluders_that_leave_nobody_to_hide_among() -> None:
    found, alone = (
        make(
            [kind()], np.zeros(1000, int), delta=1e-6,
            threat_model=ThreatModel(assumed_honest=honest),
        )
        .preview(1, np.ones(1000, bool))
        .spend.columns
        for honest in (2, 1)
    )  # fmt: skip
    assert found["shuffled"].worst == found["local"].worst
    assert "998 of the reports may be colluders'" in found["shuffled"].note
    assert alone["sum"].worst == pytest.approx(alone["local"].worst, rel=1e-6)


@pytest.mark.usefixtures("coarse_pairs")
def test_totals_of_some_clients_are_their_own() -> None:
    """Others hide them, and they took part in other rounds than the first clients did."""
    kind = ClientClass("gaussian", 4.0, 1.0, 2.0, 2.5, 1e-6, 1)
    accountant = Accountant(
        [kind], np.zeros(300, dtype=np.int64), unit="client", schedule="aggregate", delta=1e-6
    )
    for number, present in ((1, np.ones(300, dtype=bool)), (2, np.arange(300) < 200)):
        accountant.commit(accountant.preview(number, present))
    whole, some = accountant.client_totals(), np.array([299, 0, 250])
    found = accountant.totals_of(some)
    for name in ("shuffled", "sum", "local"):
        assert getattr(found, name).tolist() == getattr(whole, name)[some].tolist()
    assert found.shuffled[0] < found.shuffled[1] < 0.9 * found.local[1]
