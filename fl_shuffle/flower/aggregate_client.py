"""The clients of a simulation in which no client makes a report: clip, add up, answer.

`fl-shuffle simulate` runs this app in place of `clients/app.py` where one vector of noise is drawn
for the sum of a round (`run.noise`). Its answers have no noise: it works in simulations alone.
"""

from __future__ import annotations

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from torch import Tensor

from fl_shuffle.federation.parts import AggregateFederation
from fl_shuffle.flower.answers import Request, redact_errors
from fl_shuffle.flower.messages import TOTAL, VALID, reply_with
from fl_shuffle.randomizers.calibration import Calibration
from fl_shuffle.shuffler.exact_sums import ExactSum

app = ClientApp(mods=[redact_errors])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Return the exact weighted sum of the clipped means of the clients that the server asks
    for."""
    federation = AggregateFederation.of(context)
    request = federation.request(message, context)
    total = federation.sum_of_means(request.model, request.clients, request.round)
    return reply_with_sum(request, total, federation.randomizers)


@app.query()
def query(message: Message, context: Context) -> Message:
    """Return which clients this node plays."""
    return AggregateFederation.of(context).holding(message, context)


def reply_with_sum(request: Request, total: Tensor, plan: Calibration) -> Message:
    """Return the reply with a sum [d], and of which clients it is: none where it cannot be
    theirs."""
    exact, clients = ExactSum(len(request.model), plan.group), request.clients
    taken = exact.add_sum(total.cpu(), float(plan.largest[clients].sum()))
    arrays = {TOTAL: exact.total.numpy(), VALID: np.full(len(clients), taken)}
    return reply_with(request.message, **arrays)
