"""The article's worked example: as text in a terminal, as a page, as a notebook."""
