"""Training the same small Transformer with different numbers of heads, and keeping everything that happened."""
