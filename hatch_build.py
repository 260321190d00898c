"""Compile the native kernel when the package is built; where no compiler is, build without it and say so."""

from __future__ import annotations

import importlib.util
import os
import platform
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from packaging.tags import mac_platforms

NATIVE = "src/headwise/kernels/native"


class NativeKernelHook(BuildHookInterface[Any]):
    """The wheel of a machine holds the kernel for it; HEADWISE_NATIVE=0 builds one without, for every machine."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build the library beside its sources and take it into the wheel."""
        if self.target_name != "wheel":
            return
        building = _building(Path(self.root) / NATIVE / "building.py")
        target = Path(self.root) / NATIVE / building.NAME
        target.unlink(missing_ok=True)  # one from another day would be packed, or loaded from here
        if os.environ.get("HEADWISE_NATIVE") == "0":
            return
        try:
            building.build(target)
        except building.BuildError as error:
            self.app.display_warning(f"headwise: the native kernel was not compiled, the portable one runs: {error}")
            return
        build_data["artifacts"].append(f"{NATIVE}/{building.NAME}")
        build_data["pure_python"] = False
        # A plain C ABI: one file serves every Python of the platform.
        build_data["tag"] = f"py3-none-{_platform_tag()}"


def _platform_tag() -> str:
    """Of what the compiler makes here. On a Mac, Python's own may name more processors, or a version that is no tag."""
    if sys.platform == "darwin":
        oldest = os.environ.get("MACOSX_DEPLOYMENT_TARGET")
        major, minor = f"{oldest or platform.mac_ver()[0]}.0".split(".")[:2]
        return next(mac_platforms((int(major), int(minor)), platform.machine()))
    return sysconfig.get_platform().replace("-", "_").replace(".", "_")


def _building(path: Path) -> Any:
    """The package's own build module, without importing the package (torch is not here)."""
    spec = importlib.util.spec_from_file_location("headwise_building", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
