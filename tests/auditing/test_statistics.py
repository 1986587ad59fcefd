"""Lower bounds, and the tests of order and noise: they miss as rarely as they say,
and have the power that they state."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fl_shuffle.auditing import checks, confidence
from fl_shuffle.auditing.findings import (
    AuditReport,
    Check,
    Clipping,
    Difference,
    Finding,
    FindingPoint,
    Published,
)
from fl_shuffle.cli import main
from tests.oracles import shuffle_delta

CLIENTS = 10
UNLIKELY = 1e-4


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.floats(0.001, 0.999), st.sampled_from([0.2, 0.05, 0.01]))
def test_clopper_pearson_never_misses_more_often_than_stated(
    trials: int, truth: float, alpha: float
) -> None:
    """Exactly: the probability of all counts whose bound lies on the wrong side of the truth."""
    counts = np.arange(trials + 1)
    mass = stats.binom.pmf(counts, trials, truth)
    low = confidence.proportions_lower(counts, trials, alpha)
    high = confidence.proportions_upper(counts, trials, alpha)
    assert mass[low > truth].sum() <= alpha * (1 + 1e-9)
    assert mass[high < truth].sum() <= alpha * (1 + 1e-9)
    assert low[0] == 0.0 and high[-1] == 1.0


def facts(zero: int, one: int, trials: int, alpha: float) -> confidence.Dichotomy:
    return confidence.Dichotomy.from_counts(np.array([[zero], [one]]), trials, alpha)


@pytest.mark.parametrize(("p", "q", "n"), [(0.2, 0.7, 6), (0.45, 0.55, 40), (0.05, 0.5, 200)])
def test_the_batch_bound_approaches_brute_force_from_below(p: float, q: float, n: int) -> None:
    """The exact distribution of n shuffled bits: n-1 of chance p and one of chance q, or n of p."""
    trials, laws = 10**10, ((1.0 - p, p), (1.0 - q, q))
    others = [laws[0]] * (n - 1)
    known = facts(round(p * trials), round(q * trials), trials, 1e-3)
    for epsilon in (0.0, 0.05, 0.3):
        exact = max(shuffle_delta(*pair, others, math.exp(epsilon)) for pair in (laws, laws[::-1]))
        found = known.delta(epsilon, n)
        assert found <= exact * (1 + 1e-9)
        if exact > 1e-6:
            assert found >= exact * (1 - 5e-3)


@pytest.mark.parametrize("thresholds", [1, 3])
def test_all_bounds_of_a_measured_law_share_its_error(thresholds: int) -> None:
    """By Bonferroni over both sides of each threshold, each by the beta distribution."""
    trials, alpha = 500, 0.06
    counts = np.array([[5, 40, 100], [100, 250, 350]])[:, :thresholds]
    found = confidence.Dichotomy.from_counts(counts, trials, alpha)
    share = alpha / (2 * thresholds)
    upper = stats.beta.isf(share, counts[0] + 1, trials - counts[0])
    lower = stats.beta.ppf(share, counts[1], trials - counts[1] + 1)
    for cumulated, points in ((found.zero, upper), (found.one, lower)):
        assert np.cumsum(cumulated) == pytest.approx([*points, 1.0], rel=1e-9)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 90), st.integers(0, 90)), min_size=1, max_size=6))
def test_a_measured_law_is_the_concave_hull_of_its_points(
    counts: list[tuple[int, int]],
) -> None:
    """Its ratios fall, no point lies above it, and its corners are points: a distribution of
    steeper pieces would know more than was measured."""
    trials, alpha, columns = 90, 0.05, np.array(counts).T
    law = confidence.Dichotomy.from_counts(columns, trials, alpha)
    share = alpha / (2.0 * len(counts))
    x = confidence.proportions_upper(columns[0], trials, share)
    y = confidence.proportions_lower(columns[1], trials, share)
    at, power = (np.concatenate([[0.0], np.cumsum(each)]) for each in (law.zero, law.one))
    assert (law.zero > 0.0).all() and at[-1] == power[-1] == pytest.approx(1.0)
    assert (np.diff(law.one / law.zero) <= 1e-9).all()
    assert (y <= np.interp(x, at, power) + 1e-12).all()
    points = np.array([*zip(x, y, strict=True), (0.0, 0.0), (1.0, 1.0)])
    for corner in zip(at, power, strict=True):
        assert np.abs(points - corner).max(axis=1).min() < 1e-12


def test_no_sample_refutes_a_huge_or_infinite_epsilon() -> None:
    known = facts(0, 10**9, 10**9, 0.05)
    assert 15.0 < known.epsilon(1e-5, 1) < math.log(10**9)
    assert not any(known.refutes(epsilon, 1e-5, 1) for epsilon in (100.0, 5000.0, math.inf))


def test_mu_misses_rarely_and_is_tight() -> None:
    """400 tests of 300 pairs at mu = 0.1, confidence 80%: more than 26% misses have chance 2e-3 if
    the bound is valid."""
    noise = 3.0 * np.random.Generator(np.random.PCG64(10)).standard_normal((400, 300))
    found = np.array([confidence.mu_lower(own - 1.0, own - 0.7, 0.2) for own in noise])
    assert np.mean(found > 0.1) <= 0.26 and np.median(found) > 0.09


def test_mu_counts_the_wider_side_whichever_it_is() -> None:
    """Sides exchanged, and turned around, are the same test; a wider side proves less."""
    noise = np.random.default_rng(11).standard_normal((2, 200))
    zero, one = noise[0], 0.5 * noise[0] + 0.1 * noise[1] + 2.0
    found = confidence.mu_lower(zero, one, 0.1)
    assert found == pytest.approx(confidence.mu_lower(-one, -zero, 0.1), rel=1e-12)
    # About 2 standard deviations of the wider side: 4 of the other one's.
    assert 1.5 < found < 2.0


def seen(generator: np.random.Generator, rounds: int, unshuffled: int = 0) -> np.ndarray:
    orders = np.stack([generator.permutation(CLIENTS) for _ in range(rounds)])
    orders[generator.permutation(rounds)[:unshuffled]] = np.arange(CLIENTS)
    return orders


def test_the_fewest_rounds_that_catch_an_order_are_stated_all_of_them_if_need_be() -> None:
    """Each adds log 20 at least, twice, to Fisher's statistic; where not even all do, none."""
    found = {}
    for rounds in range(1, 65):
        for level in (0.05, 0.01, 1e-4):
            bar = stats.chi2.isf(level / checks.TESTS, 2 * rounds)
            usual = stats.chi2.isf(checks.POWER, 2 * rounds)
            enough = [
                count
                for count in range(1, rounds + 1)
                if usual + 2.0 * count * math.log(checks.REFERENCES + 1) >= bar
            ]
            found[rounds, level] = checks.rounds_to_catch(rounds, level)
            assert found[rounds, level] == (enough[0] if enough else None)
    assert None in found.values()
    assert any(count == rounds for (rounds, _), count in found.items())


