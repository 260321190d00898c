"""The offline page: one HTML file that holds its styles, script and data, and asks no network for more."""

from __future__ import annotations

import base64
import hashlib
import json
from datetime import datetime
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from headwise.profile.numbers import fixed, percent, significant
from headwise.report.payload import payload
from headwise.report.roles import role_words

if TYPE_CHECKING:
    from headwise.profile import Profile

# Inside <script> the HTML parser looks for "</script" and "<!--"; U+2028 and U+2029 end lines in
# old JavaScript.
_JSON_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}


SCRIPTS = ("data", "numbers", "grid", "card", "heads", "pairs", "start")
"""The parts of the page's script: one scope, in this order."""


def page(profile: Profile) -> str:
    """The whole page, ready to be written as UTF-8.

    Args:
        profile: The profile to show.

    Returns:
        HTML that works offline; without JavaScript its table and text can still be read.
    """
    data = payload(profile)
    style = base_style() + _static("page.css")
    script = "(() => {\n" + "\n".join(_static(f"{name}.js") for name in SCRIPTS) + "})();\n"
    environment = Environment(
        loader=PackageLoader("headwise.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["many"] = _many
    environment.filters["percent"] = percent
    environment.filters["number"] = _number
    template = environment.get_template("page.html.j2")
    return template.render(
        **data,
        title=_title(data),
        facts=_facts(data),
        remarks=_remarks(data),
        role_words=role_words,
        columns=_columns(data),
        unseen_by_reason=_by_reason(data["unseen"]),
        # Past autoescape go only our own two files, and JSON whose escapes leave nothing that HTML reads.
        json=Markup(embedded_json(data)),
        style=Markup(style),
        script=Markup(script),
        policy=policy(style, script),
    )


def embedded_json(data: object) -> str:
    """JSON that cannot leave the script element it stands in, whatever strings it holds."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.translate(_JSON_ESCAPES)


def policy(style: str, script: str) -> str:
    """The content security policy of a page that holds this style and this script, and loads nothing."""
    return (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


def base_style() -> str:
    """The style that the pages share: paper, ink, type, and the colours of a value from 0 to 1."""
    return _static("base.css")


def _static(name: str) -> str:
    return (files("headwise.report") / "static" / name).read_text("utf-8")


def _hash(text: str) -> str:
    """The source expression that lets a content security policy admit exactly this inline text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _title(data: dict[str, Any]) -> str:
    return str(data["info"].get("model") or "") or "Attention heads"


def _facts(data: dict[str, Any]) -> list[tuple[str, str, str]]:
    """The header's figures: name, value, and what the value means."""
    summary, info = data["summary"], data["info"]
    facts = [("Heads", _shape(summary), f"{_many(summary['heads'], 'head')} in all")]
    if summary["sequences"]:
        facts.append(("Sequences", f"{summary['sequences']:,}", "texts or batch entries measured"))
    low, high = summary["rows"]
    rows = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    facts.append(("Rows", rows, "query positions measured for a head"))
    for key, name in (("dtype", "Numbers"), ("device", "Device"), ("attention", "Attention")):
        if info.get(key):
            facts.append((name, str(info[key]).removeprefix("torch."), ""))
    facts.append(("Verified", *_verified(summary)))
    if info.get("created"):
        facts.append(("Measured", _date(str(info["created"])), ""))
    return facts


def _shape(summary: dict[str, Any]) -> str:
    low, high = summary["heads_per_layer"]
    heads = f"{high}" if low == high else f"{low} to {high}"
    return f"{_many(summary['layers'], 'layer')} × {heads} {'head' if heads == '1' else 'heads'}"


def _verified(summary: dict[str, Any]) -> tuple[str, str]:
    passed_over = summary["not_verifiable"]
    if not summary["compared"]:
        if passed_over:
            return "not verifiable", f"{_many(passed_over, 'call')} ran with active dropout"
        return "not asked for", "verify=True compares weights with outputs"
    value, limit = summary["verified"], summary["verified_limit"]
    meaning = "largest |P·v − out| / max(1, max |v|)"
    if value is None:
        meaning += ": fails"
    else:
        meaning += f": {'passes' if value <= limit else 'fails'} at {limit:.1e}"
    if passed_over:
        meaning += f"; {_many(passed_over, 'call')} with active dropout left out"
    return ("NaN" if value is None else f"{value:.1e}"), meaning


def _date(created: str) -> str:
    """An ISO date as people read it; anything else stays as it is."""
    try:
        when = datetime.fromisoformat(created)
    except ValueError:
        return created
    return f"{when.day} {when:%B %Y, %H:%M}" + (f" {when.tzname()}" if when.tzinfo else "")


def _remarks(data: dict[str, Any]) -> list[str]:
    """What a reader must know before the numbers."""
    remarks = [note for note in str(data["info"].get("notes", "")).split("; ") if note]
    if data["left_out"]:
        remarks.append(f"too large for one page, so left out: {'; '.join(data['left_out'])}")
    return [*remarks, *data["notes"]]


def _columns(data: dict[str, Any]) -> dict[str, list[str]]:
    """Each measure's cells, with as many decimals as its largest value leaves room for."""
    return {one["name"]: _cells(data["values"][one["name"]]["mean"], one["fixed"]) for one in data["measures"]}


def _cells(values: list[float | None], share: bool) -> list[str]:
    largest = max((abs(value) for value in values if value is not None), default=0.0)
    decimals = 3 if largest < 10 else 2 if largest < 100 else 1 if largest < 10_000 else 0
    shown = ("–" if value is None else fixed(value, decimals, share=share) for value in values)
    return [text.replace("-", "\u2212") for text in shown]


def _number(value: float | None, digits: int = 3) -> str:
    """A number in a sentence or a short table."""
    return "–" if value is None else significant(value, digits).replace("-", "\u2212")


def _by_reason(unseen: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Calls that were not measured, those with one reason together: all layers tend to share it."""
    together: dict[tuple[str, str], dict[str, Any]] = {}
    for one in unseen:
        empty = {"reason": one["reason"], "way_out": one["way_out"], "count": 0, "names": []}
        entry = together.setdefault((one["reason"], one["way_out"]), empty)
        entry["count"] += one["count"]
        entry["names"].append(one["name"])
    return list(together.values())


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
