"""Configuration files: what is accepted, and the one clear line for what is not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from fl_shuffle.configuration.reading import SECTIONS, load_config, parse_config, shipped
from fl_shuffle.configuration.sections import Config
from fl_shuffle.declare import settings_of, texts_of
from fl_shuffle.errors import ConfigError, FlShuffleError


def write(folder: Path, text: str) -> Path:
    path = folder / "run.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_every_field_has_a_text_a_check_and_a_valid_default() -> None:
    for name, section in SECTIONS.items():
        assert all(texts_of(section)[name] for name in settings_of(section))
        for field in dataclasses.fields(section):
            default = getattr(section(), field.name)
            check = settings_of(section)[field.name].check
            assert check(f"{name}.{field.name}", default) == default
    assert parse_config({}) == Config() == parse_config(Config().to_dict())


POOLED, SYSTEM = "[run]\nnoise = 'pooled'\n", "[run]\nentropy = 'system'\n"
DISCRETE = "[privacy]\nrandomizer = 'discrete-laplace'\nunit = 'client'\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[privacy]\nclip_nrom = 1.0", ["clip_nrom", "clip_norm"]),
        ("[privcy]\nclip_norm = 1.0", ["privcy", "privacy"]),
        ("[run]\nrounds = 2.5", ["run.rounds", "2.5", "whole number"]),
        ("[run]\nray_address = 'head:6379'", ["run.ray_address", "ray", "in-process"]),
        ("[budgets]\nepsilon = 0.0", ["budgets.epsilon", "0.0"]),
        ("[budgets]\ndelta = 0.0", ["budgets.delta", "Gaussian"]),
        ("[privacy]\nunit = 'client'\nclip = 'record'", ["privacy.clip", "client"]),
        ("[privacy]\nrandomizer = 'laplace'\ncalibration = 'classical'", ["calibration"]),
        ("[privacy]\nunit='client'\ncalibration = 'as-published'", ["calibration", "record"]),
        ("[budgets]\ndistribution = 'file'", ["budgets.file"]),
        ("[budgets]\ndistribution = 'uniform'\nlow = 2.0\nhigh = 1.0", ["budgets.low"]),
        ("[budgets]\nconservative_fraction = 0.9\nmoderate_fraction = 0.2", ["fraction"]),
        ("[training]\nlocal_steps = 5", ["training.local_steps", "client"]),
        (
            "[training]\nschedule = 'sequential'\n[server]\nweights = 'inverse-variance'",
            ["weights"],
        ),
        (
            "[privacy]\nrelease = 'sum'\n[training]\nschedule = 'sequential'",
            ["training.schedule", "privacy.release = 'sum'", "only `local` holds"],
        ),
        (
            "[privacy]\nrelease = 'sum'\n[server]\nanalyzer = 'mine:median'",
            ["server.analyzer", "privacy.release = 'sum'", "single reports"],
        ),
        ("[privacy]\nrelease = 'sum'\nmin_reports = 1", ["privacy.min_reports", "at least 2"]),
        ("[data]\nclients = 1", ["data.clients = 1", "min_reports = 2", "min_reports = 1"]),
        (
            "[data]\nclients = 1\n[privacy]\nrelease = 'sum'",
            ["data.clients = 1: is below privacy.min_reports = 2", "raise data.clients"],
        ),
        ("[privacy]\nassumed_honest = 1.0", ["privacy.assumed_honest", "leave it out"]),
        ("[privacy]\nassumed_honest = 51", ["privacy.assumed_honest", "number of clients, 50"]),
        (
            "[privacy]\nassumed_honest = 0.5\n[training]\nschedule = 'sequential'",
            ["privacy.assumed_honest", "sequential", "leave it out"],
        ),
        (POOLED + "entropy = 'system'", ["run.noise", "run.entropy = 'system'", "per-report"]),
        (POOLED + "[training]\nschedule = 'sequential'", ["training.schedule = 'sequential'"]),
        (POOLED + "[app]\nserver = 'own:app'", ["run.noise", "app.server = 'own:app'"]),
        (DISCRETE + "[run]\nentropy = 'seeded'", ["draws noise that is no secret"]),
        (DISCRETE + SYSTEM + "device = 'cuda'", ["has no such sampler"]),
        (DISCRETE.replace("client", "record") + SYSTEM, ["bounds no norm of whole steps"]),
        (DISCRETE + "calibration = 'classical'\n" + SYSTEM, ["is for continuous noise"]),
        (DISCRETE + "personalization = 'clipping'\n" + SYSTEM, ["for continuous noise"]),
        (DISCRETE + SYSTEM + "[server]\nweights = 'inverse-variance'", ["leaves the grid"]),
        ("run = 3", ["[run]", "table"]),
        ("[run\nrounds = 3", ["not valid TOML"]),
    ],
)
def test_bad_input_is_named(tmp_path: Path, text: str, words: list[str]) -> None:
    with pytest.raises(FlShuffleError) as caught:
        load_config(write(tmp_path, text))
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(FlShuffleError, match="does not exist"):
        load_config(tmp_path / "none.toml")
    with pytest.raises(FlShuffleError, match="cannot be read"):
        load_config(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"# caf\xe9\n")
    with pytest.raises(FlShuffleError, match="cannot be read"):
        load_config(tmp_path / "latin.toml")


def test_overrides_are_typed_like_toml_and_applied_in_order(tmp_path: Path) -> None:
    path = write(tmp_path, "[run]\nrounds = 3\n")
    config = load_config(
        path,
        ["run.rounds=5", "run.rounds=7", "budgets.distribution=unif2", "model.hidden=[8, 4]",
         "model.kind=mlp", "server.averaging=0.5"],
    )  # fmt: skip
    assert config.run.rounds == 7
    assert config.budgets.distribution == "unif2"
    assert config.model.hidden == (8, 4)
    assert config.server.averaging == 0.5


@pytest.mark.parametrize("override", ["run.rounds", "rounds=3", "run.=3"])
def test_malformed_overrides(tmp_path: Path, override: str) -> None:
    with pytest.raises(FlShuffleError, match="section.key=value"):
        load_config(write(tmp_path, ""), [override])


def test_every_shipped_configuration_is_called_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, path in shipped().items():
        config = load_config(name)
        assert config == load_config(path) == load_config(f"configs/{name}.toml"), name
        assert parse_config(config.to_dict()) == config
    with pytest.raises(ConfigError, match=r"did you mean 'mnist_clients_local_0.5'"):
        load_config("mnist_clients_local_0.55")