def test_p_values_of_random_orders_are_uniform() -> None:
    """50 audits, seven statistics: Kolmogorov-Smirnov at 1e-4 each (the target's is discrete and
    may only lie above)."""
    generator = np.random.default_rng(1)
    found = [checks.order_p_values(seen(generator, 24), 4, generator) for _ in range(50)]
    assert len(found[0]) == checks.TESTS
    for name in found[0]:
        side = "greater" if name == checks.TARGET_STAYS else "two-sided"
        values = [one[name] for one in found]
        assert stats.kstest(values, "uniform", alternative=side).pvalue > UNLIKELY, name


def test_the_stated_power_of_the_order_test() -> None:
    """As many rounds unshuffled as the audit says it catches with 95%: of 12 audits at least 8."""
    level, rounds = 1.25e-4, 64
    need = checks.rounds_to_catch(rounds, level)
    assert need is not None and need < rounds // 3
    caught = 0
    for seed in range(12):
        generator = np.random.default_rng(seed)
        found = checks.order_p_values(seen(generator, rounds, need), 4, generator)
        caught += checks.TESTS * min(found.values()) <= level
    assert caught >= 8


def noise(seed: int, law: str = "gaussian", *, bits: int = 16, shape: tuple[int, ...] = (4, 40, 12)
          ) -> checks.Residuals:  # fmt: skip
    """Fresh noise on a grid of step 2^-bits."""
    generator = np.random.default_rng(seed)
    drawn = generator.normal(size=shape) if law == "gaussian" else generator.laplace(size=shape)
    return checks.Residuals(np.rint(drawn * 2.0**bits) / 2.0**bits, 0.5**bits / 2.0, law)


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_checks_of_fresh_noise_keep_their_level(law: str) -> None:
    """320 checks at level 0.02, a quarter of which nearly never refutes: no more than 14 refuted
    (mean 4.8; chance of more below 2e-4)."""
    refuted = 0
    for seed in range(80):
        values = noise(seed, law)
        found = [checks.equal_values(values, 0.02, moved=moved) for moved in (False, True)]
        found += checks.sign_checks(values, 0.02)
        refuted += sum(check.refuted for check in found)
    assert refuted <= 14


