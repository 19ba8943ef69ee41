"""Partitions to share out, and names that are easily confused."""

from __future__ import annotations

from qdo.partitions import Partition, Queue

QUEUE = Queue("queuey.example.org:5000", "acme", "orders")
OTHER_QUEUE = Queue("queuey.example.org:5000", "acme", "bills")
PARTITION = Partition(QUEUE, 1)

NAMES = ("a/b", "100%", "..", "zookeeper", "with space\tand tab\nand line", "größe-数量-🐇", "-" * 1000, "e\u0301")


def first_partitions(count: int, queue: Queue = QUEUE) -> list[Partition]:
    return [Partition(queue, number) for number in range(1, count + 1)]
