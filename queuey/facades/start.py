"""What a start does with the facades, in the parent process of the service."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

from queuey.errors import ApplicationExists
from queuey.extras import install_command
from queuey.facades.settings import OPEN, EmodbFacade, Facades, SqsFacade
from queuey.messages import Acknowledgement
from queuey.settings import Settings, is_loopback
from queuey.settings.rooms import Applications
from queuey.terminal.output import BAD_ADDRESS, BAD_STORE, WRONG_USAGE, Failed, reason_of

if TYPE_CHECKING:
    from queuey.facades.emodb.registration import Registration


def prepare(facades: Facades, store: str, applications: Applications) -> None:
    """Makes the application of a facade that is alone on an embedded store, and requires that of others.

    Raises:
        Failed: It does not exist.
    """
    from queuey.storage import bridge  # noqa: PLC0415 - only needed if it serves

    name = facades.app
    if facades.only is not None and store == "sqlite":
        with suppress(ApplicationExists):
            bridge.run(applications.create_application(name))
    # SQS has queues of whichever application an access key belongs to.
    elif facades.prefixes().keys() - {"sqs"} and not bridge.run(applications.has_application(name)):
        at = f" --store {shlex.quote(store)}" if store != "sqlite" else ""
        make = f"queuey app create {shlex.quote(name)}{at}"
        raise Failed(f"the facades serve the application {name!r}, which does not exist: {make}", WRONG_USAGE)


def notes(facades: Facades, settings: Settings, promise: Acknowledgement | None) -> list[str]:
    """Returns what a start says about the facades.

    Raises:
        Failed: The store answers before a message is on a disk, and the facade of MQ is to be served.
        SettingsError: The facade of SQS is to be served, and has no secret, or a library is missing.
    """
    prefixes = facades.prefixes()
    application = facades.app
    said = [
        f"The facade {name} serves queues of {'each access key' if name == 'sqs' else application} at {at or '/'}."
        for name, at in prefixes.items()
    ]
    if "sqs" in prefixes:
        _check_sqs(facades.sqs, settings)
        said.append(f"Its callers sign with access keys: queuey app key-add {application} --sqs")
    if facades.only == "emodb":
        said.append(f"Its callers need a key of {application}: queuey app key-add {application}")
    if "mq" in prefixes and (promise is None or promise.level != "fsync"):
        means = "cannot be reached to say what it promises" if promise is None else promise.meaning
        if not facades.mq.unsynced:
            allow = "Change that, or allow it in the settings file: unsynced = true under [facades.mq]."
            raise Failed(f"MQ answers when a message is on a disk, but this store: {means}. {allow}", BAD_STORE)
        said.append(f"MQ answers before a message is on a disk. The store: {means}.")
    if not is_loopback(settings.host) and (unasked := [name for name in OPEN if name in prefixes]):
        said.append(
            f"Everybody who reaches {settings.host} can use the facade {' and '.join(unasked)}: no key is asked for."
        )
    return said


@contextmanager
def beside(facades: Facades, settings: Settings, address: tuple[str, int]) -> Iterator[Callable[[], object]]:
    """Registers the service in ZooKeeper, and serves health checks on the next port, if EmoDB's clients are served."""
    if "emodb" not in facades.prefixes():
        yield lambda: None
        return
    registration = _registration(facades.emodb, settings, address[1])
    _open_health_port(settings, address)
    if registration is None:
        yield lambda: None
        return
    with closing(registration):
        yield registration.start


def _check_sqs(sqs: SqsFacade, settings: Settings) -> None:
    from queuey.facades import protocols  # noqa: PLC0415 - only SQS needs them here
    from queuey.facades.sqs.access_keys import deployment_secret  # noqa: PLC0415 - as above

    protocols.kind_of("sqs")
    deployment_secret(sqs, settings, os.environ)


def _registration(emodb: EmodbFacade, settings: Settings, port: int) -> Registration | None:
    if emodb.zookeeper is None:
        return None
    host, _, number = (emodb.address or f"{settings.host}:{port}").rpartition(":")
    host = host.strip("[]")
    if host in {"0.0.0.0", "::"}:  # noqa: S104 - compared
        reason = f"facades.emodb.address is missing: {host} is no address that clients could be told"
        raise Failed(reason, WRONG_USAGE)
    try:
        from queuey.facades.emodb.registration import Registration, nodes_of_emodb  # noqa: PLC0415 - an extra
    except ImportError as error:
        reason = "facades.emodb.zookeeper needs ZooKeeper's driver, which is not installed. Install it"
        raise Failed(f"{reason}: {install_command('zookeeper')}", WRONG_USAGE) from error
    scheme = "http" if settings.tls_cert is None else "https"
    return Registration(emodb.zookeeper, nodes_of_emodb(emodb.cluster, host, int(number), scheme=scheme))


def _open_health_port(settings: Settings, address: tuple[str, int]) -> None:
    from queuey.facades.emodb.health_port import HealthPort  # noqa: PLC0415 - only for EmoDB's clients

    try:
        HealthPort(address[0], address[1] + 1, address, tls=settings.tls_cert is not None).start()
    except (OSError, OverflowError) as error:
        text = f"cannot listen on {settings.host}:{address[1] + 1}, where clients of EmoDB ask for its health"
        raise Failed(f"{text}: {reason_of(error)}", BAD_ADDRESS) from error
