"""Measures: what rows of attention weights are summed up to. The meaning of each is in docs/measures.md."""
