"""Personal budgets: distributions, CSV files, the user's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fl_shuffle.budgets import Budgets, make_budgets, read_budgets, round_down
from fl_shuffle.cli import main
from fl_shuffle.configuration.reading import parse_config, resolve_config
from fl_shuffle.configuration.sections import BudgetsSection
from fl_shuffle.data.task import load_task
from fl_shuffle.errors import FlShuffleError
from fl_shuffle.planner.cost import cost_of

HEADER = "client_id,epsilon,delta\n"


def test_uniform_distributions() -> None:
    for name, low, high in (("unif1", 0.01, 1), ("unif2", 0.01, 2), ("unif3", 0.5, 1)):
        budgets = make_budgets(BudgetsSection(distribution=name), 4000)
        assert low <= budgets.epsilon.min() and budgets.epsilon.max() <= high
        # The mean of 4,000 uniforms: five standard errors, false alarm below 1e-6.
        error = 5 * (high - low) / np.sqrt(12 * 4000)
        assert abs(budgets.epsilon.mean() - (low + high) / 2) < error
        other = make_budgets(BudgetsSection(distribution=name, seed=1), 4000)
        assert (budgets.epsilon != other.epsilon).any()


def test_constant_mixed_and_groups() -> None:
    assert (make_budgets(BudgetsSection(epsilon=0.7), 5).epsilon == 0.7).all()
    mixed = make_budgets(BudgetsSection(distribution="mixed"), 100).epsilon
    assert (np.sort(mixed) == np.repeat([0.01, 0.5], 50)).all()
    groups = make_budgets(BudgetsSection(distribution="groups"), 100).epsilon
    values, counts = np.unique(groups, return_counts=True)
    assert values.tolist() == [0.1, 0.5, 1.0]
    assert counts.tolist() == [54, 37, 9]
    # Who is in which group is drawn: not the clients' order, and another one for another seed.
    for name, drawn in (("mixed", mixed), ("groups", groups)):
        other = make_budgets(BudgetsSection(distribution=name, seed=1), 100).epsilon
        assert (drawn[:50] != drawn[50:]).any() and (other != drawn).any()
        assert (np.diff(drawn) != 0).sum() > 20


def test_rounding_down_never_raises_a_budget_and_bounds_the_levels() -> None:
    budgets = make_budgets(BudgetsSection(distribution="unif2"), 101)
    rounded = round_down(budgets, 7)
    assert (rounded.epsilon <= budgets.epsilon).all()
    assert len(np.unique(rounded.epsilon)) == 7
    assert (round_down(budgets, 1000).epsilon == budgets.epsilon).all()


def test_budgets_say_how_many_there_are_and_what_rounding_changes() -> None:
    budgets = Budgets(np.array([3.0, 6.0, 4.0, 6.0]), np.full(4, 1e-5))
    assert budgets.words() == "3 distinct budgets of a report, epsilon 3 to 6"
    said = round_down(budgets, 1).words()
    assert "1 distinct budget of a report, epsilon 3, rounded down from 3" in said
    assert "31.2% of its epsilon on average, 50.0% at most" in said
    assert "changes none" in round_down(budgets, 4).words()
    equal = Budgets(np.full(4, 3.0), np.array([1e-5, 1e-5, 1e-6, 1e-5]))
    assert "2 distinct budgets of a report, epsilon 3" in equal.words()
    assert "rounded down from 2 (budgets.levels)" in round_down(equal, 4).words()


def test_a_named_file_is_not_rounded_to_other_budgets_levels(tmp_path: Path) -> None:
    """`quickstart` has levels = 2 for budgets that it draws: a file's own are taken as they are."""
    path = tmp_path / "b.csv"
    path.write_text(HEADER + "".join(f"{k},{3 * (1 + k % 3)},1e-5\n" for k in range(718)))
    named = {"budgets.distribution": "file", "budgets.file": str(path)}
    for overrides in (named, [f"{key}={value}" for key, value in named.items()]):
        section = resolve_config("quickstart", overrides).budgets
        assert np.unique(make_budgets(section, 718).epsilon).tolist() == [3.0, 6.0, 9.0]
    for given, left in ((1, [3.0]), (2, [3.0, 6.0])):
        section = resolve_config("quickstart", {**named, "budgets.levels": given}).budgets
        assert np.unique(make_budgets(section, 718).epsilon).tolist() == left
    tables = {"budgets": {"distribution": "file", "file": str(path), "levels": 1}}
    assert resolve_config(tables, {"run.rounds": 1}).budgets.levels == 1


