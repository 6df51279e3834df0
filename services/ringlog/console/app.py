"""The web application: JSON and pages of the views, events, rehearsals and commands.

Every route of a view comes from ``console.table``. JSON and page are computed by the same function, in a worker thread.
Equal questions at the same epoch share one answer (``AnswerCache``).

Invariants: the ``ETag`` of an answer begins with the epoch, and differs if the answer may differ. Every error of
``/v1`` is a problem of RFC 9457 with a stable code. A body has at most ``BODY_BYTES_MAX`` bytes.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlencode

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse

from ringlog import __version__
from ringlog.client.client import Client
from ringlog.console import changing, pages
from ringlog.console.access import READY, USER, AccessMiddleware, Asgi, Message, Receive, Send, problem
from ringlog.console.events import EventStreams
from ringlog.console.hub import EpochHub
from ringlog.console.logging_in import LoginPages
from ringlog.console.moments import NO_REPORTS, LiveReports, ViewInput
from ringlog.console.table import COMMON, EPOCH_MAX, VIEWS, WAIT_S, ConsoleView, Parameter
from ringlog.errors import RinglogError
from ringlog.kernel.model.state import ClusterState
from ringlog.kernel.values import Micros, Value

if TYPE_CHECKING:  # needs the extra oidc
    from ringlog.console.oidc import Provider

Json = dict[str, Any]
PROBLEM: Final = "application/problem+json"
BODY_BYTES_MAX: Final = 256 * 1024
REHEARSALS_MAX, SUBMISSIONS_MAX = 2, 4
AT_ONCE_MAX: Final = 4
"""Views that are computed at the same time."""
CACHED_MAX, CACHED_BYTES_MAX = 64, 16 * 1024 * 1024


class Console(Value):
    """The sources and the limits of the application.

    Attributes:
        place: Name of the cluster and its brokers, as shown.
        live: Returns the present reports.
        now: Returns the time in microseconds.
        open_client: Returns a client that acts for a person; None: the console is read-only.
        users: Returns the users, as token to name; None: no login.
        provider: The identity provider; None: users have tokens only. It needs ``users``, which may have none.
        has_tokens: True if a browser may log in with a token.
        hosts: See ``AccessMiddleware``.
    """

    hub: EpochHub
    place: str
    live: Callable[[], LiveReports]
    now: Callable[[], Micros]
    open_client: Callable[[str], AbstractContextManager[Client]] | None = None
    users: Callable[[], Mapping[str, str]] | None = None
    hosts: tuple[str, ...] = ()
    provider: Provider | None = None
    has_tokens: bool = True


class Problem(Exception):
    """An answer that is an error."""

    def __init__(self, code: str, detail: str, *ways_out: str) -> None:
        super().__init__(detail)
        self.body = problem(code, detail, ways_out)


class AnswerCache:
    """The last answers, bounded by number and bytes. For one event loop."""

    def __init__(self) -> None:
        self._found: OrderedDict[object, asyncio.Future[bytes]] = OrderedDict()
        self._bytes = 0
        self._threads = ThreadPoolExecutor(AT_ONCE_MAX, "views")

    async def get(self, key: object, make: Callable[[], bytes]) -> bytes:
        """Return the answer of a key. Equal keys that are computed now share the computation."""
        known = self._found.get(key)
        if known is None:
            known = asyncio.ensure_future(self._made(key, make))
            self._found[key] = known
        return await asyncio.shield(known)

    async def _made(self, key: object, make: Callable[[], bytes]) -> bytes:
        try:
            made = await asyncio.get_running_loop().run_in_executor(self._threads, make)
        except BaseException:
            self._found.pop(key, None)
            raise
        self._bytes += len(made)
        while self._bytes > CACHED_BYTES_MAX or len(self._found) > CACHED_MAX:
            oldest = next((one for one, found in self._found.items() if found.done()), None)
            if oldest is None:
                break
            dropped = self._found.pop(oldest)
            if not dropped.cancelled() and dropped.exception() is None:
                self._bytes -= len(dropped.result())
        return made


def parsed(declared: Mapping[str, Parameter], query: list[tuple[str, str]]) -> Json:
    """Return the parameters of a query by name. Empty ones are absent. Raises Problem."""
    found: Json = {}
    for name, text in query:
        if (parameter := declared.get(name)) is None:
            raise Problem("unknown_field", f"{name[:40]}: this view has {', '.join(declared)}")
        if name in found:
            raise Problem("bad_field", f"{name}: appears twice")
        if not text:
            continue
        if parameter.kind is int:
            if not (text.isascii() and text.isdecimal() and len(text) < 20 and int(text) <= parameter.most):
                raise Problem("bad_field", f"{name}: must be a whole number up to {parameter.most}")
            found[name] = int(text)
        elif parameter.kind is bool:
            if text not in ("1", "true", "0", "false"):
                raise Problem("bad_field", f"{name}: must be 1 or 0")
            found[name] = text in ("1", "true")
        elif len(text) > parameter.most:
            raise Problem("bad_field", f"{name}: must have at most {parameter.most} characters")
        else:
            found[name] = text
    for name in ("page", "limit"):
        if found.get(name) == 0:
            raise Problem("bad_field", f"{name}: must be at least 1")
    return found


def make_app(console: Console) -> Asgi:
    """Return the web application with its access checks."""
    api = FastAPI(
        title="Ringlog console",
        version=__version__,
        description="Views of a cluster as JSON, events, rehearsals and commands.",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    pages.environment()
    routes = Routes(console)
    login = LoginPages(console.provider, lambda: routes.head("", "/login", ""), _form, has_tokens=console.has_tokens)
    api.exception_handler(Problem)(routes.on_problem)
    api.exception_handler(RinglogError)(routes.on_error)
    api.exception_handler(Exception)(routes.on_defect)
    for status in (404, 405):
        api.exception_handler(status)(routes.on_missing)
    for view in VIEWS.values():
        for path, handler in (
            (f"/v1/{view.name}", routes.as_json),
            (f"/{view.name}.json", routes.as_json),
            (f"/{view.name}", routes.as_page),
        ):
            api.add_api_route(
                path,
                partial(handler, view),
                methods=["GET"],
                response_model=None,
                include_in_schema=path.startswith("/v1/"),
                operation_id=view.name,
                name=path,
                summary=view.title,
                description=view.question,
                openapi_extra={"parameters": openapi_parameters({**COMMON, **view.parameters})},
            )
    since = {"since": Parameter(int, "The last known epoch. The header Last-Event-ID takes precedence.", EPOCH_MAX)}
    extra = {"parameters": openapi_parameters(since)}
    api.add_api_route("/v1/events", routes.events, response_model=None, summary="Events", openapi_extra=extra)
    for path, changing_handler, title in (
        ("/v1/rehearsals", routes.rehearse, "Rehearse commands without submitting them"),
        ("/v1/commands", routes.submit, "Submit a command"),
    ):
        api.add_api_route(
            path, changing_handler, methods=["POST"], response_model=None, summary=title, openapi_extra=BODY
        )
    hidden: tuple[tuple[str, str, Callable[..., Any]], ...] = (
        ("GET", "/", routes.root),
        ("GET", "/static/{name}", pages.static),
        ("GET", READY, routes.ready),
        *login.routes(),
        ("GET", "/change", routes.change_page),
        ("POST", "/change", routes.change),
    )
    for method, path, hidden_handler in hidden:
        api.add_api_route(path, hidden_handler, methods=[method], response_model=None, include_in_schema=False)
    bearer = console.provider.user_of_bearer if console.provider else None
    return AccessMiddleware(api, console.hosts, console.users, bearer)


BODY: Final = {"requestBody": {"required": True, "content": {"application/json": {"schema": {"type": "object"}}}}}


def openapi_parameters(declared: Mapping[str, Parameter]) -> list[Json]:
    """Return the OpenAPI description of query parameters."""
    types = {int: {"type": "integer", "minimum": 0}, bool: {"type": "boolean"}, str: {"type": "string"}}
    return [
        {"name": name, "in": "query", "description": one.meaning, "schema": types[one.kind]}
        for name, one in declared.items()
    ]


class Routes:
    """The handlers of the application."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._answers = AnswerCache()
        self._streams = EventStreams(console.hub, self._status)
        self._rehearsals, self._submissions = asyncio.Semaphore(REHEARSALS_MAX), asyncio.Semaphore(SUBMISSIONS_MAX)

    def _status(self) -> Json:
        """Return the freshness of the state, for events and page heads."""
        live = self._console.live()
        age = max(0, self._console.now() - live.confirmed_at) / 1e6
        return {"epoch": self._console.hub.state.epoch, "version": live.version, "age_s": age, "problem": live.problem}

    # ------------------------------------------------------------------------------------------------ views

    async def as_json(self, view: ConsoleView, request: Request) -> Response:
        """Return the JSON of a view."""
        return await self._view(view, request, lambda _, value: json.dumps(value).encode(), "application/json")

    async def as_page(self, view: ConsoleView, request: Request) -> Response:
        """Return the page of a view."""
        user, path = request.scope[USER], request.url.path

        def make(moment: ViewInput, value: Json) -> bytes:
            return pages.render(view, moment, value, self.head(user.name, path, request.url.query))

        return await self._view(view, request, make, "text/html; charset=utf-8")

    def head(self, user: str, path: str, query: str) -> pages.Head:
        """Return the parts of a page that do not depend on its view."""
        console = self._console
        return pages.Head(
            place=console.place,
            newest=console.hub.state.epoch,
            status=self._status(),
            user=user,
            may_change=console.open_client is not None,
            has_login=console.users is not None,
            path=path,
            query=query,
        )

    async def _view(
        self, view: ConsoleView, request: Request, make: Callable[[ViewInput, Json], bytes], media_type: str
    ) -> Response:
        query = parsed({**COMMON, **view.parameters}, list(request.query_params.multi_items()))
        hub = self._console.hub
        epoch, wait = query.pop("epoch", None), query.pop("wait", None)
        if wait is not None and not await hub.wait(lambda: hub.state.epoch >= wait, WAIT_S):
            raise Problem("wait_timed_out", f"epoch {wait} did not arrive within {WAIT_S:.0f} s")
        state = hub.state
        is_past = epoch is not None and epoch != state.epoch
        if is_past:
            state = await asyncio.to_thread(hub.state_at, epoch)
        live = NO_REPORTS if is_past else self._console.live()
        now = state.time if is_past else live.read_at or self._console.now()
        etag = f'"{state.epoch}-{state.state_id[-8:]}"'
        if view.is_live and not is_past:
            etag = f'{etag[:-1]}-{live.version}"'
        headers = {"etag": etag, "ringlog-epoch": str(state.epoch)}
        if not is_past:
            headers["age"] = str(int(self._status()["age_s"]))
        is_page = media_type.startswith("text/html")
        # A page also shows the user and the newest epoch, so it is always sent.
        if etag in request.headers.get("if-none-match", "") and not is_page:
            return Response(status_code=304, headers=headers)
        moment = ViewInput(state, live, now, query, hub.records, hub.state_at, is_past)
        page_key = (request.scope[USER].name, live.version, hub.state.epoch) if is_page else None
        key = (view.name, page_key, tuple(sorted(query.items())), etag)
        body = await self._answers.get(key, lambda: make(moment, view.read(moment)))
        return Response(body, media_type=media_type, headers=headers)

    # ----------------------------------------------------------------------------------------------- errors

    async def on_problem(self, request: Request, error: Exception) -> Response:
        """Return a problem as JSON, or as a page for a browser."""
        assert isinstance(error, Problem), "registered for this class"
        return self._refused(request, error.body)

    async def on_error(self, request: Request, error: Exception) -> Response:
        """Return an error of the log."""
        assert isinstance(error, RinglogError), "registered for this class"
        return self._refused(
            request, problem(error.code, str(getattr(error, "message", error)), [*filter(None, [error.hint])])
        )

    async def on_missing(self, request: Request, error: Exception) -> Response:  # noqa: ARG002
        """Return the answer for an unknown path."""
        return self._refused(request, problem("not_found", "no such path or method: see /v1/openapi.json"))

    async def on_defect(self, request: Request, error: Exception) -> Response:  # noqa: ARG002
        """Return the answer after a defect, which the server logs."""
        return self._refused(request, problem("internal_error", "a defect: see the log of the console"))

    def _refused(self, request: Request, body: Json) -> Response:
        if "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/v1/"):
            user = request.scope[USER] or request
            head = self.head(getattr(user, "name", ""), request.url.path, "")
            return Response(pages.render_problem(body, head), body["status"], media_type="text/html; charset=utf-8")
        return Response(json.dumps(body), body["status"], media_type=PROBLEM)

    # ------------------------------------------------------------------------------------- events and changes

    async def events(self, request: Request) -> Response:
        """Stream one event for each epoch."""
        since = Parameter(int, "", EPOCH_MAX)
        given = [("since", request.headers["last-event-id"])] if "last-event-id" in request.headers else None
        query = parsed({"since": since}, given or list(request.query_params.multi_items()))
        newest = self._console.hub.state.epoch
        if self._streams.is_full:
            raise Problem("too_many_streams", "close another stream, or try again later")
        if query.get("since", 0) > newest:
            raise Problem("epoch_unknown", f"the log ends with epoch {newest}")
        return _Streamed(partial(self._streams.serve, since=query.get("since", newest)))

    async def rehearse(self, request: Request) -> Response:
        """Rehearse the commands of ``{"commands": [...], "to_end": false}``, or one command."""
        body = await _json_body(request)
        given = body.get("commands", [body]) if isinstance(body, dict) else body
        to_end = isinstance(body, dict) and body.get("to_end") is True and "commands" in body
        if not isinstance(given, list):
            raise Problem("bad_field", "commands: must be a list")
        return _answered(await self._rehearse(self._console.hub.state, given, to_end=to_end))

    async def _rehearse(self, state: ClusterState, values: list[Any], *, to_end: bool) -> Json:
        async with self._rehearsals:
            return await asyncio.to_thread(changing.rehearse, state, values, to_end=to_end)

    async def submit(self, request: Request) -> Response:
        """Submit the command in the body. ``Idempotency-Key`` is the request id, with ``?since=EPOCH``."""
        query = parsed({"since": Parameter(int, "", EPOCH_MAX)}, list(request.query_params.multi_items()))
        key = request.headers.get("idempotency-key")
        if (key is None) != ("since" not in query):
            raise Problem("bad_field", "Idempotency-Key and since belong together")
        value = await _json_body(request)
        return _answered(await self._submit(request, value, key, query.get("since")))

    async def _submit(self, request: Request, value: Any, key: str | None, since: int | None) -> Json:
        open_client = self._console.open_client
        if open_client is None:
            detail = "this console is read-only"
            return problem("not_authorized", detail, ("ringlog console --tokens FILE --allow-changes",))
        if key is not None and not (key.isprintable() and 0 < len(key) <= 64):
            return problem("bad_field", "Idempotency-Key: must have 1 to 64 printable characters")
        state, user = self._console.hub.state, request.scope[USER].name
        async with self._submissions:
            return await asyncio.to_thread(changing.submit, open_client, state, user, value, key, since)

    # ----------------------------------------------------------------------------------------------- pages

    async def root(self) -> Response:
        """Lead to the first page."""
        return RedirectResponse("/health", 307)

    async def ready(self) -> Response:
        """Answer a probe, which has no token. The pages also work while the broker is away."""
        return Response("ready\n", media_type="text/plain")

    async def change_page(self, request: Request) -> Response:
        """Return the form for commands."""
        query = parsed({"command": Parameter(str, "", 4_000)}, list(request.query_params.multi_items()))
        head = self.head(request.scope[USER].name, "/change", "")
        return Response(pages.render_change(head, {"text": query.get("command", "")}), media_type="text/html")

    async def change(self, request: Request) -> Response:
        """Rehearse the typed commands, or submit the rehearsed one."""
        form, state = await _form(request), self._console.hub.state
        text = form.get("text", "")
        head = self.head(request.scope[USER].name, "/change", "")
        shown: Json = {"text": text, "to_end": "to_end" in form}
        try:
            values = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError) as error:
            body = problem("bad_json", str(error))
        else:
            if "confirm" not in form:
                body = await self._rehearse(state, values, to_end=shown["to_end"])
                if "status" not in body:
                    shown |= {"rehearsal": body, **_new_request(state)}
            elif form["confirm"] != state.name:
                body = problem("not_confirmed", f"type the name of the cluster, {state.name}")
            else:
                since = form.get("since", "")
                since_epoch = int(since) if since.isdecimal() and len(since) < 20 else None
                value = (
                    values[0]
                    if len(values) == 1
                    else {"command": "StagePlan", "plan": form.get("plan"), "commands": values}
                )
                body = await self._submit(request, value, form.get("request_id"), since_epoch)
                if "status" not in body:
                    where = {"operation": body["operation"]} if "operation" in body else {}
                    path = "/operations" if where else "/log"
                    return RedirectResponse(f"{path}?{urlencode(where)}" if where else path, 303)
        if "status" in body:
            shown["problem"] = body
        return Response(pages.render_change(head, shown), body.get("status", 200), media_type="text/html")


