"""Triton's interpreter for tests: kernels run on the host where there is no GPU.

A ``conftest.py`` beside the tests of a plugin with Triton kernels calls `interpret_without_gpu`
when it is imported, which is before any kernel is. Triton is that plugin's dependency.
"""

from __future__ import annotations

import os
import shutil
from importlib import import_module
from typing import Any

import numpy as np
import torch

__all__ = ["interpret_without_gpu"]


def interpret_without_gpu() -> bool:
    """Let kernels that are defined from now on be interpreted if there is no GPU, or if
    ``CUDA_VISIBLE_DEVICES`` is empty, which hides it; whether they are.

    Triton reads its switch when it is imported and when a kernel is defined. Three things that its
    interpreter lacks are added: bounds of loops that are computed, which recent NumPy needs to be
    asked for as numbers, products of bfloat16, which it would take for integers, and the way
    between float32 and ``float8_e4m3fn``: to the nearest, at most ±448, not-a-number kept.
    """
    if shutil.which("nvidia-smi") is not None and os.environ.get("CUDA_VISIBLE_DEVICES") != "":
        return False
    os.environ["TRITON_INTERPRET"] = "1"
    interpreter: Any = import_module("triton.runtime.interpreter")
    if not hasattr(interpreter, "_pegboard_patched"):
        _patch_bounds(interpreter)
        _patch_products(interpreter)
        _patch_rounding(interpreter)
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


def _patch_rounding(interpreter: Any) -> None:
    tl = interpreter.tl
    convert = interpreter._convert_float

    def patched(data: Any, source: Any, target: Any, *rest: Any) -> Any:
        if (source, target) == (tl.float32, tl.float8e4nv):
            wide = torch.from_numpy(np.array(data).view(np.float32)).clamp(-448, 448)
            return wide.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
        if source == tl.float8e4nv and target in (tl.float32, tl.float16):
            codes = torch.from_numpy(np.array(data).view(np.uint8)).view(torch.float8_e4m3fn)
            wide = codes.float() if target == tl.float32 else codes.half()
            return wide.numpy().view(np.uint32 if target == tl.float32 else np.uint16)
        return convert(data, source, target, *rest)

    interpreter._convert_float = patched
