"""The same Flower app with personal privacy budgets: clients clip, add noise, and are shuffled.

Run it: python after.py

Expected output (the epsilons are proven, in nats, for replacing one client, against an attacker who
sees only each round's sum, and so the models):

    accuracy with privacy: 41.5%
    client 3 spent 2.133, the most exposed client 2.388, at delta 1e-05
"""

from __future__ import annotations

from pathlib import Path

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from task import ROUNDS, accuracy, make_model, records_of, train_model

import fl_shuffle as fs
from fl_shuffle.flower import ShuffleClientApp, ShuffleStrategy  # were ClientApp, FedAvg

client, server = ShuffleClientApp(beside=__file__), ServerApp()  # was ClientApp()


@client.train()
def train(message: Message, context: Context) -> Message:
    """Train the received model on the client's own records, and send it back."""
    model = make_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    images, labels = records_of(int(context.node_config["partition-id"]))
    train_model(model, images, labels)
    reply = RecordDict({"arrays": ArrayRecord(model.state_dict())})
    reply["metrics"] = MetricRecord({"num-examples": len(labels)})
    return Message(reply, reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    """Average the shuffled reports in every round, and write every client's spend to the ledger."""
    strategy = ShuffleStrategy.of(context, beside=__file__)  # was FedAvg(...)
    arrays = ArrayRecord(make_model().state_dict())
    strategy.start(grid=grid, initial_arrays=arrays, num_rounds=ROUNDS, evaluate_fn=accuracy)


if __name__ == "__main__":
    result = fs.simulate(Path(__file__).with_name("after.toml"))
    print(f"accuracy with privacy: {result.accuracy:.1%}")
    spent = result.ledger.client(3).epsilon
    print(
        f"client 3 spent {spent:.3f}, the most exposed client {result.epsilon:.3f}, "
        f"at delta {result.delta:g}"
    )
