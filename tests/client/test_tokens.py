"""Tokens: where they come from, when another one is requested, and that they are sent nowhere else."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import pytest

from queuey.client import Client, InvalidArgument, NotAuthenticated, Profile, ProfileInvalid, Token, TokenError
from queuey.client.credentials.profile import read_profile, write_profile
from queuey.client.credentials.tokens import MAX_TOKEN_BYTES, KeptToken, TokenCommand, TokenFile, read_token
from tests.client.conftest import Connect
from tests.client.scripted import ONE, Script, async_client, ok, receipts, sync_client
from tests.waiting import MovedClock

SECRET = "tok3n-that-must-never-show"


def reply_unauthorized(*_: object) -> httpx2.Response:
    return httpx2.Response(401, json={"status": "error", "error_msg": {"InvalidApplicationKey": "no"}})


def accept_only(*accepted: str) -> Callable[[httpx2.Request], httpx2.Response]:
    def answer(request: httpx2.Request) -> httpx2.Response:
        token = request.headers["authorization"].removeprefix("Bearer ")
        return (
            (receipts() if request.method == "POST" else ok(queues=[])) if token in accepted else reply_unauthorized()
        )

    return answer


def make_token_source() -> Callable[[], str]:
    numbers = iter(range(1, 1000))
    return lambda: f"token-{next(numbers)}"


def sent_credentials(script: Script) -> list[str]:
    return [request.headers.get("authorization", "none") for request in script.requests]


@pytest.mark.parametrize(
    ("options", "header"), [({}, f"Bearer {SECRET}"), ({"scheme": "BrowserID"}, f"BrowserID {SECRET}")]
)
def test_a_token_goes_in_place_of_a_key(connect: Connect, options: dict[str, Any], header: str) -> None:
    """The header has the scheme and the token, whichever way it is given."""
    for token in (SECRET, f"{SECRET}\n", lambda: SECRET, lambda: Token(SECRET)):
        script = Script(ok(queues=[]))
        connect(script, token=token, **options).queue_page()
        assert sent_credentials(script) == [header]


def test_a_refused_token_is_asked_for_again_once(connect: Connect) -> None:
    """A 401 leads to one more token and one more attempt, also for a write; then it is the caller's."""
    script = Script(accept_only("token-2"))
    client = connect(script, token=make_token_source())
    client.send("orders", "body")
    assert sent_credentials(script) == ["Bearer token-1", "Bearer token-2"]
    client.send("orders", "body")
    assert sent_credentials(script)[2:] == ["Bearer token-2"]
    script = Script(reply_unauthorized)
    with pytest.raises(NotAuthenticated):
        connect(script, token=make_token_source()).queue_page()
    assert len(script.requests) == 2


def test_a_source_that_gives_the_same_token_again_is_not_tried_again(connect: Connect) -> None:
    """What was refused a moment ago would be refused again."""
    script = Script(reply_unauthorized)
    for token in (lambda: SECRET, SECRET):
        with pytest.raises(NotAuthenticated):
            connect(script, token=token).queue_page()
    assert len(script.requests) == 2


def test_an_async_source_is_awaited_by_the_async_client_and_refused_by_the_other() -> None:
    """A coroutine source needs the async client; the client for threads refuses it."""

    async def source() -> str:
        await asyncio.sleep(0)
        return SECRET

    async def run() -> None:
        for token in (source, lambda: asyncio.sleep(0, SECRET)):
            script = Script(ok(queues=[]))
            async with async_client(script, token=token) as client:
                await client.queue_page()
            assert sent_credentials(script) == [f"Bearer {SECRET}"]

    asyncio.run(run())
    with sync_client(Script(ok()), token=source) as client, pytest.raises(TokenError, match="use it with AsyncClient"):
        client.queue_page()


def test_threads_that_need_a_token_share_one_answer() -> None:
    """Ten threads at once, before the first token and after a 401, ask once each time."""
    together = threading.Barrier(11)
    released = threading.Event()
    requests_made = []

    def source() -> str:
        requests_made.append(1)
        assert released.wait(60)
        return f"token-{len(requests_made)}"

    def call(client: Client) -> None:
        together.wait(60)
        client.queue_page()

    for number in (1, 2):
        script = Script(accept_only(f"token-{number}"))
        requests_made.clear()
        released.clear()
        with sync_client(script, token=source) as client, ThreadPoolExecutor(10) as pool:
            calls = [pool.submit(call, client) for _ in range(10)]
            together.wait(60)
            time.sleep(0.1)  # Most threads now wait for the token; one that comes later finds it.
            released.set()
            assert [done.result(60) for done in calls] == [None] * 10
        assert len(requests_made) == number


