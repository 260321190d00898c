"""The whole page: what it says, what it must not do, and that nothing can leave its place in it."""

from __future__ import annotations

import html as entities
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from headwise.studies import evidence
from headwise.studies.findings import Verdict
from headwise.studies.folders import StudyFolder
from headwise.studies.page.document import page, renamed
from headwise.studies.page.words import ranged, signed, texts
from headwise.studies.plans import RunKey
from headwise.studies.tasks.lookup import Lookup
from headwise.studies.verdict import Read
from tests.studies.small import finished, small_plan

HOSTILE = "<script>alert(1)</script>\"'&"

LATIN = {
    # What a Chinese reader of the field reads as it is.
    "headwise", "transformer", "multi", "head", "attention", "is", "all", "you", "need", "vaswani", "newstest2013",
    "bleu", "softmax", "holm", "png", "mb", "d_model", "d_k", "d_z", "n_i", "p_ii", "h", "p", "t", "q", "k", "v", "a",
    "python", "torch",
}  # fmt: skip


class Texts(HTMLParser):
    """All words of a page by where they stand: in which element, or in which attribute."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.found: list[tuple[str, str]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img", "path"):
            self.open.append(tag)
        self.found += [(name, value or "") for name, value in attrs if name in ("alt", "aria-label", "title")]

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if data.strip() and self.open and self.open[-1] not in ("style", "script"):
            self.found.append((self.open[-1], " ".join(data.split())))


def text_of(html: str) -> str:
    return " ".join(text for _, text in Texts(html).found)


@pytest.fixture(params=["en", "zh"])
def both(request: pytest.FixtureRequest) -> Iterator[tuple[str, str]]:
    yield request.param, request.getfixturevalue({"en": "english", "zh": "chinese"}[request.param])


def test_the_answer_comes_first_in_the_verdicts_words(both: tuple[str, str], verdict: Verdict) -> None:
    language, html = both
    words = texts(language)  # type: ignore[arg-type]
    answers = {one.claim: one.word for one in verdict.answers if one.regime == "fixed_width"}
    told = re.findall(r'<li class="([\w-]+)"><b>(\w+)</b><span>([^<]*)</span>', html)
    assert [(claim, word) for word, claim, _ in told] == [
        (claim, answers[claim].replace(" ", "-")) for claim in ("1a", "1b", "2")
    ]
    for _, claim, sentence in told:
        assert entities.unescape(sentence) == words["sums"][answers[claim]].format(claim=words["short"][claim])
    assert html.index("<h1>") < html.index('class="sum"') < html.index("<svg")


def test_every_finding_and_level_is_on_the_page(both: tuple[str, str], verdict: Verdict) -> None:
    language, html = both
    words = texts(language)  # type: ignore[arg-type]
    cells = Counter(text for where, text in Texts(html).found if where == "td")
    wanted = Counter(ranged(f.mean, f.low, f.high, "+.4f", words) for f in verdict.findings)
    assert len(verdict.findings) >= 8
    assert not wanted - cells
    shown = ("heldout_loss", "score", "self_lift", "own_largest", "self_focus", "least_self_focus", "entropy_ratio")
    levels = Counter(signed(one.trained.mean, ".3f") for one in verdict.levels if one.estimand in shown)
    assert not levels - cells
    least = next(f for f in verdict.findings if f.estimand == "self_lift")
    assert least.low is not None
    assert f"[{least.low + 1:.2f}, " in text_of(html)


def test_it_loads_nothing_and_its_policy_admits_what_it_has(both: tuple[str, str]) -> None:
    _, html = both
    parsed = Texts(html)
    assert not re.search(r"https?:", html)
    assert "url(" not in html
    for tag, attributes in parsed.tags:
        assert tag not in ("script", "iframe", "object", "embed")
        assert "style" not in attributes, f"the policy would refuse the style of <{tag}>"
        for name in ("src", "href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:")), (tag, attributes)
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for link in re.findall(r'href="#([\w-]+)"', html):
        assert link in ids
    assert len(html.encode()) < 200_000


def test_no_folder_is_named(both: tuple[str, str], study: StudyFolder) -> None:
    _, html = both
    assert str(study.path.parent) not in html
    plain = re.sub("</?kbd>", "", html)
    assert "headwise study --task lookup --option keys=4" in plain
    assert "--out lookup" in plain


def test_the_chinese_page_is_chinese(chinese: str, read: Read) -> None:
    found = []
    for where, text in Texts(chinese).found:
        if where in ("code", "kbd", "bdi"):
            continue
        for known in (read.numbers.label, "blocks.0.attention", "blocks.1.attention", "0.1.0.dev0", "+cpu"):
            text = text.replace(known, "")
        text = re.sub(r"\bH\d+\b", "", text)  # a head is H3 in any language
        found += [word for word in re.findall(r"[A-Za-z][A-Za-z_0-9]+", text) if word.lower() not in LATIN]
    assert found == []
    assert '<html lang="zh-CN">' in chinese


def test_hostile_names_stay_text(study: StudyFolder, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lookup, "tokens", lambda self: [[HOSTILE] * 5])
    named = read._replace(
        numbers=replace(read.numbers, label=HOSTILE, score_name=HOSTILE, missing=(f"{HOSTILE} (failed)",)),
        notes=(HOSTILE,),
    )
    html = page([study.path], [named], "en")
    parsed = Texts(html)
    assert "script" not in [tag for tag, _ in parsed.tags]
    assert any(HOSTILE in text for where, text in parsed.found if where == "bdi")
    assert any(HOSTILE in text for where, text in parsed.found if where == "h3")
    assert any(HOSTILE in text for where, text in parsed.found if where == "figcaption")
    assert any(HOSTILE in text for where, text in parsed.found if where == "aria-label")
    assert sum(HOSTILE in text for where, text in parsed.found if where in ("details", "li")) >= 2


def test_missing_runs_are_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    """A study of both regimes of which one run alone is complete, and a study without any."""
    plan = small_plan(heads=(1, 2), seeds=1, steps=2)
    some = finished(plan, tmp_path / "some", but=[key for key in plan.runs if key != RunKey("fixed_head_size", 2, 0)])
    none = finished(plan, tmp_path / "none", but=plan.runs)
    paths = [some.path, none.path]
    reads = evidence.read(paths)
    html = page(paths, reads, "en")
    text = text_of(html)
    assert "Not complete yet: 3 of 4 runs of" in text
    assert "Not complete yet: 4 of 4 runs of" in text
    assert "fixed_width-h1-s0 (not begun)" in text
    assert html.count("no run can answer it yet") == 3
    assert "No map: no run at fixed width is complete" in text
    assert "no complete run to show yet" in text
    assert str(tmp_path) not in html
    for label in ("(some)", "(none)"):
        assert label in text


def test_studies_of_one_name_can_be_told_apart(read: Read) -> None:
    paths = [Path("a/lookup"), Path("b/lookup"), Path("c")]
    reads = [read._replace(numbers=replace(read.numbers, label=f"lookup ({path})")) for path in paths]
    assert [one.numbers.label for one in renamed(paths, reads)] == [
        "lookup (lookup) · 1",
        "lookup (lookup) · 2",
        "lookup (c)",
    ]
    noted = reads[2]._replace(notes=(f"{Path('c').resolve()}/runs: is damaged",))
    assert renamed(paths[2:], [noted])[0].notes == ("c/runs: is damaged",)


def test_a_run_under_two_names_is_one_model(tmp_path: Path) -> None:
    plan = small_plan(heads=(1, 2), seeds=2, steps=2)
    study = finished(plan, tmp_path / "study", but=[RunKey("fixed_width", 1, 1), RunKey("fixed_head_size", 1, 1)])
    text = text_of(page([study.path], evidence.read([study.path]), "en"))
    # Six runs are complete; that of fixed head size with two heads is that of fixed width, in both seeds.
    assert "Answered by 4 trained models in one study, 2 seeds for each" in text
