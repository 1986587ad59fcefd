"""A run and its directory.

RUN/config.json       the configuration as resolved
RUN/ledger.sqlite     every round's privacy, durable before release
RUN/metrics.csv       one line per round
RUN/model.safetensors the final model
RUN/summary.json      the final numbers
RUN/run.log           what the server's side said
RUN/lock              held by the process that has the run open

Everything in it may be published, so nothing in it but the model and what is computed from it may
depend on a record: no digest of the data, nothing that a client logs, and in runs with
operating-system entropy no times. `directory` makes and locks it, `resume` continues one,
`events` is what a run tells its observer, `views` reads back what one left.
"""
