"""Regenerate the tables and figures of the founding papers, with the honest version beside them.

    scripts/reproduce list                 # the targets
    scripts/reproduce NAME [NAME ...]      # some of them
    scripts/reproduce all                  # all of them; what is finished is skipped
    scripts/reproduce publish              # copy results to docs/research/reproductions, README.md
    scripts/reproduce recount              # what the published MNIST runs cost, counted anew

Each target writes PNG and CSV under OUT/NAME; OUT/README.md sets the paper's claim, our
reproduction and the honest version side by side. An interrupted command continues where it was.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.reproduction.core import Options, Target, all_targets, execute, finished
from benchmarks.reproduction.page import write_page
from benchmarks.reproduction.publish import publish, recount
from fl_shuffle.errors import FlShuffleError, InvalidValueError

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: list[str] | None = None) -> int:
    """Run the targets named: 0 all succeeded, 2 an error, 130 interrupted."""
    parser = argparse.ArgumentParser(
        prog="scripts/reproduce", description=(__doc__ or "").split("\n\n", maxsplit=1)[0]
    )
    parser.add_argument(
        "targets", nargs="+", metavar="TARGET", help="targets, all, list, publish, recount"
    )
    parser.add_argument("--fast", action="store_true", help="few points, seconds per target")
    parser.add_argument("--out", type=Path, default=Path("results"), help="default: results")
    given = parser.parse_args(arguments)
    known, options = all_targets(), Options(given.out, given.fast)
    try:
        if "list" in given.targets:
            for name, target in known.items():
                print(f"{name:<34} {target.texts['title']} ({target.texts['paper']})")
        elif given.targets == ["recount"]:
            print(f"counted anew: {recount([*known.values()], ROOT)}")
        elif given.targets == ["publish"]:
            print(f"published: {publish([*known.values()], options, ROOT)}")
        else:
            play(known, list(known) if "all" in given.targets else given.targets, options)
    except FlShuffleError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\ninterrupted; the same command goes on from here", file=sys.stderr)
        return 130
    return 0


def play(known: Mapping[str, Target], names: Sequence[str], options: Options) -> None:
    """Run these targets, but those that are finished, and write the page after each."""
    if unknown := [name for name in names if name not in known]:
        raise InvalidValueError("target", unknown[0], "must be one of scripts/reproduce list")
    for number, name in enumerate(names, 1):
        print(f"[{number}/{len(names)}] {name}: ", end="", flush=True)
        if finished(known[name], options):
            print("finished before, skipped", flush=True)
            continue
        print("running", flush=True)
        print(f"      done in {execute(known[name], options)['seconds']:.1f} s", flush=True)
        print(f"      {write_page(options.out, list(known))}", flush=True)
    write_page(options.out, list(known))


if __name__ == "__main__":
    sys.exit(main())