def test_the_stated_power_against_a_common_part() -> None:
    """Noise with the correlation that the test says it sees with 95%: of 40 tries at least 32."""
    part, caught = 0.0, 0
    for seed in range(40):
        generator = np.random.default_rng(seed)
        common, own = generator.normal(size=(2, 1, 300)), generator.normal(size=(2, 2, 300))
        values = np.sqrt(part) * common + np.sqrt(1.0 - part) * own
        check = checks.sign_checks(checks.Residuals(values, 0.0, "gaussian"), 1e-3)[0]
        assert check.game == checks.TWO_CLIENTS
        part = part or float(check.power.split()[-1])
        caught += check.refuted
    assert 0.05 < part < 0.5 and caught >= 32


@pytest.mark.parametrize(("law", "sign"), [("gaussian", 1.0), ("laplace", -1.0)])
@pytest.mark.parametrize(
    ("second", "where", "on"),
    [
        ((0, 31), range(100), 0),
        ((2, 5), (0, 3, 7, 11, 64), 0),
        ((2, 31), (0, 3, 7, 11, 64), 30),
        ((2, 31), range(64, 100), -50),
        ((2, 31), range(40, 40 + checks.AGREEING + 1), 11),
    ],
)
def test_noise_that_occurs_again_is_found(
    second: tuple[int, int], where: Sequence[int], on: int, law: str, sign: float
) -> None:
    """In all coordinates or in a few, scattered over the report, or as many further on."""
    drawn, at, moved = noise(1, law, shape=(4, 40, 100)), np.array(where), on != 0
    drawn.values[:, ::7, 50] = 0.0  # The middle of the grid has no sign.
    assert not checks.equal_values(drawn, UNLIKELY, moved=moved).refuted
    drawn.values[second][at + on] = sign * drawn.values[0, 5][at] + 2.0**-17
    found = checks.equal_values(drawn, UNLIKELY, moved=moved)
    assert found.refuted and found.p_value < 1e-4
    assert "round 1, client 5," in found.note and f"in {len(at)} coordinates" in found.note
    assert f"round {second[0] + 1}, client {second[1]}," in found.note
    assert f", {on:+d} on" in found.note or not moved


@pytest.mark.parametrize("moved", [False, True])
def test_where_values_agree_by_chance_more_must(moved: bool) -> None:
    coarse = noise(6, bits=8, shape=(2, 400, 32))
    assert not checks.equal_values(coarse, UNLIKELY, moved=moved).refuted
    coarse.values[1, 17, 4:20] = coarse.values[0, 3, 4:20]
    found = checks.equal_values(coarse, UNLIKELY, moved=moved)
    assert found.refuted and int(found.method.split()[0]) > checks.AGREEING
    # Noise of a few values proves nothing.
    assert checks.equal_values(noise(6, bits=0), UNLIKELY, moved=moved).power.startswith("none")


def reported(**found: Any) -> AuditReport:
    """Of an audit that found nothing but this."""
    clean: dict[str, Any] = {
        "findings": (), "checks": (Check("order", "", 9, 0.5, 1e-3, ""),),
        "clipping": Clipping(1.0, 1.0), "published": Published(("another",), 9, 9, ()),
    }  # fmt: skip
    return AuditReport("run", "record", 9, 3, "gaussian", 0.95, **{**clean, **found})


@pytest.mark.parametrize(
    ("found", "breaks"),
    [
        ({}, False),
        ({"clipping": None, "published": None, "checks": ()}, False),
        ({"clipping": Clipping(1.0005, 1.0)}, False),
        ({"clipping": Clipping(1.01, 0.5)}, True),
        ({"clipping": Clipping(0.5, 1.01)}, True),
        ({"published": Published(("n",), 9, 9, (Difference("n", "a file", "1", None),))}, True),
        ({"checks": (Check("order", "", 9, 1e-4, 1e-3, ""),)}, True),
        ({"findings": (Finding("g", "m", 1, 9, (FindingPoint(1e-5, 0.9, 1.0),)),)}, False),
        ({"findings": (Finding("g", "m", 1, 9, (FindingPoint(1e-5, 1.1, 1.0),)),)}, True),
        ({"findings": (Finding("g", "m", 1, 9, (FindingPoint(1e-5, 0.9, 1.0, 0.5),)),)}, False),
    ],
)
def test_an_audit_breaks_a_claim_for_each_reason_by_itself(
    found: dict[str, Any], breaks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the command says so with its exit code."""
    report = reported(**found)
    assert report.breaks_proven == breaks
    monkeypatch.setattr("fl_shuffle.auditing.audit.audit", lambda *_, **__: report)
    assert main(["audit", "quickstart"]) == int(breaks)
