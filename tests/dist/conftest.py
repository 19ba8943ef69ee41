"""The wheel and the sdist, built once."""

from __future__ import annotations

import pytest

from tests.dist.building import ROOT, Built, build


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """What ``make dist`` would build of the checkout."""
    return build(ROOT, tmp_path_factory.mktemp("dist"))
