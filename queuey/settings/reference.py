"""The page of the documentation that lists the settings."""

from __future__ import annotations

import typing
from collections.abc import Iterable, Sequence

import msgspec

from queuey.settings.definitions import GROUPS
from queuey.settings.table import Setting, as_text, table
from queuey.settings.users import UserIssuer

_OFTEN = ("store", "data", "host", "port", "tls_cert", "tls_key", "workers", "max_body", "default_ttl", "log_format")
"""What people change, the most important first."""


def as_markdown() -> str:
    """Returns ``docs/settings.md``."""
    lines = {line.name: line for line in table()}
    groups = (f"### {group}\n\n{_table(lines[name] for name in names)}" for group, names in GROUPS.items())
    return _PAGE.format(
        ten=_table(lines[name] for name in _OFTEN),
        groups="\n\n".join(groups),
        level=_fields(lines["consistency.strong"]),
        catalogue=_fields(lines["consistency.catalogue"]),
        rates=_fields(lines["rates"]),
        facades=_fields(lines["facades"]),
        **{line.name.partition(".")[2]: _fields(line) for line in lines["facades"].fields if line.fields},
        users=_fields_of_users(),
    )


def _table(lines: Iterable[Setting]) -> str:
    return _drawn(
        ["name", "type", "default", "meaning"],
        ([f"`{line.name}`", line.type, line.default, line.help] for line in lines),
    )


def _fields(line: Setting) -> str:
    names = (field.name.removeprefix(f"{line.name}.") for field in line.fields)
    rows = ([f"`{name}`", field.type, field.help] for name, field in zip(names, line.fields, strict=True))
    return _drawn(["field", "type", "meaning"], rows)


def _fields_of_users() -> str:
    hints = typing.get_type_hints(UserIssuer, include_extras=True)
    rows = [
        [
            f"`{field.name}`",
            "needed"
            if field.required
            else f"`{as_text(field.default)}`"
            if isinstance(field.default, str | float)
            else "none",
            hints[field.name].__metadata__[-1].description,
        ]
        for field in msgspec.structs.fields(UserIssuer)
    ]
    return _drawn(["field", "default", "meaning"], rows)


def _drawn(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}"
    return "\n".join([head, *(f"| {' | '.join(row)} |" for row in rows)])


