"""The scheduler half: a KV connector of vLLM, asked and told as vLLM would."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterable, Sequence
from typing import Any

from pegboard.api.connector import (
    Admitted,
    Allocated,
    Finished,
    Keep,
    Later,
    Match,
    MatchAnswer,
    Now,
    Pending,
    SchedulerHalf,
    SchedulerHalfContext,
    StepOrder,
    StepView,
    StoreEvent,
    TransferReport,
)
from pegboard.api.views import BlocksView, RequestView
from pegboard.errors import PluginError, UnsupportedError
from pegboard_legacy_vllm.base import KVConnectorRole
from pegboard_legacy_vllm.messages import LoadNote, StepNote
from pegboard_legacy_vllm.paths import Path
from pegboard_legacy_vllm.proxy import Proxy
from pegboard_legacy_vllm.values import (
    KVCacheBlocks,
    KVConnectorOutput,
    NewRequestData,
    Request,
    SchedulerOutput,
    block_ids,
    cached_requests,
)

__all__ = ["LegacyScheduler", "half"]

KEPT_SECONDS = 480.0
"""Longest time that blocks of an ended request are kept for a connector that sends them."""
_KINDS = {"BlockStored": "stored", "BlockRemoved": "removed"}


class LegacyScheduler(SchedulerHalf):
    """Half of a connector that a package registered with vLLM."""

    def __init__(self, targets: Sequence[tuple[str, str]], ctx: SchedulerHalfContext) -> None:
        self._name = ctx.config.kv_connector
        if len(ctx.handshakes) != 1:
            raise UnsupportedError(
                f"KV connector {self._name!r} was made for vLLM and serves engines of one rank "
                f"here, not {len(ctx.handshakes)}"
            )
        (group,) = [group for group in ctx.groups if group.slot_bytes()]
        self._proxy = Proxy(
            targets,
            KVConnectorRole.SCHEDULER,
            ctx.config,
            group.block_size,
            getattr(group.spec, "dtype", "auto"),
        )
        self._requests: dict[str, Request] = {}
        self._computed: dict[str, int] = {}
        """Tokens that the own cache has, by request, as of its last question."""
        self._loads: dict[int, str] = {}
        """Requests of loads that are not over."""
        self._waiting: set[int] = set()
        """Loads that the connector was told of and that have not begun."""
        self._shown: set[str] = set()
        """Requests that the connector saw scheduled; it hears nothing more of others."""
        self._told: set[str] = set()
        """Requests that are admitted with the blocks of a load, so that they are known."""
        self._kept: dict[str, int] = {}
        """Ids of kept blocks that the workers do not know yet."""
        self._keeps: dict[int, str] = {}
        self._broken = False

    def match(self, question: Match) -> MatchAnswer:
        if self._broken:
            return Now(0)
        request = self._request(question.request)
        answer = self._proxy.call("get_num_new_matched_tokens", request, question.computed)
        tokens, later = self._pair(answer, "get_num_new_matched_tokens")
        if tokens is None:
            return Pending()
        if type(tokens) is not int:
            raise PluginError(
                f"KV connector {self._name!r}: get_num_new_matched_tokens must return a count of "
                f"tokens or None, it returned {tokens!r}"
            )
        self._computed[request.request_id] = question.computed
        if tokens <= 0:  # of vLLM's own example: the own cache has more
            return Now(0)
        return Later(tokens) if later else Now(tokens)

    def allocated(self, what: Allocated) -> None:
        request, load = self._request(what.request), what.load
        tokens = load.tokens - self._computed.get(request.request_id, 0)
        try:
            self._tell_blocks(request, what.blocks, tokens)
        except Exception:
            self._give_up()  # nobody knows what it remembers of them
            raise
        self._loads[load.load_id] = request.request_id
        self._waiting.add(load.load_id)
        if load.now:
            self._told.add(request.request_id)

    def step(self, view: StepView) -> StepOrder:
        if not self._waiting.isdisjoint(view.dropped):
            self._give_up()
        if self._broken:
            return StepOrder()
        for admitted in view.admitted:
            if admitted.request.request_id not in self._told:
                self._tell_blocks(self._request(admitted.request), admitted.blocks, 0)
        metadata = self._proxy.call("build_connector_meta", self._output(view))
        note = StepNote(
            pickled=pickle.dumps(metadata),
            rows=bool(view.request_ids),
            loads=tuple(LoadNote.of(load, load.load_id in self._loads) for load in view.loads),
            kept=dict(self._kept),
            finished=view.finished,
        )
        self._waiting -= {load.load_id for load in view.loads}
        self._told.clear()
        self._kept.clear()
        return StepOrder(metadata=note.plain())

    def finished(self, what: Finished) -> Keep | None:
        request = self._request(what.request)
        name = request.request_id
        for known in (self._requests, self._computed):
            known.pop(name, None)
        self._told.discard(name)
        self._shown.discard(name)
        if self._broken:
            return None
        ids = block_ids(what.blocks) or ([],)
        if self._proxy.has("request_finished_all_groups"):
            answer = self._proxy.call("request_finished_all_groups", request, ids)
        else:
            answer = self._proxy.call("request_finished", request, ids[0])
        keep, params = self._pair(answer, "request_finished")
        if not keep:
            return None
        self._kept[name] = what.keep_id
        self._keeps[what.keep_id] = name
        return Keep(KEPT_SECONDS, params)

    def report(self, report: TransferReport) -> None:
        sent = {self._keeps.pop(i) for i in report.sent if i in self._keeps}
        received = {self._loads[i] for i in report.received if i in self._loads}
        for load_id in (*report.received, *report.stopped):
            self._loads.pop(load_id, None)
        invalid = {failed.block for failed in report.failed}
        if not self._broken and (sent or received or invalid):
            output = KVConnectorOutput(
                finished_sending=sent or None,
                finished_recving=received or None,
                invalid_block_ids=invalid,
            )
            self._proxy.call("update_connector_output", output)

    def events(self) -> Sequence[StoreEvent]:
        found: Iterable[Any] = () if self._broken else self._proxy.call("take_events")
        return [
            StoreEvent(_KINDS[type(event).__name__], 0, tuple(event.block_hashes), event.medium)
            for event in found
            if type(event).__name__ in _KINDS
            and all(isinstance(key, bytes) for key in event.block_hashes)
        ]

    def reset(self, reason: str) -> None:
        self._proxy.call("reset_cache")

    def close(self) -> None:
        self._proxy.call("shutdown")

    def _give_up(self) -> None:
        """It was told of blocks, and the load does not begin, which never happens in vLLM: it would
        fill them when they have other owners."""
        if not self._broken:
            self._broken = True
            logging.getLogger("pegboard.plugin.legacy-vllm").error(
                "KV connector %r is used no more: a step failed after blocks were given to it",
                self._name,
            )

    def _request(self, view: RequestView) -> Request:
        """One object per request, so that a connector may hold on to it."""
        known = self._requests.get(view.request_id)
        if known is not None:
            known.view = view
            return known
        request = self._requests[view.request_id] = Request(view)
        self._proxy.call("on_new_request", request)
        return request

    def _tell_blocks(self, request: Request, blocks: BlocksView, tokens: int) -> None:
        ids = KVCacheBlocks(block_ids(blocks))
        self._proxy.call("update_state_after_alloc", request, ids, tokens)

    def _pair(self, answer: Any, method: str) -> tuple[Any, Any]:
        if not isinstance(answer, tuple) or len(answer) != 2:
            raise PluginError(
                f"KV connector {self._name!r}: {method} must return a pair, it returned {answer!r}"
            )
        return answer

    def _output(self, view: StepView) -> SchedulerOutput:
        admitted = {one.request.request_id: one for one in view.admitted}
        new, rows = [], []
        columns = zip(view.request_ids, view.starts, view.new_blocks, strict=True)
        for name, start, more in columns:
            one: Admitted | None = admitted.get(name)
            if one is not None and not one.resumed:
                request = self._request(one.request)
                self._shown.add(name)
                new.append(NewRequestData(request, block_ids(one.blocks), start))
                continue
            if name not in self._shown:
                continue
            request = self._requests[name] if one is None else self._request(one.request)
            blocks = more if one is None else one.blocks
            rows.append((request, one is not None, block_ids(blocks), start))
        return SchedulerOutput(
            scheduled_new_reqs=new,
            scheduled_cached_reqs=cached_requests(rows),
            num_scheduled_tokens=dict(zip(view.request_ids, view.counts, strict=True)),
            total_num_scheduled_tokens=sum(view.counts),
            finished_req_ids=set(view.finished),
            preempted_req_ids=set(view.preempted),
        )


half = Path(LegacyScheduler)
"""``half.package.module.Class`` makes a half of that class."""
