"""The page of the documentation that lists the settings."""

from __future__ import annotations

from queuey.settings.table import table


def as_markdown() -> str:
    """Returns ``docs/settings.md``."""
    rows = "\n".join(
        f"| `{line.name}` | {line.type} | {line.default} | {line.help.replace('|', chr(92) + '|')} |"
        for line in table()
    )
    return _PAGE.format(rows=rows)


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

`data`, `sync`, `busy_timeout` and `readers` are of the SQLite store, everything that begins with `cassandra_` is of a
Cassandra store. Given for the other one they refuse to start. With Cassandra, `max_body` is at most 4 MiB, no
directory is used, and the driver is needed: `pip install 'queuey[cassandra]'`.

A password is never a setting, only the name of the place that has it. Neither `queuey settings` nor a log shows it.

```toml
store = "cassandra://10.0.0.1,10.0.0.2/queuey"
cassandra_user = "queuey"
cassandra_password = "file:/run/secrets/cassandra"
cassandra_tls_ca = "/etc/queuey/cassandra-ca.pem"
cassandra_local_dc = "berlin"
```

## What the consistency levels mean

A queue is `weak`, `strong` or `very_strong`; with Cassandra the settings say what that is: at which of Cassandra's
levels messages are written and read, how far range reads stay behind the clock (the delay), and how soon a write must
be done to be acknowledged (the deadline). A reader of a `strong` or `very_strong` queue who goes on from its cursor
misses no acknowledged message. That holds only if

* the replicas that a write reaches and those that a read asks have one in common, as with `QUORUM` and `QUORUM`;
  `queuey doctor` compares the levels with the keyspace's replication;
* delay ≥ deadline + `cassandra_clock_difference`, or the service refuses to start;
* `cassandra_row_age` + `cassandra_clock_difference` ≤ delay, or the service refuses to start.

All services that share a keyspace must have the same values. A queue's own `read_delay` takes the place of the delay.
"""
