"""What the command line can say: a command's options are a function of its name here, whose
docstring is its help. What it does is the module of that name, which is loaded when it runs: help
is instant."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Iterable
from typing import Any, NoReturn

from fl_shuffle import settings_schema
from fl_shuffle.errors import suggestion
from fl_shuffle.shuffler.remote import MEMORY, SLOWEST

Parser = argparse.ArgumentParser
Group = Parser | argparse._ArgumentGroup

COMMANDS = {
    "run": {
        "new": "Write a new Flower app that runs",
        "simulate": "Run a federation and account for its privacy",
        "sweep": "Run a grid of settings and seeds",
        "data": "Show how records are partitioned among clients",
        "migrate": "Update a configuration of an earlier version",
    },
    "read": {
        "runs": "List and compare runs",
        "ledger": "Show the spend per round and client",
        "report": "Write a report as an HTML page, and figures",
    },
    "privacy": {
        "bound": "Compute an epsilon without training anything",
        "certify": "Write a certificate of a run's epsilon",
        "verify": "Verify a certificate independently of the accountant",
        "audit": "Attack the privacy claims of a run",
        "settings": "Explain the settings of a configuration",
    },
    "deploy": {"shuffler": "Run a separate shuffler"},
}
"""Group -> command -> what it does, on the first screen."""
SUBCOMMANDS = tuple(name for group in COMMANDS.values() for name in group)
FIRST_STEPS = (
    "Start with fl-shuffle simulate, which runs the quickstart and names the next command. "
    "Options of a command: fl-shuffle COMMAND --help."
)
TYPES = {
    "int": "a whole number",
    "float": "a number",
    "int | float": "a count or a share, as 500 or 0.8",
}
"""What `argparse` calls by the name of a function."""
SHUFFLER = {
    "key": "Make the analyzer's key pair: FILE (private), and FILE.pub for the sites",
    "init": "Make the shuffler's directory, and credentials for the server and for every site",
    "serve": "Accept reports and release batches until you stop it",
}
LARGEST_REPORT = 1 << 24
"""Bytes: four million coordinates."""

# Sections whose settings' short options a command takes. An audit's `--seed` is the canaries', and
# with a configuration these flags of a question mean the configuration's own settings.
OF_RUN, OF_AUDIT = ("run", "data", "budgets"), ("data", "budgets")
OF_BOUND = {"data": "clients", "run": "rounds", "budgets": "budgets"}


class _Once(argparse.Action):
    """Keeps a value, and refuses another: the last of two would silently be the answer's."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        if (first := getattr(namespace, self.dest)) is not None:
            more = "; several are one value, as 'krr;blh'" if self.dest == "randomizer" else ""
            raise argparse.ArgumentError(
                self, f"given twice, {first} and {values}: give it once{more}"
            )
        setattr(namespace, self.dest, values)


