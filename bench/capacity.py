"""``python -m bench.capacity FILE…``: writes ``docs/measurements/capacity.md``: what a load needs, for a year and more.

A model: it multiplies what ``cassandra-costs`` has measured (the files are those of ``--json``) by a load that is
described in :class:`Load`. Nothing in it is measured at the sizes that it shows.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.measures.cassandra import costs
from bench.pages import Taken, read
from bench.results import table
from bench.started.processes import ROOT

MEASURE = "cassandra-costs"
PAGE = ROOT / "docs" / "measurements" / "capacity.md"
BEGIN, END = "<!-- the model -->", "<!-- end of the model -->"
DAY = 86_400
MESSAGES_A_DAY = (10**7, 10**8, 10**9)
ROW_BYTES = 54
"""Memory of a queue's row in a process of the service, in bytes (``memory``)."""


@dataclass(frozen=True)
class Load:
    """What users do.

    Attributes:
        messages: Posted in a day, one a request.
        queues: All that exist.
        streams: Live streams that are open at the peak.
        streamed: Share of the messages whose queue has a live stream.
        claimed: Share of the messages that are jobs: claimed and acknowledged one by one.
        reads: Reads of a queue for each message.
        kept: Days for which messages are kept.
        peak: Rate of the busiest hour, in multiples of the mean.
    """

    messages: float
    queues: float = 1e6
    streams: float = 1e5
    streamed: float = 0.2
    claimed: float = 0.1
    reads: float = 0.5
    kept: float = 3.0
    peak: float = 3.0


@dataclass(frozen=True)
class Cluster:
    """What it runs on.

    Attributes:
        nodes: Nodes of Cassandra, with three copies of each message.
        busy: Share of a processor that may be used at the peak.
        filled: Share of a disk that may hold data: the rest is for compaction.
    """

    nodes: int = 3
    busy: float = 0.5
    filled: float = 0.5


@dataclass(frozen=True)
class Costs:
    """CPU in seconds, of the service and of all nodes together; bytes.

    Attributes:
        post: Of one message.
        stream: Of one message, more if its queue has a live stream.
        claim: Of one message, claimed and acknowledged.
        read: Of one request.
        open_stream: Of a stream, each second.
        stream_memory: Of a stream, in the service.
        file: Of one message, in the files of all nodes together.
    """

    post: tuple[float, float]
    stream: tuple[float, float]
    claim: tuple[float, float]
    read: tuple[float, float]
    open_stream: tuple[float, float]
    stream_memory: float
    file: float

    @classmethod
    def measured(cls, taken: Taken) -> Costs:
        """Reads them from a report."""
        rows = {row.name: row for row in taken.report.rows}

        def cpu(name: str) -> tuple[float, float]:
            details = rows[name].details
            return details["server CPU us/message"] / 1e6, details["behind it us/message"] / 1e6

        post, streamed = cpu(costs.POST), cpu(costs.POST_TO_STREAM)
        return cls(
            post,
            (max(0.0, streamed[0] - post[0]), max(0.0, streamed[1] - post[1])),
            cpu(costs.CLAIM),
            cpu(costs.READ),
            (rows[costs.STREAM_SERVICE].median / 1e6, rows[costs.STREAM_NODES].median / 1e6),
            rows[costs.STREAM_MEMORY].median * 1e3,
            rows[costs.FILES].median,
        )


@dataclass(frozen=True)
class Need:
    """What a load needs.

    Attributes:
        rate: Messages a second at the peak.
        service: Processors of all machines of the service.
        node: Processors of each node.
        disk: Bytes of each node's disk.
        memory: Bytes of all processes of the service, one for each processor.
    """

    rate: float
    service: float
    node: float
    disk: float
    memory: float


