"""``queuey serve`` from nothing, and again on what it left."""

from __future__ import annotations

import json
import signal
import socket
import ssl
import stat
import urllib.request
from pathlib import Path

import pytest

from queuey.client import Client
from queuey.storage.sqlite import open_store
from queuey.storage.sqlite.connection import FILE
from tests.servers.served import Served, run_queuey

TLS = Path(__file__).parent / "tls"


def run_refused_start(*options: str) -> tuple[int, str]:
    ended = run_queuey("serve", *options)
    assert ended.stdout == ""
    (line,) = ended.stderr.splitlines()
    assert line.startswith("queuey: ")
    return ended.returncode, line


def test_first_start_needs_nothing(tmp_path: Path) -> None:
    """One command on an empty directory: a client with the written profile sends and reads at once."""
    with Served(tmp_path) as served:
        line = served.lines[0]
        for text in (f"http://127.0.0.1:{served.port}", str(served.data), str(served.profile_path), "fsync"):
            assert text in line
        assert stat.S_IMODE(served.profile_path.stat().st_mode) == 0o600
        assert served.profile.key not in served.output
        with served.client() as client:
            client.create_queue("first")
            receipt = client.send("first", "hello")
            assert [message.id for message in client.read("first").messages] == [receipt.id]
        assert served.end(signal.SIGTERM) == 0


def test_settings_reach_the_workers(tmp_path: Path) -> None:
    """A limit from a file and one from the environment hold over HTTP; logs are JSON where asked for."""
    config = tmp_path / "queuey.toml"
    config.write_text('max_body = 100\nlog_format = "json"\n')
    with Served(tmp_path, variables={"QUEUEY_CONFIG": str(config), "QUEUEY_MAX_BATCH_BYTES": "300"}) as served:
        with served.client() as client:
            client.create_queue("abc")
            client.send_many("abc", ["x" * 90])
            for call in (lambda: client.send("abc", "x" * 101), lambda: client.send_many("abc", ["x" * 90] * 4)):
                with pytest.raises(Exception, match="413"):
                    call()
        assert served.end(signal.SIGTERM) == 0
    logged = [json.loads(line) for line in served.lines if line.startswith("{")]
    assert logged
    assert all({"time", "level", "logger", "process", "message"} <= record.keys() for record in logged)


def test_environment_is_not_a_request(tmp_path: Path) -> None:
    """A variable that looks like a request header gives no caller a key."""
    with Served(tmp_path) as served:
        key = served.profile.key
        served.end(signal.SIGTERM)
    variables = {"HTTP_AUTHORIZATION": f"Application {key}"}
    with Served(tmp_path, variables=variables) as again, pytest.raises(urllib.error.HTTPError, match="403"):
        urllib.request.urlopen(f"http://127.0.0.1:{again.port}/v1/queuey", timeout=10)


def test_tls(tmp_path: Path) -> None:
    """With certificate and key the service serves https, and the profile says so."""
    options = ["--tls-cert", str(TLS / "cert.pem"), "--tls-key", str(TLS / "key.pem")]
    with Served(tmp_path, options) as served:
        profile = served.profile
        assert profile.url == f"https://127.0.0.1:{served.port}"
        trusted = ssl.create_default_context(cafile=TLS / "cert.pem")
        with Client(profile.url, key=profile.key, verify=trusted) as client:
            client.heartbeat()
        assert served.end(signal.SIGTERM) == 0


def test_port_taken() -> None:
    """A port in use is reported before anything is said to be up."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, line = run_refused_start("--port", str(taken.getsockname()[1]))
    assert code == 3
    assert "Address already in use. Another service may be running: stop it, or choose another port: --port" in line


def test_port_of_another_service(tmp_path: Path) -> None:
    """Two services never share a port, although their sockets would."""
    with Served(tmp_path) as served:
        code, line = run_refused_start("--port", str(served.port), "--data", str(tmp_path / "other"))
    assert (code, str(served.port) in line) == (3, True)
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_address_of_elsewhere(host: str) -> None:
    """An unknown host name, or one of another machine, is reported."""
    code, line = run_refused_start("--host", host, "--port", "0")
    assert (code, host in line) == (3, True)


def test_directory_that_cannot_be_used(tmp_path: Path) -> None:
    """Data where no directory can be made is reported with its path."""
    (tmp_path / "file").write_text("")
    code, line = run_refused_start("--port", "0", "--data", str(tmp_path / "file" / "data"))
    assert (code, str(tmp_path) in line) == (4, True)


def test_file_that_is_no_store(tmp_path: Path) -> None:
    """A file of something else is reported and left alone."""
    (tmp_path / FILE).write_text("something else, long enough to be looked at as a database " * 100)
    before = (tmp_path / FILE).read_bytes()
    code, line = run_refused_start("--port", "0", "--data", str(tmp_path))
    assert (code in {4, 5}, str(tmp_path) in line) == (True, True)
    assert (tmp_path / FILE).read_bytes() == before


def test_store_of_a_newer_version(tmp_path: Path) -> None:
    """A store that a newer version has written is refused with a code of its own, and is not touched."""
    import apsw  # noqa: PLC0415 - only this test writes to the file behind the store's back

    open_store(tmp_path).close()
    with apsw.Connection(str(tmp_path / FILE)) as connection:
        connection.pragma("user_version", 9999)
    connection.close()
    assert run_refused_start("--port", "0", "--data", str(tmp_path))[0] == 5


@pytest.mark.parametrize(
    ("cert", "key"),
    [("cert.pem", "missing.pem"), ("cert.pem", "other-key.pem"), ("key.pem", "key.pem"), ("../__init__.py", "key.pem")],
)
def test_tls_files_that_cannot_be_used(cert: str, key: str) -> None:
    """A missing file, a key of another certificate or no PEM at all stop the start."""
    assert run_refused_start("--port", "0", "--tls-cert", str(TLS / cert), "--tls-key", str(TLS / key))[0] == 6
