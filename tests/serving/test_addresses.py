"""Whose an address is, however it is written: nobody reaches the operator's routes by an odd spelling."""

from http.client import HTTPConnection

import pytest
from starlette.routing import Route

from shared.serving.api import admin, dashboard, generation, pages, tokenizing
from shared.serving.api.app import create_app
from shared.serving.api.middleware import area
from shared.serving.guard.keys import Key, KeyRing, hash_key
from tests.serving.live import chat, scripted, serving, until

ROUTERS = [part.router for part in (admin, dashboard, generation, pages, tokenizing)]
ODD = (
    "{0}%0A", "{0}%0D", "{0}%0d%0a", "{0}%00", "{0}%09", "{0}%7F", "{0}%0A/", "%0A{0}", "/%0A{0}", "{0}%E2%80%A8",
    "{0}%85", "{0}/", "{0}//", "/{0}", "{0}/.", "/.{0}", "/v1/..{0}", "/health/..{0}", "/static/..{0}",
    "/health/%2e%2e{0}", "/static/..%2f{0}", "{0}%2F", "{0};x", "{0}%3F", "{0}%20", "{0}?a=/v1", "{0}#", "\\{0}", "http://x{0}",
)  # fmt: skip


def own_routes(app) -> list[Route]:
    return [route for router in (app, *ROUTERS) for route in router.routes if isinstance(route, Route)]


def spellings(path: str) -> list[str]:
    """The address written in other ways; the router takes few of them for the same, and the gate must take those so."""
    split = path.split("/")
    upper = [path.upper(), path.title()]
    quoted = ["/" + "/".join(f"%{ord(part[0]):02x}{part[1:]}" for part in split[1:])]
    doubled = ["//".join(split), "/./".join(split)]
    return [*(odd.format(path) for odd in ODD), *upper, *quoted, *doubled]


def test_every_route_is_in_the_area_it_is_meant_for(model):
    """And one that is added is the operator's, or has to be named here."""
    app = create_app(scripted(model))
    for route in own_routes(app):
        first = route.path.split("/")[1]
        expected = "api" if first in ("v1", "tokenize", "detokenize") else "admin"
        if first in ("", "health", "static", "openapi.json") or route.path == "/dashboard":
            expected = "open"
        assert area(route.path) == expected, route.path
    assert {area(path) for path in ("/metrics/x", "/dashboard/", "/admin", "/admin/x/y")} == {"admin"}
    assert {area(path) for path in ("/nowhere", "/v1", "", "//admin", "/ADMIN", "admin\n", "x/admin")} >= {"api"}


@pytest.mark.parametrize("who", ["caller", "nobody on a local server", "caller of a server without an admin key"])
def test_no_spelling_opens_the_operators_routes(model, who):
    caller, operator = Key("me", hash_key("mine")), Key("op", hash_key("op"), admin=True)
    keys = {"caller": [caller, operator], "nobody on a local server": [operator]}.get(who, [caller])
    settings = {"local_only": who.startswith("nobody")}
    headers = {} if who.startswith("nobody") else {"Authorization": "Bearer mine"}
    with serving(scripted(model, keys=KeyRing(keys), settings=settings)) as client:
        connection = HTTPConnection("127.0.0.1", client.port, timeout=20)
        known = [version.name for version in client.service.versions.list()]
        for route in own_routes(client.server.config.app):
            if area(route.path) != "admin":
                continue
            for path in spellings(route.path.replace("{name}", "v1")):
                for method in route.methods:
                    connection.request(method, path, b'{"path": "/tmp"}', headers)  # just as it is written here
                    response = connection.getresponse()
                    told = response.read().decode()
                    assert response.status in (400, 401, 403, 404, 405), (method, path, told)
                    assert "There is no version" not in told, path  # the route has run
        assert [version.name for version in client.service.versions.list()] == known
        connection.close()
        if who == "caller":
            assert client.get("/metrics%0A", headers={"Authorization": "Bearer op"}).status_code == 400
            assert client.get("/metrics", headers={"Authorization": "Bearer op"}).status_code == 200


def test_control_characters_are_refused_everywhere(model):
    with serving(scripted(model)) as client:
        for path in ("/%0A", "/health/ready%0A", "/v1/models%0A", "/static/x%00.js", "/nowhere%1F"):
            refused = client.get(path)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, "invalid_address")
        assert client.post("/v1/chat/completions%0A", json=chat()).status_code == 400
        metrics = client.service.telemetry.exposition()[0].decode()
        assert 'route="other"' in metrics or 'route="/v1/models"' in metrics
    assert not model.prompts


def test_who_is_refused_at_the_gate_is_counted_at_the_route(model):
    with serving(scripted(model, keys=KeyRing([Key("me", hash_key("mine"))]))) as client:
        assert client.post("/v1/chat/completions", json=chat()).status_code == 401
        assert client.get("/metrics").status_code == 403
        assert client.get("/v1/nowhere/at/all").status_code == 401
        for route, status in (("/v1/chat/completions", 401), ("/metrics", 403), ("other", 401)):
            line = f'http_requests_total{{route="{route}",status="{status}"}} 1.0'
            until(lambda line=line: line in client.service.telemetry.exposition()[0].decode())  # soon after the answer
