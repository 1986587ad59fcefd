"""Every path against autograd in float64, one record at a time; the same bits however a call is put
together from blocks of clients; which modules take which path. And a record whose gradient is not
finite, whose label is no class, or on which the module raises counts as zero: no client is left out
for it, and nobody else's row changes."""

from __future__ import annotations

import copy
import math
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fl_shuffle.errors import InvalidValueError
from fl_shuffle.gradients import (
    Loss,
    NonfiniteRecords,
    Packing,
    client_sums,
    make_gradient_engine,
)
from fl_shuffle.gradients.networks.chain import network_of
from tests.gradients.gradient_modules import (
    CHAINS,
    IMAGES,
    MODULES,
    NETWORKS,
    OTHERS,
    SHAPE,
    OwnForward,
    Problem,
    path_of,
    relative_difference,
)


def squares(logits: Tensor, labels: Tensor) -> Tensor:
    """A loss of one's own."""
    return (logits - nn.functional.one_hot(labels, 5)).square().sum(1)


@pytest.mark.parametrize(
    ("name", "clip", "norm", "loss"),
    [
        *((name, "record", norm, None) for name in MODULES for norm in (1, 2)),
        *((name, "none", 2, None) for name in MODULES),
        *(
            (name, "record", 2, squares)
            for name in ("linear", "relu", "lines", "layers", "torch.func")
        ),
    ],
)
def test_means_against_autograd(name: str, clip: str, norm: int, loss: Loss | None) -> None:
    """And no longer than the radius, to the last bit, where about half of the records are clipped
    and where all are. Of networks the last client is more than a block holds, and is computed in
    pieces."""
    sizes = [3, 9, 4, *[1] * 30, 9, 150 if name in CHAINS else 60]
    problem = Problem(name, sizes, clip=clip, norm=norm, loss=loss)
    problem.x *= 2
    if name not in CHAINS:
        problem.engine.packing = Packing(40, 5)
    found = problem.rows()
    assert relative_difference(found, problem.expected()) < 1e-5
    if clip == "none":
        return
    assert loss or problem.engine.path == path_of(name)
    assert bool((torch.linalg.vector_norm(found.double(), norm, dim=1) <= problem.radius).all())
    problem.radius *= 1e-4
    shares = torch.linalg.vector_norm(problem.rows().double(), norm, dim=1) / problem.radius
    assert bool((shares <= 1.0).all())
    # Those of clients of one record are as long as they may be.
    assert float(shares[3:33].min()) > 0.999


