"""What is printed of a plan, and how its rows are put together: of hand-made costs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from pytest import MonkeyPatch

from fl_shuffle.accounting.add_remove import ADD_REMOVE_WORDS
from fl_shuffle.accounting.attendance import FAILURE_PROBABILITY
from fl_shuffle.accounting.bounds.sum_release.honest import sum_assumption
from fl_shuffle.accounting.client_classes import ROUND_EXACT_REPORTS, ClientClass
from fl_shuffle.accounting.guarantee import ratio_line
from fl_shuffle.cli.cost import (
    SHOWN_CLASSES,
    _limit_lines,
    _lines,
    _noise_lines,
    _table,
    _totals_table,
)
from fl_shuffle.configuration.reading import resolve_config
from fl_shuffle.configuration.sections import Config
from fl_shuffle.planner import cost
from fl_shuffle.planner.cost import (
    ClassCost,
    Cost,
    TotalCost,
    _as_accounted,
    _total_costs,
    cost_of,
    trade_off_of,
)
from fl_shuffle.randomizers.few_bits import RoundingCost
from fl_shuffle.report.formats import short


def config(**settings: Any) -> Config:
    given = {name.replace("__", "."): value for name, value in settings.items()}
    return resolve_config({"data": {"clients": 5, "records_per_client": 6}}, given)


OF_TOTALS = {
    "budgets__of": "run", "budgets__distribution": "constant", "privacy__release": "sum",
    "privacy__unit": "client", "privacy__personalization": "clipping",
}  # fmt: skip


def cost_class(index: int, epsilon: float, **more: Any) -> ClassCost:
    of: dict[str, Any] = {
        "clients": 1, "anonymity": 7, "epsilon0": 1.0, "noise_scale": 2.0, "epsilon": epsilon,
        "local": 9.0, "lower": 0.0, "credit": True,
    }  # fmt: skip
    return ClassCost(index, **{**of, **more})


def planned(*classes: ClassCost, **more: Any) -> Cost:
    of: dict[str, Any] = {
        "epsilon": 1.0, "delta": 1e-5, "rounds": 3, "unit": "client", "certain": True,
        "tightness": None, "dimension": 50_000, "noise_of_mean": 0.5,
        "sum_epsilon_add_remove": None, "declared": False,
    }  # fmt: skip
    return Cost(classes=classes, **{**of, **more})


@pytest.mark.parametrize("count", [1, SHOWN_CLASSES, SHOWN_CLASSES + 1, SHOWN_CLASSES + 7])
def test_classes_stand_in_the_table_by_epsilon_the_largest_first(count: int) -> None:
    epsilons = np.random.default_rng(1).permutation(np.arange(1, count + 1) / 64)
    classes = [cost_class(place, epsilon) for place, epsilon in enumerate(epsilons.tolist())]
    head, *lines = _table(config(), planned(*classes))
    assert head.split()[-3:] == ["without", "shuffler", "lower"]
    shown = [line.split()[4] for line in lines[:SHOWN_CLASSES]]
    assert shown == [
        short(each) for each in sorted(epsilons.tolist(), reverse=True)[:SHOWN_CLASSES]
    ]
    left = count - SHOWN_CLASSES
    assert lines[SHOWN_CLASSES:] == [f"  and {left} classes with smaller epsilon"] * (left > 0)


@pytest.mark.parametrize(("reports", "sent"), [(1, None), (3, ("0.6 MB", "6 MB"))])
def test_what_several_reports_a_round_take_of_a_line_is_told(
    reports: int, sent: tuple[str, str] | None
) -> None:
    """Four bytes a number: of each report, over all rounds."""
    asked = config(privacy__reports_per_round=reports, run__rounds=10)
    found = planned(cost_class(0, 1.0), round_bytes=reports * 200_000)
    first, *more = _noise_lines(asked, found)
    assert first == "noise of the mean: 0.5 times the clipping norm (50,000 numbers)"
    assert more == ([] if sent is None else [
        f"a client sends 3 reports a round, {sent[0]}, and {sent[1]} over the run"
    ])  # fmt: skip


@pytest.mark.parametrize("dimension", [50_000, None])
def test_what_rounding_to_few_bits_does_is_told(dimension: int | None) -> None:
    """Also where the size of a report is not known; a variance that falls is no gain."""
    size = None if dimension is None else 25_000
    told = "1 report a round, 0.025 MB, and 0.075 MB over the run"
    for added, said in ((0.0163, "1.63%"), (-0.01, "0.00%")):
        found = planned(
            dimension=dimension, round_bytes=size, rounding=RoundingCost(added, 0.00052)
        )
        asked = config(privacy__report_bits=4, run__rounds=3)
        assert _noise_lines(asked, found)[1:] == [
            f"reports of 4 bits: a coordinate has {said} more variance, and its mean a bias of at "
            "most 0.00052 noise scales",
            *([] if size is None else [f"a client sends {told}"]),
        ]


def test_bytes_of_a_client_are_those_of_its_packed_reports() -> None:
    """Half a byte a number at four bits, rounded up for each report; and what rounding does."""
    base = {"run.rounds": 1, "data.features": "hog", "model.bias": False, "privacy.unit": "client"}
    sizes = []
    for bits in (0, 4, 3):
        asked = {**base, "privacy.report_bits": bits, "privacy.reports_per_round": 2}
        found = cost_of(resolve_config({"data": {"source": "digits", "clients": 40}}, asked))
        sizes.append(found.round_bytes)
        assert (found.rounding is None) == (bits == 0)
        assert max(each.lower for each in found.classes) > 0.0 or bits
    number = found.dimension
    assert number is not None
    assert sizes == [8 * number, 2 * -(-number // 2), 2 * -(-3 * number // 8)]


@pytest.mark.parametrize(("times", "warned"), [(9.9, False), (10.1, True)])
def test_hopeless_noise_is_a_warning(times: float, warned: bool) -> None:
    (line,) = _noise_lines(config(), planned(noise_of_mean=times))
    assert line.startswith("warning: noise of the mean") == warned
    assert _noise_lines(config(), planned(noise_of_mean=None)) == []
    (line,) = _noise_lines(config(), planned(noise_of_mean=times, dimension=None))
    # 10,000 numbers: the root of it times that of one.
    assert line.startswith(f"noise of the mean: {100 * times:.4g} times") and "10,000" in line


def test_drawn_rounds_and_lost_shuffles_are_told() -> None:
    lost = cost_class(0, 1.0, credit=False)
    said = "\n".join(_lines(config(), planned(lost, certain=False)))
    assert "expected cost of 3 rounds" in said and "batches and attendance are drawn" in said
    assert "shuffling adds nothing here" in said
    said = "\n".join(_lines(config(), planned(lost, cost_class(1, 1.0))))
    assert "proven cost of 3 rounds" in said and "drawn" not in said and "nothing" not in said


def test_what_a_combination_gains_and_loses_counts_clients(monkeypatch: MonkeyPatch) -> None:
    """Numbers are over clients, not over classes; budgets are those before they were rounded."""
    classes = cost_class(0, 2.0, clients=1, anonymity=9), cost_class(1, 0.5, clients=4)
    monkeypatch.setattr(cost, "cost_of", lambda _: planned(*classes))
    epsilons = [1.0, 1.25, 2.0, 2.0, 4.0]
    found = trade_off_of(
        config(budgets__distribution="listed", budgets__epsilons=epsilons, budgets__levels=2)
    )
    rounded = np.array([1.0, 1.0, 2.0, 2.0, 2.0])
    assert found.pop("budget_lost") == pytest.approx(1.0 - np.mean(rounded / epsilons))
    assert found == {
        "cohorts": 2, "least_anonymity": 7, "median_anonymity": 7, "worst_epsilon": 2.0,
        "median_epsilon": 0.5,
    }  # fmt: skip


def test_a_row_for_a_total_has_the_largest_numbers_of_its_clients() -> None:
    """Who has more records is clipped more loosely, for the same total."""
    plan: Any = SimpleNamespace(
        totals=np.array([2.0, 0.5, 2.0, 0.5]), class_of=np.array([2, 0, 1, 0]),
        classes=SimpleNamespace(epsilon0=np.array([0.25, 3.0, 1.0])),
        clip=np.array([1.0, 0.125, 0.75, 0.25]), scale=np.array([4.0, 5.0, 8.0, 5.0]),
    )  # fmt: skip
    classes = [cost_class(0, 0.375), cost_class(1, 1.5), cost_class(2, 1.75)]
    asked = config(**OF_TOTALS)
    strict, large = _total_costs(asked, plan, classes)
    assert strict == TotalCost(0.5, 2, 0.25, 5.0, 0.25, 0.375, "total")
    assert large == TotalCost(2.0, 2, 1.0, 8.0, 3.0, 1.75, "total")
    nothing: Any = SimpleNamespace(totals=None)
    assert _total_costs(asked, nothing, classes) == ()


@pytest.mark.parametrize("count", [1, SHOWN_CLASSES, SHOWN_CLASSES + 3])
def test_totals_stand_in_the_table_the_strictest_first(count: int) -> None:
    """Whoever ends below nine tenths of it is told of, beyond the rows that are shown, too."""
    totals = tuple(
        TotalCost(float(place), 2, 0.5, 1.0, 0.1, place * (0.5 if place == count else 0.95))
        for place in range(1, count + 1)
    )
    asked = config(**OF_TOTALS)
    lines = _totals_table(asked, planned(totals=totals))
    shares = [line.split()[-1] for line in lines if line.endswith("%")]
    shown = ["95.0%"] * (count - 1) + ["50.0%"]
    assert shares == shown[:SHOWN_CLASSES]
    assert ("  and 3 larger totals" in lines) == (count > SHOWN_CLASSES)
    told = f"  2 clients with a total of {count} end below 90% of it"
    assert any(line.startswith(told) for line in lines)
    assert _totals_table(asked, planned()) == []


def test_what_totals_keep_clients_from_is_told_of_those_alone() -> None:
    """Of each cause, its own clients and totals; one at nine tenths of its total is near."""
    totals = (
        TotalCost(1.0, 3, 0.5, 1.0, 0.1, 0.5, "jump"),
        TotalCost(2.0, 4, 0.5, 1.0, 0.1, 1.5, "total"),
        TotalCost(4.0, 1000, 0.5, 1.0, 0.1, 3.5, "own noise"),
        TotalCost(8.0, 5, 0.5, 1.0, 0.1, 7.2, "jump"),
        TotalCost(16.0, 6, 0.5, 1.0, 0.1, 15.0, "own noise"),
    )
    jump = (
        "3 clients with a total of 1 cannot come nearer: their epsilon jumps beyond it with any "
        "less noise, where a bound stops to hide them; more rounds, or a smaller total, would lie "
        "on this side of the jump"
    )
    below = "1,004 clients with a total of 2 to 4 end below 90% of it: "
    share = "a larger budgets.expected_share would change that"
    fewer = "fewer distinct totals, more clients or "
    alone = (
        "1,006 clients with a total of 4 to 16 are hidden by nobody, so that their own noise alone "
        "keeps it: more clients"
    )
    end = " or fewer rounds would change that"
    other = " of one total, personalization = clipping"
    found = planned(totals=totals)
    assert _limit_lines(config(), found) == [jump, below + fewer + share, alone + other + end]
    common = config(**OF_TOTALS)
    assert _limit_lines(common, found) == [jump, below + share, alone + end]
    assert _limit_lines(common, planned(totals=totals[3:4])) == []


def test_the_number_stands_first_and_what_it_assumes_follows() -> None:
    """Each line where it holds, and in this order."""
    number = (
        "{} cost of 3 rounds, unit = client: epsilon <= {} at delta = 1e-05 for the most exposed "
        "client"
    )
    noise = "noise of the mean: 0.5 times the clipping norm (50,000 numbers)"
    hidden, shown = cost_class(0, 1.0), planned(cost_class(0, 1.0), epsilon=1.2345678)
    assert _lines(config(), shown) == [number.format("proven", "1.23457"), noise]
    drawn = replace(shown, certain=False, tightness=1.25)
    assert _lines(config(), drawn) == [
        number.format("expected", "1.23457"),
        "batches and attendance are drawn: a run costs more than that with probability "
        f"{FAILURE_PROBABILITY:g} at most, and counts what it really was",
        ratio_line(1.25),
        noise,
    ]
    summed = config(privacy__release="sum", privacy__min_reports=4)
    assert _lines(summed, planned(hidden, sum_epsilon_add_remove=0.5)) == [
        number.format("proven", "1"),
        f"epsilon 0.5: {ADD_REMOVE_WORDS}",
        noise,
        f"assumes {sum_assumption(4, summed.privacy.assumed_honest)}",
    ]
    declared = _lines(summed, planned(hidden, declared=True))
    assert declared[0] == number.format("declared", "1")
    assert declared[1].startswith("nothing is proven: no noise is added to what clients send")
    assert declared[2:] == ["noise of the mean: 0.5 times the clipping norm (50,000 numbers)"]


@pytest.mark.parametrize("count", [0, 1, 2, 999, 10_000])
def test_a_batch_is_accounted_with_fewer_reports_never_more(count: int) -> None:
    """At most the root of the batch is left out, and a class that is there stays."""
    kind = ClientClass("gaussian", 2.0, 1.0, 2.0, 1.0, 0.0, count=count)
    assert _as_accounted(kind, ROUND_EXACT_REPORTS) == kind
    size = 4 * max(count, ROUND_EXACT_REPORTS)
    kept = _as_accounted(kind, size)
    assert kept == replace(kind, count=kept.count)
    assert min(count, 1) <= kept.count <= count
    assert count - kept.count <= count / size**0.5 + 1.0
