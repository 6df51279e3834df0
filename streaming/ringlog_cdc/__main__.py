"""``python -m ringlog_cdc`` runs ``ringlog cdc``."""

from ringlog_cdc.cli import app

app(prog_name="ringlog cdc")
