"""`fl-shuffle bound` about many questions: lines of JSON, and curves as tables and pictures."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

import fl_shuffle as fs
from fl_shuffle.cli import bound_lines, main
from fl_shuffle.cli.bound_curve import axis_of
from fl_shuffle.report.curves import Curve, curves_figure
from fl_shuffle.report.draw import DASHED, DOTTED, STROKES

KRR: dict[str, Any] = {"randomizer": "krr", "k": 10, "epsilon0": 1.0, "delta": 1e-6}
FLAGS = ["--randomizer", "krr", "--k", "10", "--epsilon0", "1", "--delta", "1e-6"]
LINES: list[tuple[bytes, str]] = [
    (json.dumps({**KRR, "clients": 100, "method": "clone"}).encode(), ""),
    (b"", "an empty line"),
    (b"   ", "an empty line"),
    (b"\xff\xfe{}", "not UTF-8"),
    (b"{", "not JSON"),
    (b"[" * 200_000, "nested too deeply"),
    (b"[1, 2]", "must be a JSON object"),
    (b"null", "must be a JSON object"),
    (b'{"clients": NaN}', "NaN is not a JSON number"),
    (b'{"clients": ' + b"9" * 5000 + b"}", "not JSON"),
    (b'{"epsilon0": 1e999, "clients": 5, "delta": 0.1}', "epsilon0 = inf"),
    (b'{"epsilon0": 1, "epsilon0": 2}', "'epsilon0' is given twice"),
    (b'{"epsilno0": 1}', "did you mean 'epsilon0'?"),
    (b'{"epsilon0": {"a": []}, "clients": [], "delta": true}', "epsilon0 = {'a': []}"),
    (b"{}", "epsilon and delta"),
    (b'{"epsilon0": 1, "clients": 1, "delta": 0.1, "method": "rdp"}', "needs clients >= 2, got 1"),
    (b'{"epsilon0": 1, "clients": 9, "delta": 0.1, "method": "rdp", "order": 1}', "order = 1"),
    (b'{"epsilon0": 1, "clients": 9, "delta": 0.1, "randomizer": "joint:foo"}', "'foo'"),
    (
        b'{"epsilon0": 1, "clients": 9, "delta": 0.1, "randomizer": "parallel:0.5*blh,0.4*oue"}',
        "must add up to 1",
    ),
    (b'{"epsilon0": 1, "clients": 9, "delta": 0.1, "budgets": "no.csv"}', "no.csv"),
    (b'{"clients": "' + b"9" * 3000 + b'"}', "clients = '999"),
    (
        b"\xef\xbb\xbf" + json.dumps({**KRR, "clients": 5, "method": "blankt"}).encode(),
        "'blanket'?",
    ),
    (json.dumps({**KRR, "clients": 50, "method": "clone"}).encode(), ""),
]


def test_bound_jsonl_hostile_lines_each_answered_in_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of three lines; the nested line is within the limit, the one of 3,000 bytes not."""
    monkeypatch.setattr(bound_lines, "BATCH_LINES", 3)
    texts = [line for line, _ in LINES]
    (tmp_path / "lines").write_bytes(b"\n".join(texts))
    for largest in (1 << 24, 2000):
        monkeypatch.setattr(bound_lines, "LARGEST_LINE", largest)
        source = tmp_path / "lines" if largest > 2000 else "-"
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\n".join(texts) + b"\n")))
        assert main(["bound", "--jsonl", str(source)]) == 1
        told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
        assert len(told) == len(LINES)
        for number, ((line, words), each) in enumerate(zip(LINES, told, strict=True), start=1):
            if not words:
                asked = json.loads(line)
                assert each == fs.bound(**asked).to_dict()
                continue
            told_of = f"at most {largest:,} bytes" if len(line) > largest else words
            assert each["line"] == number and told_of in each["error"], (line[:80], each)


