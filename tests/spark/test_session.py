"""Spark sessions as commands start them."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from queuey.spark import register
from queuey.spark.errors import SparkMissing
from queuey.spark.session import find_java_home, session
from tests.replacing import replace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LISTENING = "0A"


def test_a_session(spark: SparkSession) -> None:
    """A session shows times in UTC wherever it runs, has no web server, and its tasks run in its own Python."""
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.uiWebUrl is None
    seen = spark.sparkContext.parallelize(range(2), 2).map(lambda _: sys.executable).collect()
    assert {Path(one).resolve() for one in seen} == {Path(sys.executable).resolve()}


def test_registering_again(spark: SparkSession) -> None:
    """The format can be registered any number of times."""
    register(spark)
    register(spark)
    assert spark.read.format("queuey").options(subscribe="a").load().columns[:2] == ["value", "queue"]


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's tables of sockets")
def test_nobody_else_reaches_it(spark: SparkSession) -> None:
    """A local session listens on loopback addresses only."""
    from pyspark import SparkContext  # noqa: PLC0415 - needs a session

    gateway = SparkContext._gateway
    assert gateway is not None
    addresses = listening_addresses(gateway.proc.pid)
    assert addresses
    assert [address for address in addresses if not address.is_loopback] == []


def listening_addresses(pid: int) -> list[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    links = []
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed meanwhile
            links.append(str(entry.readlink()))
    own = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    addresses = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == LISTENING and inode in own:
                addresses.append(address_of(local.partition(":")[0]))
    return addresses


def address_of(digits: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parses an address of the kernel's tables: words of 32 bits in the machine's order."""
    words = (bytes.fromhex(digits[n : n + 8]) for n in range(0, len(digits), 8))
    packed = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    address = ipaddress.ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def test_older_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    """An older PySpark is refused with the version that is needed."""
    monkeypatch.setattr("pyspark.__version__", "4.1.1")
    with pytest.raises(SparkMissing, match=r"PySpark 4\.1\.1 is too old: queues need 4\.2 or later"):
        register(cast("SparkSession", None))


def test_without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Java no session is started, and the environment stays as it was."""

    def missing() -> Path:
        raise SparkMissing("no Java")

    monkeypatch.setenv("JAVA_HOME", "/somewhere")
    with replace(find_java_home, missing), pytest.raises(SparkMissing, match="no Java"):
        session()
    assert os.environ["JAVA_HOME"] == "/somewhere"
