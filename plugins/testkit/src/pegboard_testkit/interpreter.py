"""Triton's interpreter for tests: kernels run on the host where there is no GPU.

A ``conftest.py`` beside the tests of a plugin with Triton kernels calls `interpret_without_gpu`
when it is imported, which is before any kernel is. Triton is that plugin's dependency.
"""

from __future__ import annotations

import os
import shutil
from importlib import import_module
from typing import Any

__all__ = ["interpret_without_gpu"]


def interpret_without_gpu() -> bool:
    """Let kernels that are defined from now on be interpreted if there is no GPU, or if
    ``CUDA_VISIBLE_DEVICES`` is empty, which hides it; whether they are.

    Triton reads its switch when it is imported and when a kernel is defined. Two things that its
    interpreter lacks are added: bounds of loops that are computed, which recent NumPy needs to be
    asked for as numbers, and products of bfloat16, which it would take for integers.
    """
    if shutil.which("nvidia-smi") is not None and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
        return False
    os.environ["TRITON_INTERPRET"] = "1"
    interpreter: Any = import_module("triton.runtime.interpreter")
    if not hasattr(interpreter, "_pegboard_patched"):
        _patch_bounds(interpreter)
        _patch_products(interpreter)
        interpreter._pegboard_patched = True
    return True


def _patch_bounds(interpreter: Any) -> None:
    patch = interpreter._patch_lang_tensor

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    interpreter._patch_lang_tensor = patched


def _patch_products(interpreter: Any) -> None:
    tl = interpreter.tl
    multiply = interpreter.InterpreterBuilder.create_dot

    def widened(self: Any, operand: Any) -> Any:
        if operand.dtype.scalar != tl.bfloat16:
            return operand
        return self.create_fp_ext(operand, tl.float32)

    def patched(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return multiply(self, widened(self, a), widened(self, b), *rest)

    interpreter.InterpreterBuilder.create_dot = patched