def need(load: Load, cost: Costs, cluster: Cluster) -> Need:
    """Multiplies.

    >>> cost = Costs((1e-4, 2e-4), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0), 0.0, 1000.0)
    >>> found = need(Load(864e5, queues=0, streams=0, peak=2), cost, Cluster())
    >>> round(found.rate), round(found.service, 3), round(found.node, 3), round(found.disk / 1e9)
    (2000, 0.4, 0.267, 173)
    """
    rate = load.messages / DAY * load.peak

    def cpu(side: int) -> float:
        each = cost.post[side] + load.streamed * cost.stream[side] + load.claimed * cost.claim[side]
        return (rate * (each + load.reads * cost.read[side]) + load.streams * cost.open_stream[side]) / cluster.busy

    service = cpu(0)
    return Need(
        rate,
        service,
        cpu(1) / cluster.nodes,
        load.messages * load.kept * cost.file / cluster.nodes / cluster.filled,
        math.ceil(service) * load.queues * ROW_BYTES + load.streams * cost.stream_memory,
    )


def model(cost: Costs, facts: Mapping[str, str]) -> str:
    """Returns the tables of the page."""
    load, cluster = Load(0), Cluster()
    needs = {count: need(Load(count), cost, cluster) for count in MESSAGES_A_DAY}
    rows = [
        [
            f"{count:,}",
            f"{found.rate:,.0f}",
            f"{math.ceil(found.service):,}",
            f"{math.ceil(found.node):,}",
            size(found.disk),
            size(found.memory),
        ]
        for count, found in needs.items()
    ]
    head = ["messages a day", "a second, at the peak", "processors, service", "processors, each node"]
    described = (
        f"{load.queues:,.0f} queues; {load.streams:,.0f} live streams at the peak. The peak is {load.peak:g} times the "
        f"mean. {load.streamed:.0%} of the messages go to a queue with a live stream, {load.claimed:.0%} are claimed "
        f"and acknowledged one by one, and {load.reads:g} reads are made for each message. Messages have 200 B, are "
        f"posted one by one, and are kept for {load.kept:g} days. {cluster.nodes} nodes have {cluster.nodes} copies. "
        f"At the peak, processors are busy for {cluster.busy:.0%} of their time. Disks are filled to "
        f"{cluster.filled:.0%}."
    )
    sizes = (
        f"A message takes {size(cost.file)} in the files of all nodes. An idle live stream takes "
        f"{size(cost.stream_memory)} of memory."
    )
    parts = [
        f"Measured at commit `{facts['commit']}` ({facts['date']}, {facts['processor']}).",
        table([*head, "disk, each node", "memory, service"], rows),
        described,
        table(["what", "CPU, service", "CPU, all nodes"], [cost_row(name, pair) for name, pair in shown(cost)]),
        sizes,
    ]
    return "\n\n".join(parts)


def shown(cost: Costs) -> list[tuple[str, tuple[float, float]]]:
    """Returns the costs with their names."""
    return [
        ("post a message", cost.post),
        ("send it to a live stream, too", cost.stream),
        ("claim and acknowledge a message", cost.claim),
        ("read a queue", cost.read),
        ("keep a live stream open for a second", cost.open_stream),
    ]


def cost_row(name: str, pair: tuple[float, float]) -> list[str]:
    """Returns a line of the table of costs."""
    return [name, *(f"{seconds * 1e6:,.3g} µs" for seconds in pair)]


def size(count: float) -> str:
    """Writes bytes with a unit.

    >>> size(1234), size(2.5e12)
    ('1.2 kB', '2.5 TB')
    """
    units = ["B", "kB", "MB", "GB", "TB", "PB"]
    power = min(len(units) - 1, max(0, int(math.log10(max(count, 1)) // 3)))
    scaled = count / 1000**power
    return f"{scaled:,.0f} {units[power]}" if scaled >= 10 or not power else f"{scaled:.1f} {units[power]}"


def page(text: str, tables: str) -> str:
    """Returns the page with its tables replaced."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{rest.partition(END)[2]}"


def main(arguments: Sequence[str], path: Path = PAGE) -> None:
    """Writes the page."""
    taken = read([Path(name) for name in arguments])[MEASURE]
    path.write_text(page(path.read_text("utf-8"), model(Costs.measured(taken), taken.facts)), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