def _new_request(state: ClusterState) -> Json:
    return {"request_id": pages.new_request_id(), "since": state.epoch, "cluster": state.name}


def _answered(body: Json) -> Response:
    """Return a value or a problem, which has a status."""
    is_problem = "status" in body
    return Response(json.dumps(body), body.get("status", 200), media_type=PROBLEM if is_problem else "application/json")


class _Streamed(Response):
    """A response that a function sends."""

    def __init__(self, serve: Callable[[Receive, Send], Awaitable[None]]) -> None:
        super().__init__()
        self._serve = serve

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:  # noqa: ARG002
        await self._serve(receive, send)


async def _body(request: Request) -> bytes:
    found = b""
    async for chunk in request.stream():
        found += chunk
        if len(found) > BODY_BYTES_MAX:
            raise Problem("body_too_large", f"a body has at most {BODY_BYTES_MAX} bytes")
    return found


async def _json_body(request: Request) -> Any:
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise Problem("wrong_media_type", "the content type must be application/json")
    try:
        return json.loads(await _body(request))
    except (ValueError, RecursionError) as error:
        raise Problem("bad_json", str(error)) from error


async def _form(request: Request) -> dict[str, str]:
    """Return the fields of a form. A browser sends them URL-encoded."""
    text = (await _body(request)).decode("utf-8", "replace")
    try:
        pairs = parse_qs(text, keep_blank_values=True, max_num_fields=20)
    except ValueError as error:
        raise Problem("bad_field", str(error)) from error
    return {name: values[0] for name, values in pairs.items()}
