"""What a run's numbers mean, for a reader who has never seen an epsilon."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fl_shuffle.accounting.rounds.trust import towards
from fl_shuffle.accounting.rounds.worst_client import WorstClient
from fl_shuffle.errors import InvalidValueError
from fl_shuffle.report.markup import short
from fl_shuffle.report.record import RunRecord

NOISES = {
    "gaussian": "Gaussian",
    "laplace": "Laplace",
    "discrete-gaussian": "discrete Gaussian",
    "discrete-laplace": "discrete Laplace",
}
RARE = 0.01
"""Evidence that turns up this often by chance is what the factor of the odds is said for."""
NO_LIMIT = 1e6
"""Odds that may rise by more than this factor are not limited in any useful sense."""


@dataclass(frozen=True)
class Policy:
    """What the reader's own rules call strong (epsilon at most that) and moderate.

    Raises `InvalidValueError` unless 0 < strong <= moderate.
    """

    strong: float
    moderate: float

    def __post_init__(self) -> None:
        if not (0.0 < self.strong <= self.moderate < math.inf):
            raise InvalidValueError(
                "policy", f"{self.strong:g},{self.moderate:g}", "must be 0 < STRONG <= MODERATE",
                "as in --policy 1,8",
            )  # fmt: skip

    @classmethod
    def parse(cls, text: str) -> Policy:
        """`STRONG,MODERATE`. Raises `InvalidValueError`."""
        parts = text.split(",")
        try:
            strong, moderate = (float(part) for part in parts)
        except ValueError:
            raise InvalidValueError(
                "policy", text, "must be two epsilons, STRONG,MODERATE", "as in --policy 1,8"
            ) from None
        return cls(strong, moderate)

    def grade(self, epsilon: float) -> str:
        """`strong`, `moderate` or `weak`."""
        if epsilon <= self.strong:
            return "strong"
        return "moderate" if epsilon <= self.moderate else "weak"

    def sentence(self, epsilon: float) -> str:
        """The grade with its reason."""
        limits = {
            "strong": f"at most {self.strong:g}",
            "moderate": f"above {self.strong:g}, at most {self.moderate:g}",
            "weak": f"above {self.moderate:g}",
        }
        grade = self.grade(epsilon)
        return f"epsilon {limits[grade]}: {grade} by the policy that this report was asked for"


def done(run: RunRecord) -> str:
    """What was done, with which data, in plain words."""
    config, meta = run.config, run.ledger.meta
    data = meta["data"]
    rounds = len(run.ledger.rounds)
    noise = config["privacy"]["randomizer"]
    own = "with noise of its own budget" if len(run.ledger.classes) > 1 else "with noise"
    kinds = f" ({NOISES[noise]})" if noise in NOISES else ""
    # The server of somebody's own app knows neither data nor model.
    holding, model = "", "a model"
    if data["records"]:
        holding = f"holding {data['records']:,} records of {data['source']} "
        goal = "numbers to predict" if data.get("regression") else "classes"
        model = f"a {config['model']['kind']} model for {data['classes']} {goal}"
    return (
        f"{config['data']['clients']:,} clients {holding}trained {model} "
        f"together, in {rounds:,} rounds. In a round every client that took part computed one "
        f"update on its own records, clipped it and sent it {own}{kinds}; a shuffler took names, "
        "order and times off the reports before they were used."
    )


def protected(run: RunRecord) -> str:
    """Who is protected."""
    unit = run.config["privacy"]["unit"]
    who = (
        "everything that one client holds (unit = client)"
        if unit == "client"
        else "one record of one client (unit = record)"
    )
    return f"{who}, replaced by anything else ({run.ledger.meta['relation']})"


def against(run: RunRecord) -> str:
    """Towards whom the headline holds, and towards whom it does not."""
    privacy = run.config["privacy"]
    shuffler = privacy.get("shuffler", "in-server")
    whom = f"{towards(privacy['release'], shuffler)}, and knows all other data and every model"
    if shuffler == "apart" or run.spend is None:
        return whom
    local = short(run.spend.columns["local"].worst)
    return f"{whom}; towards the operator of the server, which shuffles, too, epsilon is {local}"


def odds_factor(epsilon: float, delta: float) -> float:
    """How much evidence that chance brings with probability `RARE` or more can raise odds: from
    P(A) <= e^epsilon P(B) + delta."""
    return math.exp(min(epsilon, 700.0)) + delta / RARE


def best_guess(worst: WorstClient) -> float:
    """How often the best decision between two data sets of the worst client can be right at most,
    if each is as likely: 1/2 + total variation / 2, and that is delta at epsilon 0."""
    return 0.5 + 0.5 * min(1.0, float(worst.profile([0.0])[0]))


def meaning(run: RunRecord) -> list[str]:
    """The headline, as what an attacker can do."""
    spend, worst = run.spend, run.worst
    assert spend is not None
    shuffler = run.config["privacy"].get("shuffler", "in-server")
    factor = odds_factor(spend.headline, run.delta)
    limit = f"a factor of {short(factor)}" if factor <= NO_LIMIT else "no useful factor at all"
    found = [
        f"An attacker, at the worst {towards(spend.release, shuffler)}, knows all other data and "
        "every model, and wonders which of two things a client holds. "
        f"What it sees can raise the odds by at most {limit} (any evidence that would turn up by "
        f"chance once in {1 / RARE:.0f} cases or more often). That is for the most exposed client; "
        "for all others it is no more."
    ]
    if worst is not None:
        right = best_guess(worst)
        found.append(
            f"If both were equally likely, its best decision is right in at most {right:.1%} of "
            "cases, where guessing is right in 50%."
        )
    return found


def not_covered(run: RunRecord) -> list[str]:
    """What the headline says nothing about, the run's own warnings and assumptions first."""
    notes = run.ledger.notes
    found = [text for _, kind, text in notes if kind in ("warning", "assumption")]
    count = run.ledger.meta["records_not_covered"]
    if count:
        found.insert(0, f"NOT COVERED: {count:,} private records, as said below")
    local = "" if run.spend is None else _without_shuffler(run)
    found += [
        f"whoever sees which report came from whom (a dishonest shuffler, a tapped line){local}",
        "other releases about the same data: their epsilons and deltas add up",
        "what is told beside reports, as who takes part, when, and how long it takes",
    ]
    return list(dict.fromkeys(found))


def _without_shuffler(run: RunRecord) -> str:
    assert run.spend is not None
    worst = run.spend.columns["local"].worst
    return "" if worst is None else f": towards them epsilon is {short(worst)} (column local)"
