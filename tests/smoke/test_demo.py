"""The demo's main path, which the README shows first."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.test_demo import WITHOUT_SPARK, accounts_for_the_parts, demo, make_run_args, nothing_left

DEMO_SECONDS = 170


def test_demo_without_spark(tmp_path: Path) -> None:
    """Without PySpark the demo succeeds, leaves that part out and prints how to get it."""
    with demo(tmp_path, *make_run_args(WITHOUT_SPARK)) as process:
        out, err = process.communicate(timeout=DEMO_SECONDS)
    assert (process.returncode, err) == (0, ""), out
    accounts_for_the_parts(out)
    assert "make demo SPARK=1" in out
    assert nothing_left(tmp_path)
