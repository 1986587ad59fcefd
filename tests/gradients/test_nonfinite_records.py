"""A record whose gradient is not finite, whose label is no class, or on which the module raises
counts as zero; no client is left out for it, and nobody else's row changes."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor, nn

from fl_shuffle.gradients import NonfiniteRecords
from tests.gradients.gradient_modules import Problem, path_of, relative_difference

NAMES = ["linear", "linear, compiled", "relu", "mixed", "torch.func", "functional loop", "lines"]
SIZES = [3, 5, 40, 1, 5, 9]
BAD, HUGE = 99.0, 3e38


def computed(problem: Problem, *records: Tensor) -> tuple[Tensor, NonfiniteRecords]:
    found = NonfiniteRecords()
    rows = problem.rows(*records, tally=found)
    assert bool(torch.isfinite(rows).all())
    return rows, found


def others_of(client: int) -> list[int]:
    return [k for k in range(len(SIZES)) if k != client]


@pytest.mark.parametrize("norm", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_one_nonfinite_record_moves_its_client_no_further_than_any_other(
    name: str, norm: int
) -> None:
    """Replace-one: from finite to nonfinite, from one nonfinite record to two. The path, hence
    everybody's rounding, is that of the module, also if the engine's first records are such."""
    problem = Problem(name, SIZES, 7, norm=norm)
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
        first, size, radius = problem.offsets[client], SIZES[client], float(problem.radius[client])
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
    [*((name, 5) for name in (*NAMES, *RAISING)), ("linear, compiled", -1), ("relu", 1 << 40)],
)
def test_a_label_that_is_no_class_and_a_record_that_raises_count_like_one_not_finite(
    name: str, label: int, clip: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of clipped records: the same bits. Where none is clipped their client's mean and update are
    not finite, of which `ClippedRows` makes zeros."""
    problem, client = Problem(name, SIZES, 7, module=RAISING.get(name), clip=clip), 2
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
    problem = Problem("linear", SIZES, module=Broken(13, 5), radius=1.0, clip=clip)
    with pytest.raises(RuntimeError, match="no record's doing"):
        problem.rows()
