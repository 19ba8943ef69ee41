"""EmoDB's own Java client, which calls what a test tells it to."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from deploy.local import jars, java

SOURCE = Path(__file__).with_name("EmodbCalls.java")
COMPILER = jars.Bundle("ecj-3.32.0", ("org.eclipse.jdt:ecj:3.32.0",), alone=True)
# The POM of the client names a parent that is not published, so nothing tells which further jars it needs.
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
QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx256m")
"""Options of the JVM for programs that run for seconds."""


class Said(NamedTuple):
    """What came of a call: its result, or the class and the message of the exception."""

    result: Any
    error: str
    message: str


def build(directory: Path) -> list[str]:
    """Compiles the program; returns the command that runs it."""
    lib = jars.fetch(CLIENT)
    path = os.pathsep.join([str(directory), f"{lib}/*"])
    compiler = next(jars.fetch(COMPILER).glob("*.jar"))
    every = os.pathsep.join(map(str, lib.glob("*.jar")))
    command: list[str | Path] = [
        java.find(),
        *QUICK,
        "-jar",
        compiler,
        "-11",
        "-nowarn",
        "-cp",
        every,
        "-d",
        directory,
        SOURCE,
    ]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL, timeout=300)
    return [str(java.find()), *QUICK, "-cp", path, SOURCE.stem]


class JavaClient:
    """A process with the client.

    Args:
        command: From :func:`build`.
        port: Of the service.
        key: The caller's.
    """

    def __init__(self, command: list[str], port: int, key: str) -> None:
        self._process = subprocess.Popen(
            [*command, f"127.0.0.1:{port}", key], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._next() == "ready\n"

    def call(self, name: str, *arguments: object, kind: str = "plain") -> Any:  # noqa: ANN401 - tests look into it
        """Calls, and returns the result."""
        said = self.say(name, *arguments, kind=kind)
        assert not said.error, said
        return said.result

    def say(self, name: str, *arguments: object, kind: str = "plain") -> Said:
        """Calls, and returns what came of it."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([kind, name, *arguments]) + "\n")
        self._process.stdin.flush()
        said = json.loads(self._next())
        return Said(said.get("result"), said.get("error", ""), said.get("message") or "")

    def _next(self) -> str:
        """Reads a line of what the program says; libraries may print lines of their own."""
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(("{", "ready")):
                return line
        raise AssertionError(f"the client has ended with {self._process.wait()}")

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.communicate()
