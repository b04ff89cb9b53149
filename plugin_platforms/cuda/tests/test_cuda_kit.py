"""A CUDA device passes the conformance kit, where there is one."""

from __future__ import annotations

from pegboard_platform_cuda import pegboard_platforms
from pegboard_testkit.platform_kit import PlatformKit


class TestCuda(PlatformKit):
    (platform,) = pegboard_platforms()
