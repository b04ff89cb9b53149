"""Conformance kit for any plugin: what the board makes of it, whatever its surfaces.

A test file of a plugin subclasses `PluginKit` and names the plugin, which must be installed::

    class TestMyPlugin(PluginKit):
        plugin = "mine"
"""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import attrs

from pegboard.api.descriptor import LazyRef
from pegboard.testing.boards import Board, PluginRecord, board_of
from pegboard.testing.toy_connected import installed_board

__all__ = ["PluginKit"]


class PluginKit:
    """Tests of a plugin; subclass it in a test file under a name that begins with ``Test``."""

    plugin: str
    """Its id: the name of its entry point."""

    def test_it_is_ready(self) -> None:
        record = self._record(installed_board())
        assert record.state == "ready", f"it is {record.state}: {record.reason}"
        assert not record.notes, "; ".join(record.notes)
        assert record.registered, "it registers nothing"

    def test_it_needs_no_other_plugin_to_be_ready(self) -> None:
        board = board_of(self.plugin)
        others = [record for record in board.plugins if record.id != self.plugin]
        assert all(record.state == "blocked" for record in others)
        record = self._record(board)
        assert record.state == "ready", f"alone, it is {record.state}: {record.reason}"

    def test_every_lazy_reference_leads_somewhere(self) -> None:
        board = installed_board()
        for surface, name, _ in self._record(board).registered:
            for field, reference in _references(board.registry(surface).get(name)):
                value = reference.load()
                assert callable(value), f"{surface} {name!r}: {field} is no callable but {value!r}"

    def test_what_it_registers_is_known_as_its_own(self) -> None:
        board = installed_board()
        record = self._record(board)
        for surface, name, claims in record.registered:
            for key in (name, *claims):
                assert board.provenance(surface, key) == record, f"{surface} {key!r}"

    def test_start_up_imports_no_torch(self) -> None:
        code = (
            "import sys; from pegboard.testing.boards import board_of; "
            f"board_of({self.plugin!r}); sys.exit('torch' in sys.modules)"
        )
        outcome = subprocess.run([sys.executable, "-c", code], check=False)
        assert outcome.returncode == 0, "torch is imported; keep that behind lazy references"

    def _record(self, board: Board) -> PluginRecord:
        found = [record for record in board.plugins if record.id == self.plugin]
        assert found, f"plugin {self.plugin!r} is not installed; install it: pip install -e ."
        assert len(found) == 1, f"several plugins are called {self.plugin!r}"
        return found[0]


def _references(descriptor: Any) -> list[tuple[str, LazyRef]]:
    values = attrs.asdict(descriptor, recurse=False)
    return [(field, value) for field, value in values.items() if isinstance(value, LazyRef)]
