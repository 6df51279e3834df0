"""Pages whose commands need no cluster, typed into a shell: their output is the one shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.system.page_shell import blocks, program_folder, shell, type_page
from tests.system.page_walks import OFFLINE, Walk
from tests.tidy.files import ROOT


@pytest.mark.parametrize("walk", OFFLINE, ids=lambda walk: walk.page)
def test_the_blocks_of_a_page_can_be_typed(walk: Walk, tmp_path: Path) -> None:
    for name in ("home", "programs"):
        (tmp_path / name).mkdir()
    (tmp_path / "home" / "tests").symlink_to(ROOT / "tests")
    with shell(tmp_path / "home", program_folder(tmp_path / "programs")) as reader:
        type_page(walk, blocks((ROOT / "docs" / walk.page).read_text(encoding="utf-8")), reader)
