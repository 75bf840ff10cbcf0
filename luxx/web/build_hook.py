"""The build hook of hatchling: a wheel or an editable installation contains the built web UI.

Where it cannot be built, the installation succeeds, and `/ui/` says why the UI is missing.
"""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# Luxx is not importable while it is being installed.
_spec = spec_from_file_location("luxx_web_build", Path(__file__).with_name("build.py"))
assert _spec is not None
assert _spec.loader is not None
_build = module_from_spec(_spec)
_spec.loader.exec_module(_build)


class WebBuildHook(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return _build.requirements()

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        problem = _build.build()
        if problem is not None:
            self.app.display_warning(f"Luxx is installed without its web UI: {problem}")
