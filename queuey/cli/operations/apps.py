"""``queuey app``: manages applications and their keys directly in the store of ``--data`` or ``--store``.

Everybody who can write to the data directory, or to Cassandra's keyspace, may do this, without a key or a running
service. A running service applies a change within ten seconds. A key is shown once, when it is created: the store keeps
only its SHA-256.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from queuey.cli.operations.store_options import ConfiguredStore, on_store
from queuey.cli.profiles import read_key
from queuey.model import time_parsing
from queuey.model.errors import ApplicationExists, ApplicationNotFound, KeyNotFound
from queuey.model.messages import AUDITS, OPERATORS, Key
from queuey.model.texts import format_count
from queuey.storage import bridge
from queuey.terminal import output, times
from queuey.terminal.commands import make_group
from queuey.terminal.output import Yes

if TYPE_CHECKING:
    from queuey.model.messages import Scope
    from queuey.storage import Store

app = make_group()

Name = Annotated[str, typer.Argument(help="Name of the application.", show_default=False)]
Note = Annotated[str, typer.Option("--note", help="Purpose of the key, for people.")]
Expires = Annotated[
    float | None, times.duration("Lifetime of the key, such as 30d.", "--expires", show_default="never")
]
Allow = Annotated[
    str,
    typer.Option(
        "--allow",
        help="Rights of the key: some of send, read, delete, claim, admin, measure, separated by commas.",
        show_default="everything",
    ),
]
Queues = Annotated[
    str,
    typer.Option(
        "--queues",
        help="Queues of the key: names in which * stands for any text, separated by commas.",
        show_default="all",
    ),
]
Owner = Annotated[
    str, typer.Argument(help=f"Name of the application, or {OPERATORS} for operators' keys.", show_default=False)
]


@app.command("create")
@on_store
def create(store_at: ConfiguredStore, name: Name, note: Note = "", expires: Expires = None) -> None:
    """Create an application and its first key."""
    _require_valid_name(name)
    with store_at.open() as store:
        end = _expiry_time(expires)
        bridge.run(store.applications.create_application(name))
        _show_new(*_create_key(store, name, end, note))


@app.command("list")
@on_store
def list_applications(store_at: ConfiguredStore) -> None:
    """List the applications."""
    with store_at.open() as store:
        names = {
            name: len([key for key in bridge.run(store.applications.keys(name)) if not _is_expired(key)])
            for name in bridge.run(store.applications.application_names())
        }
    document = [{"application": name, "keys": count} for name, count in names.items()]
    output.show(document, [output.Table(["application", "keys"], [*names.items()])])


@app.command("keys")
@on_store
def keys(store_at: ConfiguredStore, name: Owner) -> None:
    """List the ids and limits of an application's keys, oldest first. The keys themselves are not stored."""
    with store_at.open() as store:
        _require_existing(store, name)
        keys = bridge.run(store.applications.keys(name))
    shown = output.table(Key, keys, "id", "created", ("expires", _expiry_text), *_LIMIT_COLUMNS, "note")
    output.show([_describe(key) for key in keys], [shown])


@app.command("key-add")
@on_store
def key_add(
    store_at: ConfiguredStore,
    name: Owner,
    allow: Allow = "",
    queues: Queues = "",
    note: Note = "",
    expires: Expires = None,
    sqs: Annotated[
        bool, typer.Option("--sqs", help="Create an access key for clients of Amazon SQS: an id and a secret.")
    ] = False,
) -> None:
    """Create a further key. The others do not change.

    --allow and --queues limit the key.
    """
    scope = _parse_scope(allow, queues)
    if name == OPERATORS and scope is not None:
        raise typer.BadParameter(
            f"a key of {OPERATORS} lists and measures the queues of all applications and cannot be limited",
            param_hint="--allow, --queues",
        )
    if name == OPERATORS and sqs:
        raise typer.BadParameter(f"{OPERATORS} has no queues of its own", param_hint="--sqs")
    with store_at.open() as store:
        _require_existing(store, name)
        if sqs:
            _add_access_key(store_at, store, name, _expiry_time(expires), note, scope)
            return
        _show_new(*_create_key(store, name, _expiry_time(expires), note, scope))


