"""Randomizers: clipping, the public grid, exact sums; reports are what is stated; a user's own, as
classes and functions of one mean; what discrete noise guarantees."""

from __future__ import annotations

import doctest
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from fl_shuffle.accounting.distributions import discrete_noise
from fl_shuffle.accounting.distributions.discrete_noise import zcdp_delta
from fl_shuffle.accounting.distributions.gaussian_mechanism import (
    analytic_sigma,
    gaussian_delta,
    gaussian_mus,
    sigmas_of,
)
from fl_shuffle.accounting.report_grid import grid_steps
from fl_shuffle.budgets import Budgets, make_budgets
from fl_shuffle.configuration.reading import parse_config
from fl_shuffle.errors import ConfigError, InvalidValueError, NotApplicableError
from fl_shuffle.gradients.row_clips import _clip_on_device, clip_rows
from fl_shuffle.randomizers import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace, base
from fl_shuffle.randomizers.additive import grid_step, largest_reports
from fl_shuffle.randomizers.base import LARGEST, SMALLEST, LocalRandomizer, Noise, OfOneMean
from fl_shuffle.randomizers.calibration import Calibration, make_plan
from fl_shuffle.randomizers.noise import NoiseStream, largest_variate
from fl_shuffle.randomizers.noise_exact import REACH
from fl_shuffle.randomizers.own_trial import try_randomizer
from fl_shuffle.randomizers.personal import NoiseSource, PersonalRandomizer
from fl_shuffle.shuffler.exact_sums import exact_group, exact_sum, require_exact

KEY = bytes(range(32))


@settings(max_examples=200, deadline=None)
@given(st.floats(SMALLEST, LARGEST), st.floats(0, LARGEST))
def test_grid_step_is_the_smallest_power_of_two_that_suffices(scale: float, radius: float) -> None:
    step = grid_step(scale, radius)
    needed = max(scale * 2.0**-16, (radius + 12 * scale) * 2.0**-21)
    assert math.frexp(step)[0] == 0.5
    assert needed <= step < 2 * needed
    assert radius + 22.2 * scale < 2.0**22 * step


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("law", ["normal", "laplace"])
def test_no_honest_report_is_beyond_what_is_called_the_largest(law: str, bits: int) -> None:
    """With the largest variate, and the longest mean, rounded to the grid: a shuffler would leave
    the report out. The bound lies on the grid, and a step further at most."""
    draw = np.random.default_rng(bits)
    scale, radius = np.exp(draw.uniform(-9.0, 9.0, (2, 2000)))
    step = grid_steps(scale, radius)
    most = REACH[law] if bits == 64 else largest_variate(law, bits)
    extreme = np.rint((radius + scale * most) / step) * step
    found = largest_reports(law, scale, radius, step, bits)
    assert (extreme <= found).all() and (found <= extreme + step).all()
    assert (found / step == np.rint(found / step)).all()


@pytest.mark.parametrize("bits", [32, 64])
@pytest.mark.parametrize("kind", [Gaussian, Laplace])
@pytest.mark.parametrize("unit", [1.0, 3e-3, 50.0, 1e-6])
def test_reports_are_what_is_stated_to_the_nearest_grid_point(
    bits: int, kind: type[Gaussian], unit: float
) -> None:
    """`reports`, compiled and in one pass, is `randomize` to half a step and float32's rounding; on
    the grid, and below the bound."""
    clients, weight = np.array([1, 4, 5]), np.array([1.0, 0.5, 1.0, 1.0, 2.0, 0.25])
    budget, scale = np.ones(6), unit * np.linspace(0.1, 2.0, 6)
    randomizer = kind(budget, budget, budget, scale, weight=weight)
    means, stream = 0.05 * torch.randn(3, 333), NoiseStream(KEY, 333, bits=bits)
    clip_rows(means, 1.0, kind.norm)
    stated = randomizer.randomize(means.numpy(), clients, Noise(stream, clients))
    rows = means.clone()
    assert randomizer.reports(rows, clients, stream) is rows
    reports, step = rows.double().numpy(), randomizer.step[clients, None]
    assert (np.abs(reports - stated) / step).max() <= 0.5 + 0.1
    assert not np.mod(reports, step).any()
    # Words of 64 bits reach further, words of 32 bits less than 2^22 steps.
    assert (np.abs(reports) <= randomizer.largest()[clients, None]).all()
    assert (np.abs(reports) < 2.0**22 * step).all()
    assert (randomizer.largest() < 2.0**24 * randomizer.step).all()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (40, 33), (97, 4099), (0, 3)])
