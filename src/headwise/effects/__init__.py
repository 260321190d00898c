"""Effects: what heads do when a model is given something, or loses something."""
