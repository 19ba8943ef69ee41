"""The service without its extensions: the console, the facades and BrowserID are removed, folder and entry point."""

from __future__ import annotations

from contextlib import closing
from http.client import HTTPConnection
from importlib.metadata import distribution
from pathlib import Path
from shutil import copytree, ignore_patterns

import pytest

import queuey
from queuey.storage import bridge, sqlite
from tests.servers.served import Served, run_queuey

PACKAGE = Path(queuey.__file__).parent
EXTENSIONS = {"queuey.extensions": ("console", "facades"), "queuey.credentials": ("BrowserID",)}


@pytest.fixture(scope="module")
def variables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Returns variables for a Python that imports Queuey without extensions, and nothing from the current directory."""
    site = tmp_path_factory.mktemp("site")
    ignored = ignore_patterns("__pycache__", "browserid.py", "console", "facades")
    copytree(PACKAGE, site / "queuey", ignore=ignored)
    installed = distribution("queuey-store")
    kept = [entry for entry in installed.entry_points if entry.name not in EXTENSIONS.get(entry.group, ())]
    assert len(installed.entry_points) - len(kept) == 3
    metadata = site / f"queuey_store-{installed.version}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: queuey-store\nVersion: {installed.version}\n")
    lines = [f"[{entry.group}]\n{entry.name} = {entry.value}\n" for entry in kept if entry.group in EXTENSIONS]
    (metadata / "entry_points.txt").write_text("".join(lines))
    return {"PYTHONPATH": str(site), "PYTHONSAFEPATH": "1"}


def test_it_serves(tmp_path: Path, variables: dict[str, str]) -> None:
    """The service stores and returns a message and has its pages; the console's address is like any other."""
    with Served(tmp_path, variables=variables) as served:
        with served.client() as client:
            queue = client.create_queue().name
            client.send(queue, "text")
            assert [message.body for message in client.read(queue, wait=5.0).messages] == ["text"]
        connection = HTTPConnection("127.0.0.1", served.port, timeout=30)
        statuses = {}
        for path in ("/docs", "/v1/openapi.json", "/metrics", "/__heartbeat__", "/console", "/console/login"):
            connection.request("GET", path)
            answer = connection.getresponse()
            statuses[path] = answer.status
            answer.read()
        connection.close()
    assert statuses == dict.fromkeys(statuses, 404) | dict.fromkeys(
        ("/docs", "/v1/openapi.json", "/metrics", "/__heartbeat__"), 200
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("serve", "--facade", "mq"),
            "it belongs to the extension 'facades', which is not installed. Install queuey-store again",
        ),
        (("serve", "--console", "on"), "No such option: --console"),
        (("app", "key-add", "queuey", "--sqs"), "the facade of SQS, which is not installed"),
    ],
)
def test_it_says_what_is_missing(
    tmp_path: Path, variables: dict[str, str], arguments: tuple[str, ...], said: str
) -> None:
    """Settings and options of extensions are not known, and access keys need the facade of SQS."""
    with closing(sqlite.open_store(tmp_path)) as store:
        bridge.run(store.applications.create_application("queuey"))
    ended = run_queuey(*arguments, "--data", str(tmp_path), **variables)
    assert ended.returncode
    assert said in ended.stderr
