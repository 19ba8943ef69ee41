"""Names of users and of their queues: no two users share a name or a queue."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as some

from queuey.model.user_queues import MAX_TEXT_LENGTH, MAX_USER_NAME, check_pattern, may_overlap, queue_name, user_name
from queuey.queues.queues import queue_name_error
from queuey.runtime.limits import Limits

ISSUERS = ["https://accounts.example.org", "https://accounts.example.org/", "https://login.example.com/realms/shop"]
PATTERNS = ["inbox-{user}", "i{user}", "a.b_c{user}", "x" * MAX_TEXT_LENGTH + "{user}"]

tricky = some.text(alphabet="ab~.-_@/\\%{}*?=,: \n\x002e7dé\U0001f600", min_size=1, max_size=60)
users = some.one_of(tricky, some.text(some.characters(codec="utf-8"), min_size=1, max_size=MAX_USER_NAME))
issuers = some.sampled_from(ISSUERS)
mails = some.builds(
    "{}@{}".format,
    some.text("abZ09.!#$%&'*+/?^`{|}~-é", min_size=1, max_size=40),
    some.sampled_from(["example.org", "localhost", "mail.example.org", "d-e.example.co.uk"]),
)
names = some.one_of(some.builds(user_name, issuers, users), mails.map(lambda mail: f"bid:{mail}"))
patterns = some.sampled_from(PATTERNS)


def test_the_page_shows_what_happens() -> None:
    """docs/users.md has a table of names, its program runs, and its limits are these."""
    page = (Path(__file__).parents[2] / "docs" / "users.md").read_text()
    rows = re.findall(r"^\| (`https://.+?`|BrowserID) \| `(.+)` \| `(.+)` \| `(.+)` \|$", page, re.MULTILINE)
    assert len(rows) == 9
    for issuer, user, name, queue in rows:
        plain = user.replace("\\|", "|")
        assert name == (f"bid:{plain}" if issuer == "BrowserID" else user_name(issuer.strip("`"), plain))
        assert queue == queue_name("inbox-{user}", name)
    for program in re.findall(r"^```python\n(from queuey.model.user_queues .+?)^```$", page, re.MULTILINE | re.DOTALL):
        exec(program, {})
    assert f"A pattern is 1 to {MAX_TEXT_LENGTH} letters" in page
    assert f"a text of 1 to {MAX_USER_NAME} characters" in page


@given(one=some.tuples(issuers, users), other=some.tuples(issuers, users))
@example(one=(ISSUERS[0], "ann"), other=(ISSUERS[1], "ann"))
@example(one=(ISSUERS[0], "a/b"), other=(ISSUERS[0], "a~2fb"))
@example(one=(ISSUERS[0], "dead"), other=(ISSUERS[0], "~64ead"))
@example(one=(ISSUERS[0], "x" * 60), other=(ISSUERS[0], "x" * 61))
@example(one=(ISSUERS[0], "é"), other=(ISSUERS[0], "e\u0301"))
@example(one=(ISSUERS[0], "Ann"), other=(ISSUERS[0], "ann"))
def test_different_users_have_different_names(one: tuple[str, str], other: tuple[str, str]) -> None:
    """The name is made of the exact issuer and user text; case and normal forms count."""
    assert (user_name(*one) == user_name(*other)) == (one == other)


@given(one=names, other=names, pattern=patterns)
@example(one="bid:ann@example.org", other=user_name(ISSUERS[0], "ann@example.org"), pattern="inbox-{user}")
def test_different_users_have_different_queues(one: str, other: str, pattern: str) -> None:
    """No pattern gives two users one queue, whether they show tokens or prove mail addresses."""
    assert (queue_name(pattern, one) == queue_name(pattern, other)) == (one == other)


@given(one=names, other=names, few=some.lists(patterns, min_size=2, max_size=2, unique=True))
def test_different_patterns_have_different_queues(one: str, other: str, few: list[str]) -> None:
    """Patterns that may be configured together never overlap, for any users."""
    if not may_overlap(*few):
        assert queue_name(few[0], one) != queue_name(few[1], other)


@given(name=names, pattern=patterns)
@example(name=user_name(ISSUERS[0], "ann.dead"), pattern="inbox-{user}")
@example(name=user_name(ISSUERS[0], "dead"), pattern="inbox-{user}")
@example(name=user_name(ISSUERS[0], "../_info?x#y"), pattern="inbox-{user}")
@example(name=user_name(ISSUERS[0], "*"), pattern="inbox-{user}")
def test_a_name_stays_within_its_pattern(name: str, pattern: str) -> None:
    """The queue's name is valid, begins with the pattern's text, has no characters that paths, patterns and lists give
    a meaning to, leaves room for dead letters, and is never the queue of somebody's dead letters.
    """  # noqa: D205 - one sentence
    name_of_queue = queue_name(pattern, name)
    text = pattern.removesuffix("{user}")
    assert queue_name_error(name_of_queue, Limits().max_queue_name) is None
    assert queue_name_error(f"{name_of_queue}.dead", Limits().max_queue_name) is None
    assert re.fullmatch(rf"{re.escape(text)}[A-Za-z0-9._@~-]+", name_of_queue)
    assert not name_of_queue.endswith(".dead")


@given(issuer=issuers, user=users)
def test_a_name_can_be_a_principal(issuer: str, user: str) -> None:
    """The name has no separator of principals in it, and is no longer than a principal may be."""
    name = user_name(issuer, user)
    assert re.fullmatch(r"user:[A-Za-z0-9._@~-]+", name)
    assert len(name) <= 100


def test_names_stay_as_they_were() -> None:
    """Queues are found by these names for as long as they exist, so the names never change."""
    long = user_name(ISSUERS[0], "x" * 100)
    assert user_name(ISSUERS[0], "auth0|5f7c") == "user:nhabavi2.auth0~7c5f7c"
    assert queue_name("inbox-{user}", user_name(ISSUERS[0], "Größe.dead")) == "inbox-nhabavi2.Gr~c3~b6~c3~9fe~2edead"
    assert long == "user:~d6fg2ro47bzb3z3kgisuuwmcd3"
    assert queue_name("inbox-{user}", long) == "inbox-~d6fg2ro47bzb3z3kgisuuwmcd3"
    assert queue_name("inbox-{user}", f"bid:{'x' * 40}@example.org") == "inbox-~dw3zd6dejwppoqhq6pm6rgew2c"


@pytest.mark.parametrize("user", ["", "x" * (MAX_USER_NAME + 1), "\ud800", "a\udfffb"])
def test_what_is_no_users_name(user: str) -> None:
    """A name that is empty, too long or cannot be encoded is refused."""
    with pytest.raises(ValueError, match=r"The user's name has"):
        user_name(ISSUERS[0], user)


@pytest.mark.parametrize(
    "pattern",
    [
        *("", "{user}", "inbox", "inbox-", "{user}-inbox", "a{user}b", "a-{user}{user}", "_a{user}", ".{user}"),
        *("-{user}", "a/{user}", "a*{user}", "a~{user}", "ä{user}", "a {user}", "a{User}", "a{user}\n"),
        "a" * 19 + "{user}",
    ],
)
def test_what_is_no_pattern(pattern: str) -> None:
    """A pattern is plain text before the user, who comes last; any other pattern is refused, and named."""
    with pytest.raises(ValueError, match="such as inbox-") as caught:
        check_pattern(pattern)
    assert pattern in str(caught.value)
    with pytest.raises(ValueError, match="such as inbox-"):
        queue_name(pattern, "bid:ann@example.org")


@pytest.mark.parametrize("user", ["", "ann", "bid:", "bid:ann", "bid:a@b c", "app:shop", "user:", "user:a/b"])
def test_a_queue_needs_a_user(user: str) -> None:
    """Text without a user gets no queue, which nobody would read."""
    with pytest.raises(ValueError, match=r"neither bid:<mail address> nor"):
        queue_name("inbox-{user}", user)
