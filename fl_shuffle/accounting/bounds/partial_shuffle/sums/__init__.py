"""Expected excess of a sum of independent terms of unknown laws, bounded on a vertical line."""
