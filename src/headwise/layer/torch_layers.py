"""From `torch.nn.MultiheadAttention` and back, with its masks."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from headwise.layer.multi_head import MultiHeadAttention

Layer = TypeVar("Layer", bound="MultiHeadAttention")


def from_torch(cls: type[Layer], module: nn.MultiheadAttention) -> Layer:
    """A layer of class `cls` with the parameters of `module`: see `MultiHeadAttention.from_torch`."""
    if not isinstance(module, nn.MultiheadAttention):
        raise TypeError(f"from_torch: expected a torch.nn.MultiheadAttention; got {type(module).__name__}")
    _refuse_what_computes_otherwise(module)
    packed = module.in_proj_weight is not None
    weight = module.in_proj_weight if packed else module.q_proj_weight
    if not module.batch_first:
        warnings.warn(
            "from_torch: this module has batch_first=False and takes [N, B, d_model]; headwise takes [B, N, d_model]: "
            "transpose its input and output",
            stacklevel=3,
        )
    if any((module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)):
        warnings.warn("from_torch: hooks are not taken over: register them on the new layer", stacklevel=3)
    layer = cls(
        module.embed_dim, module.num_heads, d_context=module.kdim, bias=module.in_proj_bias is not None,
        dropout=module.dropout, device="meta", dtype=weight.dtype,
    ).to_empty(device=weight.device)  # fmt: skip
    bias, d = module.in_proj_bias, module.embed_dim
    q_proj, kv_proj = layer.projections
    if packed:
        _copy(q_proj, [module.in_proj_weight], bias)
    else:
        _copy(q_proj, [module.q_proj_weight], bias, slice(0, d))
        _copy(kv_proj, [module.k_proj_weight, module.v_proj_weight], bias, slice(d, None))
    _copy(layer.out_proj, [module.out_proj.weight], module.out_proj.bias)
    return layer.train(module.training)


def to_torch(layer: MultiHeadAttention, batch_first: bool = True) -> nn.MultiheadAttention:
    """A `torch.nn.MultiheadAttention` that computes the same: see `MultiHeadAttention.to_torch`."""
    d, H, cannot = layer.d_model, layer.num_heads, "to_torch: torch.nn.MultiheadAttention has no "
    if layer.q_norm is not None:
        raise ValueError(f"{cannot}norm of queries and keys (qk_norm)")
    if layer.value_head_dim != layer.head_dim:
        raise ValueError(
            f"{cannot}values of another width than keys: value_head_dim = {layer.value_head_dim}, "
            f"head_dim = {layer.head_dim}"
        )
    if H * layer.head_dim != d:
        raise ValueError(
            f"{cannot}heads of any width: num_heads * head_dim = {H} * {layer.head_dim} = {H * layer.head_dim} "
            f"must be d_model = {d}"
        )
    weight = layer.out_proj.weight
    module = nn.MultiheadAttention(
        d, H, dropout=layer.dropout, bias=layer.out_proj.bias is not None, kdim=layer.d_context, vdim=layer.d_context,
        batch_first=batch_first, device="meta", dtype=weight.dtype,
    ).to_empty(device=weight.device)  # fmt: skip
    heads = layer.per_head_weights()  # GQA: keys and values once for every query head
    w_q, w_k, w_v = (w.mT.flatten(0, 1) for w in (heads.w_q, heads.w_k, heads.w_v))
    q_proj, kv_proj = layer.projections
    if module.in_proj_weight is not None:
        _fill(module.in_proj_weight, [w_q, w_k, w_v], [q_proj.weight, kv_proj.weight])
    else:
        _fill(module.q_proj_weight, [w_q], [q_proj.weight])
        _fill(module.k_proj_weight, [w_k], [kv_proj.weight])
        _fill(module.v_proj_weight, [w_v], [kv_proj.weight])
    if module.in_proj_bias is not None:
        biases = [b.flatten() for b in (heads.b_q, heads.b_k, heads.b_v) if b is not None]
        _fill(module.in_proj_bias, biases, [q_proj.bias, kv_proj.bias])
        _fill(module.out_proj.bias, [layer.out_proj.bias], [layer.out_proj.bias])
    _fill(module.out_proj.weight, [weight], [weight])
    return module.train(layer.training)


def masks_from_torch(
    attn_mask: Tensor | None = None, key_padding_mask: Tensor | None = None, num_heads: int | None = None
) -> dict[str, Tensor]:
    """The masks of `torch.nn.MultiheadAttention`: see `MultiHeadAttention.masks_from_torch`."""
    for name, given in (("attn_mask", attn_mask), ("key_padding_mask", key_padding_mask)):
        if given is not None and given.dtype != torch.bool and not given.is_floating_point():
            raise ValueError(f"masks_from_torch: {name}: expected bool or float, as torch does; got {given.dtype}")
    masks: dict[str, Tensor] = {}
    mask = attn_mask
    if mask is not None and mask.dim() == 3:
        if num_heads is None:
            raise ValueError(
                f"masks_from_torch: attn_mask {tuple(mask.shape)} is (B * num_heads, N, M): give num_heads to split it"
            )
        if mask.shape[0] % num_heads:
            raise ValueError(
                f"masks_from_torch: attn_mask: expected (B * num_heads, N, M) with num_heads = {num_heads}; "
                f"got {tuple(mask.shape)}"
            )
        mask = mask.unflatten(0, (-1, num_heads))
    if mask is not None and mask.dtype == torch.bool:
        mask = ~mask
    if key_padding_mask is not None:
        if key_padding_mask.dtype == torch.bool:
            masks["key_mask"] = ~key_padding_mask
        else:
            bias = key_padding_mask[..., None, None, :]
            if mask is None:
                mask = bias
            elif mask.dtype == torch.bool:
                mask = bias.masked_fill(~mask, -math.inf)
            else:
                mask = mask + bias
    if mask is not None:
        masks["mask"] = mask
    return masks


def _refuse_what_computes_otherwise(module: nn.MultiheadAttention) -> None:
    if type(module).forward is not nn.MultiheadAttention.forward:
        raise ValueError(
            f"from_torch: {type(module).__module__}.{type(module).__qualname__} has a forward of its own, and what it "
            "computes cannot be told: convert the plain torch.nn.MultiheadAttention it was made from"
        )
    if module.bias_k is not None or module.bias_v is not None:
        raise ValueError(
            "from_torch: bias_k and bias_v (add_bias_kv=True) append a learned key and value to every sequence, after "
            "the projections, where no token of the context stands: a headwise layer reads only its context"
        )
    if module.add_zero_attn:
        raise ValueError(
            "from_torch: add_zero_attn=True appends a key and a value of zeros to every sequence, which takes weight "
            "from the real keys: a headwise layer reads only its context, and its weights sum to 1 over it"
        )
    if module.kdim != module.vdim:
        raise ValueError(
            f"from_torch: kdim = {module.kdim} and vdim = {module.vdim} differ: keys and values are made of one "
            "context here, so they need one width"
        )


def _copy(projection: nn.Linear, weights: list[Tensor], bias: Tensor | None, rows: slice = slice(None)) -> None:
    """Fill a projection with weights, one under the other, and with these rows of a bias (if it has one)."""
    _fill(projection.weight, weights, weights)
    if bias is not None:
        _fill(projection.bias, [bias[rows]], [bias])


@torch.no_grad()
def _fill(parameter: Tensor, values: list[Tensor], sources: list[Tensor]) -> None:
    """Fill a parameter with values, one under the other; it is trained if the parameters they come from are."""
    trained = {source.requires_grad for source in sources}
    if len(trained) > 1:
        raise ValueError(
            "of parameters that become one parameter, some are frozen (requires_grad=False) and some are not: "
            "set them alike before converting"
        )
    parameter.copy_(torch.cat([value.detach() for value in values]))
    parameter.requires_grad_(trained.pop())
