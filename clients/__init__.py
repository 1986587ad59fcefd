"""The reference Flower ClientApp: data, features, model, local training. Copy it and edit it."""
