"""The load generator signs as Amazon's clients do: otherwise the benchmark would measure refusals."""

from __future__ import annotations

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from bench.load import signing
from bench.load.signing import AccessKey, Signer

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
        assert authorization.endswith(f"SignedHeaders={signing.COVERED}, Signature={computed}")
