"""Every page of the console in a browser: `make browser`. Screenshots are in build/browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any, Final

import pytest

from ringlog.console.app import Console, make_app
from ringlog.console.oidc import OidcConfig, Provider
from ringlog.console.server import listen
from ringlog.console.table import VIEWS
from ringlog.kernel.commands.topology.movements import Leave
from ringlog.kernel.model.state import ClusterState
from ringlog.node.servers.http_server import HttpServer
from ringlog.runtime.monitoring.open_connections import OpenConnections
from tests.console.console_world import NOW, hub_of, large_state, reports, three_nodes
from tests.console.identity_provider import CLIENT, SECRET, identity_provider
from tests.kernel import entries
from tests.tidy.files import ROOT

pytestmark = pytest.mark.browser

TOKEN: Final = "token-of-ann-0123456789"
SHOTS: Final = ROOT / "build" / "browser"
SCHEMES: Final = ("light", "dark")
WIDTHS: Final = {"desktop": (1280, 900), "phone": (360, 740)}
PAGES: Final = {3: (*VIEWS, "change"), 100: tuple(VIEWS), 1_000: tuple(VIEWS)}
"""The pages by the number of nodes."""
DETAILS: Final = {"nodes": "?node=n3", "operations": "?operation=leave-{epoch}", "log": "?diff=1&from=1&to={epoch}"}
SEVERE: Final = ("serious", "critical")
UNSEEN: Final = """() => {
  const fields = "a[href], button, input:not([type=hidden]), textarea, select, [tabindex='0']";
  const found = [...document.querySelectorAll(fields)].filter((one) => one.checkVisibility() && !one.disabled);
  const unseen = found.filter((one) => {
    one.focus();
    const style = getComputedStyle(one), box = one.getBoundingClientRect();
    const shown = box.right > 0 && box.left < innerWidth && box.bottom > 0 && box.top < innerHeight;
    const outlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
    return document.activeElement !== one || !shown || !outlined;
  });
  return [found.length, unseen.map((one) => one.outerHTML.slice(0, 120))];
}"""
"""The number of elements that take the focus, and those that are then not in the window or have no outline."""


def busy(nodes: int) -> ClusterState:
    """Return a cluster with a silent node, a departure that waits, and tablets."""
    state = large_state(nodes, 64 if nodes < 1_000 else 2_500, 4)
    return entries.applied(state, Leave(state.node_names["n3"])) if nodes > 3 else state


@contextmanager
def served(nodes: int, provider: Provider | None = None) -> Iterator[str]:
    """Serve a console with a user, and return its address."""
    with hub_of(three_nodes()) as (_, hub):
        hub.state = busy(nodes)
        live = reports(hub.state, silent="n2")
        console = Console(
            hub, "tests at memory", lambda: live, lambda: NOW, None, lambda: {TOKEN: "ann"}, provider=provider
        )
        listening = listen("127.0.0.1", 0)
        server = HttpServer(
            make_app(console), listening, connections=OpenConnections(64, 30.0), requests_certificate=False
        )
        server.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            server.stop()
            listening.close()


@pytest.fixture(scope="module", params=PAGES)
def cluster(request: pytest.FixtureRequest) -> Iterator[tuple[int, str]]:
    """Yield the number of nodes and the address of the console."""
    with served(request.param) as url:
        yield request.param, url


class Window:
    """A logged-in page. ``problems``: errors of scripts, of the console and of requests."""

    def __init__(self, chromium: Any, address: str, scheme: str, width: str) -> None:
        size = dict(zip(("width", "height"), WIDTHS[width], strict=True))
        self.context = chromium.new_context(color_scheme=scheme, viewport=size, base_url=address)
        self.page = self.context.new_page()
        self.problems: list[str] = []
        self.page.on("console", lambda line: line.type in ("error", "warning") and self.problems.append(line.text))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("response", lambda got: got.status >= 400 and self.problems.append(f"{got.status} for {got.url}"))

    def log_in(self) -> None:
        self.page.goto("/login")
        self.page.fill("input[name=token]", TOKEN)
        self.page.click("main button")
        self.page.wait_for_url("**/health")

    def check(self, name: str) -> None:
        """Fail if the present page has a defect."""
        from axe_playwright_python.sync_playwright import Axe

        SHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SHOTS / f"{name}.png", full_page=True)
        wide = self.page.evaluate("() => [document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1], f"{name} scrolls sideways: {wide}"
        found = Axe().run(self.page).response["violations"]
        severe = [
            (one["id"], [node["html"][:200] for node in one["nodes"]]) for one in found if one["impact"] in SEVERE
        ]
        assert severe == [], name
        assert self.problems == [], name

    def walk(self, name: str) -> None:
        """Give the focus to each element. It is in the window then, and has an outline."""
        self.page.keyboard.press("Tab")  # the browser draws outlines only for users of a keyboard
        assert self.page.evaluate("document.activeElement.className") == "skip", f"{name}: what Tab reaches first"
        count, unseen = self.page.evaluate(UNSEEN)
        assert unseen == [], f"{name}: no visible focus"
        assert count > 10, f"{name}: few elements take the focus"


@pytest.mark.parametrize(("scheme", "width"), product(SCHEMES, WIDTHS))
def test_each_page_is_without_defects(chromium: Any, cluster: tuple[int, str], scheme: str, width: str) -> None:
    nodes, address = cluster
    window = Window(chromium, address, scheme, width)
    window.page.goto("/login")
    window.check(f"login-{scheme}-{width}")
    window.log_in()
    epoch = int(window.page.locator("body").get_attribute("data-epoch"))
    for name in PAGES[nodes]:
        for detail in ("", *([DETAILS[name].format(epoch=epoch)] if name in DETAILS else [])):
            window.page.goto(f"/{name}{detail}")
            window.check(f"{name}{'-detail' if detail else ''}-{nodes}-{scheme}-{width}")
            window.walk(name)
    window.context.close()


def test_a_user_logs_in_at_a_provider_on_another_site(chromium: Any) -> None:
    with identity_provider() as idp:
        idp.issuer = idp.issuer.replace("127.0.0.1", "localhost")  # the browser withholds strict cookies across sites
        allow = (("groups", frozenset({"operators"})),)
        with served(3, Provider(OidcConfig(idp.issuer, CLIENT, allow, SECRET))) as address:
            window = Window(chromium, address, "light", "desktop")
            window.page.goto("/login")
            window.page.click("text=Log in at")
            window.page.wait_for_url("**/health")
            assert "Log out ann" in window.page.locator("header").inner_text()
            window.page.click("text=Log out")
            window.page.wait_for_url("**/login")
            idp.claims["groups"] = []
            window.page.click("text=Log in at")
            window.page.wait_for_url("**/callback*")
            assert "user_not_allowed" in window.page.get_by_role("alert").inner_text()
            assert window.problems[0].startswith("403 for"), "the browser reports the refusal"
            window.problems.clear()
            window.check("login-refused")
            window.context.close()
