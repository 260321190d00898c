"""Documents of a study: what each says of itself."""

from __future__ import annotations

from typing import Any

from headwise.errors import FileFormatError


def require_format(document: Any, name: str, schema: int, source: str, what: str) -> None:
    """Refuse what is no document of a format, or one of a newer schema.

    Args:
        document: What was read.
        name: Its format.
        schema: The schema that this headwise reads.
        source: Where it stood.
        what: What it should be: "plan", "verdict".

    Raises:
        FileFormatError: It is none, or was written by a newer headwise.
    """
    if not isinstance(document, dict) or document.get("format") != name:
        raise FileFormatError(f"{source}: is no {what} of a headwise study")
    if document.get("schema") != schema:
        raise FileFormatError(
            f"{source}: is of format {document.get('schema')}; this headwise reads {schema}: install a newer one"
        )
