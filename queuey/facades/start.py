"""Steps of the service's start for the facades, in the parent process."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

from queuey.facades.settings import KEYLESS_FACADES, EmodbFacade, Facades, SqsFacade
from queuey.model.errors import ApplicationExists
from queuey.model.extras import require
from queuey.model.messages import Acknowledgement
from queuey.settings import Settings, is_loopback
from queuey.settings.extensions import ApplicationCreator
from queuey.terminal.output import BAD_ADDRESS, BAD_STORE, WRONG_USAGE, Failed, os_error_text

if TYPE_CHECKING:
    from queuey.facades.emodb.registration import Registration


def prepare_application(facades: Facades, store: str, applications: ApplicationCreator) -> None:
    from queuey.storage import bridge  # noqa: PLC0415 - only needed if it serves

    name = facades.app
    if facades.only is not None and store == "sqlite":
        with suppress(ApplicationExists):
            bridge.run(applications.create_application(name))
    # SQS serves the queues of the application that the access key belongs to.
    elif facades.prefixes().keys() - {"sqs"} and not bridge.run(applications.has_application(name)):
        option = f" --store {shlex.quote(store)}" if store != "sqlite" else ""
        command = f"queuey app create {shlex.quote(name)}{option}"
        raise Failed(f"the facades serve application {name!r}, which does not exist. Create it: {command}", WRONG_USAGE)


def make_notes(facades: Facades, settings: Settings, promise: Acknowledgement | None) -> list[str]:
    """Returns the lines about the facades that the service prints at its start. For SQS it may create the secret.

    Raises:
        Failed: MQ is to be served without the setting ``unsynced``, but the store answers before a message is on disk.
        SettingsError: SQS is to be served, but its secret or a library is missing.
    """
    prefixes = facades.prefixes()
    application = facades.app
    lines = [
        f"The facade {name} serves queues of {'each access key' if name == 'sqs' else application} at {prefix or '/'}."
        for name, prefix in prefixes.items()
    ]
    if "sqs" in prefixes:
        _check_sqs(facades.sqs, settings)
        lines.append(f"Its callers sign with access keys: queuey app key-add {application} --sqs")
    if facades.only == "emodb":
        lines.append(f"Its callers need a key of {application}: queuey app key-add {application}")
    if "mq" in prefixes and (promise is None or promise.level != "fsync"):
        means = "cannot be reached" if promise is None else promise.meaning
        if not facades.mq.unsynced:
            allow = "Change that, or allow it in the settings file: unsynced = true under [facades.mq]."
            raise Failed(f"MQ answers when a message is on a disk, but this store: {means}. {allow}", BAD_STORE)
        lines.append(f"MQ answers before a message is on a disk. The store: {means}.")
    if not is_loopback(settings.host) and (keyless := [name for name in KEYLESS_FACADES if name in prefixes]):
        lines.append(
            f"Everybody who reaches {settings.host} can use the facade {' and '.join(keyless)}: no key is needed."
        )
    return lines


@contextmanager
def serve_emodb_discovery(
    facades: Facades, settings: Settings, address: tuple[str, int]
) -> Iterator[Callable[[], object]]:
    """Serves EmoDB's health checks on the next port, and yields a function that registers in ZooKeeper.

    Does nothing if EmoDB is not served. The function does nothing if no ZooKeeper servers are set. The registration
    ends with the block.

    Raises:
        Failed: The next port cannot be opened, the address to register is missing, or ZooKeeper's driver is.
    """
    if "emodb" not in facades.prefixes():
        yield lambda: None
        return
    registration = _make_registration(facades.emodb, settings, address[1])
    _open_health_port(settings, address)
    if registration is None:
        yield lambda: None
        return
    with closing(registration):
        yield registration.start


def _check_sqs(sqs: SqsFacade, settings: Settings) -> None:
    from queuey.facades import protocols  # noqa: PLC0415 - only SQS needs them here
    from queuey.facades.sqs.access_keys import deployment_secret  # noqa: PLC0415 - as above

    protocols.load_facade_class("sqs")
    deployment_secret(sqs, settings, os.environ)


def _make_registration(emodb: EmodbFacade, settings: Settings, port: int) -> Registration | None:
    if emodb.zookeeper is None:
        return None
    host, _, number = (emodb.address or f"{settings.host}:{port}").rpartition(":")
    host = host.strip("[]")
    if host in {"0.0.0.0", "::"}:  # noqa: S104 - compared
        reason = f"facades.emodb.address is missing: clients cannot connect to {host}"
        raise Failed(reason, WRONG_USAGE)
    require("zookeeper", "facades.emodb.zookeeper", partial(Failed, exit_code=WRONG_USAGE))
    from queuey.facades.emodb.registration import Registration, make_emodb_nodes  # noqa: PLC0415 - an extra

    scheme = "http" if settings.tls_cert is None else "https"
    return Registration(emodb.zookeeper, make_emodb_nodes(emodb.cluster, host, int(number), scheme=scheme))


def _open_health_port(settings: Settings, address: tuple[str, int]) -> None:
    from queuey.facades.emodb.health_port import HealthPort  # noqa: PLC0415 - only for EmoDB's clients

    try:
        HealthPort(address[0], address[1] + 1, address, tls=settings.tls_cert is not None).start()
    except (OSError, OverflowError) as error:
        text = f"cannot listen on {settings.host}:{address[1] + 1}, where EmoDB's clients check the service's health"
        raise Failed(f"{text}: {os_error_text(error)}", BAD_ADDRESS) from error
