"""Measures the memory of the service at rest and after very many queues were used."""

from __future__ import annotations

from bench.harness import Bench, measure
from bench.load import generator as load
from bench.load import traffic
from bench.load.traffic import Job
from bench.results import Report, Row, Verdict
from bench.started import service
from bench.started.processes import Process


@measure("memory", "Memory of the service at rest, and its growth when very many queues are touched")
def measure_memory(bench: Bench) -> Report:
    """Reads every queue once and posts to every tenth. The queues exist before the service starts."""
    count = bench.count(1_000_000, 5_000)
    directory = bench.new_directory("memory")
    service.prepare(directory).close()
    service.fill_queues(directory, count)
    bench.print_progress(f"{count:,} queues are there")
    path = f"{service.BASE}/q{load.COUNTER.decode()}"
    with service.serve(directory) as server:
        traffic.run(server, traffic.gets([f"{service.BASE}/q0000000"]), seconds=1, count=100)
        parts = server.memory()
        rest = sum(parts)
        reads = send_each_number(server, Job([traffic.request("GET", path)], 200, numbered=count))
        after_reads = sum(server.memory())
        post = traffic.request("POST", path, traffic.bodies(1)[0], {"Content-Type": "text/plain"})
        posts = send_each_number(server, Job([post], 201, numbered=count // 10))
        after_posts = sum(server.memory())
    rows = [
        Row("at rest, all processes", [rest], "MB"),
        Row("at rest, the worker alone", parts[:1], "MB"),
        Row(f"after reading {count:,} queues", [after_reads], "MB", {"reads/s": reads.rate}),
        Row(f"after posting to {count // 10:,} more times", [after_posts], "MB", {"posts/s": posts.rate}),
    ]
    growth = max(after_reads, after_posts) - rest
    verdicts = [
        Verdict("at rest, all processes", [rest], "MB", goal=150, better="lower"),
        Verdict(f"growth over {count:,} queues", [growth], "MB", goal=100, better="lower"),
    ]
    return Report("memory", "", rows, verdicts, ["Proportional set size (PSS); 10^6 bytes to the MB."])


def send_each_number(server: Process, job: Job) -> traffic.Sample:
    return traffic.run(server, job, seconds=200, warm=0, count=job.numbered)
