"""What a client does to a vector or a category: clip, add noise, respond at random."""
