"""A real service for tests: ``queuey serve`` in its own processes, on a free port."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple, Self

from queuey.client import Client
from queuey.client.credentials.profile import read_profile
from queuey.storage import bridge, sqlite

STOP_TIMEOUT = 60.0


class RealService(NamedTuple):
    """A service with an empty application.

    Attributes:
        url: Address of the service.
        application: Name of the application.
        key: Key of the application.
        client: A client with this key.
    """

    url: str
    application: str
    key: str
    client: Client


class RealProcess:
    """A running ``queuey serve``, as a context manager. The environment's settings do not apply to it.

    It ends with this process, even if that is killed.

    ``make_application`` creates an application and its key in the store, beside the running service.

    Args:
        directory: Directory for its store, profile and log.

    Raises:
        RuntimeError: It did not start; the text has its log.
    """

    def __init__(self, directory: Path) -> None:
        self._data, self._profile, self._log = directory / "data", directory / "profile.toml", directory / "log"
        self._applications = 0

    def __enter__(self) -> Self:
        environ = {name: value for name, value in os.environ.items() if not name.startswith("QUEUEY_")}
        options = {"data": self._data, "profile": self._profile, "port": 0, "workers": 1, "sync": "normal"}
        environ |= {f"QUEUEY_{name.upper()}": str(value) for name, value in options.items()}
        code = "import queuey.__main__, queuey.terminal.signals as s; s.stop_with_parent(0); queuey.__main__.main()"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                [sys.executable, "-c", code, "serve"],
                env=environ,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        with ExitStack() as failed:
            failed.push(self)
            if not self._process.stdout.readline():
                raise RuntimeError(f"queuey serve did not start: {self._log.read_text('utf-8', 'replace')}")
            self._url = read_profile(self._profile).url
            failed.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate(timeout=STOP_TIMEOUT)  # closes its standard input

    def make_application(self) -> RealService:
        self._applications += 1
        name, key = f"test-{self._applications}", token_hex(32)
        store = sqlite.open_store(self._data, options=sqlite.SqliteOptions(sync="normal", sweep_interval=None))
        try:
            bridge.run(store.applications.create_application(name))
            bridge.run(store.applications.add_key(name, sha256(key.encode()).digest(), note="for a test"))
        finally:
            store.close()
        return RealService(self._url, name, key, Client(self._url, key=key, application=name))
