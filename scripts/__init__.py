"""Scripts for those who work on headwise."""
