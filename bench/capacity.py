"""The command ``python -m bench.capacity FILE…`` computes the hardware for a load: ``docs/measurements/capacity.md``.

The model multiplies the costs that ``cassandra-costs`` measured (read from its ``--json`` files) by the load that
:class:`Load` describes. The large sizes themselves are not measured.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.measures.cassandra import costs
from bench.pages import MeasuredReport, read_reports
from bench.results import format_number, format_table
from bench.started.processes import ROOT

MEASURE = "cassandra-costs"
PAGE = ROOT / "docs" / "measurements" / "capacity.md"
BEGIN, END = "<!-- the model -->", "<!-- end of the model -->"
DAY = 86_400
MESSAGES_A_DAY = (10**7, 10**8, 10**9)
ROW_BYTES = 54
"""Memory per queue in one service process, in bytes, as the measure ``memory`` found it."""


@dataclass(frozen=True)
class Load:
    """The users' load.

    Attributes:
        messages: Messages posted per day, one per request.
        queues: Number of queues.
        streams: Live streams that are open at the peak.
        streamed: Share of the messages whose queue has a live stream.
        claimed: Share of the messages that are claimed and acknowledged one by one.
        reads: Read requests per posted message.
        kept: Retention of messages, in days.
        peak: Rate of the busiest hour, as a multiple of the mean rate.
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
    """The hardware limits of the cluster.

    Attributes:
        nodes: Cassandra nodes, with three copies of each message.
        busy: Max CPU utilization at the peak, from 0 to 1.
        filled: Max share of a disk that holds data; compaction needs the rest.
    """

    nodes: int = 3
    busy: float = 0.5
    filled: float = 0.5


@dataclass(frozen=True)
class Costs:
    """Costs per operation: CPU seconds as a pair (service, all nodes together), and bytes.

    Attributes:
        post: CPU of posting one message.
        stream: Additional CPU of one message whose queue has a live stream.
        claim: CPU of claiming and acknowledging one message.
        read: CPU of one read request.
        open_stream: CPU of one open stream, per second.
        stream_memory: Memory of one stream in the service, in bytes.
        file: Bytes of one message in the files of all nodes together.
    """

    post: tuple[float, float]
    stream: tuple[float, float]
    claim: tuple[float, float]
    read: tuple[float, float]
    open_stream: tuple[float, float]
    stream_memory: float
    file: float

    @classmethod
    def from_report(cls, taken: MeasuredReport) -> Costs:
        """Reads the costs from the report's rows. A stream's message costs what exceeds a post, at least 0."""
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
    """The hardware that a load needs.

    Attributes:
        rate: Messages per second at the peak.
        service: CPU cores of the service, on all machines together.
        node: CPU cores of each Cassandra node.
        disk: Disk of each node, in bytes.
        memory: Memory of all service processes together (one process per core), in bytes.
    """

    rate: float
    service: float
    node: float
    disk: float
    memory: float


def compute_need(load: Load, cost: Costs, cluster: Cluster) -> Need:
    """Computes the hardware that a load needs at these costs.

    >>> cost = Costs((1e-4, 2e-4), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0), (0.0, 0.0), 0.0, 1000.0)
    >>> needed = compute_need(Load(864e5, queues=0, streams=0, peak=2), cost, Cluster())
    >>> round(needed.rate), round(needed.service, 3), round(needed.node, 3), round(needed.disk / 1e9)
    (2000, 0.4, 0.267, 173)
    """
    rate = load.messages / DAY * load.peak

    def cpu(side: int) -> float:
        message = cost.post[side] + load.streamed * cost.stream[side] + load.claimed * cost.claim[side]
        return (rate * (message + load.reads * cost.read[side]) + load.streams * cost.open_stream[side]) / cluster.busy

    service = cpu(0)
    return Need(
        rate,
        service,
        cpu(1) / cluster.nodes,
        load.messages * load.kept * cost.file / cluster.nodes / cluster.filled,
        math.ceil(service) * load.queues * ROW_BYTES + load.streams * cost.stream_memory,
    )


def make_tables(cost: Costs, facts: Mapping[str, str]) -> str:
    load, cluster = Load(0), Cluster()
    needs = {count: compute_need(Load(count), cost, cluster) for count in MESSAGES_A_DAY}
    rows = [
        [
            f"{count:,}",
            f"{needed.rate:,.0f}",
            f"{math.ceil(needed.service):,}",
            f"{math.ceil(needed.node):,}",
            format_bytes(needed.disk),
            format_bytes(needed.memory),
        ]
        for count, needed in needs.items()
    ]
    columns = ["messages a day", "a second, at the peak", "processors, service", "processors, each node"]
    load_text = (
        f"{load.queues:,.0f} queues; {load.streams:,.0f} live streams at the peak. The peak is {load.peak:g} times the "
        f"mean. {load.streamed:.0%} of the messages go to a queue with a live stream, {load.claimed:.0%} are claimed "
        f"and acknowledged one by one, and {load.reads:g} reads are made for each message. Messages have 200 B, are "
        f"posted one by one, and are kept for {load.kept:g} days. {cluster.nodes} nodes have {cluster.nodes} copies. "
        f"At the peak, processors are busy for {cluster.busy:.0%} of their time. Disks are filled to "
        f"{cluster.filled:.0%}."
    )
    size_text = (
        f"A message takes {format_bytes(cost.file)} in the files of all nodes. An idle live stream takes "
        f"{format_bytes(cost.stream_memory)} of memory."
    )
    parts = [
        f"Measured at commit `{facts['commit']}` ({facts['date']}, {facts['processor']}).",
        format_table([*columns, "disk, each node", "memory, service"], rows),
        load_text,
        format_table(
            ["what", "CPU, service", "CPU, all nodes"], [cost_row(name, pair) for name, pair in cost_rows(cost)]
        ),
        size_text,
    ]
    return "\n\n".join(parts)


def cost_rows(cost: Costs) -> list[tuple[str, tuple[float, float]]]:
    return [
        ("post a message", cost.post),
        ("send it to a live stream, too", cost.stream),
        ("claim and acknowledge a message", cost.claim),
        ("read a queue", cost.read),
        ("keep a live stream open for a second", cost.open_stream),
    ]


def cost_row(name: str, pair: tuple[float, float]) -> list[str]:
    return [name, *(f"{format_number(seconds * 1e6)} µs" for seconds in pair)]


def format_bytes(count: float) -> str:
    """Formats a number of bytes with a unit.

    >>> format_bytes(1234), format_bytes(2.5e12)
    ('1.2 kB', '2.5 TB')
    """
    units = ["B", "kB", "MB", "GB", "TB", "PB"]
    power = min(len(units) - 1, max(0, int(math.log10(max(count, 1)) // 3)))
    scaled = count / 1000**power
    return f"{scaled:,.0f} {units[power]}" if scaled >= 10 or not power else f"{scaled:.1f} {units[power]}"


def insert_tables(text: str, tables: str) -> str:
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{tables}\n\n{END}{rest.partition(END)[2]}"


def main(arguments: Sequence[str], path: Path = PAGE) -> None:
    taken = read_reports([Path(name) for name in arguments])[MEASURE]
    path.write_text(insert_tables(path.read_text("utf-8"), make_tables(Costs.from_report(taken), taken.facts)), "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
