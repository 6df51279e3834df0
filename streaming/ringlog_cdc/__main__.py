"""``python -m ringlog_cdc`` is ``ringlog cdc``."""

from ringlog_cdc.cli import app

app(prog_name="ringlog cdc")
