"""An archive's directory, through Hadoop's file systems: local disks, HDFS, object stores, whatever Spark can reach."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.protocol import Py4JJavaError

from queuey.errors import QueueyError
from queuey.spark.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_RENAMING = frozenset({"file", "hdfs", "viewfs"})
"""Schemes of file systems where a half-written file is seen, and a rename replaces a file in one step.

In object stores a file appears when it is closed, and a rename is a copy.
"""
_PATTERNS = frozenset("*?[]{}\\")
"""Characters that Spark reads as a pattern."""


class FilesUnavailable(QueueyError):
    """A file system refused a request."""

    code = "FilesUnavailable"


class DirectoryEntry(NamedTuple):
    """Name, kind and length in bytes."""

    name: str
    directory: bool
    bytes: int


class HadoopFiles:
    """The files under a directory. Places are relative to it and use slashes.

    Args:
        spark: Whose settings of Hadoop hold.
        directory: A path, or a URL of a file system that Spark knows.

    Raises:
        OptionError: Spark would take the name for a pattern.
        FilesUnavailable: There is no such file system, or it does not answer.
    """

    def __init__(self, spark: SparkSession, directory: str) -> None:
        jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - the only way to Hadoop's file systems
        session: Any = spark._jsparkSession  # noqa: SLF001 - likewise
        hadoop = jvm.org.apache.hadoop
        self._fs = hadoop.fs
        self._path = hadoop.fs.Path
        gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - likewise
        self._array = gateway.new_array
        self._io = hadoop.io.IOUtils
        self._bytes = jvm.java.io.ByteArrayOutputStream
        with _refusing(directory):
            path = self._path(directory)
            self._system = path.getFileSystem(session.sessionState().newHadoopConf())
            # Without checksums in files of their own, which no rename would replace together with their files.
            self._plain = self._system.getRaw() if self._system.getUri().getScheme() == "file" else self._system
            self.root = str(self._system.makeQualified(path).toString()).rstrip("/")
        if not _PATTERNS.isdisjoint(self.root):
            raise OptionError(f"{self.root}: the name of an archive has none of {' '.join(sorted(_PATTERNS))}")

    @property
    def renames(self) -> bool:
        """True if a rename replaces a file in one step; such file systems also list files that are being written."""
        return str(self._system.getUri().getScheme()) in _RENAMING

    def path(self, path: str) -> str:
        """Returns the path in Spark's form."""
        return f"{self.root}/{path}" if path else self.root

    def list(self, path: str) -> list[DirectoryEntry]:
        """Lists a directory by name; nothing if it is missing."""
        with _refusing(path):
            if not self._system.exists(self._at(path)):
                return []
            found = [
                DirectoryEntry(str(status.getPath().getName()), bool(status.isDirectory()), int(status.getLen()))
                for status in self._system.listStatus(self._at(path))
            ]
        return sorted(found)

    def exists(self, path: str) -> bool:
        with _refusing(path):
            return bool(self._system.exists(self._at(path)))

    def length(self, path: str) -> int | None:
        """Returns the length of a file in bytes; None: it is missing."""
        with _refusing(path):
            if not self._system.exists(self._at(path)):
                return None
            return int(self._system.getFileStatus(self._at(path)).getLen())

    def read(self, path: str) -> str | None:
        """Returns the text of a small file; None: it is missing."""
        with _refusing(path):
            if not self._system.exists(self._at(path)):
                return None
            stream = self._system.open(self._at(path))
            held = self._bytes()
            # The last argument closes both.
            self._io.copyBytes(stream, held, 65_536, True)  # noqa: FBT003 - Java has no keywords
        return bytes(held.toByteArray()).decode(errors="replace")

    def tree(self, path: str) -> dict[str, int]:
        """Returns the files below a directory: relative path to length in bytes."""
        with _refusing(path):
            if not self._system.exists(self._at(path)):
                return {}
            found, base = self._system.listFiles(self._at(path), True), len(self.path(path)) + 1  # noqa: FBT003 - all levels
            entries = {}
            while found.hasNext():
                status = found.next()
                entries[str(status.getPath().toString())[base:]] = int(status.getLen())
        return dict(sorted(entries.items()))

    def write(self, path: str, text: str) -> None:
        """Replaces a small file atomically, even if this process is killed."""
        if not self.renames:
            self._create(path, text)
            return
        parent, _, name = path.rpartition("/")
        # Spark and Hadoop take no notice of names that begin so.
        draft = f"{parent}/_{name}.new" if parent else f"_{name}.new"
        self._create(draft, text)
        with _refusing(path):
            self._renamed(draft, path)

    def _create(self, path: str, text: str) -> None:
        with _refusing(path):
            stream = self._plain.create(self._at(path), True)  # noqa: FBT003 - overwrite
            try:
                stream.write(text.encode())
            finally:
                stream.close()

    def _renamed(self, draft: str, path: str) -> None:
        if self._plain is not self._system:
            if not self._plain.rename(self._at(draft), self._at(path)):
                raise FilesUnavailable(f"{self.path(draft)} could not be renamed to {self.path(path)}")
            return
        rename = getattr(self._fs, "Options$Rename")
        overwrite = self._array(rename, 1)
        overwrite[0] = rename.OVERWRITE
        context = self._fs.FileContext.getFileContext(self._system.getUri(), self._system.getConf())
        context.rename(self._at(draft), self._at(path), overwrite)

    def delete(self, path: str) -> None:
        """Deletes a file or a directory tree, if it exists."""
        with _refusing(path):
            self._system.delete(self._at(path), True)  # noqa: FBT003 - recursive

    def _at(self, path: str) -> Any:  # noqa: ANN401 - a Java object
        return self._path(self.path(path))


def matching(spark: SparkSession, pattern: str) -> bool:
    """Returns whether there is a file or directory of this name, or one that the glob matches.

    Raises:
        OptionError: It is a file that Spark would read as an empty one, because of its name.
        FilesUnavailable: There is no such file system, or it does not answer.
    """
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - the only way to Hadoop's file systems
    session: Any = spark._jsparkSession  # noqa: SLF001 - likewise
    with _refusing(pattern):
        path = jvm.org.apache.hadoop.fs.Path(pattern)
        found = path.getFileSystem(session.sessionState().newHadoopConf()).globStatus(path)
    for status in found or ():
        name = str(status.getPath().getName())
        if not status.isDirectory() and (name.startswith((".", "_")) or name.endswith("._COPYING_")):
            raise OptionError(f"{status.getPath().toString()}: Spark overlooks files of such names")
    return found is not None and len(found) > 0


@contextmanager
def _refusing(path: str) -> Iterator[None]:
    """Turns errors of Java into :class:`FilesUnavailable`, which names the path."""
    try:
        yield
    except Py4JJavaError as error:
        reason = error.java_exception
        text = str(reason.getMessage() or reason.getClass().getName()).splitlines()[0]
        raise FilesUnavailable(f"{path}: {text}") from error