def test_sums_are_exact_in_any_order_and_limits_hold_to_the_last_bit(
    rows: int, columns: int, turned: bool
) -> None:
    rng = np.random.default_rng(rows)
    steps = 2.0 ** rng.integers(-26, -8, (rows, 1))
    units = rng.integers(-4000, 4000, (rows, columns))
    reports = torch.from_numpy((units * steps).astype(np.float32))
    reports = reports.T.contiguous().T if turned else reports
    exact = [math.fsum([0.5, *column]) for column in reports.T.tolist()]
    for _ in range(3):
        total = torch.full((columns,), 0.5, dtype=torch.float64)
        order = torch.from_numpy(rng.permutation(rows))
        for part in torch.tensor_split(order, sorted(rng.integers(0, rows + 1, 3).tolist())):
            exact_sum(reports[part], total)
        assert total.tolist() == exact
    # Each row is just within its limit.
    limits = reports.abs().amax(dim=1).double().numpy() if rows else np.zeros(0)
    total = torch.full((columns,), 0.5, dtype=torch.float64)
    assert exact_sum(reports, total, limits) and total.tolist() == exact
    for row in range(rows):
        for bad in (limits[row] * (1.0 - 1e-12), math.nan):  # nearer than float32 tells
            tight = limits.copy()
            tight[row] = bad
            assert not exact_sum(reports, total, tight)
    if rows:
        reports[0, -1] = math.nan
        assert not exact_sum(reports, total)
        with pytest.raises(ValueError, match="broadcast"):
            exact_sum(reports, total, np.ones(rows + 2))
    require_exact(10**6, 2.0**22 * 2.0**-16, 2.0**-16)
    with pytest.raises(NotApplicableError, match="not exact"):
        require_exact(10**6, 1e6, 2.0**-30)


@settings(max_examples=200, deadline=None)
@given(st.integers(-40, 10), st.floats(1.0, 2.0**24))
def test_a_group_of_reports_has_an_exact_float32_sum(exponent: int, steps: float) -> None:
    """As many as fit 2^24 steps, and one at least."""
    step = 2.0**exponent
    group = exact_group(step, steps * step)
    assert group >= 1 and (group == 1 or group * steps <= 2.0**24 < (group + 1) * steps)


def awkward_rows(dimension: int) -> torch.Tensor:
    """Short and long rows, and all that is hard about lengths."""
    generator = torch.Generator().manual_seed(dimension)
    sizes = torch.logspace(-44, 37, 83)[:, None]
    rows = torch.cat(
        [torch.randn(83, dimension, generator=generator) * sizes, torch.zeros(5, dimension)]
    )
    rows[83, 0], rows[84, -1], rows[85, 0], rows[86, -1] = 3e38, -1e-45, math.nan, -math.inf
    return rows


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("dimension", [1, 31, 256, 257, 3000])
@pytest.mark.parametrize("radius", [SMALLEST, 1.0, 1e-3 * LARGEST])
def test_clipping_against_long_doubles(dimension: int, norm: int, radius: float) -> None:
    """Never beyond the radius, to the last bit; short rows are left, what is not finite is zero;
    and a row hangs neither on the others nor on how it lies."""
    radii = np.geomspace(radius, 1e3 * radius, 88)
    rows = awkward_rows(dimension)
    turned, alone = rows.clone().T.contiguous().T, rows.clone()
    wide = rows.numpy().astype(np.longdouble)
    lengths = np.linalg.norm(wide, norm, axis=1)
    expected = np.isfinite(lengths)
    assert (~expected).sum() == 2
    whole = np.nan_to_num(wide, nan=0.0, posinf=0.0, neginf=0.0)
    factor = np.minimum(1.0, radii / np.where(lengths > 0.0, lengths, 1.0))
    scaled = np.where(expected[:, None], whole * factor[:, None], 0.0)
    assert (clip_rows(rows, radii, norm) == expected).all()
    np.testing.assert_allclose(rows.numpy(), scaled.astype(np.float64), rtol=1e-4, atol=1e-44)
    assert (np.linalg.norm(rows.numpy().astype(np.longdouble), norm, axis=1) <= radii).all()
    untouched = lengths <= radii * (1 - 2.0**-14)
    assert np.array_equal(rows.numpy()[untouched], alone.numpy()[untouched])
    assert (clip_rows(turned, radii, norm) == expected).all()
    for row in range(len(alone)):
        clip_rows(alone[row : row + 1], radii[row], norm)
    assert torch.equal(rows, turned) and torch.equal(rows, alone)


