"""The clients of a federation in the shuffle model: clip, randomize, answer.

`fl-shuffle simulate`, Ray and `flwr run .` all run this file. A node plays one client or thousands,
and each of them adds noise for its own budget before anything leaves. What else must be true of a
node (which clients' records it holds, that failures tell nothing, a budget record of its own, a
shuffler of its own) depends on `request`, `answer` and the mod; none of it is asked about here.
"""

from __future__ import annotations

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fl_shuffle.federation import Federation
from fl_shuffle.flower.answers import answered, redact_errors

app = ClientApp(mods=[redact_errors])


@app.train()
def train(message: Message, context: Context) -> Message:
    """One randomized report for each client that the server asks for, and nothing else."""
    federation = Federation.of(context)  # records, model and budgets: put together once, then kept
    request = federation.request(message, context)  # the round, its model, whose reports
    answer = federation.answer(request)  # reports one by one, or in a simulation their exact sum
    return answered(  # a few thousand clients at a time: first clipped, then randomized
        request,
        answer,
        clip=federation.clipper,  # means: one row a client, no longer than its clip
        randomize=federation.randomizer,  # reports: each with its own client's noise
    )


@app.query()
def query(message: Message, context: Context) -> Message:
    """Which clients this node plays: it is asked for nobody else's reports."""
    return Federation.of(context).holding(message, context)
