"""Compile the native kernel when the package is built; where no compiler is, build without it and say so."""

from __future__ import annotations

import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NATIVE = "src/headwise/kernels/native"


class NativeKernelHook(BuildHookInterface[Any]):
    """The wheel of a machine holds the kernel for it; HEADWISE_NATIVE=0 builds one without, for every machine."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library beside its sources and take it into the wheel."""
        if self.target_name != "wheel" or os.environ.get("HEADWISE_NATIVE") == "0":
            return
        building = _building(Path(self.root) / NATIVE / "building.py")
        target = Path(self.root) / NATIVE / building.NAME
        target.unlink(missing_ok=True)
        try:
            building.build(target)
        except building.BuildError as error:
            self.app.display_warning(f"headwise: the native kernel was not compiled, the portable one runs: {error}")
            return
        build_data["artifacts"].append(f"{NATIVE}/{building.NAME}")
        build_data["pure_python"] = False
        # A plain C ABI: one file serves every Python of the platform.
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"


def _building(path: Path) -> Any:
    """The package's own build module, without importing the package (torch is not here)."""
    spec = importlib.util.spec_from_file_location("headwise_building", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
