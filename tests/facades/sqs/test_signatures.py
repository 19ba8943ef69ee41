"""Authentication: only requests that were signed with an access key, unchanged, and not long ago."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import time as now
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from msgspec import structs

from queuey.facades.settings import Facades, SqsFacade
from queuey.facades.sqs import access_keys, signatures, views
from queuey.model.errors import SettingsError
from queuey.settings import Settings
from queuey.storage import Applications, Store, bridge
from tests.facades.serving import facade_app
from tests.facades.sqs.signing import DEPLOYMENT, HOST, Sqs, new_key, xml_of
from tests.interposed_store import InterposedStore
from tests.replacing import replace_in
from tests.web.caller import Reply

TARGET = {"x-amz-target": "AmazonSQS.ListQueues", "content-type": "application/x-amz-json-1.0"}


def name_of(reply: Reply) -> str:
    if reply.body.startswith(b"<"):
        return xml_of(reply).findtext("Error/Code") or ""
    return str(reply.headers["x-amzn-query-error"].partition(";")[0])


def listing(sqs: Sqs) -> AWSRequest:
    return sqs.sign_request(b"{}", TARGET)


def test_signed(sqs: Sqs) -> None:
    """A request that is signed as it is, is answered, in the header and in the query, and again within the window."""
    request = listing(sqs)
    assert [sqs.send(request).status for _ in range(2)] == [200, 200]
    assert sqs.send(sqs.make_presigned_request("ListQueues")).status == 200


def test_headers_that_botocore_does_not_sign(sqs: Sqs) -> None:
    """The SDKs for Java and .NET sign User-Agent, which that for Python leaves out."""

    class OfAnotherSdk(SigV4Auth):  # type: ignore[misc] # botocore has no types
        def headers_to_sign(self, request: AWSRequest) -> Any:  # noqa: ANN401 - botocore's headers
            headers = super().headers_to_sign(request)
            headers["user-agent"] = request.headers["user-agent"]
            return headers

    request = sqs.sign_request(b"{}", {**TARGET, "user-agent": "aws-sdk-java/1.12"}, auth=OfAnotherSdk)
    assert "user-agent" in request.headers["Authorization"]
    assert sqs.send(request).status == 200
    request.headers.replace_header("user-agent", "another")
    assert name_of(sqs.send(request)) == "SignatureDoesNotMatch"


def replaced(header: str, old: str, new: Any) -> Callable[[AWSRequest], None]:  # noqa: ANN401 - as re.sub has it
    """Returns a function that changes a signed request's header."""
    return lambda request: request.headers.replace_header(header, re.sub(old, new, request.headers[header]))


ALTERATIONS: dict[str, Callable[[AWSRequest], object]] = {
    "body": lambda request: setattr(request, "data", b'{"QueueNamePrefix":"a"}'),
    "path": lambda request: setattr(request, "url", f"http://{HOST}/000000000000/other"),
    "query": lambda request: setattr(request, "url", f"{request.url}?a=1"),
    "target": replaced("x-amz-target", ".+", "AmazonSQS.PurgeQueue"),
    "host": replaced("host", ".+", "other.test"),
    "region": replaced("Authorization", "/eu-west-1/", "/eu-west-2/"),
    "signature": replaced("Authorization", ".$", lambda last: "1" if last[0] == "0" else "0"),
    "moment": replaced("X-Amz-Date", r"[0-9](?=.Z)", "9"),
}


def test_altered(sqs: Sqs) -> None:
    """Whatever is changed in a signed request, it is refused, and nothing was done."""
    for name, alter in ALTERATIONS.items():
        request = listing(sqs)
        alter(request)
        error = name_of(sqs.send(request))
        assert error in {"SignatureDoesNotMatch", "IncompleteSignature", "RequestExpired"}, name


