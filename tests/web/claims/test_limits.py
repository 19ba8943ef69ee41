"""The limit of jobs in a partition."""

from __future__ import annotations

from queuey.claims.state import MAX_OUTSTANDING
from queuey.service import ClaimDelivery, Service
from queuey.storage import Store, bridge
from queuey.web.parts import App
from tests.blocking import blocking
from tests.contract.samples import new_message
from tests.web.caller import Caller

ROUND = 1000


def test_a_partition_with_all_the_claims_that_it_may_have(app: App, owner: Caller, store: Store) -> None:
    """20,000 messages can be claimed. Then a claim is refused without waiting, until one is acknowledged."""
    owner.create("q", partitions=2)
    service: Service = app.service
    queue = bridge.run(store.catalogue.queue("queuey", "q"))
    access = service.enter(queue, lambda _queue: None)
    claimed: list[ClaimDelivery] = []
    for _ in range(MAX_OUTSTANDING // ROUND):
        bridge.run(store.messages.append(queue, [new_message("x") for _ in range(ROUND)]))
        claimed += blocking(service.claims).claim(access, limit=ROUND, ttl=43_200, partitions=[1])
    assert len(claimed) == MAX_OUTSTANDING
    owner.post("q", "one more", X_Partition="1")
    for wait in (0, 20):
        reply = owner("POST", "q/claims", b"", headers=None, partitions="1", wait=wait)
        assert (reply.status, list(reply.errors)) == (429, ["TooManyClaims"]), reply
        assert "Partition 1 has 20000 claims" in reply.text
        assert int(reply.headers["Retry-After"]) >= 1
    owner.post("q", "elsewhere", X_Partition="2")
    (message,) = owner("POST", "q/claims", b"", headers=None, ttl=60).messages
    assert message["body"] == "elsewhere"
    counts = owner.get("q/claims").json["partitions"]
    assert counts["1"] == {"claimed": MAX_OUTSTANDING, "waiting": 0, "retrying": 0}
    blocking(service.claims).acknowledge(access, [claimed[0].receipt])
    (message,) = owner("POST", "q/claims", b"", headers=None, ttl=60).messages
    assert message["body"] == "one more"
