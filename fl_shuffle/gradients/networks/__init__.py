"""Feed-forward networks with convolutions and normalization: layer gradients in closed form."""
