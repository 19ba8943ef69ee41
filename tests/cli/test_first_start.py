"""How a start creates application, key and profile."""

from __future__ import annotations

import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from queuey.cli.operations import first_start
from queuey.cli.operations.first_start import ProfileFile, ProfilePlan, plan_profile, prepare
from queuey.client import Client
from queuey.client.credentials.profile import Profile, read_profile, write_profile
from queuey.client.errors import ProfileInvalid
from queuey.settings import Settings
from queuey.storage import Store, bridge
from queuey.storage.sqlite import open_store
from tests.servers.processes import ending
from tests.servers.served import START_SECONDS, environment, free_port

HERE = "http://127.0.0.1:5000"
THERE = "http://127.0.0.1:6000"
OUR_PROFILE = Profile(url=HERE, application="queuey", key="k")
MOVED_PROFILE = Profile(url=THERE, application="queuey", key="k")
MAIN, SECOND_PROFILE = Path("profile.toml"), Path("profile-1.toml")


def make_profile_file(path: Path, what: Profile | str) -> ProfileFile:
    return ProfileFile(path, "ours", what) if isinstance(what, Profile) else ProfileFile(path, what)  # type: ignore[arg-type]


PLANS: dict[str, tuple[Profile | str, Profile | str, bool, Path, bool, bool]] = {
    "first start": ("absent", "absent", False, MAIN, True, True),
    "nothing to do": (OUR_PROFILE, "absent", False, MAIN, False, False),
    "moved to another port": (MOVED_PROFILE, "absent", False, MAIN, True, False),
    "a second service on the same store": (MOVED_PROFILE, "absent", True, SECOND_PROFILE, True, False),
    "the second service again": (MOVED_PROFILE, OUR_PROFILE, True, SECOND_PROFILE, False, False),
    "another server's profile": ("foreign", "absent", False, SECOND_PROFILE, True, True),
    "another server's profile, again": ("foreign", OUR_PROFILE, False, SECOND_PROFILE, False, False),
    "the second service, moved and alone": ("absent", MOVED_PROFILE, False, SECOND_PROFILE, True, False),
    "another server's profile, moved": ("foreign", MOVED_PROFILE, False, SECOND_PROFILE, True, False),
}
"""What is found: the profile, the one beside it, whether it answers there; what is planned: path, write, new key."""


def plan(main: Profile | str, beside: Profile | str, *, keys: int = 0, there: bool = False) -> ProfilePlan:
    files = make_profile_file(MAIN, main), make_profile_file(SECOND_PROFILE, beside)
    return plan_profile(*files, HERE, keys=keys, answers=lambda url: there)


@pytest.mark.parametrize("name", PLANS)
def test_which_profile_is_used(name: str) -> None:
    """A working profile is kept, another server's never changed, and a key created only where none can be found."""
    main, beside, there, path, write, new_key = PLANS[name]
    made = plan(main, beside, there=there)
    assert (made.path, made.write, made.profile is None) == (path, write, new_key)
    assert bool(made.notes) == (path == SECOND_PROFILE or main == MOVED_PROFILE)


def test_a_lost_profile_is_mentioned() -> None:
    """Making a further key because no profile was found is never done in silence."""
    assert "new key" in " ".join(plan("absent", "absent", keys=1).notes)


def test_two_foreign_profiles_are_an_error() -> None:
    """The start fails and says what to do, rather than overwriting a key that may be the only one."""
    with pytest.raises(ProfileInvalid, match="--profile"):
        plan("foreign", "foreign")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    """Returns settings with everything in a directory of the test."""
    return Settings(data=tmp_path / "data", profile=tmp_path / "conf" / "profile.toml")


@pytest.fixture
def opened(settings: Settings) -> Iterator[Store]:
    store = open_store(settings.data)
    yield store
    store.close()


def start(store: Store, settings: Settings, url: str = HERE) -> ProfilePlan:
    return prepare(store, settings, url, answers=lambda url: False)


def test_first_start_makes_everything(opened: Store, settings: Settings) -> None:
    """Application, one key and a private profile with that key exist after the first start."""
    made = start(opened, settings)
    profile = read_profile(settings.profile)
    assert made.profile == profile
    assert (profile.url, profile.application, len(bytes.fromhex(profile.key))) == (HERE, "queuey", 32)
    assert stat.S_IMODE(made.path.stat().st_mode) == 0o600
    key = bridge.run(opened.applications.find_key(first_start.hash_key(profile.key)))
    assert key is not None
    assert key.application == "queuey"


@pytest.mark.parametrize("how", ["lost", "expired", "revoked"])
def test_unusable_key_is_replaced(opened: Store, settings: Settings, how: str) -> None:
    """Without a working key at hand a start makes a new one; an old profile is left where it is."""
    made = start(opened, settings)
    assert made.profile is not None
    (key,) = bridge.run(opened.applications.keys("queuey"))
    if how == "lost":
        made.path.unlink()
    elif how == "expired":
        bridge.run(opened.applications.expire_key("queuey", key.id, time.time() - 1))
    else:
        bridge.run(opened.applications.revoke_key("queuey", key.id))
    again = start(opened, settings)
    assert again.profile is not None
    assert again.profile.key != made.profile.key
    assert bridge.run(opened.applications.find_key(first_start.hash_key(again.profile.key))) is not None
    assert (again.path == made.path) == (how == "lost")
    assert again.notes


@pytest.mark.parametrize("content", ['url = "http://x"\napplication = "queuey"\nkey = "theirs"\n', "no TOML", ""])
def test_foreign_profile_survives(opened: Store, settings: Settings, content: str) -> None:
    """A profile whose key this store does not know stays byte for byte; ours goes beside it and is found again."""
    assert settings.profile is not None
    settings.profile.parent.mkdir()
    settings.profile.write_text(content)
    settings.profile.chmod(0o600)
    made, again = start(opened, settings), start(opened, settings)
    assert settings.profile.read_text() == content
    assert made.path != settings.profile
    assert str(made.path) in made.notes[-1]
    assert (again.path, again.profile) == (made.path, made.profile)


def test_foreign_application_is_not_ours(opened: Store, settings: Settings) -> None:
    """A profile of another application on the same store is not used as the service's own."""
    bridge.run(opened.applications.create_application("other"))
    bridge.run(opened.applications.add_key("other", first_start.hash_key("theirs")))
    write_profile(Profile(url=HERE, application="other", key="theirs"), settings.profile)
    assert start(opened, settings).path != settings.profile


@pytest.mark.needs_programs
def test_the_profile_is_there_before_the_port(tmp_path: Path) -> None:
    """A program that waits for the port and then opens the profile reaches the service at once."""
    port, profile = free_port(), tmp_path / "profile.toml"
    command = [sys.executable, "-m", "queuey", "serve", "--port", str(port), "--data", str(tmp_path / "data")]
    process = subprocess.Popen([*command, "--profile", str(profile)], stdout=subprocess.DEVNULL, env=environment())
    with ending(process):
        until = time.monotonic() + START_SECONDS
        while True:
            with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=60):
                written = read_profile(profile)
                break
            assert time.monotonic() < until
        with Client(written.url, key=written.key, application=written.application) as client:
            assert list(client.queue_names()) == []
