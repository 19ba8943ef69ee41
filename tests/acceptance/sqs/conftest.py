"""A service with the facade of SQS on each store, and an access key for it."""

from __future__ import annotations

import json
import secrets
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.acceptance.facades.calls import write_settings_file
from tests.servers import keyspaces
from tests.servers.served import Served, run_queuey

HERE = Path(__file__).parent
REGION = "eu-west-1"
OTHER_CLIENTS = {"test_celery.py", "test_other_clients.py"}


class Sqs(NamedTuple):
    """The facade's address, and its credentials.

    Attributes:
        url: URL of the endpoint, without a path.
        access_key, secret: Credentials of the application ``queuey``.
        served: The process.
        store: Options with which commands open the store.
    """

    url: str
    access_key: str
    secret: str
    served: Served
    store: list[str]


def command(*arguments: str) -> str:
    done = run_queuey(*arguments)
    assert done.returncode == 0, done.stderr
    return done.stdout


def new_key(store: list[str], *options: str) -> tuple[str, str]:
    made = json.loads(command("app", "key-add", "queuey", "--sqs", "--json", *options, *store))
    return made["access_key_id"], made["secret_access_key"]


def store_options(kind: str, directory: Path, request: pytest.FixtureRequest) -> list[str]:
    if kind == "sqlite":
        return ["--data", str(directory / "data")]
    (directory / "sqs.secret").write_text(secrets.token_hex(32))
    settings = write_settings_file(directory, f'[facades.sqs]\nsecret = "file:{directory / "sqs.secret"}"\n')
    return [*settings, "--store", keyspaces.make(request.getfixturevalue("cassandra"))]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks all clients but boto3 slow on Cassandra, where the facade only stores what it translates."""
    for item in items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        if item.path.parent == HERE and item.path.name in OTHER_CLIENTS and parameters.get("sqs") == "cassandra":
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="package", params=["sqlite", "cassandra"])
def sqs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sqs]:
    """The facade on each store in turn. The service must log nothing that looks like a defect."""
    directory = tmp_path_factory.mktemp("sqs")
    store = store_options(request.param, directory, request)
    if request.param == "cassandra":
        command("app", "create", "queuey", *store)
    with Served(directory, ["--facade", "sqs", *store]) as served:
        yield Sqs(f"http://localhost:{served.port}", *new_key(store), served, store)
        assert "Traceback" not in served.output


@pytest.fixture
def queue() -> str:
    return f"q{uuid.uuid4().hex[:12]}"
