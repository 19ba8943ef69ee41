"""Requests generated from a published OpenAPI document for what exists in a service, and checks of their answers."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

import requests
import schemathesis
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode, Response
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
TIMEOUT = 30.0
"""Seconds: longer than any deadline of the service."""
QUEUE = "fuzzed"
GROUP = "g"
NAME = "n"
ID = "0123456789ab11e88000000000000001"
SCHEDULE: dict[str, Any] = {"queue": QUEUE, "message": {"body": "tick"}, "cron": "0 3 * * *"}


class Target:
    """A running service, its document, and what exists in it.

    Args:
        url: URL of the service.
        application: The application that owns the queues.
        key: The application's key.
    """

    def __init__(self, url: str, application: str, key: str) -> None:
        self._url = url
        self._application = application
        self._session = requests.Session()
        self._credential = f"Application {key}"
        document = self._session.get(f"{url}/v1/openapi.json", timeout=TIMEOUT).json()
        schema = schemathesis.openapi.from_dict(document)
        paths = document["paths"].items()
        self._operations = {f"{m.upper()} {path}": schema[path][m] for path, methods in paths for m in methods}
        self._known: dict[str, list[str]] = {}
        self._move = ""

    def close(self) -> None:
        self._session.close()

    def renew(self) -> None:
        """Ensures a queue, a message, a group, a name, a schedule and a move; forgets all other ids."""
        queue = f"/v1/{self._application}/{QUEUE}"
        offsets = {"partitions": {"1": {"offset": ID}}}
        headers = {"Authorization": self._credential}
        steps: tuple[tuple[str, str, Any], ...] = (
            ("POST", f"/v1/{self._application}", {"queue_name": QUEUE, "partitions": 200}),
            ("PUT", f"{queue}/{ID}", "x"),
            ("PUT", f"{queue}/offsets/{GROUP}", offsets),
            ("PUT", f"{queue}/named/{NAME}", "x"),
            ("PUT", f"/v1/{self._application}/_schedules/{NAME}", SCHEDULE),
        )
        for method, path, content in steps:
            self._session.request(method, self._url + path, json=content, headers=headers, timeout=TIMEOUT)
        self._known = {"app": [self._application], "queue": [QUEUE], "ids": [ID], "id": [ID], "group": [GROUP]}
        self._known["member"] = ["m"]
        self._move = self._move or self._begin_move(headers)
        self._known |= {"name": [NAME], "move": [self._move], "schedule": [NAME]}

    def _begin_move(self, headers: dict[str, str]) -> str:
        moves, queues = f"{self._url}/v1/{self._application}/_moves", ("emptied", "filled")
        for name in queues:
            self._session.request(
                "POST",
                self._url + f"/v1/{self._application}",
                json={"queue_name": name},
                headers=headers,
                timeout=TIMEOUT,
            )
        body = {"from": queues[0], "to": queues[1]}
        move: str = self._session.request("POST", moves, json=body, headers=headers, timeout=TIMEOUT).json()["move"]
        return move

    def cases(self, label: str) -> st.SearchStrategy[Case[Any]]:
        """Draws valid requests, and invalid ones with a valid path if there is a query, header or body to spoil."""
        operation = self._operations[label]
        strategy: st.SearchStrategy[Case[Any]] = operation.as_strategy()
        if operation.query or operation.headers or operation.body:
            # A wrong path would be answered before anything else is checked.
            path = {"app": self._application, "queue": QUEUE, "ids": ID, "id": ID, "group": GROUP, "name": NAME}
            path["member"] = "m"
            path |= {"move": self._move or NAME, "schedule": NAME}
            path = {name: value for name, value in path.items() if f"{{{name}}}" in operation.path}
            strategy |= operation.as_strategy(generation_mode=GenerationMode.NEGATIVE, path_parameters=path)
        return strategy

    def play(self, case: Case[Any], data: st.DataObject) -> Response:
        """Sends a request, mostly to what exists and with the key, checks the answer, and keeps the names in it.

        Raises:
            Exception: A group of what contradicts the document.
        """
        for name in case.path_parameters:
            if data.draw(st.integers(0, 9)):
                case.path_parameters[name] = quote(data.draw(st.sampled_from(self._known[name])), safe="")
        headers = {"Accept": data.draw(st.sampled_from(["*/*", "application/problem+json"]))}
        credential = data.draw(st.sampled_from([self._credential] * 7 + ["Application wrong", "Basic x", None]))
        if credential is not None:
            headers["Authorization"] = credential
        response = case.call(base_url=self._url, session=self._session, headers=headers, timeout=TIMEOUT)
        case.validate_response(response, checks=CHECKS)
        self._remember_identifiers(response)
        return response

    def _remember_identifiers(self, response: Response) -> None:
        if response.status_code not in {200, 201, 202} or "json" not in response.headers["content-type"][0]:
            return
        answer: Any = response.json()
        if not isinstance(answer, dict):
            return
        for field, name in (("queue_name", "queue"), ("group", "group"), ("move", "move")):
            if isinstance(answer.get(field), str):
                self._known[name].append(answer[field])
        messages = [message for message in answer.get("messages", ()) if "key" in message]
        for name in ("ids", "id"):
            self._known[name] += [f"{message['partition']}:{message['key']}" for message in messages]
