"""The code of the notebook, step by step.

`$name` is a label in the notebook's language or a part of the example; `#` alone on a line parts two cells.
"""

from __future__ import annotations

SETUP = """
import math

import pandas as pd
import torch

import headwise as hw
from headwise import equations

pd.set_option("display.float_format", "{:.2f}".format, "display.unicode.east_asian_width", True)
pd.set_option("display.width", 140, "display.max_columns", None)


def matrix(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def table(rows, names=None, columns=None):
    return pd.DataFrame(rows.detach().numpy(), names, columns)


def entropy(weights):
    return torch.special.entr(weights).sum(-1)
"""

CODE: dict[str, str] = {
    "tokens": """
tokens = $tokens
X = $x
table(X, tokens)
""",
    "qkv": """
W_Q = $wq
W_K = $wk
W_V = $wv
Q, K, V = X @ W_Q, X @ W_K, X @ W_V
table(Q, tokens)
#
table(K, tokens)
#
table(V, tokens)
""",
    "weights": """
causal = False  # $try_causal
scale = 1 / math.sqrt(Q.shape[-1])  # $try_scale
table(equations.scores(Q, K, scale=scale), tokens, tokens)
#
output, P = hw.attention(Q, K, V, causal=causal, scale=scale, return_weights=True)
table(P, tokens, tokens)
#
pd.DataFrame({"$self_focus": P.diagonal(), "$entropy": entropy(P)}, tokens)
""",
    "output": """
table(output, tokens)
#
look = $look
parts = P[look, :, None] * V
table(parts, tokens)
#
table(torch.stack((parts.sum(0), output[look])), ["$sum", "Z"])
#
d = X.shape[1]
counts = {
    n: {
        "$recurrent_steps": n,
        "$attention_products": 5,
        "$attention_steps": 3,
        "$recurrent_multiplications": 2 * n * d * d,
        "$attention_multiplications": 3 * n * d * d + 2 * n * n * d,
    }
    for n in $lengths
}
pd.DataFrame(counts)
""",
    "scale": """
from headwise.lesson.working import normals

seed, queries, keys = $seed, $queries, $keys  # $try_seed
found = {}
for d_k in $widths:
    numbers = torch.from_numpy(normals((seed * 7919 + d_k) % 2**32, (queries + keys) * d_k)).reshape(-1, d_k)
    products = numbers[:queries] @ numbers[queries:].T
    for name, s in (("$scaled", products / math.sqrt(d_k)), ("$unscaled", products)):
        p = equations.weights(s)
        found[name, d_k] = {
            "$deviation": s.std(correction=0).item(),
            "$entropy": entropy(p).mean().item(),
            "$largest": p.amax(-1).mean().item(),
            "$gradient": (p * (1 - p)).sum(-1).mean().item(),
        }
pd.DataFrame(found).T
""",
    "masks": """
padded, names = torch.cat((X, matrix($pad))), [*tokens, "[PAD]"]
real = torch.tensor([name != "[PAD]" for name in names])  # $may_attend
q, k, v = padded @ W_Q, padded @ W_K, padded @ W_V
for title, options in (
    ("$none", {}),
    ("$padding", {"mask": real}),
    ("$causal", {"causal": True}),
    ("$both", {"mask": real, "causal": True}),
):
    _, weights = hw.attention(q, k, v, return_weights=True, **options)
    print(title)
    print(table(weights, names, names), end="\\n\\n")
""",
    "places": """
target = $target
Y = $y
for title, asking, reading, rows, columns, causal_here in (
    ("$encoder", X, X, tokens, tokens, False),
    ("$decoder", Y, Y, target, target, True),
    ("$cross", Y, X, target, tokens, False),
):
    _, weights = hw.attention(asking @ W_Q, reading @ W_K, reading @ W_V, causal=causal_here, return_weights=True)
    print(title)
    print(table(weights, rows, columns), end="\\n\\n")
""",
    "heads": """
h = $heads  # $try_heads
W_O = $wo
mha = hw.MultiHeadAttention(d_model=4, num_heads=h, bias=False, dtype=torch.float64)
with torch.no_grad():
    mha.qkv_proj.weight.copy_(torch.cat((W_Q, W_K, W_V), 1).T)
    mha.out_proj.weight.copy_(W_O.T)

of_heads = mha.per_head_weights()
Z = []
for i in range(h):
    q, k, v = X @ of_heads.w_q[i], X @ of_heads.w_k[i], X @ of_heads.w_v[i]
    z, p = hw.attention(q, k, v, return_weights=True)
    print("$head", i + 1)
    print(table(p, tokens, tokens), end="\\n\\n")
    Z.append(z)
#
separate = torch.cat(Z, 1) @ W_O
fused = mha(X)
print((separate - fused).abs().max().item() < 1e-12)
table(fused, tokens)
""",
    "cuts": """
from headwise.lesson.working import example

wide = example()["wide"]
x, w_q, w_k = (matrix(*wide[name]) for name in ("x", "wq", "wk"))
q, k = x @ w_q, x @ w_k
for h in $cuts:
    q_i, k_i = equations.split_heads(q, h), equations.split_heads(k, h)
    _, p = hw.attention(q_i, k_i, k_i, return_weights=True)
    heads = [f"$head {i + 1}" for i in range(h)]
    means = {"$self_focus": p.diagonal(dim1=-2, dim2=-1).mean(-1), "$entropy": entropy(p).mean(-1)}
    print("h =", h)
    print(pd.concat({name: table(weights, tokens, tokens) for name, weights in zip(heads, p, strict=True)}, axis=1))
    print(pd.DataFrame(means, heads), end="\\n\\n")
#
h = $wide_heads
parts = equations.split_heads(q, h) @ equations.split_heads(k, h).mT
print(torch.allclose(parts.sum(0), q @ k.T))
pd.concat({f"Q_{i + 1} K_{i + 1}ᵀ": table(part, tokens, tokens) for i, part in enumerate(parts)}, axis=1)
#
table(q @ k.T, tokens, tokens)
""",
    "model": """
from headwise.lesson.contents import maps

bundled = maps()
layer, head = 1, 8
size = len(bundled["tokens"])
weights = torch.tensor(bundled["thousandths"][layer][head]).reshape(size, size) / 1000
for token, row in zip(bundled["tokens"], weights.tolist(), strict=True):
    print(f"{token:>8} |" + "".join(" ░▒▓█"[min(int(5 * w**0.5), 4)] for w in row) + "|")
#
of_layer = {"$self_focus": bundled["self_focus"][layer], "$entropy": bundled["entropy"][layer]}
pd.DataFrame(of_layer, [f"L{layer}H{i}" for i in range(len(bundled["thousandths"][layer]))])
#
# $own_model
model_name = ""
if model_name:
    from transformers import AutoModel, AutoTokenizer

    model, tokenizer = AutoModel.from_pretrained(model_name), AutoTokenizer.from_pretrained(model_name)
    with hw.watch(model, tokenizer=tokenizer) as profile:
        model(**tokenizer("The animal didn't cross the street because it was too tired.", return_tensors="pt"))
    print(profile.table()[["label", "self_focus", "previous", "first", "entropy"]])
""",
}

EXERCISES = """
from headwise.lesson.contents import texts

# $fill_in
answers = {$exercises}
for exercise in texts("$code")["exercises"]:
    given = answers[exercise["id"]]
    if given is not None:
        right = abs(given - exercise["answer"]) <= exercise["tolerance"]
        print(exercise["id"], "$correct" if right else "$incorrect")
"""
