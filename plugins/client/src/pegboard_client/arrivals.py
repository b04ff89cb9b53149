"""When requests are sent, decided before the first one."""

from __future__ import annotations

import math
import random

from pegboard.errors import ConfigError

__all__ = ["arrival_times"]


def arrival_times(count: int, rate: float, burstiness: float, seed: int) -> list[float]:
    """Seconds from the beginning, in order; the first is 0.

    The gaps are drawn from a gamma distribution with shape `burstiness` and mean ``1 / rate``: 1
    gives the exponential gaps of a Poisson process, less comes in bursts, more is steadier. An
    infinite `rate` sends all at once. Raises `ConfigError` for what is not above 0.
    """
    if not rate > 0:
        raise ConfigError(f"--request-rate {rate} is not allowed: above 0, or inf")
    if not 0 < burstiness < math.inf:
        raise ConfigError(f"--burstiness {burstiness} is not allowed: above 0")
    if math.isinf(rate):
        return [0.0] * count
    draws, moment, times = random.Random(seed), 0.0, []
    for _ in range(count):
        times.append(moment)
        moment += draws.gammavariate(burstiness, 1 / (rate * burstiness))
    return times
