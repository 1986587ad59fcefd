"""Who has which local budget (epsilon0, delta0): named distributions, CSV files, a user's provider.

Budgets are public: they fix each client's randomizer, never its data.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fl_shuffle.configuration.sections import BudgetsSection
from fl_shuffle.csv_files import read_rows, real_number, whole_number
from fl_shuffle.errors import ConfigError, InvalidValueError
from fl_shuffle.plugins import load_function

COLUMNS = ("client_id", "epsilon", "delta")
LIFETIME = "lifetime_epsilon"

# Chen, Cao, Ge (AAAI 2024), Table 2 and the "Unif 3" of their text.
UNIFORM_RANGES = {"unif1": (0.01, 1.0), "unif2": (0.01, 2.0), "unif3": (0.5, 1.0)}
MIXED = (0.5, 0.01)


@dataclass(frozen=True)
class Budgets:
    """Local budgets of all clients: float64 arrays of shape [clients].

    `lifetime`, if given, bounds each client's own proven epsilon over the whole run.
    """

    epsilon: NDArray[np.float64]
    delta: NDArray[np.float64]
    lifetime: NDArray[np.float64] | None = None

    def __post_init__(self) -> None:
        for name, values in (("epsilon", self.epsilon), ("delta", self.delta)):
            if values.ndim != 1 or values.shape != self.epsilon.shape or values.size == 0:
                raise ConfigError(f"budgets: {name} must hold one number per client")
            if not np.isfinite(values).all():
                client = int(np.flatnonzero(~np.isfinite(values))[0])
                raise _bad(name, client, values[client], "must be a finite number")
        if (self.epsilon <= 0).any():
            client = int(np.flatnonzero(self.epsilon <= 0)[0])
            raise _bad("epsilon", client, self.epsilon[client], "must be > 0")
        if ((self.delta < 0) | (self.delta >= 1)).any():
            client = int(np.flatnonzero((self.delta < 0) | (self.delta >= 1))[0])
            raise _bad("delta", client, self.delta[client], "must be in [0, 1)")

    def __len__(self) -> int:
        return int(self.epsilon.size)


def _bad(name: str, client: int, value: float, allowed: str) -> InvalidValueError:
    return InvalidValueError(f"budget {name} of client {client}", float(value), allowed)


def make_budgets(section: BudgetsSection, clients: int) -> Budgets:
    """Budgets for `clients` clients as the section says; the same section gives the same budgets.

    Raises `ConfigError` or `InvalidValueError` for a CSV or provider that does not fit.
    """
    generator = np.random.Generator(np.random.Philox(key=[section.seed, 0x42554447]))
    delta = np.full(clients, section.delta)
    name = section.distribution
    if name == "file":
        budgets = read_budgets(section.file, clients)
    elif name == "constant":
        budgets = Budgets(np.full(clients, section.epsilon), delta)
    elif name in UNIFORM_RANGES or name == "uniform":
        low, high = UNIFORM_RANGES.get(name, (section.low, section.high))
        budgets = Budgets(generator.uniform(low, high, clients), delta)
    elif name == "mixed":
        epsilon = np.where(np.arange(clients) < (clients + 1) // 2, *MIXED)
        budgets = Budgets(generator.permutation(epsilon), delta)
    elif name == "groups":
        budgets = Budgets(generator.permutation(_group_epsilons(section, clients)), delta)
    else:
        budgets = _provided(name, clients, generator, section.delta)
    if section.levels:
        return round_down(budgets, section.levels)
    return budgets


def _group_epsilons(section: BudgetsSection, clients: int) -> NDArray[np.float64]:
    conservative = round(section.conservative_fraction * clients)
    moderate = round(section.moderate_fraction * clients)
    moderate = min(moderate, clients - conservative)
    liberal = clients - conservative - moderate
    return np.repeat(
        [section.conservative, section.moderate, section.liberal],
        [conservative, moderate, liberal],
    )


def _provided(
    path: str, clients: int, generator: np.random.Generator, default_delta: float
) -> Budgets:
    provider = load_function(path, "clients", "generator", field="budgets.distribution")
    answer = provider(clients, generator)
    pair = answer if isinstance(answer, tuple) else (answer, np.full(clients, default_delta))
    try:
        epsilon, delta = (np.asarray(part, dtype=np.float64) for part in pair)
    except (TypeError, ValueError):
        raise ConfigError(
            f"budgets.distribution = {path!r} must return epsilons or (epsilons, deltas) as numbers"
        ) from None
    if epsilon.shape != (clients,) or delta.shape != (clients,):
        raise ConfigError(
            f"budgets.distribution = {path!r} returned shapes {epsilon.shape} and {delta.shape}; "
            f"each must be ({clients},)"
        )
    return Budgets(epsilon, delta)


def round_down(budgets: Budgets, levels: int) -> Budgets:
    """Budgets rounded *down* to at most `levels` values, so that more clients share a randomizer.

    Clients are cut into groups of nearly equal size by epsilon; each group takes its smallest
    epsilon (and smallest delta), so nobody's budget grows.
    """
    order = np.argsort(budgets.epsilon, kind="stable")
    epsilon, delta = budgets.epsilon.copy(), np.full_like(budgets.delta, budgets.delta.min())
    for group in np.array_split(order, min(levels, len(budgets))):
        epsilon[group] = budgets.epsilon[group[0]]
    return Budgets(epsilon, delta, budgets.lifetime)


def read_budgets(path: str | Path, clients: int) -> Budgets:
    """Read `client_id,epsilon,delta` for clients 0 .. clients-1, in any order.

    Raises `ConfigError` naming the file and line for a missing file, wrong columns, an empty line,
    a number that does not parse, and missing, duplicate or extra clients.
    """
    source = Path(path)
    rows = read_rows(source, "budgets file", ConfigError)
    header = tuple(cell.strip() for cell in rows[0]) if rows else ()
    if header not in (COLUMNS, (*COLUMNS, LIFETIME)):
        found = ",".join(rows[0]) if rows else "an empty file"
        raise ConfigError(
            f"budgets file {source} line 1: columns must be {','.join(COLUMNS)} "
            f"(and optionally {LIFETIME}), got {found}"
        )
    table = np.full((clients, len(header) - 1), np.nan)
    for number, row in enumerate(rows[1:], start=2):
        where = f"budgets file {source} line {number}"
        client, values = _budget_row(where, row, len(header))
        if not 0 <= client < clients:
            raise ConfigError(
                f"{where}: client {client} is not one of this run's 0 to {clients - 1}; "
                "remove the line or change data.clients"
            )
        if not np.isnan(table[client, 0]):
            raise ConfigError(f"{where}: client {client} appears twice; keep one line per client")
        table[client] = values
    absent = np.flatnonzero(np.isnan(table[:, 0]))
    if absent.size:
        raise ConfigError(
            f"budgets file {source}: {absent.size} of {clients} clients are missing, first client "
            f"{absent[0]}; add a line for each"
        )
    return Budgets(table[:, 0], table[:, 1], table[:, 2] if len(header) > len(COLUMNS) else None)


def _budget_row(where: str, row: list[str], width: int) -> tuple[int, list[float]]:
    if not any(cell.strip() for cell in row):
        raise ConfigError(f"{where} is empty; remove it")
    if len(row) != width:
        raise ConfigError(f"{where}: expected {width} values, got {len(row)}")
    client, numbers = whole_number(row[0]), [real_number(cell) for cell in row[1:]]
    values = [number for number in numbers if number is not None]
    if client is None or len(values) != len(numbers):
        raise ConfigError(
            f"{where}: {','.join(row)!r} must be a whole number and {width - 1} numbers"
        )
    if not np.isfinite(values[0]) or values[0] <= 0:
        raise ConfigError(f"{where}: epsilon = {row[1]} must be finite and > 0")
    if not np.isfinite(values[1]) or not 0 <= values[1] < 1:
        raise ConfigError(f"{where}: delta = {row[2]} must be in [0, 1)")
    if width > len(COLUMNS) and not values[2] > 0:
        raise ConfigError(f"{where}: {LIFETIME} = {row[3]} must be > 0 (it may be inf)")
    return client, values
