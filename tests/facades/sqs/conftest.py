"""An application that serves SQS alone, and clients of it."""

from __future__ import annotations

import pytest

from queuey.app.service import App
from queuey.facades.settings import Facades
from queuey.storage import Store, bridge
from tests.facades.serving import facade_app
from tests.facades.sqs.signing import DEPLOYMENT, Sqs, new_key
from tests.interposed_store import InterposedStore


@pytest.fixture
def app(store: Store, between: InterposedStore) -> App:
    bridge.run(store.applications.create_application("shop"))
    return facade_app(between.store, Facades(only="sqs"), secret=DEPLOYMENT)


@pytest.fixture
def sqs(app: App, store: Store) -> Sqs:
    """A client with all rights on the queues of ``shop``."""
    return Sqs(app, new_key(store, "shop"))