def test_what_is_added_to_a_query(sqs: Sqs) -> None:
    """A signature covers the query as received, including what other URL parsers would drop."""
    request = sqs.sign_request(b"Action=ListQueues", {"content-type": "application/x-www-form-urlencoded"})
    headers = {name: str(value) for name, value in request.headers.items()}
    assert sqs.caller.send("POST", "/", request.body, headers).status == 200
    for query in ("#&QueueNamePrefix=a", "#", "\t", "&", "a=1"):
        assert name_of(sqs.caller.send("POST", "/", request.body, headers, query)) == "SignatureDoesNotMatch"


def test_hosts_that_no_url_has(sqs: Sqs) -> None:
    """A header that could not be in a URL is another header, and nothing fails on it."""
    for host in ("[", "a[", "[x]", "a/b", "a?b", "a#b", "a b", "@"):
        request = listing(sqs)
        request.headers.replace_header("host", host)
        assert name_of(sqs.send(request)) == "SignatureDoesNotMatch"


def test_a_signed_hash_of_another_body(sqs: Sqs) -> None:
    """A header with the hash of the body, as some clients send it, does not replace the body."""
    for digest in ("0" * 64, "UNSIGNED-PAYLOAD"):
        request = sqs.sign_request(b"{}", {**TARGET, "x-amz-content-sha256": digest})
        assert name_of(sqs.send(request)) == "SignatureDoesNotMatch"


def test_what_a_signature_has_to_cover(sqs: Sqs) -> None:
    """A header that says what is to be done must be signed; a signed header must be present."""
    request = listing(sqs)
    request.headers["x-amz-more"] = "1"
    assert name_of(sqs.send(request)) == "IncompleteSignature"
    request = sqs.sign_request(b"Action=ListQueues", {"content-type": "application/x-www-form-urlencoded"})
    request.headers["x-amz-target"] = "AmazonSQS.PurgeQueue"
    assert sqs.send(request).status == 403
    request = listing(sqs)
    del request.headers["content-type"]
    assert name_of(sqs.send(request)) == "IncompleteSignature"


def test_replayed_later(sqs: Sqs) -> None:
    """A request that is sent again after the window, or long before it was signed, is refused."""
    request, link = listing(sqs), sqs.make_presigned_request("ListQueues", seconds=60)
    for shift, expected in ((signatures.MAX_SKEW + 2, "RequestExpired"), (-signatures.MAX_SKEW - 2, "RequestExpired")):
        with replace_in(views, now, lambda shift=shift: now() + shift):
            assert name_of(sqs.send(request)) == expected
    with replace_in(views, now, lambda: now() + 62):
        assert name_of(sqs.send(link)) == "RequestExpired"
        assert sqs.send(request).status == 200


@pytest.mark.parametrize("seconds", [0, 604_801])
def test_how_long_a_link_is_good(sqs: Sqs, seconds: int) -> None:
    """A link is good for a week at most."""
    reply = sqs.send(sqs.make_presigned_request("ListQueues", seconds=seconds))
    assert reply.status in ({200, 403} if not seconds else {403})


def test_unsigned(sqs: Sqs) -> None:
    """A request without a signature, with one of another kind, or of no key at all, is refused in its protocol."""
    request = AWSRequest("POST", f"http://{HOST}/", {"host": HOST, **TARGET}, b"{}")
    assert name_of(sqs.send(request)) == "MissingAuthenticationToken"
    for header in ("Bearer x", "AWS4-HMAC-SHA256 Credential=a", "Application abc", f"Signed {'0' * 80}", "Facade x"):
        request.headers["Authorization"] = header
        assert (reply := sqs.send(request)).status == 403
        assert name_of(reply) == "IncompleteSignature"
        del request.headers["Authorization"]
    signed = urlsplit(sqs.make_presigned_request("ListQueues").url).query
    for query in ("X-Amz-Signature=a", "X-Amz-Signature=a" + "&a=1" * 300, f"{signed[:-1]}%C3%A9", f"{signed}0"):
        link = AWSRequest("GET", f"http://{HOST}/?{query}", {"host": HOST})
        assert name_of(sqs.send(link)) == "IncompleteSignature"
    for path in ("/__a/b", "/%5F_a/b/"):
        assert sqs.caller.send("POST", path).status == 404
    plain = AWSRequest("POST", f"http://{HOST}/", {"host": HOST}, b"Action=ListQueues")
    assert name_of(sqs.send(plain)) == "MissingAuthenticationToken"


