"""SQS requests to an application in this process, signed by botocore as its clients sign them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode, urlsplit
from xml.etree import ElementTree as ET

from botocore.auth import SigV4Auth, SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from queuey.app.service import App
from queuey.facades.sqs import access_keys
from queuey.model.rights import parse_scope
from queuey.storage import Store, bridge
from tests.web.caller import Caller, Reply

HOST = "queuey.test"
DEPLOYMENT = b"a secret of a deployment in a test"
NAMESPACE = "{http://queue.amazonaws.com/doc/2012-11-05/}"


def new_key(store: Store, application: str, allow: str = "", queues: str = "") -> Credentials:
    name = access_keys.new_access_key()
    scope = parse_scope(allow.split(","), queues.split(","))
    bridge.run(store.applications.add_key(application, access_keys.digest_of(name), scope=scope))
    return Credentials(name, access_keys.secret_of(DEPLOYMENT, name))


class Sqs:
    """A client with an access key.

    Args:
        app: The application.
        key: Its access key.
        prefix: The path of the facade.
    """

    def __init__(self, app: App, key: Credentials, prefix: str = "") -> None:
        self.caller = Caller(app)
        self.key = key
        self.prefix = prefix

    def sign_request(
        self,
        body: bytes,
        headers: Mapping[str, str],
        path: str = "/",
        *,
        method: str = "POST",
        auth: Callable[..., SigV4Auth] = SigV4Auth,
    ) -> AWSRequest:
        url = f"http://{HOST}{self.prefix}{path}"
        request = AWSRequest(method, url, {"host": HOST, **headers}, body)
        auth(self.key, "sqs", "eu-west-1").add_auth(request)
        return request

    def send(self, request: AWSRequest) -> Reply:
        parts = urlsplit(request.url)
        headers = {name: str(value) for name, value in request.headers.items()}
        return self.caller.send(request.method, parts.path, request.body or b"", headers, parts.query)

    def ask(self, action: str, **given: object) -> Reply:
        headers = {"x-amz-target": f"AmazonSQS.{action}", "content-type": "application/x-amz-json-1.0"}
        return self.send(self.sign_request(json.dumps(given).encode(), headers))

    def __call__(self, action: str, **given: object) -> dict[str, Any]:
        reply = self.ask(action, **given)
        assert reply.status == 200, reply.text
        answer: dict[str, Any] = json.loads(reply.body)
        return answer

    def expect_failure(self, action: str, **given: object) -> str:
        """Sends an action that must be refused; checks its message, code and fault, and returns the error's name."""
        reply = self.ask(action, **given)
        assert 400 <= reply.status < 504, reply.text
        content = json.loads(reply.body)
        assert content["message"], reply.text
        code, _, fault = reply.headers["x-amzn-query-error"].partition(";")
        assert fault == ("Receiver" if reply.status >= 500 else "Sender")
        name: str = content["__type"].removeprefix("com.amazonaws.sqs#")
        assert code.rpartition(".")[2] in {name, "NonExistentQueue", "QueueAlreadyExists"}
        return name

    def create(self, name: str, **attributes: str) -> str:
        url: str = self("CreateQueue", QueueName=name, Attributes=attributes)["QueueUrl"]
        return url

    def form(self, action: str, path: str = "/", **fields: object) -> Reply:
        """Sends an action in the Query protocol; ``Attribute.1.Name`` and the like go into a dictionary."""
        body = urlencode({"Action": action, "Version": "2012-11-05", **fields}).encode()
        return self.send(self.sign_request(body, {"content-type": "application/x-www-form-urlencoded"}, path))

    def make_presigned_request(self, action: str, path: str = "/", seconds: int = 60, **fields: object) -> AWSRequest:
        """Returns a GET request signed in its query, which is valid for a number of seconds."""
        query = urlencode({"Action": action, **fields})

        def auth(*known: Any) -> SigV4QueryAuth:  # noqa: ANN401 - as SigV4Auth has them
            return SigV4QueryAuth(*known, expires=seconds)

        return self.sign_request(b"", {}, f"{path}?{query}", method="GET", auth=auth)


def xml_of(reply: Reply) -> ET.Element:
    """Parses an answer. Requires the namespace of SQS in every tag, and removes it."""
    root = ET.fromstring(reply.text)
    for element in root.iter():
        assert element.tag.startswith(NAMESPACE)
        element.tag = element.tag.removeprefix(NAMESPACE)
    return root
