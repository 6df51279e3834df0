"""The key of a node alone needs no authority, and says where it is."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from ringlog.cli.main import app
from ringlog.wire.ack_codes import key_of

NODE = "018f0000-0000-7000-8000-000000000001"


def test_the_key_of_a_node_alone(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    words = ["cluster", "certificates", str(folder), "--ack-key"]
    bad = CliRunner().invoke(app, [*words, "n1=nope"])
    assert (bad.exit_code, folder.exists()) == (1, False)
    made = CliRunner().invoke(app, [*words, f"n1={NODE}"])
    assert made.exit_code == 0
    assert "ca.key" not in made.stdout, "none was made"
    (told,) = json.loads(CliRunner().invoke(app, [*words, f"n1={NODE}", "--json"]).stdout)
    assert told == {"name": "n1", "node": NODE, "ack_key": str(folder / "n1.acks")}
    master = (folder / "acks.master").read_text().strip()
    assert (folder / "n1.acks").read_text().split() == [key_of(master, NODE)]
