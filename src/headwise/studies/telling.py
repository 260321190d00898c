"""A verdict in words, for a terminal: first whether the article is right, claim by claim, then the numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias

from headwise.studies.claims import FIRST, REGIME
from headwise.studies.findings import Answer, Finding, Level, Spread, Verdict

if TYPE_CHECKING:
    from rich.table import Table

Language: TypeAlias = Literal["en", "zh"]

_WORDS: dict[Language, dict[str, str]] = {
    "en": {
        "title": "Is the article right? At a fixed d_model, at this size of model and data:",
        "1a": "1a. One head attends too much to its own position",
        "1b": "1b. More heads relieve it",
        "2": "2.  More heads make a stronger model",
        "3": "3.  Cutting a trained head anew, without training, relieves it",
        "supported": "supported",
        "not supported": "not supported",
        "undecided": "undecided",
        "unanswered": "no run can answer it yet",
        "control": "initial weights per head",
        "here": "at this size",
        "missing": "missing",
        "of": "of",
        "runs": "runs",
        "rules": (
            "difference: to h = 1, or (1a) to uniform attention and to half of the rows; least_self_focus: less what "
            "untrained models show. The diagonal of the head-averaged map is self_focus, by arithmetic. 95 % "
            "t-intervals over seeds, not corrected. p: that there is none; p less: that it is as large as what would "
            "matter; both by Holm, across h and tasks. d_z: in standard deviations over seeds, too large with few."
        ),
        "findings": "claim|estimand|h|difference [95 %]|p|p less|d_z|seeds|untrained|",
        "levels": "regime|h|loss|score|self-lift|own largest|self-focus|least|most|entropy ratio|untrained self-focus",
        "lifts": "self-lift by position (h = 1)",
        "cuts": "number|h'|cut [95 %]|scale [95 %]|both [95 %]",
        "recut": "Q, K, V of the trained single heads cut anew: the effect of",
        "more": "All numbers: --tables prints them; --json FILE and --page FILE write them.",
    },
    "zh": {
        "title": "文章说得对吗？在 d_model 固定、模型与数据为此规模时：",
        "1a": "1a. 单头会过度地将注意力集中于自身位置",
        "1b": "1b. 多头能缓解这一问题",
        "2": "2.  头越多，模型的表达能力越强",
        "3": "3.  将训练好的单头重新切分（不再训练）即可缓解",
        "supported": "支持",
        "not supported": "不支持",
        "undecided": "无法判定",
        "unanswered": "尚无训练结果可以回答",
        "control": "逐头初始化",
        "here": "（在此规模下）",
        "missing": "缺少",
        "of": "/",
        "runs": "次训练",
        "rules": (
            "差值：相对于 h = 1；1a 相对于均匀注意力和半数的行；least_self_focus：扣除未训练模型已有的差值。"
            "各头平均图的对角线恒等于 self_focus。方括号为对随机种子的 95% t 区间，未校正。p：假设无差异；"
            "p less：假设差异达到有意义的大小；二者均对 h 和任务作 Holm 校正。d_z：以种子间标准差为单位，种子少时偏大。"
        ),
        "findings": "论断|估计量|h|差值 [95%]|p|p less|d_z|种子数|未训练|",
        "levels": "设定|h|损失|得分|自身提升|自身最大|自身权重|最小头|最大头|熵比|未训练自身权重",
        "lifts": "各位置的自身提升（h = 1）",
        "cuts": "数值|h'|切分 [95%]|缩放 [95%]|合计 [95%]",
        "recut": "将训练好的单头的 Q、K、V 重新切分：各因素的效应",
        "more": "全部数值：用 --tables 打印，或用 --json FILE、--page FILE 写入文件。",
    },
}
LEVELS = (
    "heldout_loss", "score", "self_lift", "own_largest", "self_focus", "least_self_focus", "most_self_focus",
    "entropy_ratio",
)  # fmt: skip
"""The numbers that are told for themselves, in this order."""


def lines(verdict: Verdict, language: Language = "en", said: Mapping[str, Sequence[str]] | None = None) -> list[str]:
    """The answers, a line each: the article's three claims first, then the re-split, the other regime, the controls.

    Args:
        verdict: The verdict.
        language: Of the lines.
        said: By claim of the article, what stands below its line.
    """
    from headwise.studies.page.words import noted, texts

    words, of_page = _WORDS[language], texts(language)
    found = verdict.leading()
    told = [words["title"]]
    for claim in FIRST:
        told.append(_line(found[claim], words) if claim in found else f"{words[claim]}: {words['unanswered']}")
        told += [f"      {sentence}" for sentence in (said or {}).get(claim, ())]
    told += [_line(answer, words) for answer in verdict.others()]
    for about in verdict.studies:
        if about.missing:
            named = ", ".join(noted(of_page, one) for one in about.missing[:3])
            named += ", ..." if len(about.missing) > 3 else ""
            told.append(
                f"{about.study}: {words['missing']}: {len(about.missing)} {words['of']} {about.runs} {words['runs']}: "
                f"{named}"
            )
        told += [f"{about.study}: {noted(of_page, note)}" for note in about.notes]
    return told


def more(language: Language) -> str:
    """Where the numbers are."""
    return _WORDS[language]["more"]


def _line(answer: Answer, words: dict[str, str]) -> str:
    about = [answer.regime] if answer.regime != REGIME else []
    about += [words["control"]] if answer.is_control else []
    where = f" ({', '.join(about)})" if about else ""
    of_studies = "; ".join(f"{study}: {words[word]}" for study, word in answer.studies)
    return f"{words[answer.claim]}{where}: {words[answer.word]} {words['here']} ({of_studies})"


def tables(verdict: Verdict, language: Language = "en") -> Iterable[Table | str]:
    """The numbers: for each study what was found, what the numbers are for themselves, and the re-split."""
    words = _WORDS[language]
    yield words["rules"]
    for about in verdict.studies:
        findings = [one for one in verdict.findings if one.study == about.study]
        levels = [one for one in verdict.levels if one.study == about.study]
        for regime in dict.fromkeys(one.regime for one in findings):
            yield _findings(f"{about.study}, {regime}", [f for f in findings if f.regime == regime], words)
        plain = [one for one in levels if ":" not in one.estimand and " at " not in one.estimand]
        if plain:
            yield _levels(about.study, plain, words)
        for regime in dict.fromkeys(one.regime for one in levels):
            lifts = [one for one in levels if (one.regime, one.heads) == (regime, 1) and " at " in one.estimand]
            if lifts:
                shown = ", ".join(f"{one.estimand.split(' at ')[1]}: {one.trained.mean:.2f}" for one in lifts)
                yield f"{words['lifts']}, {regime}: {shown}"
        cuts = [one for one in levels if ":" in one.estimand]
        if cuts:
            yield _cuts(about.study, cuts, words)


def _table(title: str, columns: str, left: int) -> Table:
    from rich.table import Table

    shown = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for number, column in enumerate(columns.split("|")):
        shown.add_column(column, justify="left" if number < left else "right", no_wrap=True)
    return shown


def _findings(title: str, findings: Sequence[Finding], words: dict[str, str]) -> Table:
    shown = _table(title, words["findings"], 2)
    for one in findings:
        control = "" if one.control is None else f"{one.control.mean:+.3g}"
        shown.add_row(
            one.claim, one.estimand, str(one.heads), _with_interval(one.mean, one.low, one.high), _p(one.p_corrected),
            _p(one.p_short_corrected), "-" if one.d_z is None else f"{one.d_z:.1f}", str(len(one.seeds)), control,
            words[one.word],
        )  # fmt: skip
    return shown


def _levels(title: str, levels: Sequence[Level], words: dict[str, str]) -> Table:
    shown = _table(title, words["levels"], 1)
    found = {(one.regime, one.heads, one.estimand): one for one in levels}
    for regime, heads in dict.fromkeys((one.regime, one.heads) for one in levels):
        own = [found.get((regime, heads, name)) for name in LEVELS]
        before = found.get((regime, heads, "self_focus"))
        untrained = "-" if before is None or before.untrained is None else f"{before.untrained.mean:.3f}"
        shown.add_row(
            regime, str(heads), *("-" if one is None else f"{one.trained.mean:.3f}" for one in own), untrained
        )
    return shown


def _cuts(title: str, levels: Sequence[Level], words: dict[str, str]) -> Table:
    shown = _table(f"{title}: {words['recut']}", words["cuts"], 1)
    found = {(one.estimand, one.heads): one.trained for one in levels}
    for estimand, heads in dict.fromkeys((one.estimand.split(":")[0], one.heads) for one in levels):
        effects = [found.get((f"{estimand}: {effect}", heads)) for effect in ("cut", "scale", "cut_and_scale")]
        shown.add_row(estimand, str(heads), *(_spread(one) for one in effects))
    return shown


def _spread(one: Spread | None) -> str:
    return "-" if one is None else _with_interval(one.mean, one.low, one.high)


def _with_interval(mean: float, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return f"{mean:+.4f}"
    return f"{mean:+.4f} [{low:+.4f}, {high:+.4f}]"


def _p(value: float | None) -> str:
    if value is None:
        return "-"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
