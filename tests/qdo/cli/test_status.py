"""``qdo status``."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.commands import Run
from tests.qdo.cli.conftest import Group, ServiceGroup
from tests.servers.processes import ending
from tests.servers.served import Served, environment


def test_a_group_is_shown_without_the_service(
    run: Run, group: Group, queue: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the service cannot be reached everything but the lag is shown, with the reason."""
    group.record({group.partition(queue, 1): None, group.partition(queue, 2): "00000000000010008080808080808080"})
    monkeypatch.setenv("QUEUEY_PROFILE", "/nowhere/profile.toml")
    document = run("status", "--json").json
    assert (document["lag"], document["partitions"][0]["lag"]) == (None, None)
    assert "/nowhere/profile.toml" in document["lag_unknown"]
    ended = run("status")
    assert (ended.code, "/nowhere/profile.toml" in ended.err) == (0, True)
    assert run("status", "--no-lag").err == ""


def test_what_belongs_to_another_store_is_told_apart(run: Run, group: Group, queue: str) -> None:
    """Partitions of several stores are shown with their store, and a note says that the group uses another one, too."""
    offset = "00000000000010008080808080808080"
    partition = group.partition(queue, 1)
    elsewhere = partition._replace(queue=partition.queue._replace(service="f" * 32))
    group.record({partition: offset})
    alone = run("status")
    assert ("service" in alone.text.splitlines()[3], alone.err) == (False, "")
    group.record({elsewhere: offset})
    lines = run("status", "--json").json["partitions"]
    assert {(line["service"], line["lag"]) for line in lines} == {(group.store, 0), ("f" * 32, None)}
    both = run("status")
    assert both.text.count("f" * 32) == 1
    assert "f" * 32 in both.err


def test_watch_goes_on_until_interrupted(served: Served, service_group: ServiceGroup) -> None:
    """``--watch`` prints repeatedly; Ctrl-C ends it with 130 and without a traceback."""
    command = [sys.executable, "-m", "qdo", "status", "--json", "--watch", "0.1"]
    variables = {"QUEUEY_PROFILE": str(served.profile_path), **service_group.variables}
    with ending(
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment(**variables)
        )
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert [process.stdout.readline()[:10] for _ in range(2)] == ['{"group":"'] * 2
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert "Traceback" not in process.stderr.read()


def test_a_group_that_nobody_knows_is_told(run: Run, group: Group, queue: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown group is reported with code 1; a group without members or lag is known. A group must be named."""
    ended = run("status", "--group", "unheard-of")
    assert (ended.code, ended.text, "not known" in ended.err) == (1, "", True)
    assert run("status", "--group", "unheard-of", "--json").json["known"] is False
    group.record({group.partition(queue, 1): None})
    assert run("status").code == 0
    assert run("status", "--json").json["known"] is True
    monkeypatch.delenv("QDO_GROUP")
    ended = run("status")
    assert (ended.code, "--group" in ended.err) == (2, True)
