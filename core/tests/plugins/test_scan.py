"""The quick walk over metadata finds what the library finds."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Any

import importlib_metadata
import pytest

from pegboard.plugins.discover import discover
from pegboard.plugins.scan import entry_points, headers, scan


def test_it_agrees_with_the_library_about_this_environment() -> None:
    quick = {}
    for metadata in scan(sys.path):
        fields = headers(metadata)
        if "name" not in fields:
            continue  # what an interrupted installation leaves
        text = metadata.read_text("entry_points.txt") or ""
        found = sorted(entry_points(text)), sorted(fields.get("requires-dist", ()))
        quick.setdefault((fields["name"][0], fields["version"][0]), found)
    library: dict[tuple[str, str], Any] = {}
    for known in importlib_metadata.distributions():
        if not (known.read_text("METADATA") or known.read_text("PKG-INFO")):
            continue
        points = sorted((e.group, e.name, e.value) for e in known.entry_points)
        requires = sorted(known.metadata.get_all("Requires-Dist") or ())
        library.setdefault((known.metadata["Name"], known.version), (points, requires))
    assert len(library) > 10
    assert quick == library


def test_an_archive_on_the_path_is_read_through_the_library(tmp_path: Path) -> None:
    archive = tmp_path / "plugins.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("zipped-1.0.dist-info/METADATA", "Name: zipped\nVersion: 1.0\n")
        file.writestr("zipped-1.0.dist-info/entry_points.txt", "[pegboard.models]\nzip = z\n")
    (candidate,) = discover([str(archive)]).candidates
    assert (candidate.id, candidate.distribution, candidate.value) == ("zip", "zipped", "z")


def test_a_finder_with_metadata_of_its_own_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    info = tmp_path / "far-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: far\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[pegboard.models]\nfar-away = far\n")

    class Finder:
        def find_spec(self, *_: object) -> None:
            return None

        def find_distributions(self, *_: object) -> list[importlib_metadata.Distribution]:
            return [importlib_metadata.Distribution.at(info)]

    assert "far-away" not in {c.id for c in discover().candidates}
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])
    assert "far-away" in {c.id for c in discover().candidates}


def test_a_folder_that_does_not_exist_holds_nothing(tmp_path: Path) -> None:
    assert list(scan([str(tmp_path / "none")])) == []


def test_entry_points_are_read_with_comments_and_spaces() -> None:
    text = "# made by hand\n[ one ]\n a = b.c \n\n;more\nd=e:f [x]\n[two]\na=b"
    expected = [("one", "a", "b.c"), ("one", "d", "e:f [x]"), ("two", "a", "b")]
    assert list(entry_points(text)) == expected


@pytest.mark.parametrize("text", ["a = b", "[g]\nnonsense", "[g]\n= b", "[g]\na ="])
def test_a_line_that_is_no_entry_point_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="line"):
        list(entry_points(text))


def test_headers_end_where_the_description_begins(tmp_path: Path) -> None:
    info = tmp_path / "a-1.dist-info"
    info.mkdir()
    text = "Name: a\nRequires-Dist: b\nRequires-Dist: c; x\nSummary: s\n  Name: t\n\nName: z\n"
    (info / "METADATA").write_text(text)
    (metadata,) = scan([str(tmp_path)])
    fields = headers(metadata)
    assert fields["name"] == ["a"] and fields["requires-dist"] == ["b", "c; x"]
