"""Converts recorded scrapes to series in promtool's format."""

from __future__ import annotations

from collections.abc import Sequence

from prometheus_client.parser import text_string_to_metric_families


def series(scrapes: Sequence[bytes], **labels: str) -> list[dict[str, str]]:
    """Returns the series of one instance, one value a scrape; ``_`` where a series was missing.

    Args:
        scrapes: Expositions, the oldest first.
        labels: Labels that Prometheus adds to each series, as ``job`` and ``instance``.
    """
    points: dict[str, list[str]] = {}
    for number, text in enumerate(scrapes):
        for family in text_string_to_metric_families(text.decode()):
            for sample in family.samples:
                inside = ", ".join(f'{name}="{value}"' for name, value in sorted((labels | sample.labels).items()))
                values = points.setdefault(f"{sample.name}{{{inside}}}", [])
                values += ["_"] * (number - len(values)) + [repr(sample.value)]
    return [{"series": name, "values": " ".join(values)} for name, values in points.items()]
