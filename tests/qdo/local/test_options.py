"""From a URL to the settings of local coordination."""

from __future__ import annotations

from pathlib import Path

import pytest

from qdo.coordination import Coordinator
from qdo.coordination.local import LocalOptions, default_path
from qdo.coordination.local.database import parse_url
from qdo.coordination.opening import open_coordinator
from qdo.errors import InvalidArgument


def test_no_path_is_this_users_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Processes of one user that name nothing meet in one place."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert parse_url("local:") == parse_url("local://") == LocalOptions(default_path())
    assert default_path() == tmp_path / "qdo" / "coordination.sqlite3"


def test_a_url_names_the_file_and_what_it_does() -> None:
    """The path may hold any character; options win over what the URL says."""
    assert parse_url("local:///a%20b/%C3%A4.db?sync=full") == LocalOptions(Path("/a b/ä.db"), sync=True)
    assert parse_url("local:///a?sync=full", sync="normal", session_timeout=9) == LocalOptions(Path("/a"), 9)


@pytest.mark.parametrize(
    "url",
    [
        "local://host/path",
        "local:relative",
        "local:///a?sync=maybe",
        "local:///a?other=1",
        "local:///a#b",
        "local:///a\nb",
        "local:///a%2fb",
        "local:///a%00b",
        "local:///a?sync",
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    """What is not understood is not passed over."""
    with pytest.raises(InvalidArgument):
        parse_url(url)


@pytest.mark.parametrize("seconds", [0.0, -1.0, 0.1, float("nan")])
def test_a_session_has_a_length(seconds: float) -> None:
    """One that is too short for a busy machine is refused."""
    with pytest.raises(InvalidArgument):
        parse_url("local:", session_timeout=seconds)


def test_a_coordinator_is_opened_by_its_url() -> None:
    """The scheme says which service it is; what is none is refused, and so is a group without a name."""
    coordinator = open_coordinator("local:///a", "orders", session_timeout=7)
    assert isinstance(coordinator, Coordinator)
    assert (coordinator.group, coordinator.session_timeout) == ("orders", 7)
    for url in ("", "local", "/path", "redis://host", "file:///a"):
        with pytest.raises(InvalidArgument, match="local: or zookeeper:"):
            open_coordinator(url, "orders")
    with pytest.raises(InvalidArgument):
        open_coordinator("local:", "")
