"""The Authenticator: credentials of several schemes in one header, and how long their identities are cached."""

from __future__ import annotations

import pytest

from queuey.access.authorization import MAX_CREDENTIALS, MAX_HEADER, MAX_PARTS, Authenticator
from queuey.access.credentials.readers import Identity
from queuey.model.errors import NotAuthenticated
from queuey.model.rights import ANYBODY, Caller, Grant
from queuey.storage import bridge
from tests.waiting import MovedClock


class Clock(MovedClock):
    """A clock moved by hand; its wall time is ahead."""

    def wall(self) -> float:
        return self.now + 1e9


class CountingReader:
    """Reads known credentials and refuses others; every read is counted, and takes a fixed time.

    Args:
        scheme: See the protocol.
        clock: Advanced by each read.
        max_cache_seconds: See the protocol.
        seconds: Duration of a read.
    """

    def __init__(self, scheme: str, clock: Clock, *, max_cache_seconds: float = 60.0, seconds: float = 0.0) -> None:
        self.scheme, self.max_cache_seconds = scheme, max_cache_seconds
        self.known: dict[str, Identity] = {}
        self.looks = 0
        self._clock, self._seconds = clock, seconds

    async def read(self, credential: str, now: float) -> Identity:
        self.looks += 1
        self._clock.now += self._seconds
        if credential not in self.known:
            raise NotAuthenticated("unknown")
        return self.known[credential]


def somebody(name: str, *grants: Grant, expires: float | None = None) -> Identity:
    return Identity(frozenset({name}), grants, name, expires)


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_credentials_add_up(clock: Clock) -> None:
    """The caller has the names and grants of all its credentials, and counts for one tenant in whatever order."""
    grant = Grant("shop", frozenset({"read"}))
    one, two = CountingReader("One", clock), CountingReader("Two", clock)
    one.known["x"], two.known["x y"] = somebody("app:b", grant), somebody("app:a", grant)
    authenticate = Authenticator([one, two], clock=clock, wall=clock.wall)
    expected = Caller(frozenset({"app:a", "app:b"}), (grant,), "app:a")
    assert bridge.run(authenticate("One x;Two x y")) == bridge.run(authenticate(" Two  x y ; One x")) == expected
    assert authenticate.known_tenant("One x;Two x y") == "app:a"


def test_what_no_reader_reads_is_nobody(clock: Clock) -> None:
    """Without a credential of a known scheme the caller is anonymous, and its header is not cached."""
    reader = CountingReader("One", clock)
    authenticate = Authenticator([reader], clock=clock, wall=clock.wall)
    for header in ("", "One", "One ", "one x", "OneTwo x", "Two x; Three", ";;"):
        assert bridge.run(authenticate(header)) is ANYBODY
        assert authenticate.known_tenant(header) is None
    assert reader.looks == 0


def test_too_many_are_not_looked_at(clock: Clock) -> None:
    """A header with too many credentials is refused before any of them is read."""
    reader = CountingReader("One", clock)
    reader.known["x"] = somebody("app:a")
    authenticate = Authenticator([reader], clock=clock, wall=clock.wall)
    with pytest.raises(NotAuthenticated, match="17, at most 16"):
        bridge.run(authenticate(";".join(["One x"] * (MAX_CREDENTIALS + 1))))
    assert reader.looks == 0
    assert bridge.run(authenticate(";".join(["One x"] * MAX_CREDENTIALS))).names == {"app:a"}
    for header in (";".join(["One x"] * (MAX_CREDENTIALS + 1)), "One x" + ";" * MAX_PARTS):
        assert authenticate.known_tenant(header) is None
        with pytest.raises(NotAuthenticated, match="Too many"):
            bridge.run(authenticate(header))
    assert bridge.run(authenticate("One x" + ";" * (MAX_PARTS - 1))).names == {"app:a"}


def test_a_header_that_is_too_long_is_not_looked_at(clock: Clock) -> None:
    """A header may have 20 KiB, credentials of other schemes included; a longer one is refused with the reason."""
    reader = CountingReader("One", clock)
    reader.known["x"] = somebody("app:a")
    authenticate = Authenticator([reader], clock=clock, wall=clock.wall)
    longest = "One x; Other " + "y" * (MAX_HEADER - 13)
    assert bridge.run(authenticate(longest)).names == {"app:a"}
    assert authenticate.known_tenant(longest) == "app:a"
    assert authenticate.known_tenant(longest + "y") is None
    with pytest.raises(NotAuthenticated, match="too long: 20481 characters, at most 20480"):
        bridge.run(authenticate(longest + "y"))


