"""Kernels run under Triton's interpreter where there is no GPU."""

from __future__ import annotations

from pegboard_testkit.interpreter import interpret_without_gpu

interpret_without_gpu()
