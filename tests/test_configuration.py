"""Configuration files: what is accepted, and the one clear line for what is not."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

import pytest

from fl_shuffle.configuration import conflicts
from fl_shuffle.configuration.reading import (
    SECTIONS,
    own_parts,
    parse_config,
    resolve_config,
    shipped,
)
from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import ConfigError, FlShuffleError
from fl_shuffle.settings_schema import settings_of, texts_of


def test_every_field_has_a_text_a_check_and_a_valid_default() -> None:
    for name, section in SECTIONS.items():
        assert all(texts_of(section)[name] for name in settings_of(section))
        for field in dataclasses.fields(section):
            default = getattr(section(), field.name)
            check = settings_of(section)[field.name].check
            assert check(f"{name}.{field.name}", default) == default
    assert parse_config({}) == Config() == parse_config(Config().to_dict())


POOLED = "run.noise=per-sum"
SUM = "privacy.release=sum"
SEQUENTIAL = "training.schedule=sequential"
APART = "privacy.shuffler=separate privacy.unit=client run.entropy=system"
DISCRETE = "privacy.randomizer=discrete-laplace privacy.unit=client run.entropy=system"
DECLARED = "privacy.randomizer=declared privacy.declared_sigma=1 app.client=own:client"
NATURAL = "data.partition=natural"

BARE = "privacy.unit=client privacy.randomizer=none"


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ("privacy.clip_nrom=1", "unknown key in [privacy]: 'clip_nrom'; did you mean 'clip_norm'?"),
        ("privcy.clip_norm=1", "unknown section: 'privcy'; did you mean 'privacy'?"),
        ("run.rounds=2.5", "run.rounds = 2.5: must be a whole number in [1, 1000000]"),
        ("run.rounds=nan", "run.rounds = nan: must be a whole number in [1, 1000000]"),
        ("run.ray_address=head:1", "run.ray_address = 'head:1': is for run.engine = 'ray'"),
        ("budgets.epsilon=0", "budgets.epsilon = 0: must be a finite number in (0, inf)"),
        ("budgets.delta=0", "budgets.delta = 0.0: the Gaussian randomizer needs a value in (0, 1)"),
        ("privacy.unit=client privacy.clipping=record", "privacy.unit = 'client' must be auto or"),
        ("privacy.randomizer=laplace privacy.calibration=classical", "is a Gaussian formula"),
        ("privacy.unit=client privacy.calibration=as-published", "set privacy.unit = 'record'"),
        ("budgets.of=run budgets.delta=1e-6", "budgets.delta = 1e-06: is the delta of one report"),
        (
            "budgets.expected_share=0.9",
            "budgets.expected_share = 0.9: applies to totals of the run",
        ),
        (
            "budgets.against=everybody",
            "budgets.against = 'everybody': applies to totals of the run",
        ),
        (
            "budgets.of=run budgets.against=everybody budgets.expected_share=0.9",
            "budgets.expected_share = 0.9: plans for absent clients",
        ),
        (
            "budgets.of=run budgets.against=everybody training.participation=0.5",
            "budgets.against = 'everybody': needs training.participation = 1",
        ),
        ("budgets.distribution=file", "budgets.file = '': is missing"),
        ("budgets.distribution=uniform budgets.low=2", "budgets.low = 2.0: must be <= high = 1"),
        ("budgets.distribution=groups budgets.conservative_fraction=0.9", "must be at most 1 with"),
        ("training.local_steps=5", "training.local_steps = 5: several local steps"),
        ("training.local_epochs=2", "training.local_epochs = 2: several local steps"),
        ("model.fix=true", "model.fix = True: replaces layers of a model of your own"),
        ("training.batch_size=2", "training.batch_size = 2: in the record unit every record"),
        (
            "privacy.unit=client training.local_epochs=2 training.local_steps=2",
            "training.local_epochs = 2: and training.local_steps both say",
        ),
        (f"{SEQUENTIAL} server.weights=inverse-variance", "a sequential schedule applies"),
        (f"{SUM} {SEQUENTIAL}", "'sequential': with privacy.release = 'sum' must be aggregate"),
        (f"{SUM} server.analyzer=own:median", "with privacy.release = 'sum' must be mean"),
        (f"{SUM} privacy.min_reports=1", "'sum' must be at least 2: a sum of one"),
        ("data.clients=1", "data.clients = 1: is below privacy.min_reports = 2, so no round"),
        ("privacy.assumed_honest=1.0", "(a share); leave it out to assume that all clients"),
        ("privacy.assumed_honest=51", "must be at most the number of clients, 50"),
        (f"{SEQUENTIAL} privacy.assumed_honest=0.5", "changes nothing in a sequential schedule"),
        (f"{SEQUENTIAL} privacy.reports_per_round=2", "must be 1 in a sequential"),
        ("privacy.randomizer=declared", "privacy.randomizer = 'declared': needs"),
        (f"{DECLARED} app.client=fl_shuffle.pages.clients.app:app", "'declared': is what clients"),
        (f"{DECLARED} privacy.unit=client", "'declared': is noise for single records"),
        (f"{DECLARED} privacy.clipping=average", "'declared': clips each record"),
        (f"{DECLARED} privacy.personalization=clipping", "'declared': has one noise for all"),
        (f"{DECLARED} privacy.calibration=classical", "'declared': is not calibrated here"),
        (f"{DECLARED} server.weights=inverse-variance", "'declared': has no weights"),
        (
            f"{DECLARED} server.learning_rate_unit=clipping-norm",
            "'declared': clips each step's gradients, and a report is longer; "
            "set server.learning_rate_unit = 'absolute'",
        ),
        (f"{DECLARED} privacy.reports_per_round=2", "several reports would be the same"),
        ("privacy.report_bits=1", "privacy.report_bits = 1: tells two levels apart"),
        (
            f"{BARE} privacy.report_bits=4",
            "rounds after Gaussian or Laplace noise, and privacy.randomizer = 'none'; leave it out",
        ),
        (f"{SUM} privacy.report_bits=4", "the proof for privacy.release = 'sum' needs a fine grid"),
        (f"{POOLED} privacy.report_bits=4", "run.noise = 'per-sum' makes none"),
        ("budgets.distribution=listed budgets.epsilons=[1.0,2.0]", "takes one a client"),
        (
            f"{NATURAL} data.records_per_client=3",
            "data.records_per_client = 3: changes nothing with data.partition",
        ),
        (f"{NATURAL} data.sizes=unequal", "data.sizes = 'unequal': changes nothing with"),
        (f"{POOLED} server.analyzer=coordinate-median", "'coordinate-median' wants the reports"),
        (
            f"{POOLED} privacy.randomizer=some:noise privacy.unit=client",
            "has no known distribution of a sum",
        ),
        ("app.config={x=1}", "is for apps of your own"),
        (
            f"{POOLED} run.entropy=system",
            "run.noise = 'per-sum': makes no reports, and run.entropy",
        ),
        (f"{POOLED} {SEQUENTIAL}", "training.schedule = 'sequential' applies"),
        (f"{POOLED} app.server=own:app", "app.server = 'own:app' is your own and expects"),
        (f"{POOLED} app.client=own:app", "app.client = 'own:app' is your own and sends reports"),
        (f"{DISCRETE} run.entropy=seeded", "run.entropy = 'seeded' draws noise that is no secret"),
        (f"{DISCRETE} run.device=cuda", "run.device = 'cuda' has no such sampler"),
        (f"{DISCRETE} privacy.unit=record", "privacy.clipping = 'record' bounds no norm of whole"),
        (f"{DISCRETE} privacy.calibration=classical", "'classical' is for continuous noise"),
        (f"{DISCRETE} privacy.personalization=clipping", "is calibrated for continuous noise"),
        (f"{DISCRETE} server.weights=inverse-variance", "'inverse-variance' leaves the grid"),
        (f"{APART} run.entropy=seeded", "privacy.shuffler = 'separate'"),
        (f"{APART} {SEQUENTIAL}", "privacy.shuffler = 'separate'"),
        (f"{APART} {SUM} privacy.randomizer=some:randomizer", "privacy.shuffler = 'separate'"),
        ("run.rounds", "must look like section.key=value"),
        ("rounds=3", "must look like section.key=value"),
        ("run.=3", "must look like section.key=value"),
        ("budgets.of=run run.engine=ray run.ray_address=head:1", "machines of a Ray cluster"),
        (f"{BARE} run.entropy=system", "is for real data"),
        (f"{BARE} run.supernodes=nodes.csv", "it is for simulations"),
        (f"{BARE} privacy.clipping=update", "clips nothing"),
        (f"{BARE} privacy.client_clip_norm=1.0", "clips nothing"),
        (
            f"{BARE} server.learning_rate_unit=clipping-norm",
            "clips nothing; set server.learning_rate_unit",
        ),
        (f"{BARE} privacy.personalization=clipping", "no noise to personalize"),
        (f"{BARE} privacy.calibration=classical", "no noise to calibrate"),
        (f"{BARE} server.weights=inverse-variance", "no noise to weigh reports by"),
        (f"{BARE} privacy.target_epsilon=1.0", "has an infinite epsilon"),
        (f"{BARE} budgets.of=run", "no total of the run allows"),
        (f"{BARE} privacy.reports_per_round=2", "sends the same report each time"),
    ],
)
def test_bad_input_is_named(settings: str, line: str) -> None:
    with pytest.raises(FlShuffleError) as caught:
        resolve_config({}, settings.split())
    assert line in str(caught.value) and "\n" not in str(caught.value)


def test_every_conflict_has_a_line_above(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rule refuses one of those settings first: without it they would be taken."""
    whole, found = conflicts.rules, set[int]()
    (cases,) = (mark.args[1] for mark in test_bad_input_is_named.pytestmark)

    def noted(config: Config) -> list[conflicts.Conflict]:
        refused = [place for place, rule in enumerate(whole(config)) if rule.found]
        found.update(refused[:1])
        return []

    monkeypatch.setattr(conflicts, "rules", noted)
    for settings, _ in cases:
        with contextlib.suppress(FlShuffleError):
            resolve_config({}, settings.split())
    assert found == set(range(len(whole(Config()))))