@pytest.mark.parametrize("name", ["relu", "pictures", "lines"])
@pytest.mark.parametrize("numbers", [1, 100, 1 << 18])
def test_products_of_layers_larger_than_what_one_call_makes(
    numbers: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of clients with few records, and of one with several tiles of them and a rest."""
    monkeypatch.setattr(client_sums, "BATCHED_NUMBERS", numbers)
    problem = Problem(name, [1, 3, 3, 3 * client_sums.TILE + 5], 4)
    assert relative_difference(problem.rows(), problem.expected()) < 1e-5


@pytest.mark.parametrize(
    "name", ["linear", "relu", "linear, compiled", "pictures", "layers", "torch.func"]
)
def test_local_updates_are_steps_along_each_clients_own_mean(name: str) -> None:
    problem = Problem(name, [5, 1, 12], 2, clip="none")
    theta, local = problem.theta, problem.theta.repeat(3, 1)
    found = problem.rows(steps=4)
    for _ in range(4):
        for client in range(3):
            problem.theta = local[client].clone()
            local[client] -= 0.2 * problem.rows()[client]
    assert relative_difference(found, (local - theta).double()) < 1e-5


@pytest.mark.parametrize("name", ["linear", "relu", "layers", "torch.func"])
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_gives_the_same_values(name: str) -> None:
    here, there = (Problem(name, [3, 5, 1, 70], 2, device=each) for each in ("cpu", "cuda"))
    there.theta, there.x, there.y = there.theta.cuda(), there.x.cuda(), there.y.cuda()
    assert relative_difference(there.rows().cpu(), here.rows().double()) < 1e-5


@pytest.mark.parametrize("name", ["linear", "linear, compiled"])
def test_the_tails_of_the_softmax(name: str) -> None:
    """Records whose logits are certain have no gradient at all. Squares of errors below 1e-19 are
    zero in float32; the gradient need not be short. Denormal numbers count as zero in here, and
    nowhere else."""
    for clip in ("record", "none"):
        problem = Problem(name, [3, 1, 40], clip=clip)
        zeros = torch.zeros_like(problem.y)
        problem.theta = torch.zeros(70)
        problem.theta[-5] = 200.0
        assert not problem.rows(y=zeros).any()
    for feature, radius in ((1e17, 1e-3), (1e9, 1e-12), (1e18, 1e-12)):
        problem = Problem(name, [1], radius=radius)
        problem.theta, x = torch.zeros(70), torch.zeros(1, 13)
        problem.theta[65], x[0, 1] = 44.5, feature  # softmax of the other classes: 4.7e-20
        row = problem.rows(x, zeros[:1]).double()
        assert 0.0 < float(torch.linalg.vector_norm(row)) <= radius
    problem, tiny = Problem(name, [2, 4]), torch.tensor([math.ulp(0.0)], dtype=torch.float64)
    problem.theta = torch.zeros(70)
    problem.theta[66:68] = torch.tensor([-90.0, -95.0])  # softmax tails: 8e-40 and 6e-42
    for flushed in (False, True):
        torch.set_flush_denormal(flushed)
        means = problem.rows(torch.ones(6, 13), zeros[:6])
        after = float(tiny * 1.0)
        torch.set_flush_denormal(False)
        assert (after == 0.0) == flushed
        assert not ((means != 0.0) & (means.abs() < torch.finfo(torch.float32).tiny)).any()


FROZEN, WHOLE = nn.Linear(13, 5), nn.Linear(13, 5)
FROZEN.bias.requires_grad_(False)
WHOLE.weight = nn.Parameter(torch.ones(5, 13, dtype=torch.int64), requires_grad=False)


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Linear(13, 4), nn.BatchNorm1d(4)), "GroupNorm"),
        (nn.Sequential(nn.InstanceNorm1d(4, track_running_stats=True), nn.Linear(4, 2)), "mixes"),
        (nn.Sequential(nn.Linear(13, 4), nn.Dropout(0.5)), "random state"),
        (nn.ReLU(), "no parameters"),
        (FROZEN, "bias"),
        (WHOLE, "floating point"),
    ],
)
def test_modules_that_are_refused(module: nn.Module, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        make_gradient_engine(module, shape=SHAPE, clip="record")


def test_what_is_no_network() -> None:
    pictures = NETWORKS["pictures"]
    assert isinstance(pictures, nn.Sequential) and network_of(pictures, IMAGES) is not None
    hooked = copy.deepcopy(pictures)
    hooked[1].register_forward_hook(lambda *_: None)
    tied = nn.Sequential(nn.Conv2d(2, 2, 1), nn.Conv2d(2, 2, 1), nn.Flatten(), nn.Linear(162, 5))
    tied[1].weight = tied[0].weight
    around = nn.Conv2d(2, 2, 3, padding=1, padding_mode="circular")
    unused = nn.Sequential(nn.Flatten(), nn.Linear(162, 5))
    unused.register_parameter("idle", nn.Parameter(torch.zeros(3)))
    for module in (
        *(hooked, tied, unused, pictures[:4], OwnForward(*pictures)),
        nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(196, 5)),
        nn.Sequential(around, nn.Flatten(), nn.Linear(162, 5)),
        nn.Sequential(pictures, nn.Softmax(0)),
        nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (2, 162)), nn.Linear(162, 5)),
        nn.Sequential(*pictures[:11], nn.ReLU(), OwnForward(nn.Linear(6, 5))),
    ):
        assert network_of(module, IMAGES) is None
    assert network_of(pictures, (3, 9, 9)) is None


SIZES = [3, 17, 1, 300, 3, 64, 5, 5, 90, 1, 1, 33, 700, 2]


@pytest.mark.parametrize(
    ("name", "steps"),
    [*((name, 0) for name in MODULES), ("relu", 3), ("linear, compiled", 3), ("torch.func", 1)],
)
def test_whole_blocks_have_the_same_bits_in_any_call(name: str, steps: int) -> None:
    """And in any thread, and by several."""
    problem = Problem(name, SIZES, 6, clip="none" if steps else "record")
    # Few records are several blocks.
    problem.engine.packing = Packing(min(100, problem.engine.packing.records), 5)
    together = problem.rows(steps=steps)
    assert bool(torch.isfinite(together).all())
    starts = problem.engine.packing.starts(np.array(SIZES)).tolist()
    assert len(starts) > 3
    middle = starts[len(starts) // 2]
    for first, last in (*pairwise(starts), (0, middle), (middle, len(SIZES))):
        alone = problem.part(first, last, shift=1).rows(steps=steps)
        assert torch.equal(alone, together[first:last])
    if name == "functional loop":  # which takes seconds
        return
    with ThreadPoolExecutor(4) as pool:
        calls = [pool.submit(problem.rows, steps=steps) for _ in range(8)]
        assert all(torch.equal(call.result(), together) for call in calls)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert torch.equal(problem.rows(steps=steps), together)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=40), st.integers(1, 300), st.integers(1, 9)
)
@settings(max_examples=200, deadline=None)
def test_the_rule_of_blocks(sizes: list[int], records: int, clients: int) -> None:
    packing = Packing(records, clients)
    starts = packing.starts(np.array(sizes)).tolist()
    assert (starts[0], starts[-1]) == (0, len(sizes))
    for first, last in pairwise(starts):
        assert 0 < last - first <= clients
        assert sum(sizes[first:last]) <= records or last == first + 1
        # From a block's start on, the list is cut as the whole list is.
        rest = packing.starts(np.array(sizes[first:])) + first
        assert rest.tolist() == [start for start in starts if start >= first]


PATHS = ["linear", "linear, compiled", "relu", "mixed", *OTHERS, "lines"]
FEW = [3, 5, 40, 1, 5, 9]
BAD, HUGE = 99.0, 3e38


def computed(problem: Problem, *records: Tensor) -> tuple[Tensor, NonfiniteRecords]:
    found = NonfiniteRecords()
    rows = problem.rows(*records, tally=found)
    assert bool(torch.isfinite(rows).all())
    return rows, found


def others_of(client: int) -> list[int]:
    return [k for k in range(len(FEW)) if k != client]


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("name", PATHS)
def test_one_nonfinite_record_moves_its_client_no_further_than_any_other(
    name: str, norm: int
) -> None:
    """Replace-one: from finite to nonfinite, from one nonfinite record to two. The path, hence
    everybody's rounding, is that of the module, also if the engine's first records are such."""
    problem = Problem(name, FEW, 7, norm=norm)
    whole, problem.x = problem.x, torch.full_like(problem.x, torch.nan)
    computed(problem)
    assert problem.engine.path == path_of(name)
    problem.x = whole
    clean, found = computed(problem)
    assert found == NonfiniteRecords()
    one_feature = torch.zeros_like(whole[0])
    one_feature.view(-1)[4] = torch.nan

    def length(rows: Tensor) -> float:
        return float(torch.linalg.vector_norm(rows[client].double(), norm))

    for client, value in product((1, 2, 3), (torch.nan, torch.inf, one_feature, HUGE)):
        first, size, radius = problem.offsets[client], FEW[client], float(problem.radius[client])
        problem.x = whole.clone()
        problem.x[first] = value
        rows, found = computed(problem)
        assert torch.equal(rows[others_of(client)], clean[others_of(client)])
        assert length(rows - clean) <= 2.0 * radius / size and length(rows) <= radius
        if value is HUGE:  # finite where an activation or a norm brings it back to scale
            continue
        assert found == NonfiniteRecords(1, 1)
        assert relative_difference(rows, problem.expected()) < 1e-5
        if size > 1:
            problem.x[first + 1] = torch.inf
            again, found = computed(problem)
            assert found == NonfiniteRecords(1, 2)
            assert length(rows - again) <= 2.0 * radius / size


class Raising(nn.Linear):
    """Looks at its records in Python, which torch.func does not allow: a loop does."""

    error: type[BaseException] = ValueError

    def forward(self, x: Tensor) -> Tensor:
        if bool((x == BAD).any()):
            raise self.error("a record's secret")
        return super().forward(x)


class Exiting(Raising):
    error = SystemExit


class Indexed(nn.Embedding):
    """torch.func serves it; an index beyond the table raises."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.abs().floor().long()).mean(1)


RAISING = {"indexed": Indexed(7, 5), "raises": Raising(13, 5), "exits": Exiting(13, 5)}


@pytest.mark.parametrize("clip", ["record", "none"])
@pytest.mark.parametrize(
    ("name", "label"),
    [*((name, 5) for name in (*PATHS, *RAISING)), ("linear, compiled", -1), ("relu", 1 << 40)],
)
def test_a_label_that_is_no_class_and_a_record_that_raises_count_like_one_not_finite(
    name: str, label: int, clip: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of clipped records: the same bits. Where none is clipped their client's mean and update are
    not finite, of which `ClippedRows` makes zeros."""
    problem, client = Problem(name, FEW, 7, module=RAISING.get(name), clip=clip), 2
    record, others = int(problem.offsets[client]) + 30, others_of(client)
    wrong, bad = problem.y.clone(), problem.x.clone()
    wrong[record], bad[record] = label, BAD if name in RAISING else torch.nan
    given: list[dict[str, Tensor]] = [{}, {"y": wrong}, {"x": bad}]
    tallies = [NonfiniteRecords() for _ in given]
    rows = [problem.rows(**one, tally=tally) for one, tally in zip(given, tallies, strict=True)]
    assert tallies[0] == NonfiniteRecords() and tallies[1] == tallies[2]
    assert all(torch.equal(found[others], rows[0][others]) for found in rows)
    if clip == "record":
        assert torch.equal(rows[1], rows[2]) and tallies[1] == NonfiniteRecords(1, 1)
    else:
        updates = [problem.rows(**one, steps=2) for one in given]
        assert all(torch.equal(found[others], updates[0][others]) for found in updates)
        assert not any(torch.isfinite(one[client]).all() for one in (*rows[1:], *updates[1:]))
    # What a client's data did is said to that client alone.
    assert {said.name for said in caplog.records} <= {"fl_shuffle.client.gradients"}


class Broken(Raising):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("no record's doing")


@pytest.mark.parametrize("clip", ["record", "none"])
def test_a_broken_module_is_heard(clip: str) -> None:
    problem = Problem("linear", FEW, module=Broken(13, 5), radius=1.0, clip=clip)
    with pytest.raises(RuntimeError, match="no record's doing"):
        problem.rows()


def test_a_nonfinite_record_leaves_others_alone_where_the_loss_has_one_gradient_for_all() -> None:
    module = nn.Sequential(nn.Linear(4, 3))
    engine = make_gradient_engine(module, shape=(4,), clip="record", loss=lambda out, _: out.sum(1))

    def means(first: float) -> Tensor:
        inputs, labels = torch.ones(32, 4), torch.zeros(32, dtype=torch.int64)
        inputs[0] = first
        return engine.client_means(torch.zeros(15), inputs, labels, torch.tensor([0, 16, 32]))

    moved = (means(torch.nan) - means(1.0)).norm(dim=1)
    assert 0.0 < moved[0] <= 2.0 / 16 and moved[1] == 0.0
