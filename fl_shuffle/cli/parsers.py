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
        "new": "write a Flower app of your own that runs",
        "simulate": "run a federation and account for its privacy, round by round",
        "sweep": "the same over a grid of settings and seeds",
        "data": "how records are dealt to clients; a picture of the labels",
        "migrate": "a configuration of an earlier version by the names of today",
    },
    "read": {
        "runs": "which runs there are, what they cost, how they differ",
        "ledger": "what every round and client cost; CSV, JSON, Parquet",
        "report": "one page about a run, or several; figures for papers",
    },
    "privacy": {
        "bound": "what shuffled reports cost, or what a configuration will",
        "certify": "a certificate of a run's epsilon",
        "verify": "check a certificate without any of our accounting",
        "audit": "try to break the privacy claims",
        "settings": "every setting of a configuration: default, range, meaning",
    },
    "deploy": {"shuffler": "the shuffler as a party of its own"},
}
"""Group -> command -> what it does, on the first screen."""
SUBCOMMANDS = tuple(name for group in COMMANDS.values() for name in group)
FIRST_STEPS = (
    "fl-shuffle simulate runs the quickstart; then fl-shuffle report with the folder it names. "
    "What a command takes: fl-shuffle COMMAND --help."
)
TYPES = {
    "int": "a whole number",
    "float": "a number",
    "int | float": "a count or a share, as 500 or 0.8",
}
"""What `argparse` calls by the name of a function."""
SHUFFLER = {
    "key": "make the analyzer's key pair: FILE, to keep, and FILE.pub, for the sites",
    "init": "make a shuffler's directory, and the credentials of the server and of every site",
    "serve": "take reports and release batches, until it is ended",
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
    flag(parser, "--verbose", "show where an error comes from, and its causes")
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

    what = "override one setting of the configuration; may be repeated"
    repeated(parser, "--set", "SECTION.KEY=VALUE", what)
    for name in sections:
        settings_schema.add_options(parser, SECTIONS[name], short=True)


def new(parser: Parser) -> None:
    """Write a Flower app of your own that runs: apps, configuration, budgets, a test."""
    option(parser, "name", "NAME", "the new folder, and its package's name")
    flag(parser, "--deploy", "add a script that deploys it on this machine")


def simulate(parser: Parser) -> None:
    """Run a simulated federation and account for its privacy, round by round."""
    what = "what to run: a file, the name of a shipped one, or a run's folder to run its "
    what += "configuration anew (default: quickstart)"
    option(parser, "config", "CONFIG|RUN", what, nargs="?")
    overrides(parser, OF_RUN)
    flag(parser, "--list", "which configurations are shipped")
    option(parser, "--out", "DIR", "run directory (default: runs/DATE-TIME)")
    option(parser, "--resume", "DIR", "go on with an unfinished run")
    vouch = "with --resume: vouch for the data where they cannot be compared"
    flag(parser, "--data-unchanged", vouch)
    trackers = "tell tensorboard, mlflow, wandb, or what your module:function returns (repeatable)"
    repeated(parser, "--track", "NAME", trackers)
    flag(parser, "--dry-run", "run nothing: say what it will cost, and how long it will take here")
    flag(parser, "--quiet", "print one line: where the run is, its accuracy and its epsilon")
    flag(parser, "--json", "print one JSON object per round and a final one")


def sweep(parser: Parser) -> None:
    """Run a configuration over a grid of settings and several seeds: a table and a figure."""
    option(parser, "config", "CONFIG.toml", "what to run (default: the quickstart)", nargs="?")
    axis = "a setting and its values; may be repeated: every combination is run"
    repeated(parser, "--grid", "SECTION.KEY=VALUE,VALUE,...", axis)
    option(parser, "--seeds", "N", "seeds of each combination (default 1)", type=int, default=1)
    beside = "each combination also without privacy, and at the same epsilon with a trusted server "
    flag(parser, "--baselines", beside + "and with local privacy alone")
    overrides(parser)
    option(parser, "--jobs", "N", "runs at once (default 1)", type=int, default=1)
    option(parser, "--out", "DIR", "the sweep's folder (default: runs/DATE-TIME)")
    option(parser, "--resume", "DIR", "go on with a sweep that was stopped")
    flag(parser, "--quiet", "print only the final table")


def data(parser: Parser) -> None:
    """Say how a configuration deals its training records to the clients: how many records and
    classes each one has. These are exact numbers about the records: a guarantee covers none of
    them."""
    option(parser, "config", "CONFIG", "a configuration (default: quickstart)", nargs="?")
    overrides(parser, ("data",))
    option(parser, "--plot", "FILE", "draw each client's labels: .png, .svg, .pdf, or .csv")
    flag(parser, "--json", "print one JSON object")


def runs(parser: Parser) -> None:
    """List runs: what they were, how far they came, what they cost."""
    where = "folders of runs, or folders that hold some (default: runs)"
    option(parser, "directory", "DIR", where, nargs="*", default=["runs"])
    form(parser, "how to print it")
    flag(parser, "--differences", "show the settings in which the runs differ")


def ledger(parser: Parser) -> None:
    """What was spent: by round, by client, who reported when, and what must be known to read it.
    As written in the run's ledger; --recompute counts again and says where it differs."""
    option(parser, "run_directory", "RUN", "folders of runs", nargs="+")
    asked = parser.add_mutually_exclusive_group()
    one = "one client's spend, in all and after every round: its number, its name, or name=NAME if "
    one += "that is a number"
    option(asked, "--client", "ID", one)
    flag(asked, "--clients", "every client's spend")
    flag(asked, "--history", "every client's spend after every round")
    option(asked, "--round", "N", "who reported in a round", type=int)
    flag(asked, "--notes", "the run's warnings and remarks")
    check = "with --client: Python lines that compute its epsilons with dp-accounting alone"
    flag(parser, "--check", check)
    again = "count every client again; exit code 1 where the ledger says something else"
    flag(parser, "--recompute", again)
    form(parser, "how to print it (default: table; parquet needs --out)", "parquet")
    where = "write it there instead of printing it; a folder: all four tables"
    option(parser, "--out", "FILE|DIR", where)


def report(parser: Parser) -> None:
    """Write the privacy report of a run, of several runs side by side, or of a sweep, as one HTML
    page."""
    option(parser, "run_directory", "RUN", "folders of runs, or of one sweep", nargs="+")
    option(parser, "--out", "FILE.html", "where to write it (default, for one run: in its folder)")
    grades = (
        "epsilons up to which your policy calls a guarantee strong, and moderate; each attacker "
    )
    grades += "gets a grade, and no grade changes the exit code"
    option(parser, "--policy", "STRONG,MODERATE", grades)
    repeated(parser, "--client", "ID", "draw this client's spend, too; may be repeated")
    flag(parser, "--open", "show the page in your browser")
    option(parser, "--purpose", "TEXT", "what the runs were made for")
    for form in ("png", "pdf", "svg"):
        option(parser, f"--{form}", "DIR", f"write the figures as {form.upper()} there, too")
    option(parser, "--csv", "DIR", "write the figures' numbers there, too")


def bound(parser: Parser) -> None:
    """The epsilon at --delta (or delta at --epsilon) of shuffled reports, the smallest proven one;
    with CONFIG what its rounds will cost; with both --epsilon and --delta the --solve-for that
    keeps them."""
    from fl_shuffle.accounting.queries.query import BoundQuery

    option(parser, "config", "CONFIG", "what this configuration will cost", nargs="?")
    grid = "with CONFIG: what each of these values would gain and lose; may be repeated"
    repeated(parser, "--grid", "SECTION.KEY=VALUE,...", grid)
    overrides(parser)
    adversary, asks = ("release", "assumed_honest"), ("delta", "epsilon", "method", "order")
    names = [
        each for each in settings_schema.settings_of(BoundQuery) if each not in adversary + asks
    ]
    settings_schema.add_options(parser.add_argument_group("reports"), BoundQuery, names=names)
    settings_schema.add_options(parser.add_argument_group("adversary"), BoundQuery, names=adversary)
    asked, output = parser.add_argument_group("asked"), parser.add_argument_group("output")
    settings_schema.add_options(asked, BoundQuery, names=asks)
    solved = (
        "given both --epsilon and --delta: the most (or least) of clients, sigma, records, "
        "epsilon0, delta0, rounds, participation or assumed-honest that keeps them; with CONFIG "
        "and --epsilon: of rounds, reports-per-round, epsilon0 or clients"
    )
    option(asked, "--solve-for", "NAME", solved)
    over = "this number at many values: FIRST:LAST:COUNT (1e3:1e5:100) or a list (10,20,50); "
    over += "--method A,B or --all: several methods; --randomizer 'A;B': several randomizers"
    option(asked, "--over", "NAME=VALUES", over)
    lines = "one question a line (a JSON object) in, one answer a line out; - is standard input"
    option(asked, "--jsonl", "FILE|-", lines)
    flag(asked, "--all", "every bound by its status, and why others do not apply")
    flag(asked, "--explain", "where proofs are")
    plot = "with --over: draw them, as PNG, SVG or PDF, or write their numbers as CSV"
    option(output, "--plot", "FILE", plot)
    option(output, "--certificate", "FILE", "write a certificate that fl-shuffle verify checks")
    flag(output, "--json", "print exactly one JSON object")


def certify(parser: Parser) -> None:
    """Write a certificate of a finished run's epsilon, which fl-shuffle verify checks without any
    of the accounting."""
    option(parser, "run_directory", "RUN", "folder of a finished run")
    option(parser, "--client", "ID", "whose (default: the most exposed one's)", type=int)
    columns = ("shuffled", "sum", "local")
    parser.add_argument("--column", choices=columns, help="default: the run's headline")
    proof = "convex-order: by the one-page proof alone, a larger number, sooner checked"
    parser.add_argument("--proof", choices=("partial-shuffle", "convex-order"), help=proof)
    option(parser, "--out", "FILE", "default: certificate.json in the run's folder")


def verify(parser: Parser) -> None:
    """Check a certificate in ball arithmetic, with nothing of the accounting that wrote it. Exit
    code 0: accepted, 1: refused."""
    option(parser, "certificate", "FILE", "written by certify, or bound --certificate")
    option(parser, "--ledger", "FILE", "the run's ledger.sqlite: the facts must be as it has them")


def audit(parser: Parser) -> None:
    """Try to break the privacy claims with canaries: empirical lower bounds on epsilon."""
    from fl_shuffle.auditing.effort import AuditSettings

    option(parser, "source", "CONFIG|RUN", "whose claims to test: a configuration's, or a run's")
    overrides(parser, OF_AUDIT)
    settings_schema.add_options(parser, AuditSettings)
    flag(parser, "--json", "print one JSON object")


def settings(parser: Parser) -> None:
    """Every setting of a configuration, with its default, what it allows and what it means; those
    of one section; or one."""
    option(parser, "name", "NAME", "a section, as run, or a setting, as run.rounds", nargs="?")


def migrate(parser: Parser) -> None:
    """Rewrite configurations of earlier versions by the names of today: shows what changes, and
    keeps comments, order and layout."""
    option(parser, "config", "CONFIG", "a TOML file; several may be named", nargs="+")
    flag(parser, "--write", "save what is shown")


def shuffler(parser: Parser) -> None:
    """Run a separate shuffler: set it up, make keys, serve."""
    parts = parser.add_subparsers(dest="part", required=True, metavar="PART")
    key, init, serve = (
        parts.add_parser(name, help=help, description=f"{help[0].upper()}{help[1:]}.")
        for name, help in SHUFFLER.items()
    )
    option(key, "file", "FILE", "where to put the private key")
    option(init, "directory", "DIR", "the shuffler's own folder, new")
    option(init, "--credentials", "DIR", "folder for what is handed out, new", required=True)
    option(init, "--address", "HOST:PORT", "where the others reach it", required=True)
    option(init, "--clients", "N", "as data.clients", type=int, required=True)
    sites = "SuperNodes; site i plays what partition-id=i num-partitions=P plays"
    option(init, "--sites", "P", sites, type=int, required=True)
    least = "no smaller batch leaves, whatever the server asks: what hides a client from it"
    option(init, "--min-reports", "N", least, type=int, required=True)
    most = "most bytes of a client's reports of a round, 4 a coordinate "
    most += f"(default: {LARGEST_REPORT})"
    option(init, "--max-report-bytes", "BYTES", most, type=int, default=LARGEST_REPORT)
    option(serve, "directory", "DIR", "the shuffler's own folder")
    option(serve, "--listen", "HOST:PORT", "where to listen (default: its address)")
    memory = f"most bytes of reports that are on their way together (default: {MEMORY})"
    option(serve, "--memory", "BYTES", memory, type=int, default=MEMORY)
    slowest = f"slowest line of a site, in bytes a second (default: {SLOWEST})"
    option(serve, "--slowest", "BYTES", slowest, type=int, default=SLOWEST)
