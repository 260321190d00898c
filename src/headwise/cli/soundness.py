"""Whether a profile says anything: nothing was caught, or every score was NaN."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwise.errors import InputError, ModelError

if TYPE_CHECKING:
    import torch

    from headwise.models.opening import OpenedModel
    from headwise.profile import Profile


def require_sound(profile: Profile, opened: OpenedModel, layers: list[int | str] | None) -> None:
    """Raise if there is nothing to show.

    Raises:
        InputError: `layers` chose none of the model's.
        ModelError: No attention was caught, or a layer's scores were NaN or infinite in every row.
    """
    if not profile.layers:
        raise _nothing(profile, opened, layers)
    table = profile.table()
    for layer, rows in table.groupby("layer"):
        if rows["rows"].sum() == 0 and rows["nonfinite_rows"].sum() > 0:
            raise ModelError(
                f"{opened.name}: every score of layer {layer} ({rows['name'].iloc[0]}) is NaN or infinite, "
                f"so nothing can be measured; {_blame(opened.model)}"
            )


def _nothing(profile: Profile, opened: OpenedModel, layers: list[int | str] | None) -> InputError | ModelError:
    if profile.unseen:
        first = profile.unseen[0]
        more = f" (and {len(profile.unseen) - 1} more)" if len(profile.unseen) > 1 else ""
        way_out = first.way_out.replace("attn_implementation='sdpa'", "--attn-implementation sdpa")
        return ModelError(
            f"no attention of {opened.name} could be measured: {first.name or 'outside any module'}{more}: "
            f"{first.reason}; {way_out}"
        )
    if layers is not None:
        asked = ", ".join(map(str, layers))
        return InputError(f"--layers {asked} chose no attention layer of {opened.name}; without --layers all are shown")
    return ModelError(
        f"no attention was seen while {opened.name} ran: it may have none, or compute it in a way that "
        "headwise does not know; try --attn-implementation sdpa"
    )


def _blame(model: torch.nn.Module) -> str:
    import torch

    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"the first parameter that holds NaN or infinity is {name}: the weights are damaged"
    return "no parameter holds NaN or infinity, so numbers overflow while it runs; try --dtype float32"