@pytest.mark.parametrize("levels", [1, 3, 40, 1000])
def test_rounding_down_raises_neither_number(levels: int) -> None:
    """Clients whose delta differs, too; what a report costs is their randomizer's business."""
    rng = np.random.default_rng(levels)
    budgets = Budgets(rng.uniform(0.1, 9.0, 40), rng.choice([0.0, 1e-7, 1e-6, 1e-5], 40))
    rounded = round_down(budgets, levels)
    assert (rounded.epsilon <= budgets.epsilon).all() and (rounded.delta <= budgets.delta).all()
    assert len({*zip(rounded.epsilon.tolist(), rounded.delta.tolist(), strict=True)}) <= levels


@pytest.mark.parametrize(
    ("asked", "levels", "wanted"),
    [
        ([1, 2, 3, 4, 5, 6], 3, [1, 1, 3, 3, 5, 5]),
        ([1, 2, 3, 4, 5, 6, 7], 3, [1, 1, 1, 4, 4, 6, 6]),
        ([6, 5, 4, 3, 2, 1], 2, [4, 4, 4, 1, 1, 1]),
        ([1, 2, 2, 2, 2, 3, 4, 5], 4, [1, 2, 2, 2, 2, 3, 3, 5]),
        ([1, 2, 3, 4, 4, 4, 4, 4], 2, [1, 1, 1, 4, 4, 4, 4, 4]),
    ],
)
def test_levels_cut_what_is_left_into_equal_shares(
    asked: list[float], levels: int, wanted: list[float]
) -> None:
    """A group that is small or large moves the shares of those after it."""
    budgets = Budgets(np.array(asked, dtype=float), np.full(len(asked), 1e-6))
    assert round_down(budgets, levels).epsilon.tolist() == wanted


@pytest.mark.parametrize("seed", range(40))
def test_equal_budgets_stay_equal_and_use_every_level(seed: int) -> None:
    """Clients that asked for the same epsilon get the same, however many there are."""
    rng = np.random.default_rng(seed)
    values = np.sort(rng.uniform(0.1, 9.0, rng.integers(1, 12)))
    asked = rng.permutation(np.repeat(values, rng.geometric(0.05, values.size)))
    for levels in (1, 2, 3, 5, len(values), 40):
        rounded = round_down(Budgets(asked, np.full(asked.size, 1e-6)), levels).epsilon
        left = [np.unique(rounded[asked == value]) for value in values]
        assert all(each.size == 1 for each in left) and (rounded <= asked).all()
        assert (np.diff(np.concatenate(left)) >= 0).all()
        assert np.unique(rounded).size == min(levels, values.size)


@pytest.mark.parametrize(
    "section",
    [
        {"distribution": "mixed"},
        {"distribution": "groups"},
        {"distribution": "groups", "conservative": 3.0, "moderate": 6.0, "liberal": 6.0},
        {"distribution": "listed", "epsilons": (3.0,) * 72 + (6.0,) * 646},
        {"distribution": "listed", "epsilons": (1.0, 2.0, *(3.0,) * 10)},
        {"distribution": "constant"},
        {"distribution": "tests.test_budgets:three_epsilons"},
    ],
)
def test_levels_as_many_as_budgets_change_none(section: dict[str, Any]) -> None:
    clients = len(section.get("epsilons", "")) or 718
    drawn = make_budgets(BudgetsSection(**section), clients)
    wanted = make_budgets(BudgetsSection(**section, levels=3), clients)
    assert np.array_equal(wanted.epsilon, drawn.epsilon)
    assert "changes none" in wanted.words()


