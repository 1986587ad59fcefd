"""What a federation learns from: data sources, partitions, features, models, and who computes.

`task` puts them together from a configuration, `worker` plays the clients, `evaluation` measures
the model, `canaries` builds the datasets of an audit. Nothing here knows of a server.
"""