@pytest.mark.parametrize(
    "others", [["--all"], ["--delta", "1e-6"], ["--over", "k=2,3"], ["x.toml"]]
)
def test_bound_jsonl_beside_a_question_is_refused(
    others: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").touch()
    assert main(["bound", "--jsonl", str(tmp_path / "empty")]) == 0
    assert capsys.readouterr().out == ""
    assert main(["bound", "--jsonl", str(tmp_path / "empty"), *others]) == 2
    assert "cannot be combined with --jsonl" in capsys.readouterr().err
    assert main(["bound", "--jsonl", str(tmp_path / "none")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_axis_of_ranges_and_lists_gives_their_values() -> None:
    assert axis_of("clients=1e3:1e5:3") == ("clients", [1000, 10_000, 100_000])
    assert axis_of("rounds=1:3:9") == ("rounds", [1, 2, 3])
    assert axis_of("epsilon=0:1:3") == ("epsilon", [0.0, 0.5, 1.0])
    assert axis_of("delta=1e-4:1e-8:2") == ("delta", [1e-4, 1e-8])
    assert axis_of("assumed-honest=0.5,20") == ("assumed_honest", [0.5, 20])
    assert axis_of("k=1e1, 3,10") == ("k", [10, 3])
    name, values = axis_of("epsilon0=0.1:4:40")
    assert (name, values[0], values[-1], len(values)) == ("epsilon0", 0.1, 4.0, 40)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--over", "clients"], "--over = 'clients': must be FIRST:LAST:COUNT"),
        (["--over", "client=1,2"], "did you mean 'clients'?"),
        (["--over", "randomizer=krr,blh"], "--over = 'randomizer': must be one of"),
        (["--over", "clients=1:2"], "must be FIRST:LAST:COUNT"),
        (["--over", "clients=1:2:nan"], "must be FIRST:LAST:COUNT"),
        (["--over", "clients=1:inf:5"], "must be FIRST:LAST:COUNT"),
        (["--over", "clients=1:9:1"], "COUNT must be a whole number in [2, 10000]"),
        (["--over", "clients=1:9:1e9"], "COUNT must be a whole number in [2, 10000]"),
        (["--over", "clients=10,2.5"], "2.5 must be a whole number"),
        (["--over", "clients=,"], "must be FIRST:LAST:COUNT"),
        (["--over", "clients=0:9:3"], "clients = 0: must be a whole number"),
        (["--over", "delta=1e-4,1e-5", "--clients", "5"], "--delta is also given"),
        (["--over", "clients=5,6", "--method", "clone,gspo"], "did you mean 'gspa'?"),
        (["--over", "clients=5,6", "--method", "clone", "--all"], "leave out --method"),
        (["--over", "clients=5,6", "--method", "vector"], "no bound applies at any clients"),
        (
            ["--over", "clients=5,6", "--solve-for", "k"],
            "--solve-for cannot be combined with --over",
        ),
        (
            ["--over", "clients=5,6", "--explain"],
            "--explain cannot be combined with --over",
        ),
        (["--over", "clients=5,6", "--plot", "a.gif"], "must end in png, svg, pdf, csv"),
        (["--over", "clients=5,6", "--plot", "no/a.png"], "there is no folder no"),
        (["--clients", "5", "--plot", "a.png"], "--plot needs --over"),
        (["--clients", "5", "--randomizer", "krr;blh"], "several randomizers need --over"),
        (["--over", "clients=5,6", "--randomizer", "krr;blx"], "did you mean 'blh'?"),
        (["--over", "clients=5,6", "--randomizer", "krr;"], "randomizer = ''"),
        (["--over", ""], "--over = '': must be one of"),
        (["--over", "clients="], "must be FIRST:LAST:COUNT"),
        (["--over", "clients=:"], "must be FIRST:LAST:COUNT"),
        (["--over", "clients=9:3:0"], "COUNT must be a whole number in [2, 10000]"),
    ],
)
def test_bound_over_bad_input_is_one_line(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = FLAGS[2:] if "--randomizer" in words else FLAGS
    assert main(["bound", *flags, *words]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert told in line


@pytest.mark.parametrize("words", [["--randomizer", "blh"], ["--k", "9"]])
def test_bound_option_given_twice_is_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["bound", *FLAGS, "--clients", "5", *words])
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert f"argument {words[0]}: given twice, " in line and f" and {words[1]}: give it" in line


@pytest.mark.slow
def test_bound_over_methods_are_tables_and_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Numbers are those of single questions; a number that is missing says why."""
    words = ["bound", *FLAGS, "--over", "rounds=1,2", "--clients", "2", "--method"]
    assert main([*words, "gspa,lower,clone", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["over"], body["values"]) == ("rounds", [1, 2])
    assert [each["method"] for each in body["curves"]] == ["clone", "gspa", "lower"]
    for each in body["curves"]:
        for rounds, number in zip((1, 2), each["numbers"], strict=True):
            if (each["method"], rounds) == ("lower", 2):
                assert number is None
            elif each["method"] == "clone":
                known = fs.bound(**KRR, clients=2, rounds=rounds, method="clone").to_dict()
                assert number == known["epsilon"]
    assert main([*words, "lower,clone"]) == 0
    shown = capsys.readouterr().out
    assert "at 1 of 2 values there is no finite answer: lower is stated for one round" in shown
    for form, start in (("png", b"\x89PNG"), ("SVG", b"<?xml"), ("csv", b"rounds,clone")):
        assert main([*words, "lower,clone", "--plot", str(tmp_path / f"x.{form}")]) == 0
        assert (tmp_path / f"x.{form}").read_bytes().startswith(start)
    assert f"written: {tmp_path / 'x.csv'}" in capsys.readouterr().out
    table = list(csv.DictReader(io.StringIO((tmp_path / "x.csv").read_text())))
    clone = fs.bound(**KRR, clients=2, rounds=2, method="clone").epsilon
    assert float(table[1]["clone (proven)"]) == clone and table[1]["lower (lower bound)"] == ""


def test_bound_over_default_is_the_smallest_proven(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bound", *FLAGS, "--over", "clients=2000,5000", "--json"]) == 0
    (curve,) = json.loads(capsys.readouterr().out)["curves"]
    assert curve["method"] == "smallest proven" and curve["status"] == "proven"
    assert curve["numbers"] == [fs.bound(**KRR, clients=n).epsilon for n in (2000, 5000)]


def test_bound_over_several_randomizers_names_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each curve is the one of its randomizer alone; a bound of any randomizer is drawn once."""
    both = "parallel:0.5*krr,0.5*blh"
    words = [
        "bound",
        "--k",
        "10",
        "--epsilon0",
        "1",
        "--delta",
        "1e-6",
        "--method",
        "blanket,clone",
    ]
    over = ["--randomizer", f"krr; blh ;{both};krr", "--over", "clients=100,200"]
    assert main([*words, *over, "--json"]) == 0
    curves = json.loads(capsys.readouterr().out)["curves"]
    named = [(each.get("randomizer"), each["method"]) for each in curves]
    assert named == [
        ("krr", "blanket"), (None, "clone"), ("blh", "blanket"), (both, "blanket")
    ]  # fmt: skip
    for each in curves:
        alone = [
            fs.bound(
                randomizer=each.get("randomizer", "krr"), k=10, epsilon0=1.0, delta=1e-6,
                clients=clients, method=each["method"],
            ).epsilon
            for clients in (100, 200)
        ]  # fmt: skip
        assert each["numbers"] == alone
    assert main([*words, *over, "--plot", str(tmp_path / "x.csv")]) == 0
    head = (tmp_path / "x.csv").read_text().splitlines()[0]
    assert "krr: blanket (proven)" in head and ",clone (proven)," in head
    assert f"{both}: blanket: proven" in capsys.readouterr().out


def test_curves_by_status_are_solid_dashed_dotted() -> None:
    answers = {name: [fs.bound(**KRR, clients=n, method=name) for n in (100, 200, 400)]
               for name in ("clone", "gspa", "lower")}  # fmt: skip
    curves = [Curve.of(name, found, "epsilon") for name, found in answers.items()]
    figure = curves_figure("clients", [100, 200, 400], "epsilon", curves)  # type: ignore[arg-type]
    strokes = {line.label: STROKES[line.kind] for line in figure.shown()}
    assert strokes["clone (proven)"].dashes == ()
    assert strokes["gspa (as published)"].dashes == DASHED
    assert strokes["lower (lower bound)"].dashes == DOTTED
    assert len({stroke.colour for stroke in strokes.values()}) == 3
