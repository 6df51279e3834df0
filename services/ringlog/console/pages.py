"""The HTML of the console, from templates with escaping.

Templates get the JSON of a view and a ``Head``. They contain no decisions beyond layout.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from fastapi import Request, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from ringlog.console import drawing
from ringlog.console.moments import ViewInput
from ringlog.console.table import VIEWS, ConsoleView
from ringlog.console.views.levels import with_commands
from ringlog.kernel.values import SECOND_US, Micros, Value
from ringlog.operator.views.words import format_last_heard, printable, span, when
from ringlog.runtime.clock import SystemClock
from ringlog.runtime.draw import SystemDraw
from ringlog.wire.ids import ENTROPY_BYTES
from ringlog.wire.ids import new_request_id as request_id_of

Json = dict[str, Any]
FILES: Final = {"console.js": "text/javascript; charset=utf-8", "console.css": "text/css; charset=utf-8"}
LEVEL_WORDS: Final = {"ok": "OK", "warn": "warning", "bad": "critical", "idle": "inactive"}


class Head(Value):
    """The parts of a page that do not depend on its view."""

    place: str
    newest: int
    status: Json
    user: str
    may_change: bool
    has_login: bool
    path: str
    query: str


def new_request_id() -> str:
    """Return a new request id for a form."""
    return request_id_of(SystemClock().now_us(), SystemDraw().take(ENTROPY_BYTES))


def advice(text: str) -> Markup:
    """Return a sentence with its commands marked, so that a script can offer to copy them."""
    pieces = (
        Markup("<code class=command>{}</code>" if is_command else "{}").format(piece)
        for piece, is_command in with_commands(printable(str(text)))
    )
    return Markup("").join(pieces)


def command(text: str) -> Markup:
    """Return a command to copy."""
    return Markup("<code class=command>{}</code>").format(printable(text))


def level(name: str) -> Markup:
    """Return a level as a word, so that colour is not its only sign."""
    return Markup('<span class="level {}">{}</span>').format(name, LEVEL_WORDS[name])


def ago(at: Micros | None, now: Micros) -> str:
    """Return the age of a time."""
    return "never" if not at else f"{span(max(now - at, 0))} ago"


def compact(value: Any, most: int = 160) -> str:
    """Return a value as JSON of bounded length."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return printable(text if len(text) <= most else text[: most - 1] + "…")


_UNITS: Final = {20: "MiB", 30: "GiB", 40: "TiB"}


def _size(number: int) -> str:
    power = 40 if number >= 1 << 40 else 30 if number >= 1 << 30 else 20
    return f"{number / (1 << power):,.1f} {_UNITS[power]}"


@cache
def environment() -> Environment:
    """Return the templates. All are loaded now, so that an upgrade of the files does not mix with this process."""
    found = Environment(
        loader=PackageLoader("ringlog.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    found.filters |= {
        "advice": advice,
        "command": command,
        "level": level,
        "ago": ago,
        "span": span,
        "when": when,
        "compact": compact,
        "heard": format_last_heard,
        "printable": printable,
        "size": _size,
        "commas": lambda number: f"{number:,}",
        "seconds": lambda micros: f"{micros / SECOND_US:,.1f} s",
    }
    found.globals |= {
        "draw": {one.__name__: one for one in (drawing.ring, drawing.stages, drawing.heat, drawing.share_bar)},
        "views": VIEWS,
        "version": asset_version(),
    }
    for name in found.list_templates():
        found.get_template(name)
    return found


def render(view: ConsoleView, moment: ViewInput, value: Json, head: Head) -> bytes:
    """Return the page of a view."""
    pairs = [pair for pair in parse_qsl(head.query, keep_blank_values=True) if pair[0] != "wait"]

    def link(**changes: object) -> str:
        """Return the address of this page with changed parameters; None removes one."""
        left = [(name, text) for name, text in pairs if name not in changes]
        added = [(name, str(one)) for name, one in changes.items() if one is not None]
        return f"{head.path}?{urlencode([*left, *added])}" if left or added else head.path

    def to(name: str, **parameters: object) -> str:
        """Return the address of another view at the same epoch."""
        given = dict(parameters) | ({"epoch": moment.state.epoch} if moment.is_past else {})
        return f"/{name}?{urlencode(given)}" if given else f"/{name}"

    text = (
        environment()
        .get_template(f"{view.name}.html")
        .render(
            view=view,
            value=value,
            head=head,
            link=link,
            to=to,
            now=moment.now,
            epoch=moment.state.epoch,
            at=moment.state.time,
            is_past=moment.is_past,
            query=dict.fromkeys(view.parameters) | dict(moment.query),
            cluster=moment.state.name,
        )
    )
    return text.encode("utf-8", "replace")


def _page(template: str, head: Head, **values: Any) -> bytes:
    shown = {"head": head, "is_past": False, "epoch": head.newest, "view": None, "to": lambda name, **_: f"/{name}"}
    return environment().get_template(template).render(shown | values).encode("utf-8", "replace")


def render_problem(problem: Json, head: Head) -> bytes:
    """Return the page of an error, with the navigation."""
    return _page("problem.html", head, problem=problem)


def render_login(head: Head, **values: Any) -> bytes:
    """Return the page of the log-in: its ways, its failure, or its end."""
    return _page("login.html", head, **values)


def render_change(head: Head, shown: Json) -> bytes:
    """Return the form for commands, with the rehearsal and the difference if there is one."""
    return _page("change.html", head, shown={"to_end": False, "rehearsal": None, "problem": None} | shown)


@cache
def asset(name: str) -> bytes:
    """Return a file of the package."""
    return (files("ringlog.console") / "static" / name).read_bytes()


@cache
def asset_version() -> str:
    """Return a short digest of all files, for addresses that browsers may keep."""
    return hashlib.sha256(b"".join(map(asset, FILES))).hexdigest()[:12]


async def static(name: str, request: Request) -> Response:
    """Return a style sheet or script."""
    if name not in FILES:
        return Response(status_code=404)
    known = request.query_params.get("v") == asset_version()
    kept = "public, max-age=31536000, immutable" if known else "no-cache"
    return Response(asset(name), media_type=FILES[name], headers={"cache-control": kept})
