"""Requests of AWS JSON, signed with AWS Signature Version 4 by the standard library alone.

A load generator cannot afford botocore's CPU per signature; ``tests/bench/test_signing.py`` compares both signatures.
"""

from __future__ import annotations

import hmac
import time
from hashlib import sha256
from typing import TypedDict

REGION, SERVICE = "us-east-1", "sqs"
HOST = "127.0.0.1"
CONTENT_TYPE = "application/x-amz-json-1.0"
SIGNED_HEADERS = "content-type;host;x-amz-date;x-amz-target"


class AccessKey(TypedDict):
    id: str
    secret: str


class Signer:
    """Signs requests for one path and one action.

    All requests carry the time of the constructor call; servers accept it for 15 minutes.

    Args:
        key: The access key.
        action: The action, such as ``SendMessage``.
        path: Path of the endpoint.
        now: Time in seconds since 1970; None for the current time.
    """

    def __init__(self, key: AccessKey, action: str, path: str = "/", now: float | None = None) -> None:
        date = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(now))
        scope = (date[:8], REGION, SERVICE, "aws4_request")
        secret = f"AWS4{key['secret']}".encode()
        for part in scope:
            secret = hmac.digest(secret, part.encode(), "sha256")
        self._secret = secret
        headers = {
            "content-type": CONTENT_TYPE,
            "host": HOST,
            "x-amz-date": date,
            "x-amz-target": f"AmazonSQS.{action}",
        }
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        self._canonical = f"POST\n{path}\n\n{lines}\n{SIGNED_HEADERS}\n"
        self._text = f"AWS4-HMAC-SHA256\n{date}\n{'/'.join(scope)}\n"
        written = "".join(f"{name.title()}: {value}\r\n" for name, value in headers.items())
        credential = f"Credential={key['id']}/{'/'.join(scope)}, SignedHeaders={SIGNED_HEADERS}"
        self._head = f"POST {path} HTTP/1.1\r\n{written}Authorization: AWS4-HMAC-SHA256 {credential}, Signature="

    def request(self, body: str) -> str:
        """Returns a whole HTTP/1.1 request; the body must be ASCII."""
        canonical = self._canonical + sha256(body.encode()).hexdigest()
        text = self._text + sha256(canonical.encode()).hexdigest()
        signature = hmac.digest(self._secret, text.encode(), "sha256").hex()
        return f"{self._head}{signature}\r\nContent-Length: {len(body)}\r\n\r\n{body}"
