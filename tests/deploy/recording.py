"""Recorded scrapes as series, in the form in which promtool takes them."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client.parser import text_string_to_metric_families


def series(scrapes: Sequence[bytes], **labels: str) -> list[dict[str, str]]:
    """Returns what was recorded of one instance, one value a scrape; ``_`` where a series was not there.

    Args:
        scrapes: Expositions, the oldest first.
        labels: What Prometheus adds to each series, as ``job`` and ``instance``.
    """
    found: dict[str, list[str]] = {}
    for number, text in enumerate(scrapes):
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                inside = ", ".join(f'{name}="{value}"' for name, value in sorted((labels | sample.labels).items()))
                values = found.setdefault(f"{sample.name}{{{inside}}}", [])
                values += ["_"] * (number - len(values)) + [repr(sample.value)]
    return [{"series": name, "values": " ".join(values)} for name, values in found.items()]