@pytest.mark.parametrize("x", ["x", "x" * 1000], ids=["short", "long"])
def test_one_caller_takes_one_place_in_memory(clock: Clock, x: str) -> None:
    """A caller's credentials are cached once however they are written, and evict no other caller's."""
    one, two = CountingReader("One", clock), CountingReader("Two", clock)
    one.known |= {x: somebody("app:a"), "victim": somebody("app:v")}
    two.known["y"] = somebody("app:b")
    authenticate = Authenticator([one, two], clock=clock, wall=clock.wall, max_cached=2)
    bridge.run(authenticate("One victim"))
    caller = bridge.run(authenticate(f"One {x}; Two y"))
    for number in range(10):
        blanks = " " * number
        for header in (f"One {blanks}{x};X {number};Two y", f"{';' * number}Two y;One {x};One {x}", f"Two y;One {x}"):
            assert (
                bridge.run(authenticate(header))
                is authenticate.cached_caller(header)
                is authenticate.known_caller(header)
                is caller
            )
    assert (one.looks, two.looks) == (2, 1)
    assert authenticate.cached_caller("One victim") is not None
    authenticate.forget(f"Two  y;  One {x};")
    assert authenticate.cached_caller(f"One {x}; Two y") is None
    assert authenticate.cached_caller("One victim") is not None


@pytest.mark.parametrize(
    ("max_cache_seconds", "left", "seconds", "expected"),
    [(60.0, None, 0.0, 60.0), (60.0, 7.0, 0.0, 7.0), (5.0, 7.0, 0.0, 5.0), (60.0, 7.0, 3.0, 7.0)],
)
def test_how_long_it_is_remembered(
    clock: Clock, max_cache_seconds: float, left: float | None, seconds: float, expected: float
) -> None:
    """No longer than the reader says, nor past the credential's end, which does not move while it is looked at."""
    one, other = (
        CountingReader("One", clock, max_cache_seconds=max_cache_seconds, seconds=seconds),
        CountingReader("Lasting", clock, max_cache_seconds=1e9),
    )
    began = clock.now
    one.known["x"] = somebody("a", expires=None if left is None else clock.wall() + left)
    other.known["y"] = somebody("b")
    authenticate = Authenticator([one, other], clock=clock, wall=clock.wall)
    header = "One x; Lasting y"
    caller = bridge.run(authenticate(header))
    assert authenticate.cached_caller(header) is caller
    clock.now = began + expected - 0.01
    assert authenticate.cached_caller(header) is caller
    clock.now = began + expected + 0.01
    assert authenticate.cached_caller(header) is None


def test_an_expired_credential_is_refused_and_forgotten(clock: Clock) -> None:
    """An expired credential is refused, whatever its reader says, and its header is dropped from the cache."""
    reader = CountingReader("One", clock)
    reader.known["x"] = somebody("a", expires=clock.wall() + 5)
    authenticate = Authenticator([reader], clock=clock, wall=clock.wall)
    bridge.run(authenticate("One x"))
    clock.now += 5
    with pytest.raises(NotAuthenticated, match="expired"):
        bridge.run(authenticate("One x"))
    assert authenticate.known_tenant("One x") is None


def test_who_makes_many_credentials_pushes_nobody_out(clock: Clock) -> None:
    """When the cache is full, the caller with the most headers loses its oldest, whichever caller needs the room."""
    one = CountingReader("One", clock)
    one.known |= {f"x{number}": somebody("greedy") for number in range(20)} | {name: somebody(name) for name in "abc"}
    authenticate = Authenticator([one], clock=clock, wall=clock.wall, max_cached=4)
    bridge.run(authenticate("One a"))
    for number in range(20):
        bridge.run(authenticate(f"One x{number}"))
    for name in "bc":
        bridge.run(authenticate(f"One {name}"))
    assert all(authenticate.cached_caller(f"One {name}") is not None for name in ("a", "b", "c", "x19"))
    assert len(authenticate._cache) == sum(map(len, authenticate._keys_by_caller.values())) == 4
