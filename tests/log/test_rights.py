"""Names of principals: whose each is can be told from it alone."""

from __future__ import annotations

import itertools

from ringlog.kernel.values import is_name
from ringlog.log.rights import next_principal, principals_among

NAMES = ("a", "a.b", "b", "b.1", "1", "a-b", "a.b.1", "a_b.1.2")


def test_no_two_writers_share_a_principal() -> None:
    """With dots between them, writer b.1 of cluster a and writer 1 of cluster a.b were one, with one password."""
    pairs = list(itertools.product(NAMES, NAMES))
    assert all(is_name(name) and "/" not in name for name in NAMES)
    assert not is_name("a/b")
    made = {pair: next_principal((), *pair) for pair in pairs}
    assert len(set(made.values())) == len(pairs)
    for pair, principal in made.items():
        assert [other for other in pairs if principals_among([principal], *other)] == [pair]


def test_a_writer_keeps_all_that_it_ever_had_and_gets_a_number_that_was_never_used() -> None:
    found = ["ringlog/shop/spark/10", "ringlog.shop.spark.2", "ringlog/shop/spark/3", "ringlog.shop.spark2.7", "admin"]
    had = principals_among([*found, *found], "shop", "spark")
    assert had == ("ringlog.shop.spark.2", "ringlog/shop/spark/3", "ringlog/shop/spark/10")
    assert next_principal(had, "shop", "spark") == "ringlog/shop/spark/11"
    assert principals_among(["ringlog/shop/spark/01", "ringlog/shop/spark/"], "shop", "spark") == ()