@pytest.mark.parametrize("name", ["AKIAIOSFODNN7EXAMPLE", "QKAAAAAAAAAAAAAAAAAA", "x" * 5000])
def test_unknown_keys(sqs: Sqs, name: str) -> None:
    """A key that is not known is refused, whatever it signs with."""
    stranger = Sqs(sqs.caller.app, Credentials(name, "secret"))
    assert stranger.expect_failure("ListQueues") == "InvalidClientTokenId"


def test_wrong_secret(sqs: Sqs) -> None:
    """The secret of another key or deployment is refused; the answer reveals nothing of the right one."""
    right = sqs.key.secret_key
    for secret in ("wrong", access_keys.secret_of(b"another deployment", sqs.key.access_key)):
        reply = Sqs(sqs.caller.app, Credentials(sqs.key.access_key, secret)).ask("ListQueues")
        assert name_of(reply) == "SignatureDoesNotMatch"
        assert right not in reply.text
        assert re.search("[0-9a-f]{40}", reply.text) is None


def test_regions_and_services(sqs: Sqs) -> None:
    """Any region will do that has the form of one; a signature for another service is refused."""
    for service, region, status in (
        ("sqs", "anywhere-1", 200),
        *(("sqs", region, 403) for region in ("", "a b", "x" * 33, "EU")),
        ("sns", "eu-1", 403),
    ):
        request = AWSRequest("POST", f"http://{HOST}/", {"host": HOST, **TARGET}, b"{}")
        SigV4Auth(sqs.key, service, region).add_auth(request)
        assert sqs.send(request).status == status, (service, region)


def test_revoked(sqs: Sqs, store: Store) -> None:
    """A revoked key is refused once it has left the cache."""
    [key] = bridge.run(store.applications.keys("shop"))
    bridge.run(store.applications.revoke_key("shop", key.id))
    assert sqs.expect_failure("ListQueues") == "InvalidClientTokenId"


def test_where_keys_are_read(store: Store, between: InterposedStore) -> None:
    """A key that is not remembered any more is read in a thread: the event loop waits for no store."""
    bridge.run(store.applications.create_application("shop"))
    later = [0.0]
    app = facade_app(between.store, Facades(only="sqs"), secret=DEPLOYMENT, clock=lambda: later[0])
    sqs = Sqs(app, new_key(store, "shop"))
    on_loop: list[bool] = []

    def read(digest: bytes) -> Any:  # noqa: ANN401 - as the store has it
        on_loop.append(asyncio._get_running_loop() is not None)
        return bridge.run(store.applications.find_key(digest))

    between.instead(Applications.find_key, read)
    for _ in range(3):
        sqs("ListQueues")
        later[0] += 60
    assert on_loop == [False] * 3


