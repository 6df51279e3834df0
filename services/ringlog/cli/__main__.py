"""``python -m ringlog.cli``: the same as ``ringlog``."""

from ringlog.cli.main import main

main()
