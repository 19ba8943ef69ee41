"""Files that the service sends are read at its start: installing another version removes them."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest

from queuey.console import pages
from queuey.console.resources import make_console
from queuey.storage import Store
from queuey.web import make_app
from queuey.web.gateway.asgi import Gateway
from tests.console.conftest import examine
from tests.replacing import replace
from tests.web.gateway_calls import Request, make_runner

PAGES = ["/docs", "/client/queuey.js", "/client/queuey.d.ts", "/console/login"]


@pytest.mark.parametrize("path", [*PAGES, *map(pages.file_address, pages.FILE_TYPES)])
def test_a_file_that_is_gone(store: Store, path: str) -> None:
    """A file that was removed is sent as it was at the start."""
    app = make_app(store, includes=[make_console(examine)])

    def gone(*_: object, **__: object) -> str:
        raise FileNotFoundError(path)

    async def ask(gateway: Gateway) -> int:
        return (await Request("GET", path).to(gateway)).status

    with replace(Path.read_text, gone), replace(Path.read_bytes, gone), replace(resources.files, gone):
        assert make_runner(app)(ask) == 200
