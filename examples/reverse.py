"""Learn to write words backwards: a small encoder-decoder Transformer (Vaswani et al. 2017) on headwise's attention.

    python examples/reverse.py [--seed N] [--out report.html]

After half a minute it reverses words that it has never seen, and headwise shows what its heads do.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import headwise as hw

PAD, START, END, LETTER_A = 0, 1, 2, 3
TEXT, SYMBOLS = " ^.abcdefghijklmnopqrstuvwxyz", 29
SHORTEST, LONGEST, WIDTH, HEADS, LAYERS, STEPS, BATCH = 3, 10, 64, 4, 2, 400, 64


class Block(nn.Module):
    """Self-attention, in the decoder cross-attention, and an MLP, each added to what came in."""

    def __init__(self, in_decoder: bool) -> None:
        super().__init__()
        self.self_attention = hw.MultiHeadAttention(WIDTH, HEADS)
        self.cross_attention = hw.MultiHeadAttention(WIDTH, HEADS) if in_decoder else None
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))

    def encode(self, x: Tensor, real: Tensor) -> Tensor:
        """The letters x `[B, M, width]` look at each other; real `[B, M]` is False at padding."""
        x = x + self.self_attention(self.norms[0](x), key_mask=real)
        return x + self.mlp(self.norms[2](x))

    def decode(self, y: Tensor, context: Tensor, real: Tensor, own: hw.KVCache, read: hw.KVCache) -> Tensor:
        """The letters y `[B, N, width]` look at those before them, and at the whole context."""
        y = y + self.self_attention(self.norms[0](y), causal=True, cache=own)
        y = y + self.cross_attention(self.norms[1](y), context, key_mask=real, cache=read)
        return y + self.mlp(self.norms[2](y))


class Reverser(nn.Module):
    """Words in; for every letter of the reversed words the logits of the next one out."""

    def __init__(self) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(SYMBOLS, WIDTH), nn.Embedding(LONGEST + 1, WIDTH)
        self.encoder = nn.ModuleList(Block(in_decoder=False) for _ in range(LAYERS))
        self.decoder = nn.ModuleList(Block(in_decoder=True) for _ in range(LAYERS))
        self.norms, self.out = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2)), nn.Linear(WIDTH, SYMBOLS)

    def encode(self, ids: Tensor) -> Tensor:
        """What the decoder reads, `[B, M, width]`."""
        x = self.letters(ids) + self.places.weight[: ids.shape[1]]
        for block in self.encoder:
            x = block.encode(x, ids != PAD)
        return self.norms[0](x)

    def decode(self, ids: Tensor, context: Tensor, real: Tensor, caches: list[tuple[hw.KVCache, hw.KVCache]]) -> Tensor:
        """Logits `[B, N, symbols]` of what follows each letter. A layer's two caches: its letters, the context."""
        past = caches[0][0].length
        y = self.letters(ids) + self.places.weight[past : past + ids.shape[1]]
        for block, (own, read) in zip(self.decoder, caches, strict=True):
            y = block.decode(y, context, real, own, read)
        return self.out(self.norms[1](y))

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor, decoder_attention_mask: Tensor) -> Tensor:
        """All letters at once. `headwise.watch` knows these names, and reads from the mask which rows are real."""
        caches = [(hw.KVCache(), hw.KVCache()) for _ in self.decoder]
        return self.decode(decoder_input_ids, self.encode(input_ids), input_ids != PAD, caches)

    @torch.no_grad()
    def reverse(self, ids: Tensor) -> Tensor:
        """Write letter by letter, always the likeliest."""
        context, caches = self.encode(ids), [(hw.KVCache(), hw.KVCache()) for _ in self.decoder]
        written = [torch.full((len(ids), 1), START)]
        for _ in range(ids.shape[1]):
            written.append(self.decode(written[-1], context, ids != PAD, caches).argmax(-1))
        return torch.cat(written[1:], 1)


def random_words(count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Words, what to write and what was written before it: END after each word, then padding `[count, LONGEST + 1]`."""
    length, place = torch.randint(SHORTEST, LONGEST + 1, (count, 1)), torch.arange(LONGEST + 1)
    letters = torch.randint(LETTER_A, SYMBOLS, (count, LONGEST + 1))
    backwards = letters.gather(1, (length - 1 - place).clamp(min=0))
    words, target = (torch.where(place < length, x, PAD).scatter(1, length, END) for x in (letters, backwards))
    return words, target, F.pad(target[:, :-1], (1, 0), value=START)


def train(model: Reverser) -> set[tuple[int, ...]]:
    """Train, and return all words that were seen."""
    optimizer, seen = torch.optim.Adam(model.parameters(), betas=(0.9, 0.98)), set()
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, STEPS, pct_start=0.2)
    for step in range(1, STEPS + 1):
        words, target, before = random_words(BATCH)
        seen.update(map(tuple, words.tolist()))
        logits = model(words, before, target != PAD)
        loss = F.cross_entropy(logits.transpose(1, 2), target, ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 0:
            print(f"step {step} of {STEPS}   loss {loss.item():.4f}")
    return seen


@torch.no_grad()
def describe(model: Reverser, words: Tensor, target: Tensor, before: Tensor, page: str | None) -> None:
    """Say what the heads do with these words."""
    last, calls = model.decoder[-1].cross_attention, []
    last.register_forward_pre_hook(lambda _, args, options: calls.append((args, options)), with_kwargs=True)
    with hw.watch(model, tokens=[[TEXT[i] for i in word if i] for word in words.tolist()]) as profile:
        model(words, before, target != PAD)
    shown = ["label", "name", "kind", "rows", "self_focus", "previous", "first", "effective_keys", "max_weight"]
    print(f"\n{profile.table()[shown].round(2).to_string(index=False, na_rep='')}\n")
    print(*(highlight.sentence for highlight in profile.highlights()), sep="\n")
    if page:
        profile.to_html(page)
    _, weights = last(*calls[0][0], **calls[0][1], return_weights=True)  # [B, H, N, M]
    length, place = (words >= LETTER_A).sum(1, keepdim=True), torch.arange(words.shape[1])
    answer = torch.where(place < length, length - 1 - place, length)  # where the letter to be written stands
    found = weights.take_along_dim(answer[:, None, :, None], -1).squeeze(-1).transpose(0, 1)[:, target != PAD].mean(1)
    print("Weight on the letter to be written, in the last cross-attention:", *(f"{share:.0%}" for share in found))


def main() -> None:
    """Train, test on fresh words, and look at the heads."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", help="write the profile of the heads as a page")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)  # for tensors this small, a second thread costs more than it gives
    seen = train(model := Reverser())
    drawn = random_words(2000)
    fresh = torch.tensor([tuple(word) not in seen for word in drawn[0].tolist()])
    words, target, before = (ids[fresh] for ids in drawn)
    written = model.reverse(words).masked_fill(target == PAD, PAD)
    right = (written == target).all(1)
    word, answer = ("".join(TEXT[i] for i in ids[0].tolist()).strip(" .") for ids in (words, written))
    print(f"\nFresh words: {right.sum()} of {len(right)} right ({right.float().mean():.2%}): {word} -> {answer}")
    describe(model, words[:200], target[:200], before[:200], options.out)


if __name__ == "__main__":
    main()
