"""``queuey doctor``: whether a store can keep what it promises, as it is configured here.

Exit code 0 if nothing failed (warnings are no failure), 1 otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator

import typer

from queuey.cli.operations.store_options import READY_TIMEOUT, ConfiguredStore, be_quiet, on_store
from queuey.messages import Finding
from queuey.settings import Settings
from queuey.terminal import output


@on_store
def doctor(store_at: ConfiguredStore) -> None:
    """Check the store's health, configuration and durability."""
    from queuey.storage import opening

    be_quiet()
    findings = opening.examiner(store_at.settings)()
    # After a failed finding, opening the store would only repeat it.
    if all(finding.state != "fail" for finding in findings):
        findings.append(_try(store_at.settings))
    failed = any(finding.state == "fail" for finding in findings)
    found = {"store": store_at.settings.store, "ok": not failed, "findings": findings}
    output.show(found, _described(findings))
    if failed:
        raise typer.Exit(1)


def _try(settings: Settings) -> Finding:
    from queuey.errors import QueueyError
    from queuey.storage import opening
    from queuey.time_parsing import clock_warning

    try:
        store = opening.open_store(settings, jobs=False)
        try:
            opening.patiently(store.ping, READY_TIMEOUT)
            warning = clock_warning(store.ids_ahead())
        finally:
            store.close()
    except QueueyError as error:
        return Finding("store", "fail", str(error), "The service's heartbeat is red for the same reason.")
    return Finding("store", "warn" if warning else "ok", "can be written and read", warning or "")


def _described(findings: list[Finding]) -> Iterator[str]:
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        yield f"{finding.state:<4}  {finding.check:<{width}}  {finding.text}"
        if finding.advice:
            yield f"{'':<{width + 8}}{finding.advice}"