@pytest.mark.parametrize("norm", [1, 2])
def test_clipping_off_the_cpu_agrees(norm: int) -> None:
    """The device path, run on the CPU."""
    host = awkward_rows(300)[40:]
    device, radii = host.clone(), np.linspace(0.5, 2.0, len(host))
    assert np.array_equal(_clip_on_device(device, radii, norm), clip_rows(host, radii, norm))
    assert torch.allclose(device, host, rtol=1e-5, atol=0)
    assert (torch.linalg.vector_norm(device.double(), ord=norm, dim=1).numpy() <= radii).all()


HERE = __name__
EPSILON, RADIUS = np.array([1.0, 4.0, 1.0, 9.0]), np.array([0.5, 1.5, 0.5, 2.0])
BUDGETS = EPSILON, np.zeros(4), RADIUS


def written() -> type[LocalRandomizer]:
    """The class of the example in the documentation of randomizers."""
    (example,) = doctest.DocTestFinder(recurse=False).find(LocalRandomizer)[0].examples
    names = {"np": np, "LocalRandomizer": LocalRandomizer}
    exec(example.source, names)
    return names["Signs"]


class Signs(written()):
    norm = 1


def laplace(mean: np.ndarray, epsilon0: float, delta0: float, rng: np.random.Generator) -> object:
    assert delta0 == 0.0
    return mean + rng.laplace(scale=2.0 / epsilon0, size=mean.size)


def reports_of(
    randomizer: LocalRandomizer, means: np.ndarray, clients: np.ndarray | None = None
) -> np.ndarray:
    """What leaves the clients (all, unless given), float64 [k, d]."""
    rows, clients = torch.from_numpy(means.copy()), np.arange(4) if clients is None else clients
    stream = NoiseStream(KEY, means.shape[1])
    return np.asarray(randomizer.reports(rows, clients, stream).double().numpy())


each_randomizer_by_rows = pytest.mark.parametrize(
    "randomizer",
    [
        Signs(*BUDGETS),
        OfOneMean(laplace, *BUDGETS),
        DiscreteLaplace(*BUDGETS, 0.25 * np.arange(1, 5), step=2.0 ** -np.arange(2, 6)),
    ],
    ids=lambda randomizer: type(randomizer).__name__,
)


@each_randomizer_by_rows
def test_a_report_hangs_on_its_own_client_alone(randomizer: LocalRandomizer) -> None:
    means = np.random.default_rng(1).normal(size=(4, 40)).astype(np.float32)
    given, some = means.copy(), np.array([3, 0])
    together = reports_of(randomizer, means)
    assert np.array_equal(means, given)
    assert np.array_equal(reports_of(randomizer, means[some], some), together[some])
    assert not np.mod(together, randomizer.grid()[:, None]).any()
    assert (np.abs(together) <= np.asarray(randomizer.bound())[:, None]).all()
    # What a canary game takes: some of the clients under numbers of their own.
    part = randomizer.restricted(np.array([1, 3, 3]))
    assert part.radius.tolist() == [1.5, 2.0, 2.0]
    assert np.array_equal(part.bound(), np.asarray(randomizer.bound())[[1, 3, 3]])


def test_a_report_is_cut_to_its_bound() -> None:
    randomizer = OfOneMean(lambda mean, *_: mean * 1e9, *BUDGETS)
    assert (reports_of(randomizer, np.ones((4, 3), np.float32)) == 2000.0).all()


@pytest.mark.parametrize("bits", [32, 64])
def test_noise_has_its_laws_and_is_each_clients_own(bits: int) -> None:
    own, clients = NoiseStream(KEY, 10_000, bits=bits), np.arange(4)
    noise = Noise(own, clients)
    for law, drawn in (
        (stats.norm, noise.normal()),
        (stats.laplace, noise.laplace()),
        (stats.uniform, noise.uniform(10_000)),
    ):
        assert all(stats.kstest(row, law.cdf).pvalue > 1e-6 for row in drawn)
        assert np.abs(np.corrcoef(drawn) - np.eye(4)).max() < 0.06
    uniform = own.uniform(np.array([5, 2]), 3000)
    assert np.array_equal(uniform[1], own.uniform([2], 3000)[0])
    assert uniform.min() > 0.0 and uniform.max() < 1.0


ALIKE = np.ones(6), np.full(6, 1e-5), np.ones(6)


