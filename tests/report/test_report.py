"""The page as text: what it holds, that hostile strings stay text, and that nothing outside it is named."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from headwise.measures.catalogue import BY_NAME
from headwise.profile import Unseen
from headwise.report import page, payload
from headwise.report.html import embedded_json
from tests.synthetic import synthetic

HOSTILE = "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>\u2028'\"&amp;"


class Reader(HTMLParser):
    """Collects the elements with their attributes, and the text of scripts."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.elements and self.elements[-1][0] == "script" and self.lasttag == "script" and self.cdata_elem:
            self.scripts[-1] += data
        elif self.cdata_elem is None:
            self.text.append(data)


def hostile_profile() -> Any:
    profile = synthetic(2, 2, name=HOSTILE + "{}", model=HOSTILE, tokens=[HOSTILE, "我", "\ud83d", "\x00", "\n", ""])
    profile.unseen = [Unseen(HOSTILE, HOSTILE, HOSTILE, 3)]
    profile.info[HOSTILE] = HOSTILE
    return profile


def test_payload_is_strict_json_with_null_for_undefined() -> None:
    profile = synthetic(2, 3)
    profile.rows.loc[1, "self_focus"] = float("inf")
    data = payload(profile)
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert data["values"]["self_focus"]["mean"][1] is None
    assert set(data["values"]["next"]["mean"]) == {None}
    assert data["heads"]["label"] == ["L0H0", "L0H1", "L0H2", "L1H0", "L1H1", "L1H2"]
    for row, value in enumerate(data["values"]["previous"]["mean"]):
        assert value == pytest.approx(profile.rows["previous"][row], rel=1e-5)


def test_payload_counts_what_was_measured() -> None:
    profile = synthetic(2, 3, phases=("prefill", "decode"))
    profile.rows.loc[profile.rows["layer"] == 1, "masked_rows"] = 4
    summary = payload(profile)["summary"]
    assert (summary["layers"], summary["heads"], summary["rows"]) == (2, 6, [256, 256])
    assert summary["counts"]["masked_rows"] == {"most": 8, "layers": [1]}
    assert summary["counts"]["nonfinite_rows"] == {"most": 0, "layers": []}


def test_views_split_only_where_a_label_is_ambiguous() -> None:
    assert payload(synthetic(4, 2, kinds=("self", "window")))["groups"] == ["all"]
    data = payload(synthetic(2, 1, phases=("prefill", "decode"), calls=2))
    assert data["groups"] == ["prefill, call 0", "decode, call 0", "prefill, call 1", "decode, call 1"]
    assert data["heads"]["group"] == [0, 1, 2, 3, 0, 1, 2, 3]


def test_a_highlight_links_each_named_head_to_its_own_row() -> None:
    data = payload(synthetic(6, 8, phases=("prefill", "decode")))
    links = [(one, part) for one in data["highlights"] for part in one["parts"] if "row" in part]
    assert len(links) > 10
    for one, part in links:
        assert data["heads"]["label"][part["row"]] == part["text"]
        phase = "decode" if one["sentence"].startswith("While decoding") else "prefill"
        assert data["heads"]["phase"][part["row"]] == phase
    assert all("".join(part["text"] for part in one["parts"]) == one["sentence"] for one in data["highlights"])


@pytest.mark.parametrize("text", [HOSTILE, "\u2029<>&", "</SCRIPT>", "<!--"])
def test_embedded_json_cannot_end_its_element_and_reads_back(text: str) -> None:
    written = embedded_json({text: [text]})
    assert not re.search("[<>&\u2028\u2029]", written)
    assert json.loads(written) == {text: [text]}


def test_hostile_strings_stay_text() -> None:
    reader = Reader(page(hostile_profile()))
    tags = [tag for tag, _ in reader.elements]
    assert tags.count("script") == 2
    assert "img" not in tags
    assert not [name for _, attributes in reader.elements for name in attributes if name.startswith("on")]
    # It is there to be read: as the heading, a module, a token, and the reason of an unseen call.
    assert "".join(reader.text).count("alert(1)") >= 6
    data = json.loads(reader.scripts[0])
    assert data["info"]["model"] == HOSTILE
    assert data["tokens"] == [HOSTILE, "我", "?", "\u2400", "\u21b5", ""]


