"""Where a process finds its broker, its cache and its folder: read from ``RINGLOG_*`` variables, overridden by options.

These are settings of processes. Settings of the cluster are part of the state and change only through the log.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from ringlog.files import process_data_dir
from ringlog.runtime.logs import LogFormat

PREFIX = "RINGLOG_"


class BadProcessSettings(Exception):
    """A variable of a process cannot be used. The message names the variable and the rule."""

    code = "bad_process_settings"


class ProcessSettings(BaseSettings):
    """Settings of one process; each can be given as ``RINGLOG_<NAME>``.

    ``session_timeout_s``: how long a killed worker keeps its consumer group's partition, hence how long a take-over
    lasts. ``redis_timeout_s``: how long the keeper waits for each answer of Redis. ``delays``: a folder of rules that
    hold back entries of the metadata log, for tests of a live stack. ``kafka_config``: a client.properties with what
    all Kafka clients need to log in (``ringlog.runtime.kafka.config``). ``archive``: the place where the keeper puts
    the log's entries, a folder or a URL that fsspec knows. ``metrics_port``: where an agent shows its figures and its
    health, at ``metrics_host`` (an address, or 0.0.0.0 for all); each role of ``ringlog agents`` has a port of its own,
    the validator this one, the others those behind it. ``trust_config``: a file with certificates and tokens
    (``ringlog.runtime.trust``); ``insecure``: an address that other machines reach may be open to everybody there.

    Raises BadProcessSettings.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, extra="ignore", frozen=True)

    bootstrap_servers: str = "127.0.0.1:9092"
    redis_url: str = "redis://127.0.0.1:6379/0"
    cluster: str = Field(default="ringlog", pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,99}$")
    data_dir: Path = Field(default_factory=process_data_dir)
    session_timeout_s: float = Field(default=6.0, ge=1.0, le=300.0)
    redis_timeout_s: float = Field(default=2.0, ge=0.1, le=300.0)
    delays: Path | None = None
    kafka_config: Path | None = None
    trust_config: Path | None = None
    insecure: bool = False
    archive: str | None = None
    metrics_port: int | None = Field(default=None, ge=1, le=65_000)
    metrics_host: str = Field(default="127.0.0.1", min_length=1)
    log_format: LogFormat = "console"
    log_level: Literal["debug", "info", "warning", "error", "critical"] = "info"

    def __init__(self, **given: Any) -> None:
        try:
            super().__init__(**given)
        except ValidationError as error:
            wrong = [(f"{PREFIX}{one['loc'][0]!s}".upper(), one["msg"]) for one in error.errors()]
            raise BadProcessSettings("; ".join(f"{name}: {rule}" for name, rule in wrong)) from None

    @field_validator("data_dir", mode="before")
    @classmethod
    def _empty_is_default(cls, given: object) -> object:
        """An empty variable says nothing; as a path it would be the folder that one is in."""
        return process_data_dir() if given == "" else given

    @field_validator("insecure", mode="before")
    @classmethod
    def _empty_is_not(cls, given: object) -> object:
        """An empty variable says nothing."""
        return False if given == "" else given

    @field_validator("delays", "kafka_config", "trust_config", "archive", "metrics_port", mode="before")
    @classmethod
    def _empty_is_none(cls, given: object) -> object:
        """An empty variable names no port and no file; as a path it would be the folder that one is in."""
        return None if given == "" else given
