"""``queuey serve`` at a terminal: the console that is served by default, and its link."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.servers.terminal import terminal


def test_the_link_of_a_terminal(tmp_path: Path) -> None:
    """With four workers one of many browsers is logged in by it, at whichever; no log has it."""
    with terminal(tmp_path, "--workers", "4", "--log-level", "debug") as served:
        first, link, how = served.wait_for_lines(3)
        assert first.startswith(f"Queuey serves at {served.url}: ")
        page, _, token = link.removeprefix("Console: ").rpartition("/")
        assert page == f"{served.url}/console/login/once"
        assert "start again, or log in with the key" in how
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(served.request_status, [f"/console/login/once/{token}"] * 24)) == {200}
            statuses = list(pool.map(served.submit_login, [token] * 12))
        assert sorted(statuses) == [303, *[403] * 11]
        for headers in ({"Host": "evil.example"}, {"Via": "1.1 x"}, {"Forwarded": "for=1"}, {"X-Forwarded-Host": "a"}):
            assert {served.request_status("/console/login", headers=headers) for _ in range(8)} == {404}
        served.process.terminate()
        assert served.process.wait(60) == 0
    assert token not in served.log.read_text()
    with terminal(tmp_path) as again:
        other = again.wait_for_lines(3)[1].rpartition("/")[2]
        assert (again.submit_login(token), again.submit_login(other)) == (403, 303)
