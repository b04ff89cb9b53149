"""The simple kind of vLLM's general plugins, run by Pegboard."""

from __future__ import annotations

from collections.abc import Sequence

from pegboard.api.descriptor import Descriptor
from pegboard.api.foreign import ForeignPlugin
from pegboard.api.hooks import hookimpl

PEGBOARD_API = {"alias": 0, "connector": 0}


@hookimpl
def pegboard_adopt(plugin: ForeignPlugin) -> Sequence[Descriptor]:
    """Aliases and KV connectors for what a package registers with vLLM."""
    from pegboard_legacy_vllm.adoption import adopt  # only where such a package is installed

    return adopt(plugin)
