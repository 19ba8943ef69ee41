"""Creates the application, its first key and the profile for clients at the first start of a service."""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Literal, NamedTuple
from urllib.parse import urlsplit

from queuey.client.credentials.profile import Profile, default_path, read_profile, write_profile
from queuey.client.errors import ProfileError, ProfileInvalid, ProfileNotFound
from queuey.model.errors import ApplicationExists
from queuey.settings import Settings
from queuey.storage import Store, bridge

APPLICATION = "queuey"

State = Literal["absent", "foreign", "ours"]
"""State of a profile: missing; of another server or unreadable; with a key that is valid for this store."""


class ProfileFile(NamedTuple):
    """A path for a profile. ``profile`` is set if the file is ours."""

    path: Path
    state: State
    profile: Profile | None = None


class ProfilePlan(NamedTuple):
    """What to do about the profile.

    Attributes:
        path: Path of the profile.
        profile: The profile whose key stays in use; None to create a key.
        write: Whether the file is written.
        notes: Lines for the user.
    """

    path: Path
    profile: Profile | None
    write: bool
    notes: tuple[str, ...] = ()


def plan_profile(
    main: ProfileFile, beside: ProfileFile, url: str, *, keys: int, answers: Callable[[str], bool]
) -> ProfilePlan:
    """Decides which profile a start uses, and whether it must be written.

    If either profile is ours and has the URL, it is used as it is. Otherwise one is written: the one beside the main
    one if the main one is foreign, or ours and a service answers at its URL, or absent and the one beside it is ours;
    else the main one. It gets the key of the main one, else its own, else a new one.

    Args:
        main: The profile at the path where clients read it.
        beside: The profile beside it, for this store only.
        url: The URL of the service.
        keys: Number of valid keys of the application.
        answers: Returns whether a service answers at a URL now.

    Raises:
        ProfileInvalid: Both profiles are foreign.
    """
    for file in (main, beside):
        if file.profile is not None and file.profile.url == url:
            return ProfilePlan(file.path, file.profile, write=False, notes=_make_usage_notes(file, main))
    if main.profile is not None and not answers(main.profile.url):
        moved = f"The profile now says {url} instead of {main.profile.url}."
        return ProfilePlan(main.path, main.profile, write=True, notes=(moved,))
    if main.profile is not None:
        return ProfilePlan(beside.path, main.profile, write=True, notes=_make_usage_notes(beside, main))
    target = main if main.state == "absent" and beside.profile is None else beside
    if target.state == "foreign":
        raise ProfileInvalid(f"neither {main.path} nor {beside.path} can be used; name another place with --profile")
    if target.profile is not None:
        return ProfilePlan(target.path, target.profile, write=True, notes=_make_usage_notes(target, main))
    lost = ("The store has keys, but no profile with one was found. A new key was created.",) if keys else ()
    return ProfilePlan(target.path, None, write=True, notes=(*lost, *_make_usage_notes(target, main)))


def prepare(store: Store, settings: Settings, url: str, *, answers: Callable[[str], bool]) -> ProfilePlan:
    """Creates the application, its key and the profile if they do not exist. Corrects the URL in a profile of ours.

    Returns:
        What was done, and the profile in use.

    Raises:
        ProfileError: The profile cannot be written, or others may read it.
    """
    with suppress(ApplicationExists):
        bridge.run(store.applications.create_application(APPLICATION))
    main = settings.profile or default_path()
    mark = sha256(str(settings.data.absolute()).encode()).hexdigest()[:8]
    beside = main.with_name(f"{main.stem}-{mark}{main.suffix}")
    now = time.time()
    valid = [
        key for key in bridge.run(store.applications.keys(APPLICATION)) if key.expires is None or key.expires > now
    ]
    made = plan_profile(
        _read_profile_file(store, main), _read_profile_file(store, beside), url, keys=len(valid), answers=answers
    )
    if not made.write:
        return made
    secret = made.profile.key if made.profile is not None else new_secret()
    profile = Profile(url=url, application=APPLICATION, key=secret)
    if made.profile is None:
        # Store the key first: a profile with a key that is in no store would look like another server's.
        bridge.run(store.applications.add_key(APPLICATION, hash_key(secret), note="made by queuey serve"))
    write_profile(profile, made.path)
    return made._replace(profile=profile)


def replace_key(application: str, old: set[str], secret: str, profile_path: Path | None) -> Path | None:
    """Puts a new key into the profile of this machine if it holds one of the old ones.

    Args:
        application: The application of the key.
        old: The ids of the keys that the new one replaces.
        secret: The new key.
        profile_path: The setting ``profile``.

    Returns:
        The profile's path, or None if the profile was not changed.
    """
    path = profile_path or default_path()
    try:
        profile = read_profile(path)
    except ProfileError:
        return None
    if profile.application != application or not hash_key(profile.key).hex().startswith(tuple(old)):
        return None
    return write_profile(Profile(url=profile.url, application=application, key=secret), path)


def new_secret() -> str:
    return secrets.token_hex(32)


def hash_key(secret: str) -> bytes:
    return sha256(secret.encode("ascii", "replace")).digest()


def _read_profile_file(store: Store, path: Path) -> ProfileFile:
    try:
        profile = read_profile(path)
    except ProfileNotFound:
        return ProfileFile(path, "absent")
    except ProfileInvalid:
        return ProfileFile(path, "foreign")
    key = bridge.run(store.applications.find_key(hash_key(profile.key)))
    valid = key is not None and (key.expires is None or key.expires > time.time())
    if key is None or not valid or (key.application, profile.application) != (APPLICATION, APPLICATION):
        return ProfileFile(path, "foreign")
    return ProfileFile(path, "ours", profile)


def _make_usage_notes(used: ProfileFile, main: ProfileFile) -> tuple[str, ...]:
    if used.path == main.path:
        return ()
    owner = urlsplit(main.profile.url).netloc if main.profile is not None else "another server"
    return (f"{main.path} is the profile of {owner}. To use this service: QUEUEY_PROFILE={used.path}",)
