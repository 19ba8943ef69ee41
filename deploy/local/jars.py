"""The jars of the servers: which versions, fetched once by Maven or jgo, kept in the user's cache.

A bundle's directory appears in the cache by one rename, when all of its jars are there and can be opened. So a fetch
that was interrupted is never taken for a whole one, and whoever waits for the lock finds the work done.
"""

from __future__ import annotations

import contextlib
import fcntl
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import platformdirs

from deploy.local.errors import CannotFetch

CASSANDRA_VERSION = "5.0.9"
ZOOKEEPER_VERSION = "3.9.4"

MAVEN_SECONDS = 600.0
DOWNLOADS_AT_ONCE = 8

FIELDS = ("groupId", "artifactId", "version")
PROJECT = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>jars</artifactId><version>1</version>
  <dependencies>
{dependencies}
  </dependencies>
</project>
"""


@dataclass(frozen=True)
class Bundle:
    """A server's jars.

    Args:
        name: Name of its directory in the cache; contains the version, so that a new version is a new directory.
        coordinates: The jars to fetch with their dependencies, each as ``group:artifact:version``.
        alone: Fetch no dependencies, because they are among the coordinates.
    """

    name: str
    coordinates: tuple[str, ...]
    alone: bool = False


CASSANDRA = Bundle(f"cassandra-{CASSANDRA_VERSION}", (f"org.apache.cassandra:cassandra-all:{CASSANDRA_VERSION}",))
ZOOKEEPER = Bundle(
    f"zookeeper-{ZOOKEEPER_VERSION}",
    (
        f"org.apache.zookeeper:zookeeper:{ZOOKEEPER_VERSION}",
        # The server loads these three although its own list calls them optional.
        "ch.qos.logback:logback-classic:1.3.15",
        "io.dropwizard.metrics:metrics-core:4.1.12.1",
        "org.xerial.snappy:snappy-java:1.1.10.5",
    ),
)


def fetch_jars(bundle: Bundle, cache: Path | None = None) -> Path:
    """Returns the directory with the bundle's jars; fetches them if the cache does not have them.

    Several processes may call it at once: one fetches, the others wait for it.

    Args:
        bundle: The jars.
        cache: Directory of all bundles; the user's cache directory if None.

    Raises:
        CannotFetch: Neither Maven nor jgo could fetch all jars.
    """
    cache = cache or platformdirs.user_cache_path("queuey-servers")
    directory = cache / bundle.name
    if directory.is_dir():
        return directory
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / f"{bundle.name}.lock"):
        if not directory.is_dir():
            for interrupted in cache.glob(
                f"{bundle.name}-*"
            ):  # by one that was killed; whoever still worked would have the lock
                shutil.rmtree(interrupted, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=f"{bundle.name}-", dir=cache, ignore_cleanup_errors=True) as work:
                lib = Path(work) / "lib"
                lib.mkdir()
                _fetch_into(bundle, Path(work), lib)
                lib.rename(directory)
    return directory


def render_pom(bundle: Bundle) -> str:
    parts = (dict(zip(FIELDS, coordinate.split(":"), strict=True)) for coordinate in bundle.coordinates)
    lines = ("".join(f"<{field}>{value}</{field}>" for field, value in part.items()) for part in parts)
    return PROJECT.format(dependencies="\n".join(f"    <dependency>{line}</dependency>" for line in lines))


def check_jars(lib: Path) -> None:
    """Opens every jar, so that an incomplete one is noticed before a server uses it.

    Raises:
        CannotFetch: The directory has no jar, or a broken one.
    """
    jars = sorted(lib.glob("*.jar"))
    if not jars:
        raise CannotFetch("Nothing was fetched.")
    for jar in jars:
        try:
            zipfile.ZipFile(jar).close()
        except (OSError, zipfile.BadZipFile) as error:
            raise CannotFetch(f"{jar.name} was not fetched as a whole: {error}") from error


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # let go by the kernel when the process ends, however it ends
        yield


def _fetch_into(bundle: Bundle, work: Path, lib: Path) -> None:
    """Fetches jars into ``lib`` by Maven, if it is installed and the bundle is not ``alone``; else by jgo.

    Tries jgo too if Maven fails.

    Raises:
        CannotFetch: All ways failed, or a jar is broken.
    """
    # Maven reads what each jar needs even where it is told to leave that out, and fails where it cannot.
    if shutil.which("mvn") and not bundle.alone:
        try:
            _fetch_by_maven(bundle, work, lib)
            check_jars(lib)
        except CannotFetch as failed:
            # A Maven that is there but set up for somewhere else; jgo has its own way to the repository.
            first: CannotFetch | None = failed
            shutil.rmtree(lib)
            lib.mkdir()
        else:
            return
    else:
        first = None
    try:
        _fetch_by_jgo(bundle, work, lib)
        check_jars(lib)
    except CannotFetch as failed:
        raise CannotFetch(
            f"{bundle.name}: {failed}" + (f" Before that, by Maven: {first}" if first else "")
        ) from failed


def _fetch_by_maven(bundle: Bundle, work: Path, lib: Path) -> None:
    (work / "pom.xml").write_text(render_pom(bundle), "utf-8")
    command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={lib}", "-DincludeScope=runtime"]
    try:
        done = subprocess.run(
            command,
            cwd=work,
            capture_output=True,
            text=True,
            timeout=MAVEN_SECONDS,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotFetch(f"mvn: {error}") from error
    if done.returncode:
        raise CannotFetch(f"mvn ended with {done.returncode}: {(done.stdout + done.stderr)[-800:]}")


def _fetch_by_jgo(bundle: Bundle, work: Path, lib: Path) -> None:
    try:
        from jgo.config import GlobalSettings  # noqa: PLC0415 - needed once per machine, and slow to import
        from jgo.constants import MAVEN_CENTRAL_URL  # noqa: PLC0415 - as above
        from jgo.maven import MavenContext  # noqa: PLC0415 - as above
        from jgo.parse import Coordinate  # noqa: PLC0415 - as above
    except ImportError as error:
        raise CannotFetch(f"Neither mvn nor the Python package jgo is installed: {error}") from error
    # A repository of its own: jgo takes a file that is there for whole, and writes files in place.
    remote = {"central": MAVEN_CENTRAL_URL, **GlobalSettings.load().repositories}
    context = MavenContext(repo_cache=work / "repository", remote_repos=remote, timeout=60)
    try:
        wanted = [context.create_dependency(replace(Coordinate.parse(x), scope="compile")) for x in bundle.coordinates]
        named, further = (wanted, []) if bundle.alone else context.resolver.resolve(wanted)
        needed = [x.artifact for x in (*named, *(y for y in further if y.scope in {"compile", "runtime"}))]
        with ThreadPoolExecutor(DOWNLOADS_AT_ONCE) as pool:
            for path in pool.map(lambda artifact: artifact.resolve(), needed):
                shutil.copy(path, lib)
    except Exception as error:  # jgo raises whatever its parts raise
        raise CannotFetch(f"jgo: {type(error).__name__}: {error}") from error
