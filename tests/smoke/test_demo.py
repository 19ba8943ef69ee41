"""The demo's main path, which the README shows first."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.test_demo import WITHOUT_SPARK, check_parts_reported, demo, is_cleaned_up, make_run_args

DEMO_SECONDS = 170


def test_demo_without_spark(tmp_path: Path) -> None:
    """Without PySpark the demo succeeds, leaves that part out and prints how to get it."""
    with demo(tmp_path, *make_run_args(WITHOUT_SPARK)) as process:
        out, err = process.communicate(timeout=DEMO_SECONDS)
    assert (process.returncode, err) == (0, ""), out
    check_parts_reported(out)
    assert "make demo SPARK=1" in out
    assert is_cleaned_up(tmp_path)