def normal(mean: np.ndarray, epsilon0: float, delta0: float, rng: np.random.Generator) -> object:
    return mean + rng.standard_normal(mean.size)


@pytest.mark.parametrize("seed", [4, None])
@pytest.mark.parametrize(
    "randomizer",
    [
        Gaussian(*ALIKE, np.ones(6)),
        Laplace(*ALIKE, np.ones(6)),
        DiscreteGaussian(*ALIKE, np.full(6, 20.0), step=np.ones(6)),
        DiscreteLaplace(*ALIKE, np.full(6, 20.0), step=np.ones(6)),
        OfOneMean(normal, *ALIKE),
        Signs(*ALIKE),
    ],
    ids=lambda randomizer: type(randomizer).__name__,
)
def test_no_two_reports_share_any_noise(randomizer: LocalRandomizer, seed: int | None) -> None:
    """Equal clients with equal means, two batches, two rounds: 24 reports. Neither their values nor
    the sizes of these are correlated. With 2,000 coordinates six standard errors are 0.134, so that
    one of 552 numbers is beyond with probability 1e-6; shared noise has correlation 1."""
    randomize = PersonalRandomizer(randomizer, NoiseSource(seed, 32 if seed else 64), batches=2)
    clients, dimension = np.arange(6), 2_000
    rows = np.concatenate(
        [randomize(torch.zeros(6, dimension), clients, number).numpy() for number in (1, 2)]
    ).astype(np.float64)
    assert len(rows) == 24 and bool((rows.std(axis=1) > 0).all())
    sizes = np.abs(rows) if type(randomizer) is not Signs else rows
    for values in (rows, sizes):
        worst = np.abs(np.corrcoef(values) - np.eye(24)).max()
        assert worst < 6.0 / math.sqrt(dimension)
    # A seeded source gives a client the same noise in whatever company.
    if seed is not None:
        some = np.array([4, 1])
        alone = randomize(torch.zeros(2, dimension), some, 2).numpy()
        assert np.array_equal(alone, rows[12:].reshape(2, 6, -1)[:, some].reshape(4, -1))


@pytest.mark.parametrize(
    "output", [ValueError, np.full(4, np.inf), np.zeros(3), np.zeros((4, 1)), 0.0, "x"]
)
def test_who_raises_or_makes_no_report_sends_nothing_and_others_do(
    output: object, caplog: pytest.LogCaptureFixture
) -> None:
    def own(mean: np.ndarray, *_: object) -> object:
        if mean.max() < 7.0:
            return mean
        if output is ValueError:
            raise ValueError("a mean's secret")
        return output

    means = np.ones((4, 4), np.float32)
    means[2, 3] = 8.0
    reports = reports_of(OfOneMean(own, *BUDGETS), means)
    assert np.isnan(reports[2]).all() and (reports[[0, 1, 3]] == 1.0).all()
    assert {record.name for record in caplog.records} <= {"fl_shuffle.client"}
    assert caplog.records or output is not ValueError


