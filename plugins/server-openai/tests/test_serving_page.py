"""docs/serving.md says what the command line does."""

from __future__ import annotations

import re
from pathlib import Path

from pegboard_server_openai.config_file import read_config
from pegboard_server_openai.flags import FLAGS
from pegboard_server_openai.refused import IDLE, REFUSED, RENAMED


def rows(page: str, header: str) -> dict[str, str]:
    """First and last cell of a table, without backquotes and hyphens."""
    _, found, rest = page.partition(f"| {header} |")
    assert found, header
    lines = rest.partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip().strip("`").removeprefix("--") for cell in x.split("|")] for x in lines]
    assert len({row[1] for row in cells}) == len(cells), f"{header}: a row stands twice"
    return {row[1]: row[-2] for row in cells}


def test_the_tables_of_flags_are_those_of_the_code(repo_root: Path) -> None:
    page = (repo_root / "docs" / "serving.md").read_text()
    assert rows(page, "flag") == {flag.name: flag.help.removeprefix("--") for flag in FLAGS}
    ours = {name: "MODEL" if new == "model" else new for name, new in RENAMED.items()}
    assert rows(page, "renamed flag") == ours
    assert rows(page, "idle flag") == IDLE
    assert rows(page, "refused flag") == {n: why.removeprefix("--") for n, why in REFUSED.items()}


def test_the_example_of_a_file_can_be_read(repo_root: Path, tmp_path: Path) -> None:
    page = (repo_root / "docs" / "serving.md").read_text()
    [example] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    path = tmp_path / "serve.yaml"
    path.write_text(example)
    assert set(read_config(str(path))) - {"model"} <= {flag.name for flag in FLAGS}
