"""A record whose gradient is not finite, whose label is no class, or on which the module raises
counts as zero; no client is left out for it, and nobody else's row changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fl_shuffle.gradients import GradientEngine, NonfiniteRecords, make_gradient_engine
from tests.gradients.gradient_modules import MODULES, SHAPE, Tied, engine_of, problem_of
from tests.gradients.gradient_oracle import flat, offsets_of

NAMES = ["linear", "linear, compiled", "relu", "tanh, gelu", "convolution", "branching", "lines"]
SIZES = [3, 5, 40, 1, 5, 9]
RADIUS = np.array([0.5, 0.4, 0.3, 0.7, 0.4, 0.2])
BAD = 99.0


def computed(
    engine: GradientEngine, theta: Tensor, x: Tensor, y: Tensor, sizes: list[int] = SIZES,
    radius: np.ndarray = RADIUS,
) -> tuple[Tensor, NonfiniteRecords]:  # fmt: skip
    found = NonfiniteRecords()
    rows = engine.client_means(theta, x, y, offsets_of(sizes), radius, nonfinite=found)
    assert bool(torch.isfinite(rows).all())
    return rows, found


def others_of(client: int) -> list[int]:
    return [k for k in range(len(SIZES)) if k != client]


def poisoned(x: Tensor, record: int, kind: str) -> Tensor:
    """A copy of the records, one of them not finite."""
    changed = x.clone()
    if kind == "one feature":
        changed[record] = 0.0
        changed[record].view(-1)[4] = torch.nan
    else:
        changed[record] = {"nan": torch.nan, "inf": torch.inf, "long": 3e38}[kind]
    return changed


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_one_nonfinite_record_moves_its_client_no_further_than_any_other(
    name: str, norm: int
) -> None:
    """Replace-one: from finite to nonfinite, from one nonfinite record to two."""
    engine, theta = engine_of(name, norm=norm), flat(MODULES[name])
    x, y, offsets = problem_of(name, SIZES, 7)
    clean, found = computed(engine, theta, x, y)
    assert found == NonfiniteRecords()

    def moved(rows: Tensor, client: int, to: Tensor) -> float:
        return float(torch.linalg.vector_norm((rows - to)[client].double(), norm))

    for client in (1, 2, 3):
        first, size = int(offsets[client]), SIZES[client]
        allowed = 2.0 * RADIUS[client] / size
        for kind in ("nan", "inf", "long", "one feature"):
            bad = poisoned(x, first, kind)
            rows, found = computed(engine, theta, bad, y)
            assert torch.equal(rows[others_of(client)], clean[others_of(client)])
            assert moved(rows, client, clean) <= allowed
            assert moved(rows, client, torch.zeros_like(rows)) <= RADIUS[client]
            if kind == "long":  # finite where an activation or a norm brings it back to scale
                continue
            assert found == NonfiniteRecords(1, 1)
            if size == 1:
                assert not rows[client].any()
                continue
            left, own = slice(first + 1, int(offsets[client + 1])), RADIUS[client : client + 1]
            rest, _ = computed(engine, theta, x[left], y[left], [size - 1], own)
            torch.testing.assert_close(
                rows[client] * size, rest[0] * (size - 1), rtol=1e-3, atol=1e-5
            )
            worse = bad.clone()
            worse[first + 1] = torch.inf
            again, found = computed(engine, theta, worse, y)
            assert found == NonfiniteRecords(1, 2)
            assert moved(rows, client, again) <= allowed


def test_a_nonfinite_first_record_does_not_choose_the_path() -> None:
    """The path, hence everybody's rounding, is that of the module."""
    x, y, _ = problem_of("linear", SIZES, 7)
    for value in (torch.nan, torch.inf):
        x[:2] = value
        engine = make_gradient_engine(Tied(), shape=SHAPE, clip="record")
        computed(engine, flat(Tied()), x, y)
        assert engine.path == "torch.func"


class Raising(nn.Module):
    """Looks at its records in Python, which torch.func does not allow: a loop does."""

    def __init__(self, error: type[BaseException] = ValueError) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.first, self.last = nn.Linear(13, 6), nn.Linear(6, 5)
        self.error = error

    def forward(self, x: Tensor) -> Tensor:
        if bool((x == BAD).any()):
            raise self.error("a record's secret")
        return self.last(torch.tanh(self.first(x)))


class Indexed(nn.Module):
    """torch.func serves it; an index beyond the table raises."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.table, self.head = nn.Embedding(7, 6), nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.table(x.abs().floor().long())).mean(1))


RAISING = {"indexed": Indexed(), "raises": Raising(), "exits": Raising(SystemExit)}


@pytest.mark.parametrize(
    ("name", "label"),
    [*((name, 5) for name in (*NAMES, *RAISING)), ("linear, compiled", -1), ("relu", 1 << 40)],
)
def test_a_label_that_is_no_class_and_a_record_that_raises_count_like_one_not_finite(
    name: str, label: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Of clipped records: the same bits. Where none is clipped their client's mean and update are
    not finite, of which `ClippedRows` makes zeros."""
    module = RAISING.get(name) or MODULES[name]
    x, y, offsets = problem_of(name, SIZES, 7)
    client = 2
    record = int(offsets[client]) + 30
    wrong, bad, theta = y.clone(), x.clone(), flat(module)
    wrong[record], bad[record] = label, BAD if name in RAISING else torch.nan
    for clip in ("record", "none"):
        if name in RAISING:
            engine = make_gradient_engine(module, shape=SHAPE, clip=clip)
        else:
            engine = engine_of(name, clip)
        tallies = NonfiniteRecords(), NonfiniteRecords(), NonfiniteRecords()
        clean, rows, same = (
            engine.client_means(theta, *given, offsets, RADIUS, nonfinite=tally)
            for given, tally in zip(((x, y), (x, wrong), (bad, y)), tallies, strict=True)
        )
        assert tallies[0] == NonfiniteRecords() and tallies[1] == tallies[2]
        others = others_of(client)
        assert torch.equal(rows[others], clean[others])
        if clip == "record":
            assert torch.equal(rows, same) and tallies[1] == NonfiniteRecords(1, 1)
            continue
        updates = [
            engine.local_update(theta, *given, offsets, steps=2, learning_rate=0.1)
            for given in ((x, y), (x, wrong), (bad, y))
        ]
        for found in (rows, same, *updates[1:]):
            assert not bool(torch.isfinite(found[client]).all())
        assert all(torch.equal(found[others], updates[0][others]) for found in updates)
    # What a client's data did is said to that client alone.
    assert {said.name for said in caplog.records} <= {"fl_shuffle.client.gradients"}


class Broken(Raising):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("no record's doing")


@pytest.mark.parametrize("clip", ["record", "none"])
def test_a_broken_module_is_heard(clip: str) -> None:
    module = Broken()
    x, y, _ = problem_of("linear", SIZES, 7)
    with pytest.raises(RuntimeError, match="no record's doing"):
        computed(make_gradient_engine(module, shape=SHAPE, clip=clip), flat(module), x, y)
