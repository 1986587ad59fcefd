"""A Flower app with federated averaging and no privacy: the app before the change.

Run it: python before.py        (needs Ray: pip install "fl-shuffle[ray]")

The last line of the output is the accuracy on public records:

    accuracy without privacy: 66.6%
"""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from task import CLIENTS, ROUNDS, accuracy, make_model, records_of, train_model

client, server = ClientApp(), ServerApp()


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
    """Average the clients' models in every round."""
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS)
    arrays = ArrayRecord(make_model().state_dict())
    done = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=ROUNDS, evaluate_fn=accuracy)
    print(f"accuracy without privacy: {done.evaluate_metrics_serverapp[ROUNDS]['accuracy']:.1%}")


if __name__ == "__main__":
    run_simulation(server_app=server, client_app=client, num_supernodes=CLIENTS)
