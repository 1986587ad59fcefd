"""Apps of few clients with many records: protected by the record here, or in their own training."""

from __future__ import annotations

from pathlib import Path

KINDS = ("records", "declared")

PROJECT = """
[project]
name = "silo-{kind}"
version = "1.0.0"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "somebody"

[tool.flwr.app.components]
serverapp = "silo_{kind}.apps:server"
clientapp = "silo_{kind}.apps:client"

[tool.flwr.app.config]
config = "shuffle.toml"
resolved = ""
run-directory = ""
resume = ""
shift = 0.5
"""

SHARED = """
import torch
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import ServerApp
from torch import nn

from fl_shuffle.flower import ShuffleClientApp, ShuffleStrategy

server = ServerApp()


def records(context):
    number, silos = (context.node_config[key] for key in ("partition-id", "num-partitions"))
    assert silos == {clients}
    draw = torch.Generator().manual_seed(number)
    x = torch.randn(30, 4, generator=draw) + context.run_config["shift"]
    return x, (x.sum(dim=1) > 0).long()


def net():
    model = nn.Linear(4, 2)
    for each in model.parameters():
        nn.init.zeros_(each)
    return model


@server.main()
def main(grid, context):
    strategy = ShuffleStrategy.of(context, beside=__file__)
    strategy.start(grid=grid, initial_arrays=ArrayRecord(net().state_dict()))
"""

CLIENTS = {
    "records": """
client = ShuffleClientApp(beside=__file__, records=records, model=net)
""",
    "declared": """
client = ShuffleClientApp(beside=__file__)


@client.train()
def train(message, context):
    '''Two noisy steps; the noise is the client's own, here drawn anew from seeds.'''
    model, (x, y) = net(), records(context)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    seed = 100 * message.content["config"]["server-round"] + context.node_config["partition-id"]
    noise = torch.Generator().manual_seed(seed)
    for _ in range(2):
        total = [torch.zeros_like(each) for each in model.parameters()]
        for record, label in zip(x, y):
            model.zero_grad()
            nn.functional.cross_entropy(model(record[None]), label[None]).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            for part, each in zip(total, model.parameters()):
                part += each.grad
        with torch.no_grad():
            for part, each in zip(total, model.parameters()):
                each -= 0.5 / len(x) * (part + 3.0 * torch.randn(part.shape, generator=noise))
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict())}), reply_to=message)
""",
}

PRIVACY = {
    "records": 'unit = "record"\nclip_norm = 0.5\n[budgets]\nepsilon = 2.0\n',
    "declared": 'randomizer = "declared"\nclip_norm = 0.5\ndeclared_sigma = 3.0\n'
    "declared_steps = 2\n",
}

SETTINGS = """
[run]
rounds = 3
[data]
clients = {clients}
records = 30
[app]
server = "silo_{kind}.apps:server"
client = "silo_{kind}.apps:client"
[privacy]
{privacy}"""


def written(kind: str, place: Path, clients: int) -> Path:
    """The app's folder."""
    folder = place / f"silo_{kind}"
    package = folder / f"silo_{kind}"
    package.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(PROJECT.format(kind=kind))
    settings = SETTINGS.format(kind=kind, clients=clients, privacy=PRIVACY[kind])
    (folder / "shuffle.toml").write_text(settings)
    (package / "__init__.py").touch()
    shared = SHARED.replace("{clients}", str(clients))
    (package / "apps.py").write_text(shared + CLIENTS[kind])
    return folder
