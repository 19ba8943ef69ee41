"""The endpoint as SQS clients write it: with and without a path, with and without a trailing slash."""

from __future__ import annotations

import io
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.config import Config

from queuey.app.service import App
from queuey.facades.settings import Facades, SqsFacade
from queuey.storage import Store, bridge
from tests.facades.serving import facade_app
from tests.facades.sqs.signing import DEPLOYMENT, HOST, new_key
from tests.web.caller import Caller


class Raw(io.BytesIO):
    """The body of an answer, as botocore reads it."""

    def stream(self, **_: object) -> list[bytes]:
        return [self.getvalue()]


def boto3_client(app: App, store: Store, path: str) -> Any:  # noqa: ANN401 - boto3's client
    key, caller = new_key(store, "queuey"), Caller(app)

    def send(request: AWSPreparedRequest, **_: object) -> AWSResponse:
        headers = {name: v.decode() if isinstance(v, bytes) else str(v) for name, v in request.headers.items()}
        target = request.url.removeprefix(f"http://{HOST}") or "/"
        body = request.body.encode() if isinstance(request.body, str) else request.body or b""
        reply = caller.send(request.method, target, body, {"host": HOST, **headers})
        return AWSResponse(request.url, reply.status, dict(reply.headers), Raw(reply.body))

    client = boto3.client(
        "sqs",
        endpoint_url=f"http://{HOST}{path}",
        region_name="eu-west-1",
        aws_access_key_id=key.access_key,
        aws_secret_access_key=key.secret_key,
        config=Config(retries={"total_max_attempts": 1}),
    )
    client.meta.events.register("before-send.sqs", send)
    return client


@pytest.mark.parametrize(("prefix", "path"), [("", ""), ("", "/"), *[("/a/sqs", p) for p in ("/a/sqs", "/a/sqs/")]])
def test_boto3(store: Store, prefix: str, path: str) -> None:
    """boto3 works with each spelling of the endpoint, and the URLs of queues are the same with all of them."""
    bridge.run(store.applications.create_application("queuey"))
    served = Facades(sqs=SqsFacade(prefix=prefix)) if prefix else Facades(only="sqs")
    client = boto3_client(facade_app(store, served, secret=DEPLOYMENT), store, path)
    url = client.create_queue(QueueName="q")["QueueUrl"]
    assert url == f"http://{HOST}{prefix}/000000000000/q"
    client.send_message(QueueUrl=url, MessageBody="a")
    assert [message["Body"] for message in client.receive_message(QueueUrl=url)["Messages"]] == ["a"]
    assert client.list_queues()["QueueUrls"] == [url]
