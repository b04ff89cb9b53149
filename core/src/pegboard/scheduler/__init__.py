"""Which tokens run next. Pure bookkeeping without tensors."""

from __future__ import annotations

from pegboard.scheduler.scheduler import TokenBudgetScheduler

__all__ = ["TokenBudgetScheduler"]
