"""Views added by an include in Pyramid's own way run in a thread, with everything that Pyramid provides."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from pyramid.csrf import get_csrf_token
from pyramid.exceptions import ConfigurationConflictError
from pyramid.httpexceptions import HTTPFound
from pyramid.response import Response
from pyramid.session import SignedCookieSessionFactory

from queuey.access.credentials.readers import digest_of
from queuey.app.application import make_app
from queuey.app.service import App
from queuey.model.errors import TooManyRequests
from queuey.runtime.limits import Limits
from queuey.storage import Store, bridge
from queuey.web.endpoint import Match, View
from queuey.web.requests import Request
from queuey.web.responses import text_response
from tests.web.caller import Caller, Reply
from tests.web.gateway_calls import KEY

closed = threading.Event()


class Pieces:
    """A body that records when it is closed."""

    def __iter__(self) -> Iterator[bytes]:
        return iter([b"a", b"b"])

    def close(self) -> None:
        closed.set()


def form(request: Any) -> Response:  # noqa: ANN401 - Pyramid's objects have no types
    request.session["name"] = request.matchdict["name"]
    response = Response(get_csrf_token(request))
    response.set_cookie("second", "ü".encode().hex())
    return response


def sent(request: Any) -> Any:  # noqa: ANN401
    assert request.cookies["second"] == "c3bc"
    assert threading.current_thread().name.startswith("queuey-request")
    return HTTPFound(f"/page/{quote(request.session['name'])}?{request.POST['text']}")


def include(config: Any) -> None:  # noqa: ANN401
    config.set_session_factory(SignedCookieSessionFactory("secret"))
    config.add_route("page", "/page/{name}")
    config.add_view(form, route_name="page", request_method="GET")
    config.add_view(sent, route_name="page", request_method="POST", require_csrf=True)
    config.add_route("pieces", "/pieces")
    config.add_view(lambda _: Response(app_iter=Pieces()), route_name="pieces")
    config.add_route("refused", "/refused/{how}")
    config.add_view(refuse, route_name="refused")


def refuse(request: Any) -> Response:  # noqa: ANN401
    raise TooManyRequests("Later.") if request.matchdict["how"] == "busy" else ZeroDivisionError("a secret")


@pytest.fixture
def app(store: Store, limits: Limits) -> App:
    bridge.run(store.applications.create_application("queuey"))
    bridge.run(store.applications.add_key("queuey", digest_of(KEY)))
    return make_app(store, limits=limits, includes=[include])


def test_pages_with_sessions(anonymous: Caller) -> None:
    """Several cookies come and go, a form without its token is refused, and one with it is answered."""
    shown = anonymous("GET", "/page/%C3%BC")
    assert shown.status == 200
    cookies = "; ".join(value.partition(";")[0] for name, value in shown.all_headers if name == "set-cookie")
    assert cookies.count("=") >= 2
    form_type = {"Content-Type": "application/x-www-form-urlencoded"}
    token = shown.text

    def send(fields: str, **headers: str) -> Reply:
        return anonymous("POST", "/page/x", fields, headers={**form_type, **headers})

    assert send("text=hello", Cookie=cookies).status == 400
    reply = send(f"text=hello&csrf_token={token}", Cookie=cookies)
    assert (reply.status, reply.headers["Location"].rpartition("/page/")[2]) == (302, "%C3%BC?hello")


def test_answers_are_closed(anonymous: Caller) -> None:
    """What a view gives back is closed, as WSGI promises it; HEAD is answered as well."""
    assert anonymous("GET", "/pieces").body == b"ab"
    assert closed.is_set()
    assert anonymous("HEAD", "/pieces").body == b""


def test_errors_of_such_views(anonymous: Caller, caplog: pytest.LogCaptureFixture) -> None:
    """Errors of ours are answered as elsewhere, a defect by its id alone, and paths without a view are 404."""
    busy = anonymous("GET", "/refused/busy")
    assert (busy.status, busy.headers["Retry-After"]) == (429, "1")
    crashed = anonymous("GET", "/refused/crash")
    assert (crashed.status, "secret" in crashed.text, "a secret" in caplog.text) == (500, False, True)
    assert anonymous("PUT", "/page/x").status == 404
    assert anonymous("GET", "/pages").status == 404


def test_bodies_are_bounded(anonymous: Caller, limits: Limits) -> None:
    """A body longer than any of ours is not taken in."""
    assert anonymous("POST", "/page/x", b"x" * (limits.max_body + 1)).status == 413


async def word(_request: Request, match: Match) -> Any:  # noqa: ANN401 - the service's own kind of response
    return text_response(match["word"])


def add_words(config: Any) -> None:  # noqa: ANN401 - Pyramid's objects have no types
    config.add_resource("word", "/words/{word}", {"GET": View(word)})


def test_a_resource_of_an_include_is_below_its_prefix(store: Store) -> None:
    """A library that is included below a prefix has its resources there; two cannot have one name."""

    def below(config: Any) -> None:  # noqa: ANN401
        config.include(add_words, route_prefix="/a/")

    caller = Caller(make_app(store, includes=[below]))
    assert caller("GET", "/a/words/b").status == 200
    assert caller("GET", "/words/b").status == 404

    def again(config: Any) -> None:  # noqa: ANN401
        add_words(config)

    with pytest.raises(ConfigurationConflictError, match="word"):
        make_app(store, includes=[below, again])
