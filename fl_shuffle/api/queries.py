"""A bound's query from names and values, as the command line and Python give them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fl_shuffle.accounting.guarantee import Guarantee
    from fl_shuffle.accounting.queries.bound_query import BoundQuery


def read_query(values: dict[str, Any]) -> BoundQuery:
    """The validated query; `budgets` may name a CSV file and `method` may be left out."""
    from fl_shuffle.accounting.queries.bound_query import BoundQuery

    values = dict(values)
    if isinstance(values.get("budgets"), str):
        values["budgets"] = _budgets_from(values["budgets"])
    if values.get("method") is None:
        named = values.get("randomizer") is not None or values.get("parallel") is not None
        values["method"] = "blanket" if named else "clone"
        if not named and values.get("budgets") is not None:
            values["method"] = "gspa-exact"
        if values.get("profile") is not None:
            values["method"] = "profile"
        if values.get("randomizer") == "gaussian":
            values["method"] = "proven"
        if values.get("randomizer") in ("gaussian", "laplace") and values.get("release") == "sum":
            values["method"] = "sum"
    return BoundQuery.from_mapping(values)


def answer(values: dict[str, Any]) -> Guarantee:
    """The guarantee that answers one query given by names and values."""
    from fl_shuffle.accounting.queries.methods import bound

    return bound(read_query(values))


def _budgets_from(path: str) -> list[tuple[float, float, int]]:
    from fl_shuffle.budgets import read_budgets

    budgets = read_budgets(path)
    return [
        (float(epsilon), float(delta), 1)
        for epsilon, delta in zip(budgets.epsilon, budgets.delta, strict=True)
    ]
