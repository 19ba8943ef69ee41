"""Requests that fit the published OpenAPI document, and those that just do not, get answers that it promises."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case

from queuey.access.credentials.readers import digest_of
from queuey.app.version_1 import document
from queuey.model.messages import OPERATORS
from queuey.storage import bridge
from queuey.storage.sqlite import open_store
from tests.acceptance.fuzzing.operations import Target
from tests.servers.served import Served

LABELS = [
    f"{method.upper()} {path}"
    for path, entries in document()["paths"].items()
    for method in entries
    if not path.endswith("/_stream")  # Its answers do not end: see tests/messages/test_streams.py.
]
FEW_EXAMPLES = settings(
    max_examples=7,
    derandomize=True,
    database=None,
    deadline=None,
    # A failing example is shown as it is: shrinking it takes longer than the run.
    phases=[Phase.generate],
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
OPERATOR = "an operator's key"
MANY_EXAMPLES = settings(FEW_EXAMPLES, max_examples=150, derandomize=False, print_blob=True)
how_many = pytest.mark.parametrize(
    "how", [pytest.param(FEW_EXAMPLES, id="few"), pytest.param(MANY_EXAMPLES, id="many", marks=pytest.mark.slow)]
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A service that logs no defect."""
    with Served(tmp_path_factory.mktemp("fuzzed"), ["--max-wait", "0.05"]) as running:
        store = open_store(running.data)
        bridge.run(store.applications.add_key(OPERATORS, digest_of(OPERATOR)))
        store.close()
        yield running
        assert "Traceback" not in running.output


@pytest.fixture
def target(served: Served) -> Iterator[Target]:
    """The service, with the keys of its application and of an operator."""
    keys = f"{served.profile.key}; Application {OPERATOR}"
    running = Target(served.profile.url, served.profile.application, keys)
    yield running
    running.close()


def fuzz(target: Target, how: settings, label: str) -> Counter[int]:
    statuses: Counter[int] = Counter()

    @how
    @given(target.cases(label), st.data())
    def play(case: Case[Any], data: st.DataObject) -> None:
        target.renew()
        statuses[target.play(case, data).status_code] += 1

    play()
    return statuses


def fuzz_sequences(target: Target, how: settings) -> Counter[int]:
    statuses: Counter[int] = Counter()
    any_case = st.sampled_from(LABELS).flatmap(target.cases)

    @how
    @given(st.lists(any_case, min_size=4, max_size=8), st.data())
    def play(cases: list[Case[Any]], data: st.DataObject) -> None:
        target.renew()
        statuses.update(target.play(case, data).status_code for case in cases)

    play()
    return statuses


NOT_FOUND = {f"{method} /v1/{{app}}/_groups/{{group}}" for method in ("GET", "DELETE")}
"""Operations that find nothing here: no member has joined a group."""


@how_many
@pytest.mark.parametrize("label", LABELS)
def test_operations(target: Target, label: str, how: settings) -> None:
    """Every operation answers valid and invalid requests as documented; some find the queue and have the rights."""
    statuses = fuzz(target, how, label).keys()
    assert label in NOT_FOUND or statuses - {401, 403, 404}


@how_many
def test_sequences(target: Target, how: settings) -> None:
    """Requests on what other requests have made, changed or deleted are answered as documented."""
    assert fuzz_sequences(target, how).keys() >= {200, 400, 404}