@pytest.mark.parametrize("clients", [[0, 1, 2, 3], [3, 2, 1, 0]], ids=str)
@each_randomizer_by_rows
def test_where_one_client_raises_the_others_reports_keep_their_bits(
    randomizer: LocalRandomizer, clients: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are asked one by one then: with their own budget, bound, grid and noise."""
    means = np.random.default_rng(2).normal(size=(4, 40)).astype(np.float32)
    asked, together = np.array(clients), randomizer.randomize
    wanted = reports_of(randomizer, means, asked)

    def one_raises(rows: np.ndarray, asked: np.ndarray, noise: Noise) -> np.ndarray:
        if 2 in asked:
            raise ValueError("client 2")
        return together(rows, asked, noise)

    monkeypatch.setattr(randomizer, "randomize", one_raises)
    found = reports_of(randomizer, means, asked)
    assert np.isnan(found[asked == 2]).all()
    assert np.array_equal(found[asked != 2], wanted[asked != 2])


@pytest.mark.parametrize("bound", [0.0, math.nan, math.inf, 1e13, [1.0, 1.0, 1.0]])
def test_a_bound_that_is_none_is_one_line(bound: object) -> None:
    class Bad(Signs):
        def bound(self) -> np.ndarray:
            return np.array(bound) if isinstance(bound, list) else np.full(4, bound)

    with pytest.raises(ConfigError, match=r"Bad.bound\(\) must return.*each of the 4 clients"):
        Bad(*BUDGETS).grid()


def test_what_a_setting_may_name() -> None:
    assert base.load_randomizer(f"{HERE}:Signs") == (Signs, 1)
    made, norm = base.load_randomizer(f"{HERE}:laplace")
    assert isinstance(made(*BUDGETS), OfOneMean) and norm == 2
    with pytest.raises(ConfigError, match="must be a function of"):
        base.load_randomizer(f"{HERE}:KEY")


@pytest.mark.parametrize("epsilon", [0.1, 0.5, 1.0, 3.0])
def test_zcdp_covers_the_exact_law_of_one_coordinate(epsilon: float) -> None:
    """And is not far from it: within a factor of ten of delta."""
    for sensitivity, scale in ((4, 10), (10, 10), (40, 30)):
        p = np.exp(-(np.arange(-45 * scale, 45 * scale + 1) ** 2) / (2 * scale**2))
        p /= p.sum()
        q = np.concatenate([np.zeros(sensitivity), p[:-sensitivity]])
        exact = math.fsum(np.maximum(p - math.exp(epsilon) * q, 0.0))
        bound = zcdp_delta(sensitivity**2 / (2 * scale**2), epsilon)
        assert exact <= bound + 1e-15
        if exact > 1e-9:
            assert bound <= 10.0 * exact


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 4.0])
def test_calibrations_are_the_smallest_that_fit(epsilon: float) -> None:
    width, delta = 65_000.0, 1e-5
    scale = discrete_noise.discrete_gaussian_scale(epsilon, delta, width)
    assert zcdp_delta(width**2 / (2 * scale**2), epsilon) <= delta
    assert zcdp_delta(width**2 / (2 * (scale - 2) ** 2), epsilon) > delta
    # What zCDP costs against the best calibration of continuous noise: below 15%.
    best = analytic_sigma(epsilon, delta, width)
    assert best <= scale <= 1.15 * best
    laplace = discrete_noise.discrete_laplace_scale(epsilon, width)
    assert width / laplace <= epsilon < width / (laplace - 2)


@pytest.mark.parametrize("norm", [1, 2])
def test_a_second_clip_moves_means_within_the_plan(norm: int) -> None:
    """Scaling into an l1 ball may move two means apart: the plan's sensitivity allows for it."""
    noise = {1: "laplace", 2: "gaussian"}[norm]
    privacy = {"randomizer": noise, "clip_norm": 0.3, "client_clip_norm": 0.1}
    config = parse_config({"data": {"clients": 3}, "privacy": privacy})
    plan = make_plan(config, Budgets(np.ones(3), np.full(3, 1e-5)), np.array([1, 4, 30]))
    first = 2.0 * 0.3 / np.array([1, 4, 30])
    stretch = 2.0 if norm == 1 else 1.0
    assert plan.sensitivity == pytest.approx(np.minimum(stretch * first, 0.2))
    # One step beside the ball's corner, as far as one of 30 records moves a mean.
    means = torch.tensor([[0.1, 0.0], [0.1, float(first[2])]])
    apart = float(torch.linalg.vector_norm(means[1] - means[0], norm))
    clip_rows(means, 0.1, norm)
    moved = float(torch.linalg.vector_norm(means[1] - means[0], norm))
    assert moved <= plan.sensitivity[2] * (1 + 1e-6)
    assert (moved > 1.5 * apart) == (norm == 1)


def test_sums_are_exact_for_all_reports_of_a_round() -> None:
    """A plan whose sums of one report each are exact, and of 10,000 each are not, is refused."""
    epsilon = np.geomspace(1e-5, 1.0, 40)
    budgets = Budgets(epsilon, np.full(40, 1e-5))

    def plan(reports: int) -> float:
        own = {"unit": "client", "randomizer": "laplace", "reports_per_round": reports}
        tables = {"run": {"entropy": "system"}, "data": {"clients": 40}, "privacy": own}
        config = parse_config(tables)
        made = make_plan(config, budgets, np.ones(40, dtype=np.int64))
        return float(2.0**53 * made.step.min() / made.largest.max() / 40)

    most = plan(1)
    assert 2 < most < 10_000
    assert plan(int(most)) == most
    with pytest.raises(NotApplicableError, match="is not exact"):
        plan(math.ceil(most) + 1)


@pytest.mark.parametrize("randomizer", ["gaussian", "laplace"])
def test_clients_of_one_noise_share_a_grid_whatever_their_radii(randomizer: str) -> None:
    """A grid of its own would tell a report's class."""
    privacy = {"unit": "client", "randomizer": randomizer, "personalization": "clipping"}
    config = parse_config({"data": {"clients": 5}, "privacy": {**privacy, "clip_norm": 1e4}})
    # The widest clip is far wider than the noise, and sets the grid.
    epsilon = np.array([0.1, 1.0, 100.0, 9000.0, 9000.0])
    plan = make_plan(config, Budgets(epsilon, np.full(5, 1e-5)), np.ones(5, dtype=np.int64))
    assert len(np.unique(plan.radius)) == 4 and len(np.unique(plan.scale)) == 1
    assert len({float(grid_step(plan.scale[0], radius)) for radius in plan.radius}) > 1
    assert np.unique(plan.step).tolist() == [grid_step(plan.scale[0], plan.radius.max())]


@pytest.mark.parametrize("order", [slice(None, None, -1), [2, 5, 0, 4, 1, 3]])
@pytest.mark.parametrize("unit", ["record", "client"])
@pytest.mark.parametrize(
    "settings",
    [
        {"privacy": {"personalization": "clipping", "clip_norm": 1e4}},
        {"privacy": {"randomizer": "laplace", "personalization": "clipping", "clip_norm": 1e4}},
        {"privacy": {"personalization": "noise", "client_clip": 0.3}},
        {"server": {"weights": "inverse-variance"}},
    ],
)
def test_plan_of_clients_in_another_order_is_that_plan(
    settings: dict[str, dict[str, object]], unit: str, order: Any
) -> None:
    """A client's noise, clip and grid are its own, whoever comes before or last."""
    # The widest clip is far wider than the noise, and sets the grid of all.
    epsilon = np.array([0.1, 1.0, 2.0, 9.0, 9000.0, 9000.0])
    records = np.array([3, 1, 7, 2, 5, 4]) if unit == "record" else np.full(6, 2)
    privacy = {**settings.get("privacy", {}), "unit": unit}
    config = parse_config({**settings, "data": {"clients": 6}, "privacy": privacy})

    def plan(at: Any) -> Calibration:
        delta = np.geomspace(1e-7, 1e-5, 6)
        return make_plan(config, Budgets(epsilon[at], delta[at]), records[at])

    own, other = plan(slice(None)), plan(order)
    for name in (
        "clip",
        "mean_clip",
        "radius",
        "sensitivity",
        "scale",
        "weight",
        "step",
        "largest",
    ):
        one, same = getattr(own, name), getattr(other, name)
        assert (one is None) == (same is None)
        if one is not None:
            np.testing.assert_allclose(one[order], same, rtol=1e-12, atol=0.0, err_msg=name)
    for name in ("epsilon0", "delta0", "scale", "radius", "sensitivity"):
        one, same = (getattr(each.classes, name)[each.class_of] for each in (own, other))
        np.testing.assert_allclose(one[order], same, rtol=1e-12, atol=0.0, err_msg=name)


def test_a_randomizers_grid_is_the_smallest_that_float32_holds() -> None:
    bounds = np.array([0.7, 1.0, 1.5, 2.0**20, 3e-9])

    class Wide(Signs):
        def bound(self) -> np.ndarray:
            return bounds

    steps = Wide(np.ones(5), np.zeros(5), np.ones(5)).grid()
    assert np.array_equal(np.frexp(steps)[0], np.full(5, 0.5))
    assert (steps >= 2.0**-22 * bounds).all() and (steps < 2.0**-21 * bounds).all()


@pytest.mark.parametrize("kind", [DiscreteGaussian, DiscreteLaplace])
def test_discrete_noise_is_added_to_the_mean_cut_towards_zero(kind: type[DiscreteGaussian]) -> None:
    """Rounding would carry a mean out of its ball."""
    step, scale = 2.0 ** -np.arange(4.0), 3.0 * 2.0 ** -np.arange(4.0)
    randomizer = kind(*BUDGETS, scale, step=step)
    means = np.random.default_rng(2).normal(scale=2.0, size=(4, 500)).astype(np.float32)
    noise = reports_of(randomizer, np.zeros_like(means))
    cut = reports_of(randomizer, means) - noise
    assert (np.abs(cut) <= np.abs(means)).all()
    assert np.array_equal(cut, np.trunc(means / step[:, None].astype("f4")) * step[:, None])


@pytest.mark.parametrize("weights", ["uniform", "inverse-variance"])
@pytest.mark.parametrize("unit", ["client", "record"])
@pytest.mark.parametrize("calibration", ["analytic", "classical", "laplace"])
def test_continuous_noise_keeps_every_budget(calibration: str, unit: str, weights: str) -> None:
    """By the exact profile, with the move that the clipping allows: a whole client twice the clip,
    one of so many records its share of that."""
    privacy: dict[str, object] = {"unit": unit, "clip_norm": 0.7, "calibration": calibration}
    if calibration == "laplace":
        privacy |= {"randomizer": "laplace", "calibration": "analytic"}
    tables = {"data": {"clients": 4}, "privacy": privacy, "server": {"weights": weights}}
    epsilon, delta = np.array([0.1, 0.5, 1.0, 4.0]), np.array([1e-5, 1e-6, 1e-5, 1e-5])
    records = np.array([1, 4, 30, 7])
    plan = make_plan(parse_config(tables), Budgets(epsilon, delta), records)
    move = 1.4 / (records if unit == "record" else 1)
    assert plan.sensitivity == pytest.approx(np.broadcast_to(move, 4))
    for client in range(4):
        mu = float(plan.sensitivity[client] / plan.scale[client])
        if calibration == "laplace":
            assert mu == pytest.approx(epsilon[client], rel=1e-9)
        else:
            found = gaussian_delta(float(epsilon[client]), mu)
            assert found <= delta[client] * (1 + 1e-9)
            assert calibration == "classical" or found >= 0.999 * delta[client]


@pytest.mark.parametrize("unit", ["client", "record"])
@pytest.mark.parametrize("calibration", ["analytic", "classical", "laplace"])
def test_one_noise_for_all_keeps_every_budget(calibration: str, unit: str) -> None:
    """Clips go with budgets. One record of few moves a mean further than one of many: the noise is
    what the client asks for who needs most of it."""
    privacy: dict[str, object] = {"unit": unit, "clip_norm": 0.7, "calibration": calibration}
    if calibration == "laplace":
        privacy |= {"randomizer": "laplace", "calibration": "analytic"}
    tables = {"data": {"clients": 4}, "privacy": {**privacy, "personalization": "clipping"}}
    epsilon, delta = np.array([0.1, 0.5, 1.0, 0.7]), np.array([1e-5, 1e-6, 1e-5, 1e-5])
    records = np.array([30, 4, 2, 7])
    plan = make_plan(parse_config(tables), Budgets(epsilon, delta), records)
    assert np.ptp(plan.scale) == 0.0
    assert plan.clip.max() == pytest.approx(0.7) and plan.clip.min() < 0.2
    mu = 2.0 * plan.clip / (records if unit == "record" else 1) / plan.scale
    if calibration == "laplace":
        assert (mu <= epsilon * (1 + 1e-12)).all() and (mu / epsilon).max() > 0.999
    else:
        each = zip(epsilon.tolist(), mu.tolist(), delta.tolist(), strict=True)
        spent = [gaussian_delta(e, m) / d for e, m, d in each]
        assert max(spent) <= 1 + 1e-9 and (calibration == "classical" or max(spent) > 0.999)


def test_a_discrete_reports_grid_follows_from_its_scale_and_radius() -> None:
    """Also where the scale that keeps the budget needs a coarser grid than the first guess."""
    privacy = {"randomizer": "discrete-gaussian", "unit": "client"}
    config = parse_config({"run": {"entropy": "system"}, "privacy": privacy})
    epsilon = np.linspace(0.2, 0.22, 9)
    plan = make_plan(config, Budgets(epsilon, np.full(9, 1e-5)), np.full(9, 20))
    guess = grid_steps(2.0 * sigmas_of(gaussian_mus(epsilon, np.full(9, 1e-5))), plan.radius)
    assert (guess < plan.step).any()
    assert np.array_equal(plan.step, grid_steps(plan.scale, plan.radius))
    assert np.array_equal(plan.classes.step[plan.class_of], plan.step)


def test_discrete_noise_of_very_few_steps_counts_as_its_budget() -> None:
    """Of everybody: a run has one randomizer."""
    privacy = {"randomizer": "discrete-gaussian", "unit": "client"}
    config = parse_config({"run": {"entropy": "system"}, "privacy": privacy})
    budgets = Budgets(np.array([1.0, 1e12]), np.full(2, 1e-5))
    plan = make_plan(config, budgets, np.full(2, 20))
    assert plan.scale[1] < 8.0 * plan.step[1]
    assert [kind.noise for kind in plan.classes] == ["user", "user"]


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("noise", ["discrete-gaussian", "discrete-laplace"])
def test_the_plan_keeps_every_budget(noise: str, clip: float | None) -> None:
    privacy = {"randomizer": noise, "unit": "client", "clip_norm": 0.7}
    privacy |= {"client_clip_norm": clip} if clip else {}
    config = parse_config({"run": {"entropy": "system"}, "privacy": privacy})
    epsilon = np.array([0.1, 0.5, 0.5, 2.0, 8.0])
    budgets = Budgets(epsilon, np.array([1e-5, 1e-6, 1e-5, 1e-5, 1e-9]))
    plan = make_plan(config, budgets, np.full(5, 20))
    assert plan.radius.tolist() == [clip or 0.7] * 5
    steps = plan.scale / plan.step
    assert np.array_equal(steps, np.rint(steps))
    assert np.array_equal(np.frexp(plan.step)[0], np.full(5, 0.5))
    width = 2.0 * plan.radius / plan.step
    for client in range(5):
        if noise == "discrete-laplace":
            assert width[client] / steps[client] <= epsilon[client]
        else:
            rho = width[client] ** 2 / (2.0 * steps[client] ** 2)
            assert zcdp_delta(rho, epsilon[client]) <= budgets.delta[client]
    kinds = [plan.classes[int(index)] for index in plan.class_of]
    assert [kind.epsilon0 for kind in kinds] == epsilon.tolist()
    zero = noise == "discrete-laplace"
    # What discrete Laplace noise is as good as is not known: its budget counts.
    assert all(kind.noise == ("user" if zero else noise) for kind in kinds)
    assert [kind.scale for kind in kinds] == plan.scale.tolist()
    assert zero or [kind.step for kind in kinds] == plan.step.tolist()
    assert [kind.delta0 for kind in kinds] == ([0.0] * 5 if zero else budgets.delta.tolist())
    # Reports that are cut at 2^23 steps pass the bound on honest ones.
    assert (plan.largest >= 2.0**23 * plan.step).all()


def test_a_group_of_reports_of_any_clients_has_an_exact_float32_sum() -> None:
    """Of noise on several grids: the largest reports there are, in steps of the finest grid."""
    tables = {
        "run": {"entropy": "system"}, "data": {"clients": 9}, "privacy": {"unit": "client"},
        "budgets": {"distribution": "uniform", "low": 0.05, "high": 6.0},
    }  # fmt: skip
    config = parse_config(tables)
    plan = make_plan(config, make_budgets(config.budgets, 9), np.ones(9, dtype=np.int64))
    assert len(set(plan.step.tolist())) > 2 and plan.group > 1
    # float32 holds every multiple of a step up to 2^24 of them, and sums of groups are such.
    assert plan.group * plan.largest.max() <= 2.0**24 * plan.step.min()
    assert (plan.group + 1) * plan.largest.max() > 2.0**24 * plan.step.min()


@pytest.mark.parametrize("which", range(3))
def test_a_trial_sees_small_reports_beside_large_ones(which: int) -> None:
    """Whoever mixes a little is seen in each client's own size, whatever the others'."""

    class Mixing(LocalRandomizer):
        def bound(self) -> np.ndarray:
            return self.radius

        def randomize(self, means: np.ndarray, clients: np.ndarray, noise: Noise) -> np.ndarray:
            reports = np.array(means, dtype=np.float64)
            if len(means) > 1:
                reports[clients == which] *= 1.0 + 1e-4
            return reports

    radius = np.array([1e-4, 1e4, 1.0])
    with pytest.raises(InvalidValueError, match="mixes clients"):
        try_randomizer(Mixing(np.ones(3), np.zeros(3), radius), 12, "own:Mixing")


class _Spoiling(LocalRandomizer):
    """The mean, but for one coordinate of the second client's."""

    odd = math.inf

    def bound(self) -> Any:
        return self.radius

    def randomize(self, means: Any, clients: Any, noise: Noise) -> Any:
        made = means.astype(np.float64)
        made[clients == 1, 0] = self.odd
        return made


@pytest.mark.parametrize("odd", [math.inf, -math.inf, math.nan])
def test_a_report_with_one_number_that_is_not_finite_is_not_sent(odd: float) -> None:
    """All of it: an infinite one is not cut to the bound, and the others' reports are sent."""
    randomizer = _Spoiling(np.ones(3), np.zeros(3), np.ones(3))
    randomizer.odd = odd
    means = torch.full((3, 4), 0.25)
    found = randomizer.reports(means, np.arange(3), NoiseStream(KEY, 4, bits=64)).numpy()
    assert np.isnan(found[1]).all() and (found[[0, 2]] == 0.25).all()
