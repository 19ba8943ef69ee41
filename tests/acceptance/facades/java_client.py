"""EmoDB's own Java client, which makes the calls of a test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from deploy.local import jars
from tests.servers import java_programs

SOURCE = Path(__file__).with_name("EmodbCalls.java")
# The client's POM names a parent that is not published, so its further jars are listed here.
CLIENT = jars.Bundle(
    "emodb-queue-client-6.4.9",
    (
        "ch.qos.logback:logback-classic:1.1.2",
        "ch.qos.logback:logback-core:1.1.2",
        "com.bazaarvoice.emodb:emodb-common-api:6.4.9",
        "com.bazaarvoice.emodb:emodb-common-client:6.4.9",
        "com.bazaarvoice.emodb:emodb-common-dropwizard:6.4.9",
        "com.bazaarvoice.emodb:emodb-common-jersey-client:6.4.9",
        "com.bazaarvoice.emodb:emodb-common-json:6.4.9",
        "com.bazaarvoice.emodb:emodb-queue-api:6.4.9",
        "com.bazaarvoice.emodb:emodb-queue-client:6.4.9",
        "com.bazaarvoice.emodb:emodb-queue-client-common:6.4.9",
        "com.bazaarvoice.ostrich:ostrich-core:1.9.3",
        "com.codahale.metrics:metrics-core:3.0.2",
        "com.codahale.metrics:metrics-httpclient:3.0.2",
        "com.fasterxml:classmate:1.0.0",
        "com.fasterxml.jackson.core:jackson-annotations:2.10.5",
        "com.fasterxml.jackson.core:jackson-core:2.10.5",
        "com.fasterxml.jackson.core:jackson-databind:2.10.5.1",
        "com.fasterxml.jackson.datatype:jackson-datatype-guava:2.10.5",
        "com.fasterxml.jackson.datatype:jackson-datatype-jdk8:2.10.5",
        "com.fasterxml.jackson.datatype:jackson-datatype-joda:2.3.3",
        "com.fasterxml.jackson.datatype:jackson-datatype-jsr310:2.10.5",
        "com.fasterxml.jackson.jaxrs:jackson-jaxrs-base:2.3.3",
        "com.fasterxml.jackson.jaxrs:jackson-jaxrs-json-provider:2.3.3",
        "com.fasterxml.jackson.module:jackson-module-afterburner:2.10.5",
        "com.google.code.findbugs:jsr305:3.0.2",
        "com.google.guava:guava:20.0",
        "com.sun.jersey:jersey-client:1.19.4",
        "com.sun.jersey:jersey-core:1.19.4",
        "com.sun.jersey:jersey-server:1.18.1",
        "com.sun.jersey.contribs:jersey-apache-client4:1.18.1",
        "commons-codec:commons-codec:1.6",
        "commons-pool:commons-pool:1.6",
        "io.dropwizard:dropwizard-client:0.7.1",
        "io.dropwizard:dropwizard-core:0.7.1",
        "io.dropwizard:dropwizard-jackson:0.7.1",
        "io.dropwizard:dropwizard-jersey:0.7.1",
        "io.dropwizard:dropwizard-jetty:0.7.1",
        "io.dropwizard:dropwizard-logging:0.7.1",
        "io.dropwizard:dropwizard-metrics:0.7.1",
        "io.dropwizard:dropwizard-util:0.7.1",
        "javax.activation:activation:1.1.1",
        "javax.el:javax.el-api:2.2.5",
        "javax.validation:validation-api:1.1.0.Final",
        "javax.ws.rs:jsr311-api:1.1.1",
        "javax.xml.bind:jaxb-api:2.3.1",
        "joda-time:joda-time:2.3",
        "org.apache.httpcomponents:httpclient:4.3.4",
        "org.apache.httpcomponents:httpcore:4.3.2",
        "org.hibernate:hibernate-validator:5.1.1.Final",
        "org.jboss.logging:jboss-logging:3.1.3.GA",
        "org.slf4j:jcl-over-slf4j:1.7.6",
        "org.slf4j:slf4j-api:1.7.6",
    ),
    alone=True,
)


class Outcome(NamedTuple):
    """Outcome of a call: its result, or the class and the message of the exception."""

    result: Any
    error: str
    message: str


def build(directory: Path) -> list[str]:
    return java_programs.build(SOURCE, CLIENT, directory)


class JavaClient(java_programs.JavaProgram):
    """A process with the client.

    Args:
        command: The result of :func:`build`.
        port: The port of the service.
        key: The caller's.
    """

    def __init__(self, command: list[str], port: int, key: str) -> None:
        super().__init__([*command, f"127.0.0.1:{port}", key])

    def call(self, name: str, *arguments: object, kind: str = "plain") -> Any:  # noqa: ANN401 - tests look into it
        outcome = self.try_call(name, *arguments, kind=kind)
        assert not outcome.error, outcome
        return outcome.result

    def try_call(self, name: str, *arguments: object, kind: str = "plain") -> Outcome:
        self.tell(json.dumps([kind, name, *arguments]))
        line = json.loads(self.read_answer())
        return Outcome(line.get("result"), line.get("error", ""), line.get("message") or "")