_PAGE = """\
# Settings

On this page you find what you can set, where, and what happens then. `queuey serve` works without any setting. These
are the ten that people change:

{ten}

A settings file with some of them, for `queuey serve --config queuey.toml`:

```toml
data = "/var/lib/queuey"
host = "0.0.0.0"
workers = 2
log_format = "json"
```

## Where a setting comes from

Each setting can be given in four places. The first place that has it wins:

1. the command line: `--max-body 65536`
2. the environment: `QUEUEY_MAX_BODY=65536` (an empty variable counts as not given)
3. a TOML file that `--config` or `QUEUEY_CONFIG` names: `max_body = 65536` (paths are relative to the file)
4. the default

`queuey settings` shows every value in force and where it comes from. The service does not start with an unknown name, a
value that does not fit or values that contradict each other. The message names the setting, its value and the place.

## All settings

{groups}

## Rates

Shares keep applications from disturbing each other and need no numbers. `rates` is for limits that you want to promise
or to sell, and for users whose programs run wild. It is a table, as the [consistency levels](#consistency-levels) are:

```toml
[rates]
application = 500
user = 5
user_burst = 20

[rates.applications.reports]
application = 2000
```

{rates}

Each worker process counts by itself, so a service of four workers lets up to four times as many through. Requests
without a credential, and those of monitors (`/__heartbeat__`, `/metrics`), are not counted. A long poll is one request.
What a user asks for counts for the user and for the application. A request with several credentials counts for each of
their applications; users and limited keys of other applications than the one it is about do not count.

If there are limits, every answer to a caller who has one says how many requests are left (`r`) and after how many
seconds all are there again (`t`):

```text sample
RateLimit-Policy: "user";q=20;w=4, "application";q=500;w=1
RateLimit: "user";r=13;t=2, "application";r=480;t=1
```

One too many gets 429 with `Retry-After`, before its body is read; nothing was done. The [Python
client](client.md#when-something-fails) waits for so long and tries again. The headers are those of
[draft-ietf-httpapi-ratelimit-headers-11](https://datatracker.ietf.org/doc/draft-ietf-httpapi-ratelimit-headers/).

## Stores

The service refuses to start if you give it a setting of the SQLite store and use Cassandra, or the other way round.
With Cassandra, `max_body` is at most 4 MiB, and you need the [extra](install.md#extras) `cassandra`.

A password is never a setting. A setting names the place of the password, and each process reads it there. Neither
`queuey settings` nor a log shows it.

```toml
store = "cassandra://10.0.0.1,10.0.0.2/queuey"
cassandra_user = "queuey"
cassandra_password = "file:/run/secrets/cassandra"
cassandra_tls_ca = "/etc/queuey/cassandra-ca.pem"
cassandra_local_dc = "berlin"
```

## Users

`users` says who the users of an application are and which queues are theirs; [users](users.md) explains it. It is one
setting: a table for each application, or a list of tables (`[[users.shop]]`) if an application trusts several issuers.
On the command line and in the environment it is written as JSON.

```toml
[users.shop]
issuer = "https://accounts.example.org"
audience = "queuey"
keys = "https://accounts.example.org/jwks.json"
queues = {{"inbox-{{user}}" = ["read", "delete"]}}
```

{users}

## Facades

`facades` lets clients of other systems use the service unchanged. A facade is served under a path beside the service's
own API, or alone, at `/`, on a port of its own: `queuey serve --facade mq --app shop --port 7070`. It is one setting; a
settings file has a table for each facade:

```toml
[facades]
app = "shop"

[facades.mq]
prefix = "/mq"
redelivery = 30
```

{facades}

Messages of MQ and RQMS have up to 4 MiB, whatever `max_body` is. A service on the same store that serves neither does
not expect them: its reads may need more memory than usual.

Fields of `facades.emodb` ([EmoDB](compat/emodb.md)):

{emodb}

Fields of `facades.mq` ([SoftLayer MQ](compat/mq.md)):

{mq}

Fields of `facades.rqms` ([RQMS](compat/rqms.md)):

{rqms}

## Consistency levels

With Cassandra, `consistency.weak`, `consistency.strong` and `consistency.very_strong` say what the three consistency
levels of queues mean, and `consistency.catalogue` how queues, applications, keys and offsets are changed and read. Each
of the four is one setting: a table. A field that you leave out keeps its default.

| place | how a table is written |
|---|---|
| command line | `--consistency-strong write=QUORUM,delay=8` |
| environment | `QUEUEY_CONSISTENCY_STRONG=write=QUORUM,delay=8` |
| TOML file | as below |

```toml
store = "cassandra://10.0.0.1,10.0.0.2/queuey"

[consistency.strong]
write = "QUORUM"
delay = 8

[consistency.catalogue]
write = "EACH_QUORUM"
read = "LOCAL_QUORUM"
```

If several places name the same table, each field has the value of the first place that names the field.

Fields of `consistency.weak`, `consistency.strong` and `consistency.very_strong`:

{level}

Fields of `consistency.catalogue`:

{catalogue}

A reader of a `strong` or `very_strong` queue that continues from its cursor misses no acknowledged message. That holds
only if

* the replicas that a write reaches and those that a read asks have one in common, as with `QUORUM` and `QUORUM`;
  `queuey doctor` compares the levels with the keyspace's replication;
* delay ≥ deadline + `cassandra_clock_difference`, or the service refuses to start;
* `cassandra_row_age` + `cassandra_clock_difference` ≤ delay, or the service refuses to start.

All services that share a keyspace must have the same values. If a queue has a `read_delay`, it takes the place of the
delay.
"""
