"""142 countries, 12 records each (1952 to 2007): predict life expectancy from wealth and size.

Regression with natural clients: a client is a country, a record one of its years. Inputs [8] are
the year, log10 of GDP per capita and of the population, each scaled from a fixed public range to
[0, 1], and the continent (five inputs, one of them 1). The label is
(life expectancy - 60) / 20, in years. Every fifth country, in alphabetical order, is kept for
testing.

Figures of the Gapminder Foundation (https://www.gapminder.org/data/), as selected by J. Bryan for
the R package gapminder; in `gapminder.json`. Licences and where they are stated: NOTICE.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from fl_shuffle.configuration.sections import DataSection
from fl_shuffle.data.records import Records
from fl_shuffle.errors import DataError

FILE = Path(__file__).with_name("gapminder.json")
CONTINENTS = ("Africa", "Americas", "Asia", "Europe", "Oceania")
# Public ranges that inputs are scaled from: years, log10 of dollars, log10 of people.
YEARS, WEALTH, PEOPLE = (1952.0, 2007.0), (2.0, 5.5), (4.0, 9.5)
# Labels are (life expectancy - MIDDLE) / SPREAD, in years.
MIDDLE, SPREAD = 60.0, 20.0


def read(section: DataSection) -> Records:
    """Return all records; `section` has no options for them."""
    try:
        held = json.loads(FILE.read_text(encoding="ascii"))
        names = np.array([name for name, _ in held["countries"]])
        continents = np.array([continent for _, continent in held["countries"]])
        years = np.array(held["years"], dtype=np.float64)
        tables = [np.array(held[name], dtype=np.float64)
                  for name in ("gdp_per_capita", "population", "life_expectancy")]  # fmt: skip
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{FILE} cannot be read ({error}); reinstall fl-shuffle") from None
    wealth, people, life = tables
    inputs = np.stack(
        [
            _scaled(np.broadcast_to(years, life.shape), YEARS),
            _scaled(np.log10(wealth), WEALTH),
            _scaled(np.log10(people), PEOPLE),
            *(np.repeat((continents == one)[:, None], len(years), 1) for one in CONTINENTS),
        ],
        axis=2,
    ).astype(np.float32)
    labels = ((life - MIDDLE) / SPREAD).astype(np.float32)
    test = np.arange(len(names)) % 5 == 4
    width = inputs.shape[2]
    return Records(
        inputs[~test].reshape(-1, width),
        labels[~test].reshape(-1),
        inputs[test].reshape(-1, width),
        labels[test].reshape(-1),
        outputs=1,
        train_clients=np.repeat(names[~test], len(years)),
    )


def _scaled(values: np.ndarray, ends: tuple[float, float]) -> np.ndarray:
    return (values - ends[0]) / (ends[1] - ends[0])
