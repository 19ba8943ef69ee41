"""The page of the documentation that lists the settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from queuey.settings.table import Setting, table


def as_markdown() -> str:
    """Returns ``docs/settings.md``."""
    lines = {line.name: line for line in table()}
    return _PAGE.format(
        rows=_rows([line.name, line.type, line.default, line.help] for line in lines.values()),
        level=_fields(lines["consistency.strong"]),
        catalogue=_fields(lines["consistency.catalogue"]),
    )


def _fields(line: Setting) -> str:
    return _rows([field.name.removeprefix(f"{line.name}."), field.type, field.help] for field in line.fields)


def _rows(rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join([f'`{name}`', *cells])} |" for name, *cells in rows)


_PAGE = """\
# Settings

Each setting of `queuey serve` can be given in four places. The first that has it wins:

1. the command line: `--max-body 65536`
2. the environment: `QUEUEY_MAX_BODY=65536` (an empty variable counts as not given)
3. a TOML file that `--config` or `QUEUEY_CONFIG` names: `max_body = 65536` (paths in it are relative to it)
4. the default

Unknown names, values that do not fit and values that contradict each other refuse to start; the message
says where the value came from. `queuey settings` shows every value in force and its source.

| name | type | default | meaning |
|---|---|---|---|
{rows}

`threads`, `connections`, `memory` and `wait_slots` are per worker.

## Which store

`data`, `sync` and `readers` are of the SQLite store, everything that begins with `cassandra_` or
`consistency.` is of a Cassandra store. Given for the other one they refuse to start. With Cassandra, `max_body` is at
most 4 MiB, no directory is used, and the driver is needed: `pip install 'queuey[cassandra]'`.

A password is never a setting, only the name of the place that has it. Neither `queuey settings` nor a log shows it.

```toml
store = "cassandra://10.0.0.1,10.0.0.2/queuey"
cassandra_user = "queuey"
cassandra_password = "file:/run/secrets/cassandra"
cassandra_tls_ca = "/etc/queuey/cassandra-ca.pem"
cassandra_local_dc = "berlin"
```

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

| field | type | meaning |
|---|---|---|
{level}

Fields of `consistency.catalogue`:

| field | type | meaning |
|---|---|---|
{catalogue}

A reader of a `strong` or `very_strong` queue that continues from its cursor misses no acknowledged message. That holds
only if

* the replicas that a write reaches and those that a read asks have one in common, as with `QUORUM` and `QUORUM`;
  `queuey doctor` compares the levels with the keyspace's replication;
* delay ≥ deadline + `cassandra_clock_difference`, or the service refuses to start;
* `cassandra_row_age` + `cassandra_clock_difference` ≤ delay, or the service refuses to start.

All services that share a keyspace must have the same values. A queue's own `read_delay` takes the place of the delay.
"""
