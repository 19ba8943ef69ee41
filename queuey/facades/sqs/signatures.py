"""Verifies AWS Signature Version 4, in the header ``Authorization`` or in the query.

botocore normalizes the path, as it does in clients. The rest of the signature is computed here, because botocore
derives the signing key anew for each request, which takes longer than the request's own work.
"""

from __future__ import annotations

import hmac
import re
from datetime import datetime
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, quote, urlsplit

from botocore.auth import SigV4Auth

from queuey.facades.sqs.errors import SqsError
from queuey.model.rights import is_access_key
from queuey.web.requests import Request
from queuey.web.validators import show

ALGORITHM = "AWS4-HMAC-SHA256"
MAX_SKEW = 900
"""Max skew of a client's clock, and max age of a request with a signed header, in seconds."""
MAX_VALIDITY = 604_800
MAX_FIELDS = 200
_SIGNATURE_HEADER = re.compile(
    rf"{ALGORITHM} +Credential=([^, ]+), *SignedHeaders=([^, ]+), *Signature=([^, ]+)", re.ASCII
)
_SIGNATURE_VALUE = re.compile("[0-9a-f]{64}")
_DATE = re.compile(r"[0-9]{8}T[0-9]{6}Z", re.ASCII)
_PLAIN_PATH = re.compile(r"(?:/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)+/?", re.ASCII)
"""A path that needs no normalization."""
_REGION = re.compile(r"[a-z0-9-]{1,32}", re.ASCII)
_QUERY_FIELDS = ("X-Amz-Credential", "X-Amz-SignedHeaders", "X-Amz-Signature", "X-Amz-Date", "X-Amz-Expires")


class Signature(NamedTuple):
    """Signature of a request, as its headers or query describe it.

    Attributes:
        access_key: Access key whose secret made the signature.
        region: Region that the client uses.
        date: Time of signing, in the format of the request.
        expires: Validity after ``date``, in seconds.
        value: Signature in hex.
        query: Signed query, without the signature.
    """

    access_key: str
    region: str
    date: str
    expires: int
    headers: tuple[str, ...]
    value: str
    query: str


def read_signature(request: Request) -> Signature:
    """Parses the signature of a request, in its header or else in its query; does not verify it.

    Raises:
        SqsError: The request is not signed, or the signature is malformed, for another service, or of another kind of
            key. The key need not exist.
    """
    header = request.headers.get("authorization")
    if header is not None:
        match = _SIGNATURE_HEADER.fullmatch(header)
        if match is None:
            raise _refusal(f"The header Authorization is not {ALGORITHM} with Credential, SignedHeaders, Signature")
        credential, headers, value = match.groups()
        date, expires, query = request.headers.get("x-amz-date", ""), MAX_SKEW, request.query
    elif "X-Amz-Signature=" in request.query:
        fields = _read_query_fields(request.query)
        credential, headers, value, date, seconds = (fields.get(name, "") for name in _QUERY_FIELDS)
        if fields.get("X-Amz-Algorithm") != ALGORITHM or not re.fullmatch("[0-9]{1,6}", seconds, re.ASCII):
            raise _refusal(f"The query needs X-Amz-Algorithm={ALGORITHM} and X-Amz-Expires, in seconds")
        expires = int(seconds)
        query = "&".join(field for field in request.query.split("&") if not field.startswith("X-Amz-Signature="))
    else:
        raise SqsError("MissingAuthenticationToken", "The request is not signed with an access key.", 403)
    if not _SIGNATURE_VALUE.fullmatch(value):
        raise _refusal("Its Signature does not have 64 hexadecimal digits")
    access_key, day, region, service, end = (*credential.split("/"), "", "", "", "")[:5]
    if (service, end, day) != ("sqs", "aws4_request", date[:8]) or not _DATE.fullmatch(date) or expires > MAX_VALIDITY:
        raise _refusal("Its Credential has to end with the day of X-Amz-Date, a region, sqs and aws4_request")
    if not _REGION.fullmatch(region):
        raise _refusal(f"{show(region)} is not the name of a region")
    if not is_access_key(access_key):
        raise SqsError("InvalidClientTokenId", f"{show(access_key)} is not an access key of this service.", 403)
    return Signature(access_key, region, date, expires, tuple(headers.split(";")), value, query)


