"""A module's tests are found by its name: `clipper.py` has them in `test_clipper.py`."""

from __future__ import annotations

from tests.repository import ROOT

TESTS, PACKAGE = ROOT / "tests", ROOT / "fl_shuffle"
SEVERAL = {
    "accounting/bounds/test_discrete_reports.py": "one kind of noise through bounds and accountant",
    "accounting/bounds/test_vector_exact.py": "exact small shuffles, against three bounds",
    "accounting/distributions/test_profiles.py": "profiles of two mechanisms",
    "accounting/queries/test_one_curve.py": "answers of all methods agree",
    "accounting/queries/test_ranges.py": "every argument over its range",
    "accounting/test_any_history.py": "random federations through the accountant",
    "accounting/test_monotony.py": "bounds of several rooms",
    "auditing/test_left_alone.py": "audits of the whole product",
    "auditing/test_statistics.py": "error rates of bounds and checks",
    "cli/test_mistakes.py": "what every command says of a mistake",
    "runs/test_continue.py": "rounds that are added, through runs, ledger, and optimizer",
    "data/test_picture_features.py": "features of pictures, of every kind",
    "data/test_own_data.py": "a user's own data, losses, and metrics",
    "federation/test_aggregation.py": "optimizer and analyzers",
    "federation/test_clips.py": "gradients, budgets, and calibration together",
    "federation/test_sums.py": "nodes, shuffler, and server that add up",
    "flower/test_error_replies.py": "what any app's failure says",
    "gradients/test_gradient_values.py": "every path of gradients against autograd",
    "gradients/test_packing.py": "blocks of clients on every path of gradients",
    "report/test_browser.py": "a page in a browser",
    "runs/test_checkpoints.py": "models that are saved on the way",
    "runs/test_evaluation_rounds.py": "runs whose clients report metrics",
    "runs/test_full_disk.py": "every file of a run's end",
    "runs/test_published.py": "every file of a run, beside a neighboring data set",
    "runs/test_settings_count.py": "every setting",
    "runs/test_shown_numbers.py": "one number wherever it is shown",
    "runs/test_totals.py": "runs with totals, from plan to ledger",
    "runs/test_version_0_2.py": "a run that version 0.2.0 began",
    "runs/test_without_privacy.py": "baseline runs",
    "shuffler/remote/test_peers.py": "hostile peers of a whole shuffler",
    "shuffler/remote/test_rounds.py": "rounds of all parties",
    "test_extras.py": "what is installed by choice",
    "test_mutants.py": "the player of faults",
    "test_written_files.py": "whatever writes a file",
    "verify/test_bounds.py": "every bound of the verifier",
    "verify/test_certificates.py": "certificates as they are verified",
    "verify/test_facts.py": "every fact of every claim",
    "verify/test_runs.py": "certificates of runs",
}
"""Files of tests that are about several modules, and what they are about."""
NO_PACKAGE = {
    "apps", "architecture", "benchmarks", "docs", "examples", "golden", "journeys",
}  # fmt: skip
"""Folders of tests that are about no package: what ships as a whole, and what lies beside it."""


def _named_after_a_module(test: str) -> bool:
    """Whether a module or package of that name lies in the package that the folder is named after,
    or is that package."""
    *folders, file = test.split("/")
    name = file.removeprefix("test_").removesuffix(".py")
    place = PACKAGE.joinpath(*folders)
    if folders and not place.is_dir():
        return name == folders[-1] and place.with_suffix(".py").is_file()
    modules = {path.stem for path in place.rglob("*.py")} - {"__init__"}
    packages = {path.parent.name for path in place.rglob("__init__.py")}
    return name in modules | packages


def _files() -> list[str]:
    found = (path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py"))
    return sorted(name for name in found if name.split("/")[0] not in NO_PACKAGE)


def test_file_of_tests_is_named_after_its_module() -> None:
    own = [name for name in _files() if not _named_after_a_module(name)]
    assert [name for name in own if name not in SEVERAL] == []


def test_list_holds_no_file_that_is_gone_or_has_its_module() -> None:
    assert sorted(SEVERAL) == [name for name in _files() if name in SEVERAL]
    assert [name for name in SEVERAL if _named_after_a_module(name)] == []
    assert all((TESTS / folder).is_dir() for folder in NO_PACKAGE)
