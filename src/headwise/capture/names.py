"""Names: numbers and paths of attention modules."""

from __future__ import annotations

from torch import nn

from headwise.capture.modules import Running, plain_name
from headwise.errors import shown


class Names:
    """Numbers attention modules in order of first call, and knows their paths in the model (or in their root).

    Attributes:
        caught_paths: Path of each numbered module: its attention was caught, if not measured where `layers=` says so.
    """

    def __init__(self, model: nn.Module | None) -> None:
        self._model = model
        self._paths: dict[int, str] = {}
        self._known: dict[int, nn.Module] = {}  # held, so that an id means one module
        self._numbers: dict[tuple[int, int] | None, int] = {}
        self.caught_paths: list[str] = []
        if model is not None:
            self._learn(model)

    def __contains__(self, module: nn.Module) -> bool:
        return id(module) in self._paths

    def path_of(self, module: nn.Module) -> str:
        """The path of a module in the model; "" for the model itself and for what it does not know."""
        return self._paths.get(id(module), "")

    def check(self, wanted: tuple[int | str, ...] | None) -> None:
        """Refuse paths that the model does not have.

        Raises:
            ValueError: No module has that path, or a layer is neither a number nor a path.
        """
        for one in wanted or ():
            if not isinstance(one, (int, str)) or isinstance(one, bool) or (isinstance(one, int) and one < 0):
                raise ValueError(f"layers: expected layer numbers (0, 1, ...) or module paths; got {shown(one)}")
            paths = self._paths.values()
            if isinstance(one, str) and self._model is not None:
                named = plain_name(one)
                if not any(path == named or path.startswith(named + ".") for path in paths):
                    raise ValueError(f"layers: the model has no module {one!r}; see model.named_modules()")

    def path(self, caller: Running | None, root: Running | None) -> str:
        """The path of a module that calls attention."""
        if caller is None or root is None:
            return ""
        if id(caller.module) not in self._paths:
            self._learn(root.module)
        # A module made on the fly is in no tree: named by its class.
        path = self._paths.setdefault(id(caller.module), type(caller.module).__name__)
        self._known[id(caller.module)] = caller.module
        return path

    def layer(self, caller: Running | None, root: Running | None, holder: Running | None) -> tuple[int, str]:
        """The layer number and path of a module that calls attention; a new module gets the next number.

        The holder is the module whose attention it is: the caller, or the one around it where the caller is a bare
        function of it. Where several share one such function, each is a layer, under its own name.
        """
        path = self.path(caller, root)
        identity = None
        if caller is not None and holder is not None and root is not None:
            identity = id(caller.module), id(holder.module)
            around = self.path(holder, root)
            if path != around and around and not path.startswith(around + "."):
                path = around
        if identity not in self._numbers:
            self._numbers[identity] = len(self._numbers)
            self.caught_paths.append(path)
        return self._numbers[identity], path

    def _learn(self, root: nn.Module) -> None:
        for path, module in root.named_modules():
            self._paths.setdefault(id(module), plain_name(path))
            self._known[id(module)] = module
