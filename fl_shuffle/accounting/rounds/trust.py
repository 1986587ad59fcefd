"""What leaves the shuffler and who is honest: what a run's guarantees take the parties to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fl_shuffle.accounting.bounds.sum_release.honest import AssumedHonest, sum_assumption
from fl_shuffle.errors import PrivacyBudgetError

ANALYZED = "an analyzer gets single reports, not sums alone (server.analyzer)"
SERVER_ADDS = (
    "The server's process adds the reports up itself: that nobody looks at single ones there is "
    "assumed, not enforced"
)
SHUFFLER_ADDS = "A shuffler apart opens the reports and adds them up; the server gets the sum alone"

RELEASED_ONLY = (
    "`local` counts released rounds: every repeated attempt at a round (an abandoned one, a server "
    "that died before it counted) sends each asked client's report once more, with fresh noise, to "
    "whoever opens reports, and that is not in `local`"
)
SAME_FOR_ALL = "an operator who sends every site the same configuration and the same models"

PARTIES = {
    ("in-server", "reports"): (
        "shuffler and server are one process (privacy.shuffler = 'in-server'): towards whoever "
        f"operates it only `local` holds. {RELEASED_ONLY}"
    ),
    ("apart", "reports"): (
        "the shuffler is a party of its own (privacy.shuffler = 'apart') and shares nothing with "
        f"the server but batches: `proven` holds towards the server's operator, {SAME_FOR_ALL}. "
        "The shuffler sees sealed reports alone; towards both together only `local` holds. "
        f"{RELEASED_ONLY}"
    ),
    ("apart", "sum"): (
        "the shuffler is a party of its own (privacy.shuffler = 'apart') and shares nothing with "
        "the server but sums: `sum` and `proven` hold towards the server's operator, "
        f"{SAME_FOR_ALL}. Towards the shuffler, which opens the reports, only `local` holds. "
        f"{RELEASED_ONLY}"
    ),
}
"""Which column holds towards whom, by (privacy.shuffler, privacy.release)."""
PARTIES["in-server", "sum"] = PARTIES["in-server", "reports"]

TOWARDS = {
    "reports": "whoever sees the shuffled reports of a round (privacy.release = 'reports')",
    "sum": "whoever sees sums of reports alone, and no single one (privacy.release = 'sum')",
}
TOWARDS_APART = {
    "reports": (
        "the server's operator, who gets shuffled reports from a shuffler apart "
        "(privacy.shuffler = 'apart')"
    ),
    "sum": (
        "the server's operator, who gets sums of reports alone from a shuffler apart "
        "(privacy.shuffler = 'apart')"
    ),
}


def towards(release: str, shuffler: str) -> str:
    """Towards whom the headline holds, by what is released and who shuffles."""
    return (TOWARDS_APART if shuffler == "apart" else TOWARDS)[release]


@dataclass(frozen=True)
class Trust:
    """Towards whom a run's headline holds.

    `release` is "reports" (the shuffled reports of a round are seen; column `proven`) or "sum"
    (only their sum is; column `sum`). `assumed_honest`: of every round's reports at least so many
    (a count) or this share come from clients who add the noise they say and keep it to themselves,
    whoever they are, perhaps in view of what was released before, but settled before the round's
    noise is drawn; None: all do. Sums of fewer than `min_reports` reports never leave. `analyzed`:
    an analyzer of the user's gets single reports. `shuffler`: "in-server", or "apart" as a party of
    its own. `discrete`: clients add discrete noise, whose budget is proven and not declared.
    `reports_per_round`: so many reports of a client leave in a round, each in a batch of its own.
    """

    release: str = "reports"
    assumed_honest: AssumedHonest = None
    min_reports: int = 2
    analyzed: bool = False
    shuffler: str = "in-server"
    discrete: bool = False
    reports_per_round: int = 1

    @classmethod
    def of(cls, tables: Mapping[str, Mapping[str, Any]]) -> Trust:
        """The trust that a resolved configuration states, given as nested tables."""
        privacy = tables["privacy"]
        return cls(
            release=privacy["release"],
            assumed_honest=privacy.get("assumed_honest"),
            min_reports=privacy["min_reports"],
            analyzed=tables["server"]["analyzer"] != "mean",
            shuffler=privacy.get("shuffler", "in-server"),
            discrete=str(privacy.get("randomizer", "")).startswith("discrete-"),
            reports_per_round=privacy.get("reports_per_round", 1),
        )

    def require(self, round_number: int, reports: int) -> None:
        """Refuse a round that cannot be what was assumed: raises `PrivacyBudgetError` where fewer
        reports arrived than are said to come from honest clients."""
        honest = self.assumed_honest
        if isinstance(honest, int) and reports < honest:
            raise PrivacyBudgetError(
                f"round {round_number}: {reports} reports arrived, below privacy.assumed_honest = "
                f"{honest}: so many of them cannot be honest; the batch is not released"
            )

    def sentences(self, *, sums: bool) -> tuple[str, ...]:
        """In plain words; `sums`: the column `sum` says something."""
        found = [self._honesty(), PARTIES[self.shuffler, self.release]]
        if sums:
            words = sum_assumption(self.min_reports, self.assumed_honest)
            added = self.shuffler == "apart" and self.release == "sum"
            found.append(f"column sum: {words}. {SHUFFLER_ADDS if added else SERVER_ADDS}")
        return tuple(found)

    def _honesty(self) -> str:
        kept = "add the noise they say and tell nobody what it was"
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
            "drawn, and their reports hide nobody in `proven` and `sum`"
        )


EVERYBODY_HONEST = Trust()
