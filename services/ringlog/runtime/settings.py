"""Settings of a process, read from ``RINGLOG_*`` variables; options override them.

They contain addresses of the broker and the cache, and folders. Settings of the cluster are part of the state and
change only through the log.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from ringlog.errors import RinglogError
from ringlog.files import process_data_dir
from ringlog.runtime.logs import LogFormat

PREFIX = "RINGLOG_"


class BadProcessSettings(RinglogError):
    """A variable of a process is not valid. The message names the variable and the rule."""

    code = "bad_process_settings"


class ProcessSettings(BaseSettings):
    """Settings of one process. Each can be given as ``RINGLOG_<NAME>``.

    Attributes:
        session_timeout_s: Time until a killed worker loses its consumer group's partition, and so the time of a
            take-over.
        redis_timeout_s: Time that the cache writer waits for each answer of Redis.
        delays: Folder of rules that hold back entries of the metadata log, for tests of a running stack.
        kafka_config: A client.properties with the login of all Kafka clients (``ringlog.runtime.kafka.config``).
        trust_config: A file with certificates and tokens (``ringlog.runtime.trust``).
        insecure: Allow unauthenticated access from other machines.
        archive: Archive of the log, written by the cache writer: a folder or a URL that fsspec supports.
        metrics_port: Port for metrics and health. In ``ringlog agents`` the validator has this port, and each other
            role one of the following ports.
        metrics_host: Address of that port; 0.0.0.0: all addresses.

    Raises:
        BadProcessSettings: A value is not valid.
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
        """Use the default for an empty variable. As a path it would mean the working directory."""
        return process_data_dir() if given == "" else given

    @field_validator("insecure", mode="before")
    @classmethod
    def _empty_is_not(cls, given: object) -> object:
        """Read an empty variable as False."""
        return False if given == "" else given

    @field_validator("delays", "kafka_config", "trust_config", "archive", "metrics_port", mode="before")
    @classmethod
    def _empty_is_none(cls, given: object) -> object:
        """Read an empty variable as None. As a path it would mean the working directory."""
        return None if given == "" else given