@app.command("rotate")
@on_store
def rotate(
    store_at: ConfiguredStore,
    name: Owner,
    grace: Annotated[
        float, times.duration("Time for which the old keys still work, such as 1h.", show_default="1d")
    ] = 86_400.0,
    key: Annotated[str | None, typer.Option(help="Replace only this key.", show_default="all")] = None,
    note: Note = "",
    expires: Annotated[
        float | None, times.duration("Lifetime of the new key, such as 30d.", show_default="as the old ones")
    ] = None,
) -> None:
    """Create a new key with the limits of the old ones, which expire after a grace period.

    The new key expires when the last of the old ones would have expired, or after --expires. If the profile of this
    user has one of the old keys, it gets the new one. Access keys of SQS do not change: create another one, and revoke
    the old one when no client uses it any more.
    """
    from queuey.cli.operations import first_start

    with store_at.open() as store:
        _require_existing(store, name)
        old = [
            old_key
            for old_key in bridge.run(store.applications.keys(name))
            if not _is_expired(old_key) and key in {None, old_key.id}
        ]
        old = [old_key for old_key in old if not _is_of_sqs(old_key)]
        if key is not None and not old:
            text = f"Application {name!r} has no valid key {key!r} to rotate. List its keys: queuey app keys {name}"
            raise KeyNotFound(key, text)
        scopes = {old_key.scope for old_key in old}
        if len(scopes) > 1:
            raise output.Failed(
                f"the keys of {name} have different limits, so one new key cannot replace all of them. "
                f"Rotate them one by one: queuey app rotate {name} --key {old[0].id}"
            )
        secret, new = _create_key(
            store, name, _last_end(old) if expires is None else _expiry_time(expires), note, *scopes
        )
        end = time.time() + grace
        for old_key in old:
            if old_key.id != new.id and (old_key.expires is None or old_key.expires > end):
                bridge.run(store.applications.expire_key(name, old_key.id, end))
    output.print_note(
        f"{format_count(len(old), 'older key expires', 'older keys expire')} in {time_parsing.format_duration(grace)}."
    )
    profile = first_start.replace_key(name, {old_key.id for old_key in old}, secret, store_at.settings.profile)
    if profile is not None:
        output.print_note(f"{profile} has the new key.")
    _show_new(secret, new)


@app.command("revoke")
@on_store
def revoke(
    store_at: ConfiguredStore,
    name: Owner,
    key: Annotated[str, typer.Argument(help="Id of the key, from queuey app keys.", show_default=False)],
    yes: Yes = False,
) -> None:
    """Revoke a key. It stops working now."""
    with store_at.open() as store:
        _require_existing(store, name)
        output.confirm(f"Revoke key {key} of {name}?", yes=yes)
        bridge.run(store.applications.revoke_key(name, key))
    output.show({"application": name, "revoked": key}, f"Key {key} of {name} is revoked.")


@app.command("key-import")
@on_store
def key_import(
    store_at: ConfiguredStore,
    name: Name,
    allow: Allow = "",
    queues: Queues = "",
    note: Note = "",
    expires: Expires = None,
) -> None:
    """Import an existing key from standard input. Creates the application if it does not exist."""
    from queuey.cli.operations import first_start

    _require_valid_name(name)
    scope = _parse_scope(allow, queues)
    secret = read_key()
    with store_at.open() as store:
        with suppress(ApplicationExists):
            bridge.run(store.applications.create_application(name))
        added = bridge.run(
            store.applications.add_key(
                name, first_start.hash_key(secret), expires=_expiry_time(expires), note=note, scope=scope
            )
        )
        if added.scope != scope:
            raise output.Failed(
                f"{name} already has this key, as {added.id}, with other limits, so nothing was changed. "
                f"To change them, revoke it first: queuey app revoke {name} {added.id}"
            )
    output.show(_describe(added), f"Key {added.id} now belongs to {name}.")


def _require_existing(store: Store, name: str) -> None:
    if name == AUDITS:
        raise typer.BadParameter(f"{AUDITS} has the audit logs of the console and cannot have keys")
    if name != OPERATORS and not bridge.run(store.applications.has_application(name)):
        raise ApplicationNotFound(name)