def test_limited_keys(sqs: Sqs, store: Store) -> None:
    """A key works within its rights on its queues, and learns nothing of others."""
    app = sqs.caller.app
    mine, other = sqs.create("orders-1"), sqs.create("bills-1")
    sender, worker = (Sqs(app, new_key(store, "shop", allow, "orders-*")) for allow in ("send", "read,delete"))
    sender("SendMessage", QueueUrl=mine, MessageBody="a")
    [message] = worker("ReceiveMessage", QueueUrl=mine)["Messages"]
    handle = message["ReceiptHandle"]
    assert sender.expect_failure("DeleteMessage", QueueUrl=mine, ReceiptHandle=handle) == "AccessDenied"
    worker("DeleteMessage", QueueUrl=mine, ReceiptHandle=handle)
    refused: dict[tuple[Sqs, str], dict[str, object]] = {
        (sender, "ReceiveMessage"): {"QueueUrl": mine},
        (sender, "CreateQueue"): {"QueueName": "orders-2"},
        (sender, "PurgeQueue"): {"QueueUrl": mine},
        (sender, "SendMessage"): {"QueueUrl": other, "MessageBody": "a"},
        (worker, "SendMessage"): {"QueueUrl": mine, "MessageBody": "a"},
        (worker, "SetQueueAttributes"): {"QueueUrl": mine, "Attributes": {"DelaySeconds": "1"}},
        (worker, "TagQueue"): {"QueueUrl": mine, "Tags": {"a": "b"}},
        (worker, "GetQueueAttributes"): {"QueueUrl": other, "AttributeNames": ["All"]},
    }
    for (client, action), arguments in refused.items():
        assert client.expect_failure(action, **arguments) == "AccessDenied", action
    assert [url.rpartition("/")[2] for url in worker("ListQueues")["QueueUrls"]] == ["orders-1"]


def test_dead_letters_of_a_limited_key(sqs: Sqs, store: Store) -> None:
    """A key cannot have dead letters go to a queue that is not one of its own."""
    sqs.create("payroll")
    limited = Sqs(sqs.caller.app, new_key(store, "shop", "admin,send,read,delete", "orders-*"))
    url = limited.create("orders-1")
    policy = '{"deadLetterTargetArn":"arn:aws:sqs:eu-west-1:000000000000:payroll","maxReceiveCount":1}'
    arguments = {"QueueUrl": url, "Attributes": {"RedrivePolicy": policy}}
    assert limited.expect_failure("SetQueueAttributes", **arguments) == "AccessDenied"
    sqs("SetQueueAttributes", **arguments)


def test_applications_are_apart(sqs: Sqs, store: Store) -> None:
    """A key sees the queues of its own application, whatever account and host a URL names."""
    bridge.run(store.applications.create_application("other"))
    other = Sqs(sqs.caller.app, new_key(store, "other"))
    url = sqs.create("jobs")
    assert other.expect_failure("SendMessage", QueueUrl=url, MessageBody="a") == "QueueDoesNotExist"
    other.create("jobs")
    other("SendMessage", QueueUrl="https://sqs.us-east-1.amazonaws.com/123456789012/jobs", MessageBody="b")
    assert "Messages" not in sqs("ReceiveMessage", QueueUrl=url)


def test_who_makes_the_secret(tmp_path: Path) -> None:
    """Processes that start at the same moment have one secret; on Cassandra it has to be named, and is never made."""
    settings = Settings(data=tmp_path)
    with ThreadPoolExecutor(8) as pool:
        secrets = set(pool.map(lambda _: access_keys.deployment_secret(SqsFacade(), settings, {}), range(50)))
    assert (len(secrets), [path.name for path in tmp_path.iterdir()]) == (1, [access_keys.FILE_NAME])
    assert len(secrets.pop()) >= access_keys.MIN_SECRET_LENGTH
    on_cassandra = structs.replace(settings, store="cassandra://node/queuey")
    with pytest.raises(SettingsError, match=r"facades\.sqs\.secret is not set"):
        access_keys.deployment_secret(SqsFacade(), on_cassandra, {})
    named = SqsFacade(secret="env:SQS_SECRET")
    assert access_keys.deployment_secret(named, on_cassandra, {"SQS_SECRET": "x" * 32}) == b"x" * 32
    for environ, message in (({}, "is not set"), ({"SQS_SECRET": "x" * 31}, "31 characters")):
        with pytest.raises(SettingsError, match=message):
            access_keys.deployment_secret(named, on_cassandra, environ)
