"""Which tokens run next. Pure bookkeeping without tensors."""

from __future__ import annotations

from pegboard.api.scheduler import SchedulerContext
from pegboard.scheduler.scheduler import TokenBudgetScheduler

__all__ = ["TokenBudgetScheduler", "build_scheduler"]


def build_scheduler(ctx: SchedulerContext) -> TokenBudgetScheduler:
    """Entry of the core's descriptor ``token-budget``."""
    return TokenBudgetScheduler(ctx.config, ctx.cache, ctx.connected)
