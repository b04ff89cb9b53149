"""Kernels run under Triton's interpreter where there is no GPU."""

from __future__ import annotations

import os
import shutil
from typing import Any


def _interpret() -> None:
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        """Bounds of loops are arrays with one element, which newer NumPy turns into a number only
        when asked like this."""
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


if shutil.which("nvidia-smi") is None:
    _interpret()
