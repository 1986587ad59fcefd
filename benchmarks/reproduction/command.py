"""Regenerate the tables and figures of the founding papers, with the honest version beside them.

    scripts/reproduce list                 # the targets
    scripts/reproduce NAME [NAME ...]      # some of them
    scripts/reproduce all                  # all of them; what is finished is skipped
    scripts/reproduce all --force          # forget what is finished, first
    scripts/reproduce publish              # finished results into docs/reproduction and README.md
    scripts/reproduce recount              # what the published MNIST runs cost, counted anew

Each target writes PNG and CSV under OUT/NAME; OUT/README.md sets the paper's claim, our
reproduction and the honest version side by side. An interrupted command goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.reproduction.core import Options, all_targets, execute, finished, forget
from benchmarks.reproduction.page import write_page
from benchmarks.reproduction.publish import publish, recount
from fl_shuffle.errors import FlShuffleError

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: list[str] | None = None) -> int:
    """Run the targets named: 0 all succeeded, 1 one failed, 2 wrong request, 130 interrupted."""
    parser = argparse.ArgumentParser(
        prog="scripts/reproduce", description=(__doc__ or "").split("\n\n", maxsplit=1)[0]
    )
    parser.add_argument(
        "targets", nargs="+", metavar="TARGET", help="targets, all, list, publish, recount"
    )
    parser.add_argument("--fast", action="store_true", help="few points, seconds per target")
    parser.add_argument("--force", action="store_true", help="forget finished results first")
    parser.add_argument("--out", type=Path, default=Path("results"), help="default: results")
    parser.add_argument("--data", type=Path, help="folder of MNIST; default: FL_SHUFFLE_DATA")
    given = parser.parse_args(arguments)
    known = all_targets()
    if "list" in given.targets:
        for name, target in known.items():
            print(f"{name:<34} {target.texts['title']} ({target.texts['paper']})")
        return 0
    options = Options(given.out, given.fast, given.data)
    if given.targets in (["publish"], ["recount"]):
        try:
            if given.targets == ["recount"]:
                print(f"counted anew: {recount(list(known.values()), ROOT)}")
            else:
                print(f"published: {publish(list(known.values()), options, ROOT)}")
        except FlShuffleError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        return 0
    names = list(known) if "all" in given.targets else list(dict.fromkeys(given.targets))
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"error: no target {unknown[0]!r}; see scripts/reproduce list", file=sys.stderr)
        return 2
    if given.force:
        for name in names:
            forget(known[name], options)
    failed = []
    for number, name in enumerate(names, 1):
        head = f"[{number}/{len(names)}] {name}"
        if finished(known[name], options):
            print(f"{head}: finished before, skipped", flush=True)
            continue
        print(f"{head}: running", flush=True)
        try:
            entry = execute(known[name], options)
        except FlShuffleError as error:
            print(f"{head}: failed: {error}", file=sys.stderr, flush=True)
            failed.append(name)
            continue
        except KeyboardInterrupt:
            print(f"\n{head}: interrupted; the same command goes on from here", file=sys.stderr)
            return 130
        write_page(given.out, list(known))
        print(f"{head}: done in {entry['seconds']:.1f} s", flush=True)
    if given.out.is_dir():
        print(f"page: {write_page(given.out, list(known))}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
