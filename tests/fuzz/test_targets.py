"""Each decoder accepts its seeds, rejects damage with allowed errors only, and has a target."""

from __future__ import annotations

from random import Random

import pytest

from tests.fuzz.decoders import EXEMPT, decoders
from tests.fuzz.mutate import blind
from tests.fuzz.targets import CORPUS, attempt, starts, targets
from tests.tidy.files import ROOT

MUTATIONS = 120
"""Number of damaged inputs for each target."""


@pytest.mark.parametrize("name", targets())
def test_valid_input_is_accepted_and_damage_rejected(name: str) -> None:
    target = targets()[name]
    begin = starts(target)
    taken = sum(attempt(target, data) for data in begin)
    assert taken, "no seed is valid"
    chance, refused = Random(name), 0
    for _ in range(MUTATIONS):
        data = chance.choice(begin)
        for _ in range(chance.randint(1, 3)):
            data = (target.mutate if chance.random() < 0.6 else blind)(chance, data, begin)
        refused += not attempt(target, data)
    assert refused or not target.allowed, "no damaged input was rejected"


def test_every_decoder_has_a_target() -> None:
    found = set(decoders(ROOT))
    covered = {name for target in targets().values() for name in target.covers}
    assert found - covered - EXEMPT.keys() == set(), "add a target in tests/fuzz, or an exemption with a reason"
    assert covered - found == set(), "a target covers an unknown function"
    assert EXEMPT.keys() - found == set(), "an exemption names an unknown function"


def test_the_corpus_belongs_to_targets() -> None:
    assert {path.name for path in CORPUS.iterdir()} - targets().keys() == set()