def three_epsilons(clients: int, generator: np.random.Generator) -> NDArray[np.float64]:
    return generator.choice([0.5, 1.0, 4.0], clients, p=[0.05, 0.05, 0.9])


def test_csv_in_any_order_with_lifetimes(tmp_path: Path) -> None:
    path = tmp_path / "b.csv"
    path.write_text(HEADER + "1,0.5,1e-5\n0,2,1e-6\n")
    budgets = read_budgets(path, 2)
    assert budgets.epsilon.tolist() == [2.0, 0.5]
    assert budgets.delta.tolist() == [1e-6, 1e-5]
    assert budgets.lifetime is None
    path.write_text("client_id,epsilon,delta,lifetime_epsilon\n0,1,1e-5,3\n1,1,1e-5,inf\n")
    lifetime = read_budgets(path, 2).lifetime
    assert lifetime is not None and lifetime.tolist() == [3.0, np.inf]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (HEADER + "0,1,1e-5\n", ["missing", "client 1"]),
        (HEADER + "0,1,1e-5\n0,1,1e-5\n1,1,1e-5\n", ["line 3", "twice"]),
        (HEADER + "ann,1,1e-5\n", ["names 1 clients", "data.clients = 2"]),
        (HEADER + "0,1,1e-5\nbob,1,1e-5\n", ["line 3", "'bob'", "whole number, 0 to 1"]),
        (HEADER + "0,1,1e-5\n1,1,1e-5\n2,1,1e-5\n", ["line 4", "client 2"]),
        (HEADER + "0,1,1e-5\n\n1,1,1e-5\n", ["line 3", "empty"]),
        (HEADER + "0,1\n1,1,1e-5\n", ["line 2", "3 values"]),
        (HEADER + "0,1,1e-5\n1,1,1e-5,2\n", ["line 3", "3 values, got 4"]),
        (HEADER + "0,x,1e-5\n1,1,1e-5\n", ["line 2", "numbers"]),
        (HEADER + "0,1,1e-5\n1,1_0,1e-5\n", ["line 3", "numbers"]),
        (HEADER + "0,0,1e-5\n1,1,1e-5\n", ["line 2", "epsilon"]),
        (HEADER + "0,1,1\n1,1,1e-5\n", ["line 2", "delta"]),
        ("client,eps\n0,1\n", ["line 1", "client_id,epsilon,delta"]),
        ("", ["empty file"]),
        (HEADER + "0," + "x" * 200_000 + ",1\n", ["not a valid CSV"]),
        (HEADER + "\0\0\0", ["not text"]),
        (HEADER + "\udcff", ["not UTF-8"]),
        ("client_id,epsilon,delta,lifetime_epsilon\n0,1,1e-5,0\n1,1,1e-5,1\n", ["lifetime"]),
        # Of clients that have names, north and west.
        (HEADER + "west,3,0\neast,1,0\n", ["line 3", "'east'", "no client of these", "'north'"]),
        (HEADER + "west,3,0\n", ["1 of 2 clients are missing", "0 (north)"]),
        (HEADER + "1_0,3,0\nwest,1,0\n", ["line 2", "'1_0'"]),
    ],
)
def test_bad_csv(tmp_path: Path, content: str, words: list[str]) -> None:
    path = tmp_path / "b.csv"
    path.write_text(content, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(FlShuffleError) as caught:
        read_budgets(path, 2, ["north", "west"] if "west" in content else None)
    for word in [*words, "b.csv"]:
        assert word in str(caught.value)
    with pytest.raises(FlShuffleError, match="cannot be read"):
        read_budgets(tmp_path, 2)


def test_names_are_matched_or_else_taken_as_they_stand(tmp_path: Path) -> None:
    path = tmp_path / "b.csv"
    # As Excel saves it, and with a blank line at the end.
    path.write_bytes(b"\xef\xbb\xbf" + (HEADER + "west,3,1e-6\n north ,1,0\n\n").encode())
    budgets = read_budgets(path, 2, ["north", "west"])
    assert budgets.epsilon.tolist() == [1.0, 3.0] and budgets.delta.tolist() == [0.0, 1e-6]
    assert not budgets.by_place
    path.write_text(HEADER + "1,3,1e-6\n0,1,0\n")
    assert read_budgets(path, 2, ["north", "west"]).epsilon.tolist() == [1.0, 3.0]
    # Clients that are numbered: the names are taken as they stand.
    path.write_text(HEADER + "west,3,0\nnorth,1,0\n")
    budgets = read_budgets(path, 2)
    assert budgets.epsilon.tolist() == [3.0, 1.0] and budgets.by_place
    assert round_down(budgets, 1).by_place
    assert len(read_budgets(path)) == 2


@pytest.mark.parametrize(
    ("names", "ids", "line"),
    [
        # The first client would get the second one's budget, and so on.
        ([str(k) for k in range(1, 13)], [str(k) for k in range(12)], 2),
        (["10", "20", "30"], ["0", "1", "2"], 2),
        (["1", "2", "ward"], ["0", "1", "2"], 2),
        (["007", "008"], ["7", "8"], 2),
        (["1", "2", "3"], ["1", "2", "4"], 4),
    ],
)
def test_numbers_are_no_positions_where_names_look_like_numbers(
    tmp_path: Path, names: list[str], ids: list[str], line: int
) -> None:
    path = tmp_path / "b.csv"
    path.write_text(HEADER + "".join(f"{name},1,0\n" for name in ids))
    said = rf"line {line}: client_id = '{ids[line - 2]}' is no client of .*names look like numbers"
    with pytest.raises(FlShuffleError, match=said):
        read_budgets(path, len(names), names)


LIFE = "client_id,epsilon,delta,lifetime_epsilon\n"


@pytest.mark.parametrize("partition", ["iid", "natural"])
@pytest.mark.parametrize(
    ("content", "told"),
    [
        (HEADER + "1,1,1e-6\n0,1,0\n", r"line 3 \(client '0'\): delta = 0.0: gaussian noise needs"),
        (HEADER + "0,1,1e-6\n1,-2,1e-6\n", "line 3: epsilon = -2 for client '1' must be finite"),
        (HEADER + "0,nan,1e-6\n1,2,1e-6\n", "line 2: epsilon = nan for client '0'"),
        (HEADER + "0,1,1e-6\n1,2,7\n", "line 3: delta = 7 for client '1' must be in"),
        (LIFE + "0,1,1e-6,1\n1,2,1e-6,-1\n", "line 3: lifetime_epsilon = -1 for client '1'"),
        (HEADER + "0,1,1e-6\n", "has 1 lines, and there are 2 clients|1 of 2 clients are missing"),
    ],
)
def test_budgets_file_mistakes_surface_before_the_data_are_read(
    tmp_path: Path, partition: str, content: str, told: str
) -> None:
    """With file, line, client and value; the data of this configuration do not even exist."""
    path = tmp_path / "b.csv"
    path.write_text(content)
    data = {"source": "no.such:source", "clients": 2, "partition": partition}
    config = parse_config({"data": data, "budgets": {"distribution": "file", "file": str(path)}})
    for use in (load_task, cost_of):
        with pytest.raises(FlShuffleError, match=rf"{path}.*({told})"):
            use(config)
    toml = tmp_path / "c.toml"
    toml.write_text(
        f"data = {{ source = 'fl_shuffle:no', clients = 2, partition = '{partition}' }}\n"
        f"budgets = {{ distribution = 'file', file = '{path}' }}\n"
    )
    assert main(["simulate", str(toml)]) == 2


def test_numbers_name_clients_however_they_are_written(tmp_path: Path) -> None:
    """As pandas writes them in a column that once had a gap."""
    path = tmp_path / "b.csv"
    path.write_text(HEADER + "11.0,3,0\n2.0,1,0\n")
    assert read_budgets(path, 2, ["2", "11"]).epsilon.tolist() == [1.0, 3.0]
    path.write_text(HEADER + "1.0,3,0\n0.0,1,0\n")
    assert read_budgets(path, 2).epsilon.tolist() == [1.0, 3.0]
    path.write_text(HEADER + "1.0,3,0\n1,1,0\n")
    with pytest.raises(FlShuffleError, match=r"line 3: client '1' appears twice"):
        read_budgets(path, 2)
    # A name that is exactly so goes first.
    path.write_text(HEADER + "1.0,3,0\nx,1,0\n")
    assert read_budgets(path, 2, ["1.0", "x"]).epsilon.tolist() == [3.0, 1.0]


@pytest.mark.parametrize("names", [["west", "10", "north", "9"], ["10", "9", "2", "1"]])
def test_names_are_the_clients_not_their_rank(names: list[str], tmp_path: Path) -> None:
    """Names whose order is that of the clients, and of nothing else, in files of any order."""
    wanted = {name: float(place + 1) for place, name in enumerate(names)}
    path = tmp_path / "b.csv"
    for order in (names, names[::-1], sorted(names), sorted(names, key=len)):
        path.write_text(HEADER + "".join(f"{name},{wanted[name]},1e-5\n" for name in order))
        assert read_budgets(path, 4, names).epsilon.tolist() == [1.0, 2.0, 3.0, 4.0]
        words = [f"c{name}" for name in order]
        lines = [f"{word},{place + 1},1e-5\n" for place, word in enumerate(words)]
        path.write_text(HEADER + "".join(lines))
        by_place = read_budgets(path, 4)
        assert by_place.by_place and by_place.epsilon.tolist() == [1.0, 2.0, 3.0, 4.0]


def test_a_users_own_provider(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_budgets.py").write_text(
        "import numpy as np\n"
        "def good(clients, rng): return np.linspace(1, 2, clients), np.full(clients, 1e-6)\n"
        "def short(clients, rng): return [1.0]\n"
        "def text(clients, rng): return 'abc'\n"
    )
    monkeypatch.chdir(tmp_path)
    budgets = make_budgets(BudgetsSection(distribution="my_budgets:good"), 3)
    assert budgets.epsilon.tolist() == [1.0, 1.5, 2.0]
    for name, words in (("short", "shapes"), ("text", "numbers")):
        with pytest.raises(FlShuffleError, match=words):
            make_budgets(BudgetsSection(distribution=f"my_budgets:{name}"), 3)


def test_budgets_by_number_stand_in_the_toml(tmp_path: Path) -> None:
    """Flower packs no .csv."""
    tables = {"data": {"clients": 3}, "budgets": {"distribution": "listed", "epsilons": [4, 8, 12]}}
    assert make_budgets(parse_config(tables).budgets, 3).epsilon.tolist() == [4.0, 8.0, 12.0]
    for epsilons, told in (
        ([4.0, 8.0], "holds 2 numbers, and data.clients is 3"),
        ([4.0, 8.0, 0.0], r"budgets.epsilons\[2\] = 0.0: must be"),
        (4.0, r"budgets.epsilons = 4.0: must be a list of numbers > 0"),
    ):
        budgets = {"distribution": "listed", "epsilons": epsilons}
        with pytest.raises(FlShuffleError, match=told):
            parse_config({**tables, "budgets": budgets})
    of_a_file = BudgetsSection(distribution="file", file=str(tmp_path / "no.csv"))
    with pytest.raises(FlShuffleError, match=r"`flwr run` packs no \.csv.*budgets\.epsilons"):
        make_budgets(of_a_file, 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [("epsilon", 0.0), ("epsilon", -1.0), ("epsilon", np.inf), ("epsilon", np.nan),
     ("delta", -1e-300), ("delta", 1.0), ("delta", np.nan)],
)  # fmt: skip
def test_budgets_end_where_nothing_can_be_promised(name: str, value: float) -> None:
    """Of any client, the last one too; what lies just inside is taken."""
    for client in (0, 2):
        columns = {"epsilon": np.ones(3), "delta": np.full(3, 1e-5)}
        columns[name][client] = value
        with pytest.raises(FlShuffleError, match=f"client {client}: {name} = "):
            Budgets(**columns)
    ends = np.array([5e-324, 1e300]), np.array([0.0, np.nextafter(1.0, 0.0)])
    assert Budgets(*ends).delta[0] == 0.0
