"""The variants of a whole model, on small ones: what runs, and what says why it does not."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from headwise.benchmarks import models, peak, peers, registry, runner
from headwise.benchmarks.cases import NotRunError
from headwise.benchmarks.runner import measure
from tests.benchmarks.fakes import Recorder
from tests.models.small import save_bert, save_llama


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bert(tmp_path_factory.mktemp("bert"))


def operation(folder: Path, variant: str, *, tokens: int = 20, batch: int = 1) -> Any:
    return models.workload({"source": str(folder), "batch": batch, "tokens": tokens})(variant)


@pytest.mark.parametrize("variant", ["unwatched", "watched", "fused", "eager"])
def test_every_variant_runs(llama: Path, bert: Path, variant: str) -> None:
    for folder in (llama, bert):
        sample = measure(operation(folder, variant, batch=2))
        assert sample.seconds > 0
        assert sample.more == {}


def test_the_page_is_counted(llama: Path) -> None:
    assert measure(operation(llama, "page")).more["html_bytes"] > 10_000


def test_a_model_reads_its_own_vocabulary(llama: Path) -> None:
    opened = models.open_model(str(llama), device="cpu")
    ids = models.make_inputs(opened, 3, 50)["input_ids"]
    assert ids.shape == (3, 50)
    assert int(ids.min()) >= 7 and int(ids.max()) < 15, "a vocabulary of 15, its first half left out"


def test_what_does_not_fit_says_so(llama: Path, bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotRunError, match="reads at most 32 tokens, not 33; give --tokens less"):
        operation(bert, "unwatched", tokens=33)
    # 4 bytes x 2 layers x 4 heads x 100 x 100 = 320,000 bytes.
    monkeypatch.setattr(peak, "available", lambda: 639_999)
    with pytest.raises(NotRunError, match="GB for weights"):
        operation(llama, "eager", tokens=100)
    monkeypatch.setattr(peak, "available", lambda: 640_000)
    operation(llama, "eager", tokens=100)


def test_a_peer_that_is_absent_says_what_to_install(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "find_spec", lambda _: None)
    with pytest.raises(NotRunError, match=r'bertviz is not installed: pip install "headwise\[bench\]"'):
        operation(llama, "bertviz")
    with pytest.raises(NotRunError, match="attnread is not installed: pip install --no-deps attnread"):
        operation(llama, "attnread")


def present(monkeypatch: pytest.MonkeyPatch, name: str, **functions: Any) -> None:
    """A peer in the place of the real one, which tests do not need."""
    module = ModuleType(name)
    vars(module).update(functions)
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(peers, "find_spec", lambda _: object())


def test_bertviz_gets_all_weights_and_the_tokens(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Any, list[str]]] = []

    class Html:
        data = "é" * 100

    def head_view(weights: Any, tokens: list[str], *, html_action: str) -> Html:
        assert html_action == "return"
        seen.append((weights, tokens))
        return Html()

    present(monkeypatch, "bertviz", head_view=head_view)
    assert measure(operation(llama, "bertviz")).more == {"html_bytes": 200}
    weights, tokens = seen[-1]
    assert [tuple(layer.shape) for layer in weights] == [(1, 4, 20, 20)] * 2
    assert len(tokens) == 20 and all(isinstance(token, str) for token in tokens)
    for refused in ({"batch": 2}, {"tokens": 513}):
        with pytest.raises(NotRunError, match="it draws one sequence, here of 512 tokens at most"):
            operation(llama, "bertviz", **refused)


def test_attnread_gets_the_model_and_is_left_out_where_it_takes_hours(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def extract_attention(model: torch.nn.Module, inputs: Any) -> dict[tuple[str, int, int], torch.Tensor]:
        seen.append((model, inputs))
        return {("text", 0, 0): torch.full((1, 20, 20), 1 / 20)}

    present(monkeypatch, "attnread", extract_attention=extract_attention)
    measure(operation(llama, "attnread"))
    assert seen[-1][1]["input_ids"].shape == (1, 20)
    # Heads of 8: 2 layers x (1 + 1200 / 8) = 302 forwards.
    with pytest.raises(NotRunError, match="would need 302 forwards of the model"):
        operation(llama, "attnread", tokens=1200)


@pytest.mark.slow
def test_the_real_peers(llama: Path) -> None:
    """In processes of their own: they warn, and change torch and Python for everybody in theirs."""
    there = [name for name in peers.PEERS if find_spec(name)]
    if not there:
        pytest.skip("; ".join(str(peers.missing(name)) for name in peers.PEERS))
    variants = ("unwatched", *there)
    case = registry.of_model("model", "tiny", batch=1, tokens=20, variants=variants, turns=1, source=str(llama))
    (point,) = runner.run(case, Recorder()).result.points
    assert (set(point.samples), point.not_run) == (set(variants), {})


@pytest.mark.filterwarnings("ignore:headwise. attention in")
def test_a_model_without_attention_to_measure_says_so(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(models.RUNS, "watched", (models.watched, "eager"))
    with pytest.raises(NotRunError, match="headwise measured no attention of this model: "):
        operation(llama, "watched")


def test_of_model_names_what_it_takes() -> None:
    case = registry.of_model("model", "tiny", batch=2, tokens=1024, source="/some/where")
    assert case.prepare is not None and case.prepare() == {"source": "/some/where"}
    assert case.points[0].name == "tiny, 2 x 1,024"
    assert case.points[0].parameters == {"model": "tiny", "batch": 2, "tokens": 1024}
    assert (case.baseline, case.fresh) == ("unwatched", True)
    assert set(models.RUNS) == {variant.name for variant in case.variants}
