"""The wheel and the sdist, built once."""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest

from tests.dist.building import ROOT, Built, build


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """What ``make dist`` would build from the checkout."""
    return build(ROOT, tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def checkout(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A replacement of a checkout after ``make dist``: the unpacked sdist, with the wheel where pages expect it."""
    directory = tmp_path_factory.mktemp("checkout")
    with tarfile.open(built.sdist) as sdist:
        sdist.extractall(directory, filter="data")
    (tree,) = directory.iterdir()
    (tree / "dist").mkdir()
    for place in (tree, tree / "dist"):
        shutil.copy(built.wheel, place)
    return tree
