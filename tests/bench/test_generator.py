"""The load generator signs as Amazon's clients do, and notices a server that fails.

Otherwise the benchmark would measure refusals, or wait for a server that is gone.
"""

from __future__ import annotations

import socket
import threading

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from bench.load import signing
from bench.load.generator import BadAnswer, Generator
from bench.load.signing import AccessKey, Signer
from tests.waiting import join

KEY: AccessKey = {"id": "QKAAAABBBBCCCCDDDDEE", "secret": "not a secret"}


def test_signatures_are_those_of_botocore() -> None:
    """Whatever the body, path and action."""
    for path, body in (("/", "{}"), ("/sqs/", '{"QueueUrl":"http://127.0.0.1/000000000000/bench"}')):
        text = Signer(KEY, "SendMessage", path).request(body)
        head, _, sent = text.partition("\r\n\r\n")
        first, *lines = head.split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        assert (first, sent) == (f"POST {path} HTTP/1.1", body)
        assert int(headers.pop("Content-Length")) == len(body)
        authorization = headers.pop("Authorization")
        request = AWSRequest("POST", f"http://{signing.HOST}{path}", headers, body)
        request.context["timestamp"] = headers["X-Amz-Date"]
        signer = SigV4Auth(Credentials(KEY["id"], KEY["secret"]), signing.SERVICE, signing.REGION)
        computed = signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)
        assert authorization.endswith(f"SignedHeaders={signing.SIGNED_HEADERS}, Signature={computed}")


@pytest.mark.parametrize("sent", ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"])
def test_a_connection_that_ends_within_an_answer_is_an_error(sent: str) -> None:
    """Whichever part of the answer came before."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1000)
            connection.sendall(sent.encode())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve)
        server.start()
        generator = Generator(
            {
                "port": listener.getsockname()[1],
                "requests": ["GET / HTTP/1.1\r\n\r\n"],
                "status": 200,
                "connections": 1,
                "warm": 0,
                "seconds": 60,
                "count": 1,
                "numbered": 0,
            }
        )
        with pytest.raises(BadAnswer, match="connection closed"):
            generator.run()
        join(server)
    for connection in generator.connections.values():
        connection.sock.close()