def _require_valid_name(name: str) -> None:
    from queuey.model.rights import owner_name, parse_principal

    try:
        usable = parse_principal(owner_name(name)).name == owner_name(name)
    except ValueError:
        usable = False
    if not usable:
        raise typer.BadParameter(f"{name!r} is not a valid application name: use letters, digits and . _ -")


def _parse_scope(allow: str, queues: str) -> Scope | None:
    from queuey.model.rights import parse_scope

    try:
        return parse_scope(allow.split(","), queues.split(","))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--allow, --queues") from error


def _create_key(
    store: Store, name: str, expires: float | None, note: str, scope: Scope | None = None
) -> tuple[str, Key]:
    from queuey.cli.operations import first_start

    secret = first_start.new_secret()
    return secret, bridge.run(
        store.applications.add_key(name, first_start.hash_key(secret), expires=expires, note=note, scope=scope)
    )


def _add_access_key(
    store_at: ConfiguredStore, store: Store, name: str, expires: float | None, note: str, scope: Scope | None
) -> None:
    try:
        from queuey.facades import FacadesExtension
        from queuey.facades.sqs import access_keys
    except ImportError as error:
        raise output.Failed(f"access keys need the facade of SQS, which is not installed ({error})") from error
    settings = store_at.settings
    deployment = access_keys.deployment_secret(settings.of(FacadesExtension).facades.sqs, settings, os.environ)
    access_key = access_keys.new_access_key()
    secret = access_keys.secret_of(deployment, access_key)
    note = f"{access_key} {note}".strip()
    key = bridge.run(
        store.applications.add_key(name, access_keys.digest_of(access_key), expires=expires, note=note, scope=scope)
    )
    own = {"access_key_id": access_key, "secret_access_key": secret}
    _show_pairs(key, _describe(key) | own, own, "The secret is not shown again: it is not stored.")


def _is_of_sqs(key: Key) -> bool:
    from queuey.model.rights import is_access_key

    return is_access_key(key.note.partition(" ")[0])


def _show_new(secret: str, key: Key) -> None:
    hashed = "The key is not shown again: the store keeps only its hash."
    _show_pairs(key, _describe(key) | {"secret": secret}, {"key": secret}, hashed)


def _show_pairs(key: Key, document: dict[str, Any], own: dict[str, str], remark: str) -> None:
    secrets = [(title.replace("_", " "), text) for title, text in own.items()]
    about = output.fields(key, ("expires", _expiry_text), *_LIMIT_COLUMNS).pairs
    shown = output.TitledValues([("application", key.application), ("key id", key.id), *secrets, *about])
    output.show(document, (shown, output.ToStderr(remark)))


def _describe(key: Key) -> dict[str, Any]:
    return {
        "application": key.application,
        "key": key.id,
        "created": key.created,
        "expires": key.expires,
        "note": key.note,
        "allow": None if key.scope is None else key.scope.allow,
        "queues": None if key.scope is None else key.scope.queues,
    }


def _describe_limits(key: Key) -> tuple[str, str]:
    if key.application == OPERATORS:
        return "measure", "of all applications"
    if key.scope is None:
        return "everything", "all"
    return ",".join(key.scope.allow), ",".join(key.scope.queues)


_LIMIT_COLUMNS = (("allow", lambda key: _describe_limits(key)[0]), ("queues", lambda key: _describe_limits(key)[1]))


def _is_expired(key: Key) -> bool:
    return key.expires is not None and key.expires <= time.time()


def _expiry_text(key: Key) -> str:
    if key.expires is None:
        return "never"
    return "over" if _is_expired(key) else time_parsing.format_instant(key.expires)


def _expiry_time(expires: float | None) -> float | None:
    return None if expires is None else time.time() + expires


def _last_end(keys: list[Key]) -> float | None:
    """Returns when the last of the keys expires, or None if one never does or there are no keys.

    Not the first expiry: a key that an earlier rotation replaced expires soon.
    """
    ends = [key.expires for key in keys if key.expires is not None]
    return max(ends) if ends and len(ends) == len(keys) else None
