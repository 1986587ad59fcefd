"""What leaves the shuffler and who is honest: what a run's guarantees take the parties to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from fl_shuffle.accounting.bounds.sum_release.honest import AssumedHonest, sum_assumption
from fl_shuffle.errors import PrivacyBudgetError

ANALYZED = "an analyzer gets single reports, not sums alone (server.analyzer)"
ROUNDED = (
    "reports are rounded to few bits (privacy.report_bits): nothing is proven of their sums beyond "
    "what holds for the reports"
)
ROUNDED_LESS = (
    "not computed: reports of few bits (privacy.report_bits) leak a little less than those that "
    "the attack is on"
)
SERVER_ADDS = (
    "The server's process adds the reports up itself: that nobody looks at single ones there is "
    "assumed, not enforced"
)
SHUFFLER_ADDS = (
    "A separate shuffler opens the reports and adds them up; the server gets the sum alone"
)

RELEASED_ONLY = (
    "`local` counts released rounds: every repeated attempt at a round (an abandoned one, a server "
    "that died before it counted) sends each asked client's report once more, with fresh noise, to "
    "the party that opens reports, and that is not in `local`"
)
SAME_FOR_ALL = "an operator who sends every site the same configuration and the same models"

PARTIES = {
    ("server", "reports"): (
        "shuffler and server are one process (privacy.shuffler = 'server'): against its "
        f"operator, only `local` holds. {RELEASED_ONLY}"
    ),
    ("separate", "reports"): (
        "the shuffler is a party of its own (privacy.shuffler = 'separate') and shares nothing "
        "with the server but batches: `shuffled` holds towards the server's operator, "
        f"{SAME_FOR_ALL}. The shuffler sees sealed reports alone; towards both together only "
        f"`local` holds. {RELEASED_ONLY}"
    ),
    ("separate", "sum"): (
        "the shuffler is a party of its own (privacy.shuffler = 'separate') and shares nothing "
        "with the server but sums: `sum` and `shuffled` hold towards the server's operator, "
        f"{SAME_FOR_ALL}. Towards the shuffler, which opens the reports, only `local` holds. "
        f"{RELEASED_ONLY}"
    ),
}
"""Which column holds towards whom, by (privacy.shuffler, privacy.release)."""
# The operator of the server sees single reports, whatever it releases.
PARTIES["server", "sum"] = PARTIES["server", "reports"]

TOWARDS = {
    "reports": "an attacker who sees the shuffled reports of a round (privacy.release = 'reports')",
    "sum": "an attacker who sees only sums of reports, and no single one (privacy.release = 'sum')",
}
TOWARDS_APART = {
    "reports": (
        "the server's operator, who gets shuffled reports from a separate shuffler "
        "(privacy.shuffler = 'separate')"
    ),
    "sum": (
        "the server's operator, who gets sums of reports alone from a separate shuffler "
        "(privacy.shuffler = 'separate')"
    ),
}


class Attacker(NamedTuple):
    """An attacker, the column whose epsilon holds against it, and what that takes."""

    who: str
    column: str
    takes: str


_REPORTS_SEEN = Attacker(
    "an attacker who sees the shuffled reports", "shuffled",
    "nobody links a report to its sender",
)  # fmt: skip
_SUMS_SEEN = Attacker(
    "an attacker who sees only sums of reports", "sum", "no single report leaves the server"
)
_OPERATOR = Attacker(
    "the operator of this server, which also shuffles", "local",
    "nothing but each client's own noise",
)  # fmt: skip
_DECLARED = Attacker(
    "any attacker, as the clients declare", "local", "clients add the noise that they declare"
)
ATTACKERS = {
    ("server", "reports"): (_REPORTS_SEEN, _OPERATOR, _SUMS_SEEN),
    ("server", "sum"): (_SUMS_SEEN, _OPERATOR, _REPORTS_SEEN),
    ("separate", "reports"): (
        Attacker(
            "the server's operator, who gets shuffled reports", "shuffled",
            "server and separate shuffler share only batches",
        ),
        Attacker("server and shuffler together", "local", "nothing but each client's own noise"),
        _SUMS_SEEN,
    ),
    ("separate", "sum"): (
        Attacker(
            "the server's operator, who gets only sums", "sum",
            "server and separate shuffler share only sums",
        ),
        Attacker(
            "the shuffler, which opens the reports", "local", "nothing but each client's own noise"
        ),
        _REPORTS_SEEN,
    ),
}  # fmt: skip
"""Who could look, by (privacy.shuffler, privacy.release): first the attacker of the headline, then
the one against whom only `local` holds."""


def attackers(release: str, shuffler: str, headline: str) -> tuple[Attacker, ...]:
    """Return who could look, the attacker of the headline first.

    Parameters
    ----------
    release, shuffler : str
        `privacy.release` and `privacy.shuffler`.
    headline : str
        The column of the headline. It is `local` where clients declare their own training.

    Returns
    -------
    tuple of Attacker
        Against the operator of a server that also shuffles only `local` holds, whatever the
        headline says: it stands second.
    """
    if headline == "local":
        return (_DECLARED,)
    found = ATTACKERS[shuffler, release]
    # Where nothing is proven of sums, the headline is that of the reports.
    # Not always the one that is listed first: the release may ask for sums where nothing is
    # proven of them.
    first = [each for each in found if each.column == headline]
    others = [each for each in found if each.column != headline]
    return (*first, *others)


def towards(release: str, shuffler: str) -> str:
    """Return towards whom the headline holds, by what is released and who shuffles."""
    return (TOWARDS_APART if shuffler == "separate" else TOWARDS)[release]


@dataclass(frozen=True)
class ThreatModel:
    """Towards whom a run's headline holds.

    `release` is "reports" (the shuffled reports of a round are seen; column `shuffled`) or "sum"
    (only their sum is; column `sum`). `assumed_honest`: of every round's reports at least this
    number (a count) or this share come from clients who add the noise they say and keep it to
    themselves, any set of them, perhaps chosen from what was released before, but settled before
    the round's noise is drawn; None: all do. Sums of fewer than `min_reports` reports never leave.
    `analyzed`: an analyzer of the user's gets single reports. `shuffler`: "server", or "separate"
    as a party of its own. `discrete`: clients add discrete noise, whose budget is proven and not
    declared. `reports_per_round`: number of reports of a client that leave in a round, each in its
    own batch. `rounded`: reports are rounded to few bits.
    """

    release: str = "reports"
    assumed_honest: AssumedHonest = None
    min_reports: int = 2
    analyzed: bool = False
    shuffler: str = "server"
    discrete: bool = False
    reports_per_round: int = 1
    rounded: bool = False

    @classmethod
    def of(cls, tables: Mapping[str, Mapping[str, Any]]) -> ThreatModel:
        """Return the trust that a resolved configuration states, given as nested tables."""
        privacy = tables["privacy"]
        return cls(
            release=privacy["release"],
            assumed_honest=privacy.get("assumed_honest"),
            min_reports=privacy["min_reports"],
            # Any other analyzer gets the reports one by one.
            analyzed=tables["server"]["analyzer"] != "mean",
            shuffler=privacy.get("shuffler", "server"),
            discrete=str(privacy.get("randomizer", "")).startswith("discrete-"),
            reports_per_round=privacy.get("reports_per_round", 1),
            rounded=bool(privacy.get("report_bits", 0)),
        )

    @property
    def no_sum(self) -> str | None:
        """Why nothing is proven of a sum of such reports by itself; None where something may be."""
        return ANALYZED if self.analyzed else ROUNDED if self.rounded else None

    def require(self, round_number: int, reports: int) -> None:
        """Refuse a round that cannot be what was assumed: raises `PrivacyBudgetError` where fewer
        reports arrived than are said to come from honest clients."""
        honest = self.assumed_honest
        # A share of the reports can always be honest; a number of them cannot if fewer arrived.
        if isinstance(honest, int) and reports < honest:
            raise PrivacyBudgetError(
                f"round {round_number}: {reports} reports arrived, below privacy.assumed_honest = "
                f"{honest}: the batch is not released; lower privacy.assumed_honest, or raise "
                "run.timeout"
            )

    def sentences(self, *, sums: bool) -> tuple[str, ...]:
        """Return the model in plain words; `sums`: the column `sum` says something."""
        found = [self._honesty(), PARTIES[self.shuffler, self.release]]
        if sums:
            words = sum_assumption(self.min_reports, self.assumed_honest)
            added = self.shuffler == "separate" and self.release == "sum"
            found.append(f"column sum: {words}. {SHUFFLER_ADDS if added else SERVER_ADDS}")
        return tuple(found)

    def _honesty(self) -> str:
        kept = "add the noise that they declare and keep it secret"
        if self.assumed_honest is None:
            return f"all clients whose reports arrive {kept} (privacy.assumed_honest: all)"
        least = (
            f"{self.assumed_honest:,} of the clients"
            if isinstance(self.assumed_honest, int)
            else f"{self.assumed_honest:.6g} of all clients"
        )
        return (
            f"in every round at least {least} whose reports arrive {kept} "
            "(privacy.assumed_honest); who the others are is settled before that round's noise is "
            "drawn, and their reports hide nobody in `shuffled` and `sum`"
        )


EVERYBODY_HONEST = ThreatModel()
