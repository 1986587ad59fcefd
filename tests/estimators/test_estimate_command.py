"""`fl-shuffle estimate`: results, reproducibility, and one clear line for every bad input."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from fl_shuffle.cli import main

CLIENTS = 400


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    rng = np.random.default_rng(0)
    order = rng.permutation(CLIENTS)
    numbers = np.clip(rng.normal(50, 10, CLIENTS), 20, 80)
    colours = rng.choice(["red", "green", "blue"], CLIENTS, p=[0.6, 0.3, 0.1])
    budgets = rng.choice([1.0, 4.0], CLIENTS)
    paths = {name: tmp_path / f"{name}.csv" for name in ("numbers", "colours", "budgets")}
    write(paths["numbers"], ["client_id,value", *(f"{i},{numbers[i]!r}" for i in order)])
    write(paths["colours"], ["client_id,value", *(f"{i},{colours[i]}" for i in order)])
    write(
        paths["budgets"],
        ["client_id,epsilon,delta", *(f"{i},{budgets[i]},1e-5" for i in range(CLIENTS))],
    )
    return paths


def write(path: Path, lines: list[str]) -> None:
    path.write_text("\n".join(lines).replace("np.float64(", "").replace(")", "") + "\n")


def mean(files: dict[str, Path], *more: str) -> list[str]:
    return [
        "estimate", "mean", "--data", str(files["numbers"]), "--budgets", str(files["budgets"]),
        "--low", "20", "--high", "80", *more,
    ]  # fmt: skip


def frequency(files: dict[str, Path], *more: str) -> list[str]:
    return [
        "estimate", "frequency", "--data", str(files["colours"]),
        "--budgets", str(files["budgets"]), *more,
    ]  # fmt: skip


def answer(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> dict:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("randomizer", ["laplace", "gaussian", "duchi"])
@pytest.mark.parametrize("estimator", ["unbiased", "published", "inverse-variance"])
def test_mean(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str], randomizer: str, estimator: str
) -> None:
    arguments = mean(files, "--seed", "3", "--randomizer", randomizer, "--estimator", estimator)
    first, again = answer(capsys, arguments), answer(capsys, arguments)
    assert first == again
    (row,) = first["results"]
    assert row["true_value_not_private"] == pytest.approx(50, abs=2)
    assert abs(row["estimate"] - row["true_value_not_private"]) < 5 * row["standard_error"]
    assert row["low"] < row["estimate"] < row["high"]
    assert first["clients"] == CLIENTS
    assert "seed" in first["notes"][0]


@pytest.mark.parametrize("randomizer", ["krr", "oue", "rappor", "blh", "hadamard"])
def test_frequency(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str], randomizer: str
) -> None:
    arguments = frequency(
        files, "--seed", "4", "--randomizer", randomizer, "--categories", "red,green,blue,gold"
    )
    result = answer(capsys, arguments)
    assert [row["name"] for row in result["results"]] == ["red", "green", "blue", "gold"]
    for row in result["results"]:
        assert abs(row["estimate"] - row["true_value_not_private"]) < 5 * row["standard_error"]
    assert result["results"][3]["true_value_not_private"] == 0.0


def test_without_a_seed_every_run_differs(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = (answer(capsys, mean(files)) for _ in range(2))
    assert first["results"] != second["results"]
    assert first["seed"] is None and first["notes"] == []


def test_text_output(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(frequency(files, "--confidence", "0.9")) == 0
    out = capsys.readouterr().out
    assert "frequency of 400 clients, randomizer krr" in out
    assert "90% interval" in out
    assert "read from the data, which is not private" in out
    assert all(name in out for name in ("red", "green", "blue"))


def test_clip_moves_values_into_the_range(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    narrow = mean(files)
    narrow[narrow.index("80")] = "50"
    assert main(narrow) == 2
    assert "must be in [20, 50]" in capsys.readouterr().err
    result = answer(capsys, [*narrow, "--clip"])
    assert result["results"][0]["true_value_not_private"] < 50


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> str:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("fl-shuffle: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "columns must be client_id,value"),
        ("\n", "columns must be client_id,value"),
        ("client_id,value\n", "holds no clients"),
        ("client,value\n0,1\n", "columns must be client_id,value, got client,value"),
        ("client_id,value\n0,30\n\n1,30\n", "line 3: expected client_id,value"),
        ("client_id,value\n0,30\n1\n", "line 3: expected client_id,value"),
        ("client_id,value\n0,30\n1,\n", "line 3: expected client_id,value"),
        ("client_id,value\n0,30\n1,2,3\n", "line 3: expected client_id,value"),
        ("client_id,value\n0,30\n0,31\n", "line 3: client 0 appears twice"),
        ("client_id,value\n0,30\n2,31\n", "numbered from 0 without gaps"),
        ("client_id,value\n-1,30\n", "numbered from 0 without gaps"),
        ("client_id,value\n1_0,30\n", "numbered from 0 without gaps"),
        ("client_id,value\n,30\n", "expected client_id,value"),
        ("client_id,value\n0,many\n", "value of client 0 = 'many'"),
        ("client_id,value\n0,nan\n", "value of client 0 = 'nan'"),
        ("client_id,value\n0,inf\n", "value of client 0 = 'inf'"),
        ("client_id,value\n0,81\n", "value = 81.0: must be in [20, 80]"),
    ],
)
def test_bad_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    data, budgets = tmp_path / "data.csv", tmp_path / "budgets.csv"
    data.write_text(text, encoding="utf-8")
    clients = max(1, len(text.splitlines()) - 1) if "many" not in text else 1
    budgets.write_text("client_id,epsilon,delta\n" + "".join(f"{i},1,0\n" for i in range(clients)))
    paths = {"numbers": data, "budgets": budgets}
    assert message in refused(capsys, mean(paths))


def test_named_clients_get_the_budgets_of_their_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = {name: tmp_path / f"{name}.csv" for name in ("numbers", "budgets")}

    def answered(data_ids: tuple[str, str], budget_ids: tuple[str, str]) -> dict:
        (first, second), (low, high) = data_ids, budget_ids
        write(paths["numbers"], ["client_id,value", f"{first},30", f"{second},70"])
        # The second client's line stands first.
        lines = ["client_id,epsilon,delta", f"{high},1000,0", f"{low},0.001,0", ""]
        write(paths["budgets"], lines)
        return answer(capsys, mean(paths, "--estimator", "inverse-variance", "--seed", "1"))

    by_name = answered(("ann", "bob"), ("ann", "bob"))
    by_number = answered(("0", "1"), ("0", "1"))
    assert by_name["results"] == by_number["results"]
    assert not any("in their order" in note for note in by_name["notes"])
    # Nothing says whose these lines are: the first is for client 0.
    by_place = answered(("0", "1"), ("ann", "bob"))
    assert by_place["results"] != by_number["results"]
    assert any("taken in their order" in note for note in by_place["notes"])


def test_bad_files_and_options(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    absent = {**files, "numbers": tmp_path / "absent.csv"}
    assert "absent.csv does not exist" in refused(capsys, mean(absent))
    binary = tmp_path / "binary.csv"
    binary.write_bytes(b"client_id,value\n0,\xff\xfe\n")
    assert "not UTF-8" in refused(capsys, mean({**files, "numbers": binary}))
    assert "cannot be read" in refused(capsys, mean({**files, "numbers": tmp_path}))
    assert "budgets" in refused(capsys, mean({**files, "budgets": tmp_path / "none.csv"}))
    assert "confidence" in refused(capsys, mean(files, "--confidence", "1"))
    assert "confidence" in refused(capsys, mean(files, "--confidence", "nan"))
    assert "seed" in refused(capsys, mean(files, "--seed", "-1"))
    assert "high" in refused(capsys, mean(files, "--high", "20"))
    assert "low" in refused(capsys, mean(files, "--low", "nan"))
    assert "categories" in refused(capsys, frequency(files, "--categories", "red"))
    assert "categories" in refused(capsys, frequency(files, "--categories", "red,red,blue"))
    assert "categories" in refused(capsys, frequency(files, "--categories", "red,,blue"))
    assert "is not one of the categories" in refused(
        capsys, frequency(files, "--categories", "red,blue")
    )


def test_gaussian_needs_a_delta(files: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    text = files["budgets"].read_text().replace("1e-5", "0")
    files["budgets"].write_text(text)
    assert "(0, 1)" in refused(capsys, mean(files, "--randomizer", "gaussian"))
    assert math.isfinite(answer(capsys, mean(files))["results"][0]["estimate"])


def test_budgets_that_do_not_fit(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = files["budgets"].read_text().splitlines()
    files["budgets"].write_text("\n".join(lines[:-1]) + "\n")
    assert "missing" in refused(capsys, mean(files))
    files["budgets"].write_text("\n".join([*lines, "400,1,0"]) + "\n")
    assert "client 400" in refused(capsys, mean(files))
    files["budgets"].write_text("\n".join([*lines[:-1], "399,0,0"]) + "\n")
    assert "epsilon" in refused(capsys, mean(files))


@pytest.mark.parametrize(
    "arguments",
    [["estimate"], ["estimate", "median"], ["estimate", "mean", "--randomizer", "krr"]],
)
def test_usage_errors_exit_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