def _read_query_fields(query: str) -> dict[str, str]:
    try:
        return dict(parse_qsl(query, keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError:
        raise _refusal(f"The query has more than {MAX_FIELDS} fields") from None


@lru_cache(1024)
def _signing_key(secret: str, day: str, region: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for scope in (day, region, "sqs", "aws4_request"):
        key = hmac.digest(key, scope.encode(), "sha256")
    return key


_normalize = SigV4Auth(None, "sqs", "")._normalize_url_path  # noqa: SLF001 - its rules have no public name


def _canonical_path(path: str) -> str:
    return str(_normalize(urlsplit(f"http://host{quote(path, safe='/~')}").path))


def _canonical_query(query: str) -> str:
    """Returns the fields of a query, sorted but not decoded: two queries that decode alike must not sign alike."""
    pairs = [pair.partition("=") for pair in query.split("&")]
    return "&".join(f"{name}={value}" for name, value in sorted((name, value) for name, _, value in pairs))


def verify(signature: Signature, request: Request, body: bytes, secret: str, now: float) -> None:
    """Verifies that a secret signed the request as it is, and that the signature is valid now.

    A signature has not expired, and was made at most :data:`MAX_SKEW` seconds in the future. It has to cover the header
    Host and all headers ``x-amz-…``. A signed hash of the body has to be right.

    Raises:
        SqsError: The signature is not valid.
    """
    _check_time(signature, now)
    covered: dict[str, Any] = dict(zip(signature.headers, map(request.headers.get, signature.headers), strict=True))
    required = {name for name in request.headers if name.startswith("x-amz-")}
    if None in covered.values() or "host" not in covered or not required <= covered.keys():
        raise _refusal("SignedHeaders has to name host and every header x-amz-…, and only headers of the request")
    content_hash = covered.get("x-amz-content-sha256")
    if content_hash is not None and content_hash != sha256(body).hexdigest():
        raise _mismatch()
    lines = "".join([f"{name}:{' '.join(text.split())}\n" for name, text in sorted(covered.items())])
    path = request.path if _PLAIN_PATH.fullmatch(request.path) else _canonical_path(request.path)
    query = _canonical_query(signature.query) if signature.query else ""
    request_lines = (request.method.upper(), path, query, lines)
    canonical = "\n".join((*request_lines, ";".join(sorted(covered)), sha256(body).hexdigest()))
    day = signature.date[:8]
    scope = f"{day}/{signature.region}/sqs/aws4_request"
    text = f"{ALGORITHM}\n{signature.date}\n{scope}\n{sha256(canonical.encode()).hexdigest()}"
    expected = hmac.digest(_signing_key(secret, day, signature.region), text.encode(), "sha256").hex()
    if not hmac.compare_digest(expected, signature.value):
        raise _mismatch()


@lru_cache(1024)
def _read_date(date: str) -> float:
    return datetime.fromisoformat(date).timestamp()


def _check_time(signature: Signature, now: float) -> None:
    try:
        signed_at = _read_date(signature.date)
    except ValueError:
        raise _refusal(f"X-Amz-Date {signature.date} is not a time") from None
    if now > signed_at + signature.expires:
        raise SqsError("RequestExpired", f"The signature of {signature.date} has expired. Check the clock.", 403)
    if signed_at > now + MAX_SKEW:
        raise SqsError("RequestExpired", f"The signature of {signature.date} is in the future. Check the clock.", 403)


def _refusal(text: str) -> SqsError:
    return SqsError("IncompleteSignature", f"The request's signature cannot be checked. {text}.", 403)


def _mismatch() -> SqsError:
    return SqsError(
        "SignatureDoesNotMatch",
        "The signature does not match this request and access key. Check the secret, and that nothing between "
        "client and service changes the header Host.",
        403,
    )
