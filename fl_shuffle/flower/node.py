"""A node: what its own configuration says, which stands above the run's, written by the server."""

from __future__ import annotations

from dataclasses import dataclass

from flwr.app import Context

from fl_shuffle.configuration.sections import Config
from fl_shuffle.errors import ConfigError, InvalidValueError
from fl_shuffle.flower.client_record import ClientRecord
from fl_shuffle.flower.messages import TrainRequest
from fl_shuffle.flower.node_registry import held_clients, words_of
from fl_shuffle.flower.remote_shuffler import sender_of
from fl_shuffle.shuffler.remote.link import Sender


@dataclass(frozen=True)
class Node:
    """The clients that a node plays, its record of what they have sent, its way to a shuffler."""

    held: range
    record: ClientRecord | None
    sender: Sender | None

    @classmethod
    def of(cls, context: Context, config: Config) -> Node:
        """The node that a context belongs to, in a run of this configuration.

        Raises `ConfigError` where the node's configuration forbids to take part in it: for seeded
        noise on a node that keeps a record, and where both disagree on the shuffler.
        """
        record = ClientRecord.of(context.node_config)
        if record is not None and config.run.entropy == "seeded":
            raise ConfigError(
                "run.entropy = 'seeded': this node keeps a record of its budget and sends no noise "
                "that the server can remove; use 'system'"
            )
        held = held_clients(context.node_config, config.data.clients)
        return cls(held, record, sender_of(config, context.node_config))

    def require_held(self, request: TrainRequest) -> None:
        """Refuse to play clients whose records lie elsewhere; raises `InvalidValueError`."""
        last = request.first + request.span - 1
        if request.first < self.held.start or last >= self.held.stop:
            raise InvalidValueError(
                "requested clients",
                f"{request.first} to {last}",
                f"this node holds {words_of(self.held)}",
            )