class _Parser(Parser):
    """Says what is wrong in one line, as every other error of the command does."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.register("action", "once", _Once)

    def error(self, message: str) -> NoReturn:
        for type_name, wanted in TYPES.items():
            message = message.replace(f"invalid {type_name} value:", f"must be {wanted}, not")
        self.exit(2, f"fl-shuffle: error: {message}; see {self.prog} --help\n")

    def parse_args(self, *given: Any, **named: Any) -> Any:
        """Parse as `argparse` does; for an option that there is not, name the nearest that there
        is."""
        parsed, rest = self.parse_known_args(*given, **named)
        if rest:
            options = [name for name in self._option_string_actions if name.startswith("--")]
            near = suggestion(rest[0].partition("=")[0], options) if rest[0][:1] == "-" else ""
            self.error(f"unrecognized arguments: {' '.join(rest)}" + f"; {near}" * bool(near))
        return parsed


def parser_of(command: str) -> Parser:
    """Return the options of one command."""
    configure = globals()[command]
    parser = _Parser(prog=f"fl-shuffle {command}", description=configure.__doc__)
    configure(parser)
    flag(parser, "--verbose", "Show the traceback of an error")
    return parser


def first_screen() -> list[str]:
    """Return the commands in groups."""
    width = max(map(len, SUBCOMMANDS))
    lines = ["usage: fl-shuffle COMMAND ...", ""]
    for group, commands in COMMANDS.items():
        heads = [group, *[""] * (len(commands) - 1)]
        for head, (name, summary) in zip(heads, commands.items(), strict=True):
            lines.append(f"{head:<8} {name:<{width}}  {summary}")
    return [*lines, "", *textwrap.wrap(FIRST_STEPS, 80)]


def option(parser: Group, name: str, metavar: str, help: str, **more: Any) -> None:
    """Add an option with a value, or a positional argument."""
    parser.add_argument(name, metavar=metavar, help=help, **more)


def flag(parser: Group, name: str, help: str) -> None:
    """Add an option without a value."""
    parser.add_argument(name, action="store_true", help=help)


def form(parser: Group, help: str, *more: str) -> None:
    """Add the option for how a table is written."""
    forms = ("table", "csv", "json", *more)
    parser.add_argument("--format", default="table", choices=forms, help=help)


def repeated(parser: Group, name: str, metavar: str, help: str) -> None:
    """Add an option that may be given several times."""
    option(parser, name, metavar, help, action="append", default=[])


def overrides(parser: Parser, sections: Iterable[str] = ()) -> None:
    """Add `--set`, and the short options of the settings of these sections that declare one."""
    from fl_shuffle.configuration.reading import SECTIONS

    what = "Override one setting of the configuration (repeatable)"
    repeated(parser, "--set", "SECTION.KEY=VALUE", what)
    for name in sections:
        settings_schema.add_options(parser, SECTIONS[name], short=True)


def new(parser: Parser) -> None:
    """Write a new Flower app that runs: apps, configuration, budgets, and a test."""
    option(parser, "name", "NAME", "Name of the new folder and of its package")
    flag(parser, "--deploy", "Add a script that deploys the app on this machine")


def simulate(parser: Parser) -> None:
    """Run a simulated federation and account for its privacy, round by round."""
    what = "Configuration to run: a file, the name of a shipped one, or the folder of a run whose "
    what += "configuration is run again (default: quickstart)"
    option(parser, "config", "CONFIG|RUN", what, nargs="?")
    overrides(parser, OF_RUN)
    flag(parser, "--list", "List the shipped configurations")
    option(parser, "--out", "DIR", "Directory of the run (default: runs/DATE-TIME)")
    option(
        parser,
        "--resume",
        "DIR",
        "Continue the run in this directory; a finished one with --rounds N",
    )
    vouch = "With --resume: state that the data are unchanged, if they cannot be compared"
    flag(parser, "--data-unchanged", vouch)
    trackers = "Send metrics to tensorboard, mlflow, wandb, or your module:function (repeatable)"
    repeated(parser, "--track", "NAME", trackers)
    flag(parser, "--dry-run", "Run nothing: estimate epsilon and computing time")
    flag(parser, "--quiet", "Print one line: directory, accuracy, and epsilon")
    flag(parser, "--json", "Print one JSON object per round, and a final one")


def sweep(parser: Parser) -> None:
    """Run a configuration over a grid of settings and several seeds; write a table and a figure."""
    option(parser, "config", "CONFIG.toml", "Configuration to run (default: quickstart)", nargs="?")
    axis = "Setting and its values (repeatable: every combination is run)"
    repeated(parser, "--grid", "SECTION.KEY=VALUE,VALUE,...", axis)
    option(
        parser, "--seeds", "N", "Number of seeds per combination (default: 1)", type=int, default=1
    )
    beside = (
        "Run each combination also without privacy, with a trusted server at the same epsilon, "
    )
    flag(parser, "--baselines", beside + "and with local privacy at the same epsilon")
    overrides(parser)
    option(parser, "--jobs", "N", "Number of simultaneous runs (default: 1)", type=int, default=1)
    option(parser, "--out", "DIR", "Directory of the sweep (default: runs/DATE-TIME)")
    option(parser, "--resume", "DIR", "Continue the unfinished sweep in this directory")
    flag(parser, "--quiet", "Print only the final table")


def data(parser: Parser) -> None:
    """Show how a configuration partitions its training records: the number of records and classes
    of each client. These numbers are exact, and no guarantee covers them."""
    option(parser, "config", "CONFIG", "Configuration (default: quickstart)", nargs="?")
    overrides(parser, ("data",))
    option(
        parser,
        "--plot",
        "FILE",
        "Draw each client's labels (.png, .svg, .pdf), or write their numbers (.csv)",
    )
    flag(parser, "--json", "Print one JSON object")


def runs(parser: Parser) -> None:
    """List runs with their configuration, progress, accuracy, and epsilon."""
    where = "Directories of runs, or directories that contain runs (default: runs)"
    option(parser, "directory", "DIR", where, nargs="*", default=["runs"])
    form(parser, "Output format (default: table)")
    flag(parser, "--differences", "Show the settings in which the runs differ")


def ledger(parser: Parser) -> None:
    """Show the privacy spend of a run, as its ledger records it: per round, per client, or per
    client and round. --recompute accounts for the run again and shows differences."""
    option(parser, "run_directory", "RUN", "Directories of runs", nargs="+")
    asked = parser.add_mutually_exclusive_group()
    one = "Show one client's spend, in total and after every round (its number, its name, or "
    one += "name=NAME for a name that is a number)"
    option(asked, "--client", "ID", one)
    flag(asked, "--clients", "Show every client's spend")
    flag(asked, "--history", "Show every client's spend after every round")
    option(asked, "--round", "N", "Show the clients that reported in a round", type=int)
    flag(asked, "--notes", "Show the run's warnings, notes, and assumptions")
    check = "With --client: print Python code that computes its epsilons with dp-accounting alone"
    flag(parser, "--check", check)
    again = "Compute every client's spend again; exit code 1 if the ledger differs"
    flag(parser, "--recompute", again)
    several = "Compose the runs: what they have cost the same clients together, in total or with "
    flag(parser, "--together", several + "--client or --clients")
    at = "With --together: delta of the composed epsilons (default: the one of all runs)"
    option(parser, "--delta", "D", at, type=float)
    same = "With --together: a client called by the first name is the one called by the second in "
    repeated(parser, "--clients-as", "NAME=NAME", same + "another run (repeatable)")
    form(parser, "Output format (default: table; parquet needs --out)", "parquet")
    where = "Write the table to a file instead, or all four tables to a directory"
    option(parser, "--out", "FILE|DIR", where)


def report(parser: Parser) -> None:
    """Write the privacy report of a run, of several runs side by side, or of a sweep, as one HTML
    page."""
    option(parser, "run_directory", "RUN", "Directories of runs, or of one sweep", nargs="+")
    option(
        parser,
        "--out",
        "FILE.html",
        "Name of the page (default for one run: report.html in its directory)",
    )
    grades = "Largest epsilons that your policy grades as strong and as moderate, for example 1,8; "
    grades += "grades do not change the exit code"
    option(parser, "--policy", "STRONG,MODERATE", grades)
    repeated(parser, "--client", "ID", "Also plot the spend of this client (repeatable)")
    flag(parser, "--open", "Open the page in your browser")
    option(parser, "--purpose", "TEXT", "Purpose of the runs, shown on the page")
    for form in ("png", "pdf", "svg"):
        option(
            parser,
            f"--{form}",
            "DIR",
            f"Also write the figures to this directory, as {form.upper()}",
        )
    option(parser, "--csv", "DIR", "Also write the numbers of the figures to this directory")


def bound(parser: Parser) -> None:
    """Compute the smallest proven epsilon of shuffled reports at --delta, or delta at --epsilon.
    With CONFIG, compute the epsilon that its rounds will reach. With --epsilon, --delta, and
    --solve-for, find the value of a parameter that meets both."""
    from fl_shuffle.accounting.queries.query import BoundQuery

    option(parser, "config", "CONFIG", "Configuration whose epsilon is computed", nargs="?")
    grid = "With CONFIG: compare these values of a setting (repeatable)"
    repeated(parser, "--grid", "SECTION.KEY=VALUE,...", grid)
    overrides(parser)
    adversary, asks = ("release", "assumed_honest"), ("delta", "epsilon", "method", "order")
    names = [
        each for each in settings_schema.settings_of(BoundQuery) if each not in adversary + asks
    ]
    settings_schema.add_options(parser.add_argument_group("reports"), BoundQuery, names=names)
    settings_schema.add_options(parser.add_argument_group("attacker"), BoundQuery, names=adversary)
    asked, output = parser.add_argument_group("query"), parser.add_argument_group("output")
    settings_schema.add_options(asked, BoundQuery, names=asks)
    solved = (
        "With --epsilon and --delta: find the largest or smallest value that meets them (clients, "
        "sigma, records, epsilon0, delta0, rounds, participation, or assumed-honest); with CONFIG "
        "and --epsilon: of rounds, reports-per-round, epsilon0, or clients"
    )
    option(asked, "--solve-for", "NAME", solved)
    over = (
        "Compute a curve over one parameter: FIRST:LAST:COUNT (1e3:1e5:100), or a list (10,20,50); "
    )
    over += (
        "with --method A,B or --all for several methods, --randomizer 'A;B' for several randomizers"
    )
    option(asked, "--over", "NAME=VALUES", over)
    lines = "Read one query per line (JSON object), print one answer per line; - is standard input"
    option(asked, "--jsonl", "FILE|-", lines)
    flag(asked, "--all", "Show every bound with its status, and why others do not apply")
    flag(asked, "--explain", "Show where the proofs are")
    plot = "With --over: draw the curve (.png, .svg, .pdf), or write its numbers (.csv)"
    option(output, "--plot", "FILE", plot)
    option(output, "--certificate", "FILE", "Write a certificate that fl-shuffle verify checks")
    flag(output, "--json", "Print exactly one JSON object")


def certify(parser: Parser) -> None:
    """Write a certificate of a finished run's epsilon, which fl-shuffle verify checks independently
    of the accountant."""
    option(parser, "run_directory", "RUN", "Directory of a finished run")
    option(
        parser,
        "--client",
        "ID",
        "Number of the client (default: the most exposed client)",
        type=int,
    )
    columns = ("shuffled", "sum", "local")
    parser.add_argument(
        "--column",
        choices=columns,
        help="Column to certify (default: the column of the headline epsilon)",
    )
    proof = "Proof to use; convex-order is the short one: larger epsilon, faster to verify"
    parser.add_argument("--proof", choices=("partial-shuffle", "convex-order"), help=proof)
    option(
        parser,
        "--out",
        "FILE",
        "Name of the certificate (default: certificate.json in the run's directory)",
    )


def verify(parser: Parser) -> None:
    """Verify a certificate in ball arithmetic, independently of the accountant that wrote it. Exit
    code 0: accepted; 1: refused."""
    option(parser, "certificate", "FILE", "Certificate written by certify or bound --certificate")
    option(
        parser,
        "--ledger",
        "FILE",
        "The run's ledger.sqlite, to compare the facts of the certificate with",
    )


def audit(parser: Parser) -> None:
    """Attack the privacy claims with canaries: empirical lower bounds on epsilon."""
    from fl_shuffle.auditing.effort import AuditSettings

    option(parser, "source", "CONFIG|RUN", "Configuration or run whose claims are tested")
    overrides(parser, OF_AUDIT)
    settings_schema.add_options(parser, AuditSettings)
    flag(parser, "--json", "Print one JSON object")


def settings(parser: Parser) -> None:
    """Explain settings of a configuration: meaning, default, and range. Shows all settings, those
    of one section, or one setting."""
    option(parser, "name", "NAME", "A section (run) or a setting (run.rounds)", nargs="?")


def migrate(parser: Parser) -> None:
    """Update configurations of earlier versions to the names of this version. Shows what changes,
    and keeps comments, order, and layout."""
    option(parser, "config", "CONFIG", "TOML files", nargs="+")
    flag(parser, "--write", "Write the changes to the files")


def shuffler(parser: Parser) -> None:
    """Run a separate shuffler: make keys, set it up, and serve."""
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    key, init, serve = (
        parts.add_parser(name, help=help, description=f"{help}.") for name, help in SHUFFLER.items()
    )
    option(key, "file", "FILE", "Name of the file for the private key")
    option(init, "directory", "DIR", "New directory of the shuffler")
    option(
        init,
        "--credentials",
        "DIR",
        "New directory for the credentials that you hand out",
        required=True,
    )
    option(
        init,
        "--address",
        "HOST:PORT",
        "Address at which the server and the sites reach the shuffler",
        required=True,
    )
    option(init, "--clients", "N", "Number of clients (data.clients)", type=int, required=True)
    sites = "Number of sites; site i holds the clients of partition-id=i num-partitions=P"
    option(init, "--sites", "P", sites, type=int, required=True)
    least = "Smallest batch that is released, whatever the server asks for: it hides a client"
    option(init, "--min-reports", "N", least, type=int, required=True)
    most = "Largest size of a client's reports in a round, in bytes (4 per coordinate; "
    most += f"default: {LARGEST_REPORT})"
    option(init, "--max-report-bytes", "BYTES", most, type=int, default=LARGEST_REPORT)
    option(serve, "directory", "DIR", "Directory of the shuffler")
    option(serve, "--listen", "HOST:PORT", "Address to listen on (default: that of init)")
    memory = f"Memory for all reports in transit, in bytes (default: {MEMORY})"
    option(serve, "--memory", "BYTES", memory, type=int, default=MEMORY)
    slowest = f"Slowest accepted connection of a site, in bytes per second (default: {SLOWEST})"
    option(serve, "--slowest", "BYTES", slowest, type=int, default=SLOWEST)
