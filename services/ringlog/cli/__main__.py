"""Entry point of ``python -m ringlog.cli``, equivalent to ``ringlog``."""

from ringlog.cli.main import main

main()
