"""The Flower side: the only place in the framework that imports flwr."""
