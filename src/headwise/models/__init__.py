"""Opening models: by hub name, from a folder, from a GGUF file."""
