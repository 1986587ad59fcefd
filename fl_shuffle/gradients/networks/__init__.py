"""Feed-forward networks with convolutions and normalisation: layer gradients in closed form."""
