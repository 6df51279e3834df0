"""Tokens: the documented values, the Cassandra driver as an independent implementation, and composite keys."""

from pathlib import Path

import pytest
from cassandra.cmurmur3 import murmur3 as compiled
from cassandra.metadata import Murmur3Token
from cassandra.murmur3 import _murmur3 as plain
from hypothesis import example, given
from hypothesis import strategies as st

from ringlog.kernel.ring.murmur3 import as_token, compose, token_of
from ringlog.kernel.values import TOKEN_MAX, is_token

TABLE = Path(__file__).parents[2] / "testdata" / "tokens.txt"
ROWS = [line.split()[:2] for line in TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]


@pytest.mark.parametrize(("key", "token"), ROWS)
def test_token_of_every_worked_key(key: str, token: str) -> None:
    assert token_of(bytes.fromhex(key.replace("-", ""))) == int(token)


@given(st.binary(max_size=120))
@example(b"\x80")
@example(b"\xff" * 15)
@example(bytes.fromhex("a1ded3809597e1fa5a0c902750d0d7f2"))
def test_agrees_with_the_driver(key: bytes) -> None:
    assert token_of(key) == Murmur3Token.hash_fn(key)
    # The driver has a compiled and a Python hash. Neither replaces the illegal token.
    assert token_of(key) == as_token(compiled(key) % 2**64) == as_token(plain(key) % 2**64)
    assert is_token(token_of(key))


def test_the_illegal_hash_becomes_the_greatest_token() -> None:
    assert as_token(1 << 63) == TOKEN_MAX
    assert as_token((1 << 63) - 1) == TOKEN_MAX
    assert as_token((1 << 64) - 1) == -1


@pytest.mark.parametrize(
    ("components", "composed"),
    [
        ([b""], b""),
        ([b"a"], b"a"),
        ([b"a", b"b"], bytes.fromhex("0001610000016200")),
        ([b"ab", b""], bytes.fromhex("0002616200000000")),
        ([b"", b"ab"], bytes.fromhex("0000000002616200")),
        ([b"", b""], bytes(6)),
        ([b"\xff" * 4, "é".encode()], bytes.fromhex("0004ffffffff000002c3a900")),
    ],
)
def test_compose(components: list[bytes], composed: bytes) -> None:
    assert compose(components) == composed


def test_compose_names_the_invalid_component() -> None:
    assert len(compose([b"x" * 65_536])) == 65_536
    with pytest.raises(ValueError, match="component 1 has 65536 bytes"):
        compose([b"", b"x" * 65_536])
    with pytest.raises(ValueError, match="at least one component"):
        compose([])