def test_the_page_can_be_written_as_utf8() -> None:
    assert "我" in page(hostile_profile()).encode("utf-8").decode("utf-8")


def test_nothing_outside_the_file_is_named() -> None:
    html = page(synthetic(2, 2, tokens=["a"]))
    for tag, attributes in Reader(html).elements:
        assert "src" not in attributes and "srcset" not in attributes, tag
        assert (attributes.get("href") or "#").startswith(("#", "data:")), attributes
        assert "style" not in attributes, "the policy forbids style attributes"
    assert not re.search(r"https?://|url\(|@import|fetch\(|XMLHttpRequest|WebSocket|import\(", html)


def test_the_policy_admits_exactly_the_inline_style_and_script() -> None:
    html = page(synthetic(1, 1))
    policy = next(a["content"] for t, a in Reader(html).elements if t == "meta" and "http-equiv" in a) or ""
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_the_table_is_there_without_javascript() -> None:
    profile = synthetic(2, 3, kv_heads=1)
    html = page(profile)
    text = "".join(Reader(html).text)
    for needed in ("L1H2", "KV head", "encoder.layer.1.attention.self", *(m.title for m in BY_NAME.values())):
        assert needed in text
    assert not re.search(r">\s*nan\s*<", html, re.IGNORECASE)
    assert f"{profile.rows['previous'][5]:.3f}" in text


@pytest.mark.parametrize(
    ("verified", "bound", "said"),
    [
        (None, 1e-5, "not asked for"),
        (2e-6, 1e-5, "passes at 1.0e-05"),
        (2e-4, 1e-5, "fails at 1.0e-05"),
        (0.003, 2.0**-6, "passes at 1.6e-02"),
        (float("nan"), 1e-5, "max |v|): fails"),
    ],
)
def test_verification_is_told_with_its_bound(verified: float | None, bound: float, said: str) -> None:
    profile = synthetic(1, 2)
    profile.verified, profile.bound = verified, bound
    assert said in page(profile)


def test_active_dropout_is_not_verifiable() -> None:
    profile = synthetic(2, 2)
    profile.layers[0].not_verifiable = 4
    assert "4 calls with active dropout left out" in page(profile)
    profile.verified = None
    assert "4 calls ran with active dropout" in page(profile)


def test_what_was_not_measured_is_told_with_its_way_out() -> None:
    profile = synthetic(1, 1)
    assert "Every attention call was measured." in page(profile)
    profile.unseen = [Unseen(f"block.{i}", "an opaque kernel", "use sdpa", 2) for i in range(5)]
    html = page(profile)
    assert "Every attention call was measured." not in html
    assert "".join(Reader(html).text).count("an opaque kernel") == 1, "one reason is told once"
    assert "<strong>10 calls</strong>" in html
    assert all(f"block.{i}</code>" in html for i in range(5))


def test_an_empty_profile_makes_an_honest_page() -> None:
    profile = synthetic(1, 1)
    profile.rows = profile.rows.iloc[:0]
    profile.layers, profile.info = [], {}
    profile.unseen = [Unseen("attn", "a jit-scripted module", "load it unscripted", 1)]
    html = page(profile)
    assert "No attention call was measured; the reasons are listed." in html
    assert "a jit-scripted module" in html


def test_notes_of_the_run_are_told() -> None:
    profile = synthetic(1, 1)
    profile.info["notes"] = "windows have 2,048 tokens; interrupted: <b>3</b> of 9 windows were read"
    html = page(profile)
    assert "Note: windows have 2,048 tokens." in html
    assert "Note: interrupted: &lt;b&gt;3&lt;/b&gt; of 9 windows were read." in html
