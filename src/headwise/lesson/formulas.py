"""The lesson's formulas: as plain text for a terminal, as MathML for the page, as LaTeX for a notebook."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Formula:
    """A formula in its forms, and its number in the article where it has one."""

    plain: str
    mathml: str
    latex: str
    number: str = ""

    @property
    def equations(self) -> list[str]:
        """Its equations one by one, each as MathML: a narrow page breaks between them."""
        inside = self.mathml.removeprefix(_OPENING).removesuffix(_CLOSING)
        return [f"{_OPENING}{part}{_CLOSING}" for part in inside.split(COMMA)]


_OPENING, _CLOSING = '<math display="block"><mrow>', "</mrow></math>"


def _row(*parts: str) -> str:
    return f"<mrow>{''.join(parts)}</mrow>"


def _i(name: str) -> str:
    return f"<mi>{name}</mi>"


def _o(sign: str) -> str:
    return f"<mo>{sign}</mo>"


def _n(number: str) -> str:
    return f"<mn>{number}</mn>"


def _word(text: str) -> str:
    return f'<mi mathvariant="normal">{text}</mi>'


def _sub(base: str, below: str) -> str:
    return f"<msub>{base}{below}</msub>"


def _sup(base: str, above: str) -> str:
    return f"<msup>{base}{above}</msup>"


def _subsup(base: str, below: str, above: str) -> str:
    return f"<msubsup>{base}{below}{above}</msubsup>"


def _frac(over: str, under: str) -> str:
    return f"<mfrac>{over}{under}</mfrac>"


def _sqrt(inside: str) -> str:
    return f"<msqrt>{inside}</msqrt>"


def _call(name: str, *arguments: str) -> str:
    inside = _o(",").join(arguments)
    return _row(_word(name), _o("&#x2061;"), _o("("), inside, _o(")"))


def _w(of: str, head: str = "") -> str:
    return _subsup(_i("W"), _i(head), _i(of)) if head else _sup(_i("W"), _i(of))


def _math(*parts: str) -> str:
    return f"{_OPENING}{''.join(parts)}{_CLOSING}"


Q, K, V, X, Z, P, H = (_i(name) for name in "QKVXZPh")
D_K, D_MODEL = _sub(_i("d"), _i("k")), _sub(_i("d"), _word("model"))
TRANSPOSED = _sup(K, _word("T"))
COMMA = _o(",") + '<mspace width="1em"/>'

FORMULAS: dict[str, Formula] = {
    "projections": Formula(
        "Q = X W^Q,   K = X W^K,   V = X W^V",
        _math(Q, _o("="), X, _w("Q"), COMMA, K, _o("="), X, _w("K"), COMMA, V, _o("="), X, _w("V")),
        r"Q = X W^Q, \quad K = X W^K, \quad V = X W^V",
    ),
    "attention": Formula(
        "Attention(Q, K, V) = softmax(Q Kᵀ / √d_k) V",
        _math(_call("Attention", Q, K, V), _o("="), _call("softmax", _frac(_row(Q, TRANSPOSED), _sqrt(D_K))), V),
        r"\mathrm{Attention}(Q, K, V) = \mathrm{softmax}\left(\frac{Q K^\mathsf{T}}{\sqrt{d_k}}\right) V",
        "1",
    ),
    "output": Formula(
        "Z = P V,   z_i = Σ_j p_ij v_j",
        _math(
            Z, _o("="), P, V, COMMA, _sub(_i("z"), _i("i")), _o("="),
            f"<munder>{_o('&#x2211;')}{_i('j')}</munder>",
            _sub(_i("p"), _row(_i("i"), _i("j"))), _sub(_i("v"), _i("j")),
        ),
        r"Z = P V, \quad z_i = \sum_j p_{ij} v_j",
    ),
    "scale": Formula(
        "Var(q · k) = d_k,   Var(q · k / √d_k) = 1",
        _math(
            _call("Var", _row(_i("q"), _o("&#x22C5;"), _i("k"))), _o("="), D_K, COMMA,
            _call("Var", _frac(_row(_i("q"), _o("&#x22C5;"), _i("k")), _sqrt(D_K))), _o("="), _n("1"),
        ),
        r"\mathrm{Var}(q \cdot k) = d_k, \quad \mathrm{Var}\left(\frac{q \cdot k}{\sqrt{d_k}}\right) = 1",
    ),
    "mask": Formula(
        "softmax(Q Kᵀ / √d_k + M),   M_ij ∈ {0, −∞}",
        _math(
            _call("softmax", _row(_frac(_row(Q, TRANSPOSED), _sqrt(D_K)), _o("+"), _i("M"))), COMMA,
            _sub(_i("M"), _row(_i("i"), _i("j"))), _o("&#x2208;"), _o("{"), _n("0"), _o(","), _o("&#x2212;"),
            _n("&#x221E;"), _o("}"),
        ),
        r"\mathrm{softmax}\left(\frac{Q K^\mathsf{T}}{\sqrt{d_k}} + M\right), \quad M_{ij} \in \{0, -\infty\}",
    ),
    "cross": Formula(
        "Q = Y W^Q,   K = X W^K,   V = X W^V",
        _math(Q, _o("="), _i("Y"), _w("Q"), COMMA, K, _o("="), X, _w("K"), COMMA, V, _o("="), X, _w("V")),
        r"Q = Y W^Q, \quad K = X W^K, \quad V = X W^V",
    ),
    "multihead": Formula(
        "MultiHead(X) = Concat(head_1, ..., head_h) W^O,   head_i = Attention(X W_i^Q, X W_i^K, X W_i^V)",
        _math(
            _call("MultiHead", X), _o("="),
            _call("Concat", _sub(_word("head"), _n("1")), _o("&#x2026;"), _sub(_word("head"), H)), _w("O"), COMMA,
            _sub(_word("head"), _i("i")), _o("="),
            _call("Attention", *(_row(X, _w(of, "i")) for of in "QKV")),
        ),
        r"\mathrm{MultiHead}(X) = \mathrm{Concat}(\mathrm{head}_1, \dots, \mathrm{head}_h) W^O, \quad "
        r"\mathrm{head}_i = \mathrm{Attention}(X W_i^Q, X W_i^K, X W_i^V)",
        "2",
    ),
    "cut": Formula(
        "Q Kᵀ = Σ_i Q_i K_iᵀ,   d_k = d_model / h",
        _math(
            Q, TRANSPOSED, _o("="),
            f"<munderover>{_o('&#x2211;')}{_row(_i('i'), _o('='), _n('1'))}{H}</munderover>",
            _sub(Q, _i("i")), _subsup(K, _i("i"), _word("T")), COMMA, D_K, _o("="), _frac(D_MODEL, H),
        ),
        r"Q K^\mathsf{T} = \sum_{i=1}^{h} Q_i K_i^\mathsf{T}, \quad d_k = \frac{d_\mathrm{model}}{h}",
        "3",
    ),
}  # fmt: skip
