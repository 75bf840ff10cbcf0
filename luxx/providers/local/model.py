"""The embedded model for chats: llama.cpp's server in a child process.

`files.py` has the model file. The small model shows that Luxx works without a key.
"""

import importlib.util
from pathlib import Path
from typing import Any

from luxx.infra.config.schema import LocalConfig
from luxx.providers.catalog import EMBEDDED_CONTEXT
from luxx.providers.local.child import ChildServer
from luxx.providers.local.files import find_model, model_name_of

LOCAL = "local"
"""The provider type and the name of the embedded model."""

PARALLEL = 4  # Requests that the child answers at once.
CACHE_MIB = 128  # The child's cache of prompts that it has processed.


class LocalModel(ChildServer):
    """The embedded model of one process."""

    subject = "the embedded model"
    log_file = "local-model.log"
    note = "a very small model that only shows that everything works; connect a real one under providers"

    def __init__(
        self, config: LocalConfig, data_dir: Path, internal_keys: dict[str, str] | None = None
    ) -> None:
        super().__init__(data_dir, config.threads, internal_keys)
        self._config = config

    @property
    def model_name(self) -> str:
        path = self.model_file()
        return self.name_of(path) if path is not None else ""

    def model_file(self) -> Path | None:
        return find_model(self._config.model_path, self._data_dir)

    def name_of(self, path: Path) -> str:
        return model_name_of(path)

    def unavailable_reason(self) -> str | None:
        if not self._config.enabled:
            return "the embedded model is disabled (local.enabled)"
        if importlib.util.find_spec("xllamacpp") is None:
            return "the embedded model needs the extra: pip install 'luxx[local]'"
        path = self.model_file()
        if path is None:
            return "the embedded model's file is not downloaded yet: run `luxx model pull smollm2`"
        if not path.is_file():
            return f"local.model_path: the file {path} does not exist"
        return None

    def settings(self) -> dict[str, Any]:
        return {
            "serves": "chats",
            "alias": self.model_name,
            "context": EMBEDDED_CONTEXT,
            "parallel": PARALLEL,
            "cache_mib": CACHE_MIB,
        }
