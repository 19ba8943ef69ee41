"""Resources that an include adds."""

from __future__ import annotations

from typing import Any

import pytest
from pyramid.exceptions import ConfigurationConflictError

from queuey.app.application import make_app
from queuey.storage import Store
from queuey.web.endpoint import Match, View
from queuey.web.requests import Request
from queuey.web.responses import text_response
from tests.web.caller import Caller


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
