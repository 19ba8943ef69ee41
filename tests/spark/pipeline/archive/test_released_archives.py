"""Archives that recorded versions wrote."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from queuey.model.ids import TICKS_PER_SECOND
from queuey.pipeline.archive import replay
from queuey.pipeline.options import ReplayOptions
from queuey.spark.options import Subscribe
from queuey.storage import bridge
from tests.backends import APP
from tests.releases import recording
from tests.releases.recording import folders
from tests.spark.kept import Kept, quiet

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slow
@pytest.mark.parametrize("folder", folders(), ids=[folder.name for folder in folders()])
def test_replay(folder: Path, spark: SparkSession, embedded: Kept, tmp_path: Path) -> None:
    """A replay of a version's archive gives the messages that the version archived."""
    with tarfile.open(folder / "archive.tar.gz") as packed:
        packed.extractall(tmp_path, filter="data")
    options = ReplayOptions(
        store=embedded.store_options, archive=str(tmp_path / "archive"), selection=Subscribe(("plain",))
    )
    replay.replay(spark, options, quiet)
    replayed = {
        (one.partition, *one.position): recording.plain(one.body)
        for one in embedded.all(bridge.run(embedded.store.catalogue.queue(APP, "plain")))
    }
    released = recording.read(folder)
    stored = [one for part in released.rows["plain"]["messages"] for one in part]
    due = [one for one in stored if one["ticks"] < released.clock + TICKS_PER_SECOND]
    assert replayed == {(one["partition"], one["ticks"], one["low"]): one["body"] for one in due}
