"""What operators may set."""

from __future__ import annotations

import attrs

__all__ = ["Settings"]


@attrs.frozen
class Settings:
    """Of ``plugin_config={"metrics-prometheus": {…}}``."""

    public: bool = True
    """``/metrics`` is answered without an API key."""
    model_name: str | None = None
    """Label of all metrics. None: the first served name, else the model as it was named."""
    process_metrics: bool = True
    """Memory, CPU, files and garbage collection of the front end's process are told too."""
