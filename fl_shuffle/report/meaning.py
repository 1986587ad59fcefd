"""What a run's numbers mean, for a reader who has never seen an epsilon."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fl_shuffle.accounting.add_remove import ADD_REMOVE_WORDS, add_remove_of
from fl_shuffle.accounting.guarantee import Status, proof_over_attack
from fl_shuffle.accounting.rounds.events import Spend
from fl_shuffle.accounting.rounds.trust import towards
from fl_shuffle.accounting.rounds.worst_client import WorstClient
from fl_shuffle.errors import InvalidValueError
from fl_shuffle.report.formats import short
from fl_shuffle.report.record import RunRecord
from fl_shuffle.run_words import plain_words

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
    seeded = config["run"]["entropy"] == "seeded"
    shuffler = "the simulation shuffled them itself, and" if seeded else "a shuffler"
    # The server of somebody's own app knows neither data nor model.
    holding, model = "", "a model"
    if data["records"]:
        holding = f"holding {data['records']:,} records of {data['source']} "
        goal = "numbers to predict" if data.get("regression") else "classes"
        model = f"a {config['model']['kind']} model for {data['classes']} {goal}"
    return (
        f"{config['data']['clients']:,} clients {holding}trained {model} "
        f"together, in {rounds:,} rounds. In a round every client that took part computed one "
        f"update on its own records, clipped it and sent it {own}{kinds}; {shuffler} took names, "
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
    said = f"{who}, replaced by anything else ({run.ledger.meta['relation']})"
    spend = run.spend
    if spend is None or spend.headline_column != "sum":
        return said
    removed = add_remove_of(run.config, spend.headline, run.delta)
    return said if removed is None else f"{said}; epsilon {short(removed)} is {ADD_REMOVE_WORDS}"


def against(run: RunRecord) -> str:
    """Towards whom the headline holds, and towards whom it does not."""
    privacy = run.config["privacy"]
    shuffler = privacy.get("shuffler", "in-server")
    whom = f"{towards(privacy['release'], shuffler)}, and knows all other data and every model"
    if shuffler == "apart" or run.spend is None:
        return whom
    local = short(run.spend.columns["local"].worst)
    return f"{whom}; towards the operator of the server, which shuffles, too, epsilon is {local}"


def lead(run: RunRecord) -> list[str]:
    """What stands below the number: at which delta, for whom, against whom; what that limits."""
    spend = run.spend
    assert spend is not None
    privacy = run.config["privacy"]
    # The setting's name stands below, where who it holds against is told in full.
    whom = towards(privacy["release"], privacy.get("shuffler", "in-server")).partition(" (")[0]
    clients = f"{run.config['data']['clients']:,}"
    status = spend.columns[spend.headline_column].status
    said = (
        f"at delta = {run.delta:g}, {status}, for the most exposed of {clients} clients, against "
        f"{whom}."
    )
    factor = odds_factor(spend.headline, run.delta)
    if factor > NO_LIMIT:
        return [said, "That limits no attacker in any useful sense."]
    if run.worst is None:
        return [said]
    return [
        said,
        f"{'If so, the' if status is Status.DECLARED else 'The'} strongest evidence that it can "
        "see raises the odds between two guesses about a client "
        f"by a factor of at most {short(factor)}; over all that it sees, strong or weak, its best "
        f"guess is right in at most {best_guess(run.worst):.1%} of cases, where guessing is right "
        "in 50%.",
    ]


def attacked(spend: Spend) -> tuple[float | None, float | None]:
    """What an attack certainly reaches against what the headline is about, and how many times the
    headline exceeds it."""
    lower = spend.columns["sum_lower" if spend.headline_column == "sum" else "lower"].worst
    return lower, proof_over_attack(spend.headline, lower)


def chain(run: RunRecord) -> list[tuple[float, str, str]]:
    """(epsilon, against whom, its kind) from the weakest adversary to what was published."""
    spend = run.spend
    assert spend is not None
    shuffler = run.config["privacy"].get("shuffler", "in-server")
    trusted = (
        "if the shuffler cannot be trusted: who runs this server (proven)"
        if shuffler == "in-server"
        else "if the shuffler cannot be trusted (proven)"
    )
    if spend.headline_column == "local":
        trusted = "against anybody, as declared by the clients, not proven"
    said = {
        "sum": "if only sums of reports are seen (proven)",
        "proven": "if the shuffled reports are seen (proven)",
        "local": trusted,
        "gspa": "what the founding paper's formula says: no guarantee",
    }
    found = []
    for name, text in said.items():
        value = spend.columns[name].worst
        if value is not None:
            here = ": the number above" if name == spend.headline_column else ""
            found.append((value, f"{text}{here}", name))
    return found


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
        "no other client's epsilon is larger."
    ]
    if worst is not None:
        found.append(
            f"If both were equally likely, its best decision is right in at most "
            f"{best_guess(worst):.1%} of cases. Both hold at once: the factor limits the strongest "
            "piece of evidence, the share of right decisions counts each piece by how often it is "
            "seen."
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


def in_words(run: RunRecord) -> str:
    """What the run did for its most exposed client, in the words of its summary."""
    spend = run.spend
    assert spend is not None
    words = plain_words(
        {name: each.worst for name, each in spend.columns.items()},
        headline=spend.headline_column,
        reports=int(run.ledger.reports.min(initial=spend.n_reports)),
        rounds=spend.round_number,
    )
    return words[0].upper() + words[1:]