def test_a_call_that_is_cancelled_does_not_wait_for_its_source() -> None:
    """A hanging source delays neither the end of the task that called it, nor the next call."""
    begun, released = threading.Event(), threading.Event()
    calls = []

    def source() -> str:
        calls.append(1)
        begun.set()
        if len(calls) == 1:
            assert released.wait(60)
        return SECRET

    async def run() -> None:
        script = Script(ok(queues=[]))
        async with async_client(script, token=source) as client:
            first = asyncio.create_task(client.queue_page())
            assert await asyncio.to_thread(begun.wait, 60)
            first.cancel()
            with pytest.raises(asyncio.CancelledError):
                await first
            assert not released.is_set()
            await client.queue_page()
            released.set()

    asyncio.run(run())
    assert len(calls) == 2


def test_two_credentials_are_refused_by_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has to guess which of two is used; arguments come before the environment."""
    with pytest.raises(InvalidArgument, match="key and token_file are both given"):
        Client(ONE, key="k", token_file="t")
    with pytest.raises(InvalidArgument, match="token and token_command are both given"):
        Client(ONE, token="t", token_command="t")
    with pytest.raises(InvalidArgument, match="scheme is 'Basic': it must be 'Bearer' or 'BrowserID'"):
        Client(ONE, token="t", scheme="Basic")  # type: ignore[arg-type]
    monkeypatch.setenv("QUEUEY_KEY", "k")
    monkeypatch.setenv("QUEUEY_TOKEN_FILE", "t")
    with pytest.raises(InvalidArgument, match="QUEUEY_KEY and QUEUEY_TOKEN_FILE are both given"):
        Client(ONE)
    Client(ONE, token="t").close()


@pytest.mark.parametrize("token", ["a b", "a\r\nX: y", "a;b", "schlüssel", "a\x00", "x" * (MAX_TOKEN_BYTES + 1)])
def test_a_token_that_no_header_can_carry_is_refused_unseen(token: str) -> None:
    """It is refused before it gets into a header, and not repeated, whichever way it comes."""
    with pytest.raises(InvalidArgument) as caught:
        Client(ONE, token=token)
    assert token not in str(caught.value)
    with sync_client(Script(ok()), token=lambda: token) as client, pytest.raises(TokenError) as failed:
        client.queue_page()
    assert token not in str(failed.value)


def test_what_a_source_does_wrong_is_named_and_nothing_of_it_is_shown(connect: Connect) -> None:
    """The error says which source it was and what happened; the secret in it stays there."""

    def broken() -> str:
        raise RuntimeError(f"refresh token {SECRET} was refused")

    def odd() -> Any:  # noqa: ANN401 - what it must not be
        return {"token": SECRET}

    script = Script(ok(queues=[]))
    for token, text in ((broken, r"broken raised RuntimeError$"), (odd, "odd returned dict: expected a text")):
        with pytest.raises(TokenError, match=text) as caught:
            connect(script, token=token).queue_page()
        assert SECRET not in str(caught.value)
    assert script.requests == []


def test_a_token_is_in_no_log_and_no_repr(connect: Connect, caplog: pytest.LogCaptureFixture) -> None:
    """Neither a client's repr nor its logs contain the token."""
    caplog.set_level(logging.DEBUG)
    client = connect(Script(reply_unauthorized), token=lambda: SECRET)
    with pytest.raises(NotAuthenticated) as caught:
        client.queue_page()
    assert SECRET not in f"{client!r}{caught.value!r}{Token(SECRET)!r}{caplog.text}"


@pytest.mark.parametrize("expires", [1600.0, datetime.fromtimestamp(1600, UTC)])
def test_a_token_is_replaced_before_its_known_end(expires: float | datetime) -> None:
    """Half a minute before its end a token is replaced; a source that fails then can retry until the end."""
    clock = MovedClock()
    kept = KeptToken("Bearer", clock)
    assert kept.is_due()
    kept.keep(Token("a", expires))
    clock.now = 1569
    assert not kept.is_due()
    clock.now = 1570
    assert kept.is_due()
    kept.record_failure(TokenError("away"))
    assert not kept.is_due()
    assert kept.result() == "Bearer a"  # bounded: the result of the last call
    clock.now = 1585  # half of what was left
    assert kept.is_due()
    kept.record_failure(TokenError("away"))
    assert not kept.is_due()
    clock.now = 1600
    assert kept.is_due()
    kept.record_failure(TokenError("away"))
    with pytest.raises(TokenError, match="away"):
        kept.result()  # bounded: the result of the last call
    kept.keep(Token("b", 1620.0))
    clock.now = 1609
    assert not kept.is_due()
    clock.now = 1610
    assert kept.is_due()


