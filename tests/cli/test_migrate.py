"""`fl-shuffle migrate`: today's names, and every other character as it was."""

from __future__ import annotations

import stat
import tomllib
from pathlib import Path

import pytest
from pytest import CaptureFixture

from fl_shuffle.cli import main
from fl_shuffle.configuration.migrate import migrated
from fl_shuffle.configuration.reading import parse_config, resolve_config
from fl_shuffle.configuration.renamed import SETTINGS, VALUES
from fl_shuffle.errors import ConfigError
from tests.repository import ROOT

OLD = """\
# What is trained, and on what: decay = "linear" stays in a comment.
[run]
noise = "pooled"          # one draw for the sum
[data]
records=6                 # a client
"alpha" = 0.3
validation = 0.1
partition = 'dirichlet'
[data.source_options]
records = 3               # the source's own
alpha = "apart"
[server]
decay = "linear"
decay_to = 0.1
averaging = 0.5
trim = 0.2
[privacy]
clip = "average"
client_clip = 0.5
client_epsilon = 8.0
shuffler = 'in-server'
"""
NEW = """\
# What is trained, and on what: decay = "linear" stays in a comment.
[run]
noise = "per-sum"          # one draw for the sum
[data]
records_per_client=6                 # a client
dirichlet_alpha = 0.3
validation_fraction = 0.1
partition = 'dirichlet'
[data.source_options]
records = 3               # the source's own
alpha = "apart"
[server]
lr_schedule = "linear"
lr_final_fraction = 0.1
averaging_fraction = 0.5
trim_fraction = 0.2
[privacy]
clipping = "average"
client_clip_norm = 0.5
lifetime_epsilon = 8.0
shuffler = 'server'
"""


def test_every_old_name_is_replaced_and_nothing_else() -> None:
    assert all(key.partition(".")[2] in OLD for key in SETTINGS)
    assert migrated(OLD) == NEW and migrated(NEW) == NEW
    assert parse_config(tomllib.loads(OLD)) == parse_config(tomllib.loads(NEW))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("data = { records = 6, clients = 9 }", "data = { records_per_client = 6, clients = 9 }"),
        ("data.records = 6 # a", "data.records_per_client = 6 # a"),
        ("data . 'records' = 6", "data . records_per_client = 6"),
        ("['privacy']\nshuffler = '''apart'''", "['privacy']\nshuffler = 'separate'"),
        ('privacy = {shuffler="in-server", clip = "auto"}',
         'privacy = {shuffler="server", clipping = "auto"}'),
        ("[server]\r\ndecay = 'cosine'\r\ntrim = 0.1", "[server]\r\nlr_schedule = 'cosine'\r\n"
                                                       "trim_fraction = 0.1"),
        ('[model]\nhidden = [ # widths\n  3, # "]"\n  4,\n]\n[data]\nrecords = 1',
         '[model]\nhidden = [ # widths\n  3, # "]"\n  4,\n]\n[data]\nrecords_per_client = 1'),
        ('[run]\nout = """a "quoted" [data]\nrecords = 1"""\nnoise = "pooled"',
         '[run]\nout = """a "quoted" [data]\nrecords = 1"""\nnoise = "per-sum"'),
        ("[app]\nserver = 'fl_shuffle.apps.server:app'",
         "[app]\nserver = 'fl_shuffle.builtin_apps.server.app:app'"),
        ("[app]\nclient = 'fl_shuffle.pages.clients.app:app'",
         "[app]\nclient = 'fl_shuffle.builtin_apps.clients.app:app'"),
        ('[app]\nconfig = [{ clip = "a" }]\n[privacy]\nclip = "auto"',
         '[app]\nconfig = [{ clip = "a" }]\n[privacy]\nclipping = "auto"'),
    ],
)  # fmt: skip
def test_each_way_of_writing_toml_keeps_its_layout(old: str, new: str) -> None:
    assert migrated(old) == new


@pytest.mark.parametrize("key", [*SETTINGS, *VALUES])
def test_each_renamed_name_is_a_setting_of_today(key: str) -> None:
    section, _, name = key.partition(".")
    config = resolve_config({})
    assert hasattr(getattr(config, section), SETTINGS.get(key, name))
    for new in VALUES.get(key, {}).values():
        parse_config({section: {name: new}} | EXTRA.get(new, {}))


EXTRA = {
    "per-sum": {"privacy": {"release": "sum"}},
    "separate": {"run": {"entropy": "system"}},
}
"""What a value needs beside it."""


def test_both_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"\[data\] has both records and records_per_client"):
        migrated("[data]\nrecords = 1\nrecords_per_client = 1")


def test_difference_is_shown_and_written_on_demand(
    tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    path, link = tmp_path / "old.toml", tmp_path / "link.toml"
    path.write_text(OLD, encoding="utf-8")
    path.chmod(0o640)
    link.symlink_to(path)
    assert main(["migrate", str(link)]) == 0
    shown = capsys.readouterr().out
    assert '-clip = "average"\n' in shown and '+clipping = "average"\n' in shown
    assert "nothing was written: add --write" in shown and path.read_text() == OLD
    assert main(["migrate", str(link), "--write"]) == 0
    assert path.read_text() == NEW and link.is_symlink()
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    capsys.readouterr()
    assert main(["migrate", str(path), "--write"]) == 0
    assert capsys.readouterr().out == f"{path}: all names are those of today\n"


def test_shipped_configurations_have_todays_names() -> None:
    for path in (ROOT / "configs").rglob("*.toml"):
        text = path.read_text(encoding="utf-8")
        assert migrated(text) == text, path


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "does not exist"),
        ("[data", "is not valid TOML"),
        ("x = " + "[" * 50_000, "nested too deeply"),
        ("[privacy]\nclip = 'auto'\nclipping = 'auto'", "has both clip and clipping"),
    ],
)
def test_wrong_files_are_one_line_and_change_nothing(
    text: str | None, said: str, tmp_path: Path, capsys: CaptureFixture[str]
) -> None:
    bad, good = tmp_path / "bad.toml", tmp_path / "good.toml"
    good.write_text(OLD, encoding="utf-8")
    if text is not None:
        bad.write_text(text, encoding="utf-8")
    assert main(["migrate", str(good), str(bad), "--write"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(bad) in line and said in line
    assert good.read_text(encoding="utf-8") == OLD
    assert main(["migrate", str(tmp_path)]) == 2
    assert "is a directory" in capsys.readouterr().err