def test_files_that_are_no_configuration(tmp_path: Path) -> None:
    for content, told in (
        (b"# caf\xe9\n", "cannot be read"),
        (b"run = 3", r"\[run\] must be a table"),
        (b"[run\nrounds = 3", "not valid TOML"),
    ):
        (tmp_path / "run.toml").write_bytes(content)
        with pytest.raises(FlShuffleError, match=told):
            resolve_config(tmp_path / "run.toml")


def test_overrides_are_typed_like_toml_and_applied_in_order() -> None:
    given = "run.rounds=5 run.rounds=7 budgets.distribution=unif2 model.hidden=[8,4] model.kind=mlp"
    config = resolve_config({"run": {"rounds": 3}}, given.split())
    assert (config.run.rounds, config.budgets.distribution) == (7, "unif2")
    assert config.model.hidden == (8, 4)


def test_every_shipped_configuration_is_called_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, path in shipped().items():
        config = resolve_config(name)
        assert config == resolve_config(path) == resolve_config(f"configs/{name}.toml"), name
        assert parse_config(config.to_dict()) == config
    with pytest.raises(ConfigError, match=r"did you mean 'mnist_clients_local_0.5'"):
        resolve_config("mnist_clients_local_0.55")


def test_parts_of_ones_own_are_those_of_no_package_file() -> None:
    """`module:attribute`, wherever a setting may name one; not what this package ships."""
    config = parse_config(
        {
            "model": {"kind": "mine:model", "loss": "cross-entropy", "metrics": "their:metrics"},
            "server": {"analyzer": "fl_shuffle.federation.robust:coordinate_median"},
        }
    )
    assert own_parts(config) == {"model.kind": "mine:model", "model.metrics": "their:metrics"}