def test_the_end_of_a_jwt_is_known_and_other_tokens_have_none() -> None:
    """Without ``expires`` the claim says it; whatever cannot be read says nothing."""

    def jwt(claims: bytes) -> Token:
        return Token(f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.c2ln")

    assert jwt(b'{"sub": "ann", "exp": 1600}').end == 1600
    for claims in (b'{"exp": "soon"}', b"[" * 10000, b"\xff", b"{}"):
        assert jwt(claims).end is None
    assert Token("opaque").end is None


def test_a_wrong_clock_does_not_ask_for_a_token_at_each_call() -> None:
    """A token that has ended by this machine's clock is used until the server refuses it."""
    kept = KeptToken("Bearer", MovedClock())
    kept.keep(Token("a", 500.0))
    assert not kept.is_due()


@pytest.mark.parametrize(
    ("content", "token", "end"),
    [
        (b"abc\n", "abc", None),
        (b'{"token": "abc"}', "abc", None),
        (b'{"token": "abc", "expires": 1900000000, "more": [1]}', "abc", 1_900_000_000),
        (b'{"token": "abc", "expires": "2030-03-17T17:46:40Z"}\n', "abc", 1_900_000_000),
    ],
)
def test_files_and_commands_give_a_line_or_json(content: bytes, token: str, end: float | None) -> None:
    """Both forms are read, the end as seconds or as a date."""
    read = read_token(content, "token_file t")
    assert (read.token, read.end) == (token, end)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b" \n",
        b"two words",
        b"two\nlines",
        b'{"token": 5}',
        b'{"token": "s3cret"',
        b'{"token": "s3cret", "expires": "2030-03-17T17:46:40"}',
        b'{"token": "s3 cret"}',
        b"\xff\xfe",
        b'{"a":' * 100_000,
        b"x" * (MAX_TOKEN_BYTES + 1),
    ],
)
def test_what_is_no_token_is_refused_unseen(content: bytes) -> None:
    """The error names the source and shows nothing of its value."""
    with pytest.raises(TokenError, match=r"^token_file t ") as caught:
        read_token(content, "token_file t")
    assert "s3" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_file_is_read_again_when_it_has_changed(connect: Connect, tmp_path: Path) -> None:
    """A replaced file is noticed before the next call; one that is missing for a moment does no harm."""
    path = tmp_path / "token"
    path.write_text("first\n")
    script = Script(ok(queues=[]))
    client = connect(script, token_file=path)
    client.queue_page()
    beside = tmp_path / "beside"
    beside.write_text("second\n")
    beside.replace(path)
    client.queue_page()
    path.unlink()
    client.queue_page()
    assert sent_credentials(script) == ["Bearer first", "Bearer second", "Bearer second"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A missing file, a directory and a pipe without a writer are errors at once."""
    os.mkfifo(tmp_path / "pipe")
    for name, reason in (
        ("none", "cannot be read: No such file"),
        ("", "is a directory|not a regular"),
        ("pipe", "not a"),
    ):
        with pytest.raises(TokenError, match=f"(?i)token_file {tmp_path}.* {reason}"):
            TokenFile(tmp_path / name).ask()


@pytest.mark.needs_programs
def test_a_command_is_run_without_a_shell(connect: Connect, tmp_path: Path) -> None:
    """What it prints is the token; it is run again at a 401, and gets no input."""
    script = Script(accept_only("run-2"))
    runs = tmp_path / "runs"
    code = "import sys; f = open(sys.argv[1], 'a+'); f.write(sys.stdin.read() + '$'); print(f'run-{f.tell()}')"
    connect(script, token_command=[sys.executable, "-c", code, str(runs)]).queue_page()
    assert sent_credentials(script) == ["Bearer run-1", "Bearer run-2"]
    with pytest.raises(TokenError, match="token_command echo gave no token"):
        TokenCommand("echo '$HOME' `id`").ask()


@pytest.mark.needs_programs
def test_a_command_that_fails_hangs_or_floods_is_ended() -> None:
    """Time and output of the command are bounded; its children end with it, and its arguments are not shown."""
    with pytest.raises(TokenError, match=r"^token_command no-such-program cannot be run: No such file"):
        TokenCommand(["no-such-program", SECRET]).ask()
    with pytest.raises(TokenError, match=r"^token_command false failed with exit code 1: see its error output$"):
        TokenCommand("false").ask()
    with pytest.raises(TokenError, match="wrote more than 65,536 bytes"):
        TokenCommand("yes").ask()
    for late in ("exec sleep 600", "sleep 600 & echo abc", "exec >&-; sleep 600"):
        with pytest.raises(TokenError, match=r"^token_command sh gave no token within 0\.3 seconds$"):
            TokenCommand(["sh", "-c", late], seconds=0.3).ask()
    for words in ("", "  ", "'"):
        with pytest.raises(InvalidArgument, match="token_command"):
            TokenCommand(words)


def test_a_profile_may_name_a_token_file(tmp_path: Path) -> None:
    """Its token goes where its key would go, a relative path begins where the profile is, and it has one of both."""
    own = Profile(url="http://one.example:5000", application="acme", token_file="token")
    path = write_profile(own)
    assert read_profile() == own
    (path.parent / "token").write_text("of-the-profile")
    script = Script(ok(queues=[]))
    transport = httpx2.MockTransport(script)
    for url in (None, ONE, "http://two.example"):
        with Client(url, transport=transport) as client:
            client.queue_page()
    assert sent_credentials(script) == ["Bearer of-the-profile", "Bearer of-the-profile", "none"]
    with pytest.raises(ProfileInvalid, match="a key and a token_file"):
        Profile(url="http://h", application="a", key="k", token_file="t")
    with pytest.raises(ProfileInvalid, match="key is empty"):
        Profile(url="http://h", application="a")
