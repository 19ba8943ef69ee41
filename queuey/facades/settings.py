"""The settings table ``facades``: the protocols of other systems that the service serves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import permutations
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from queuey.settings.setting_values import NUMBER

MAX_FACADE_BODY = 4 * 1024 * 1024
"""Max bytes of a message of MQ or RQMS and of a request of SQS; ``max_body`` does not lower it."""
KEYLESS_FACADES = ("mq", "rqms")
PREFIXED_FACADES = (*KEYLESS_FACADES, "sqs")

_OWN_PATHS = ("/v1/", "/docs/", "/metrics/", "/console/")
_ADDRESS = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s/:\[\]]+):[0-9]{1,5}")
_SERVERS = re.compile(r"[^\s/,]+(?:,[^\s/,]+)*(?:/[^\s/]+)*")
_CLUSTER = re.compile(r"[^\s/]*")
_HOSTS = re.compile(r"[^/:,]*")
_PATH = re.compile(r"(?:/[A-Za-z0-9~-][A-Za-z0-9._~-]*)+")


class MqFacade(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The facade of SoftLayer MQ.

    Attributes:
        prefix: Path of the facade beside the service's own API, such as `/mq`; unset: not served.
        redelivery: Seconds until a message that was fetched and not deleted is delivered again.
        unsynced: Serve on a store that answers before a message is on disk (fsync). `off`: do not start on it.
    """

    prefix: str | None = None
    redelivery: Annotated[float, Meta(ge=1, le=43_200, extra=NUMBER)] = 10.0
    unsynced: bool = False


class EmodbFacade(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The facade of EmoDB.

    Attributes:
        beside: Serve it under `/queue/1` and `/dedupq/1` beside the service's own API.
        zookeeper: ZooKeeper servers to register in, such as `zk1:2181,zk2:2181/emodb`; unset: none.
        cluster: Cluster that the Java clients look for: the first part of the registered names.
        address: Host and port to register, such as `queues.example.com:8080`; unset: the listening address.
    """

    beside: bool = False
    zookeeper: str | None = None
    cluster: str = "local_default"
    address: str | None = None


class RqmsFacade(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The facade of RQMS.

    Attributes:
        prefix: Path of the facade beside the service's own API, such as `/mq`; unset: not served.
    """

    prefix: str | None = None


class SqsFacade(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The facade of Amazon SQS.

    Attributes:
        prefix: Path of the facade beside the service's own API, such as `/mq`; unset: not served.
        secret: Place of the secret for access keys: `env:NAME` (a variable) or `file:PATH` (first line).
    """

    prefix: str | None = None
    secret: str | None = None


class Facades(msgspec.Struct, frozen=True, kw_only=True):
    """The facades that are served, and what they share.

    Attributes:
        only: Serve this facade alone, at `/`. `queuey serve --facade` sets it.
        app: The application whose queues the facades serve. `queuey serve --app` sets it.
        hosts: Host names by which clients of MQ and RQMS reach the service, separated by spaces.
        emodb (none): Only in a file: the facade of [EmoDB](compat/emodb.md).
        mq (none): Only in a file: the facade of [SoftLayer MQ](compat/mq.md).
        rqms (none): Only in a file: the facade of [RQMS](compat/rqms.md).
        sqs (none): Only in a file: the facade of [Amazon SQS](compat/sqs.md).
    """

    only: Literal["emodb", "mq", "rqms", "sqs"] | None = None
    app: Annotated[str, Meta(min_length=1, max_length=50)] = "queuey"
    hosts: str | None = None
    emodb: EmodbFacade = EmodbFacade()
    mq: MqFacade = MqFacade()
    rqms: RqmsFacade = RqmsFacade()
    sqs: SqsFacade = SqsFacade()

    def prefixes(self) -> dict[str, str]:
        """Returns the path prefix of each facade that is served; blank for one that is alone, and always for EmoDB.

        If ``only`` is set, all other facades are left out.
        """
        if self.only is not None:
            return {self.only: ""}
        fixed = {"emodb": ""} if self.emodb.beside else {}
        return fixed | {name: prefix for name in PREFIXED_FACADES if (prefix := getattr(self, name).prefix)}

    def longest_body(self, otherwise: int) -> int:
        """Returns the max bytes of a body that the service accepts, given the limit without facades.

        Only MQ, RQMS and SQS raise it, to :data:`MAX_FACADE_BODY`.
        """
        return max(otherwise, MAX_FACADE_BODY) if not self.prefixes().keys().isdisjoint(PREFIXED_FACADES) else otherwise

    def find_problems(self) -> Iterator[str]:
        """Yields the end of a sentence for each bad value, such as ``hosts 'a:1', which has to be …``.

        Path prefixes have no effect if ``only`` is set, so they are not checked then.
        """
        for name, pattern, like in (
            ("zookeeper", _SERVERS, "such as zk1:2181,zk2:2181/emodb"),
            ("cluster", _CLUSTER, "without white space or /"),
            ("address", _ADDRESS, "a host and a port such as queues.example.com:8080"),
        ):
            value = getattr(self.emodb, name)
            if value is not None and pattern.fullmatch(value) is None:
                yield f"emodb.{name} {value!r}, which has to be {like}"
        if self.sqs.secret is not None and not re.fullmatch("env:[A-Za-z_][A-Za-z0-9_]*|file:.+", self.sqs.secret):
            yield "sqs.secret, which has to be env:NAME or file:PATH: the name of the secret, not the secret"
        if self.hosts is not None and _HOSTS.fullmatch(self.hosts) is None:
            yield f"hosts {self.hosts!r}, which has to be names without ports, separated by spaces"
        paths = {name: path for name, path in self.prefixes().items() if name in PREFIXED_FACADES and self.only is None}
        for name, path in paths.items():
            if _PATH.fullmatch(path) is None or f"{path}/".startswith(_OWN_PATHS):
                yield f"{name}.prefix {path}, which is not a free path such as /{name}"
        for (name, path), (other, inner) in permutations(paths.items(), 2):
            if f"{inner}/".startswith(f"{path}/"):
                yield f"{other}.prefix {inner}, which lies in the path of {name}"
