"""Options of coordination URLs."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdo.errors import InvalidArgument
from qdo.group.zookeeper.connection_options import ConnectionOptions, DigestLogin, SaslLogin, TlsOptions, parse


def test_hosts_and_chroot() -> None:
    """A URL may name several servers, with and without a port, and a chroot."""
    access = parse("zookeeper://one:2181,two,[::1]:2182/some/where/")
    assert access == ConnectionOptions("one:2181,two,[::1]:2182", "/some/where")
    assert access.servers == ("one:2181", "two", "[::1]:2182")
    assert parse("zookeeper://one").chroot == ""
    assert parse("zookeeper://one/").chroot == ""


def test_timeouts_and_order() -> None:
    """The session timeout comes from the caller, other options from the URL; explicit options win."""
    access = parse("zookeeper://h?connect_timeout=3.5&shuffle=no", session_timeout=4.0)
    assert (access.session_timeout, access.connect_timeout, access.shuffle) == (4.0, 3.5, False)
    assert parse("zookeeper://h?connect_timeout=3.5", connect_timeout=9).connect_timeout == 9.0


def test_logins(tmp_path: Path) -> None:
    """A login comes from the URL or a file, for ZooKeeper's own scheme or for SASL; nodes are private with one."""
    assert parse("zookeeper://me:p%40ss%3A@h").login == DigestLogin("me", "p@ss:")
    assert type(parse("zookeeper://me:pw@h?login=sasl").login) is SaslLogin
    file = tmp_path / "login"
    file.write_text("me:from:file\n")
    assert parse(f"zookeeper://h?login_file={file}").login == DigestLogin("me", "from:file")
    assert parse("zookeeper://h").login is None
    assert [
        parse(f"zookeeper://{rest}").nodes_are_private for rest in ("h", "u:p@h", "h?private=yes", "u:p@h?private=no")
    ] == [False, True, True, False]


def test_tls() -> None:
    """Encryption is on when requested, or when one of its options is set."""
    assert parse("zookeeper://h").tls is None
    assert parse("zookeeper://h?tls=yes").tls == TlsOptions()
    assert parse("zookeeper://h?ca=/c&cert=/d&key=/e&key_password=p&check_hostname=no").tls == TlsOptions(
        Path("/c"), Path("/d"), Path("/e"), "p", check_hostname=False
    )


@pytest.mark.parametrize(
    "url",
    [
        "zookeeper:",
        "zookeeper://",
        "zookeeper:///chroot",
        "zookeeper://h:port",
        "zookeeper://h:99999",
        "zookeeper://h:0",
        "zookeeper://h,",
        "zookeeper://h,,i",
        "zookeeper://h/a//b",
        "zookeeper://h/a/../b",
        "zookeeper://h/zookeeper",
        "zookeeper://h#x",
        "zookeeper://[",
        "zookeeper://h\n",
        "zookeeper://h/a\tb",
        "zookeeper://h/a%2Fb",
        "zookeeper://h?nothing=1",
        "zookeeper://h?shuffle=perhaps",
        "zookeeper://h?connect_timeout=soon",
        "zookeeper://h?connect_timeout=-1",
        "zookeeper://h?connect_timeout=inf",
        "zookeeper://user@h",
        "zookeeper://:password@h",
        "zookeeper://u:p@h?login=kerberos",
        "zookeeper://h?login_file=/nowhere/at/all",
        "zookeeper://h?tls=no&ca=/c",
        "zookeeper://h?tls=no&key_password=p",
    ],
)
def test_what_makes_no_sense_is_refused(url: str) -> None:
    """Wrong options are refused before a connection is made."""
    with pytest.raises(InvalidArgument):
        parse(url)


def test_passwords_are_not_shown() -> None:
    """The description of the access contains no secret, so it may be logged."""
    shown = repr(parse("zookeeper://me:s3cret@h?cert=/c&key_password=s3cret"))
    assert "s3cret" not in shown
    assert "me" in shown
