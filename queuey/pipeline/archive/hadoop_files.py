"""Access to an archive's directory through Hadoop: local disks, HDFS, object stores, whatever Spark supports."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.protocol import Py4JJavaError

from queuey.model.errors import QueueyError
from queuey.spark.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_RENAMING_SCHEMES = frozenset({"file", "hdfs", "viewfs"})
"""Schemes of file systems that show half-written files, and where a rename replaces a file atomically.

In object stores a file appears when it is closed, and a rename is a copy.
"""
_GLOB_CHARACTERS = frozenset("*?[]{}\\")
"""Characters that Spark interprets as a glob pattern."""


class FilesUnavailable(QueueyError):
    """A file system refused a request."""


class DirectoryEntry(NamedTuple):
    """Name, kind and length in bytes of a directory entry."""

    name: str
    directory: bool
    bytes: int


class HadoopFiles:
    """The files below a directory. Paths are relative to it and use slashes.

    Args:
        spark: The session that has the Hadoop settings.
        directory: A path, or a URL of a file system that Spark supports.

    Raises:
        OptionError: Spark would interpret the name as a pattern.
        FilesUnavailable: The file system does not exist or does not answer.
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
        with _translate_java_errors(directory):
            path = self._path(directory)
            self._system = path.getFileSystem(session.sessionState().newHadoopConf())
            # Without checksum files, because a rename would not replace them together with their files.
            self._plain = self._system.getRaw() if self._system.getUri().getScheme() == "file" else self._system
            self.root = str(self._system.makeQualified(path).toString()).rstrip("/")
        if not _GLOB_CHARACTERS.isdisjoint(self.root):
            raise OptionError(
                f"{self.root}: the name of an archive cannot contain {' '.join(sorted(_GLOB_CHARACTERS))}"
            )

    @property
    def has_atomic_rename(self) -> bool:
        """True if a rename replaces a file atomically; such file systems also list files that are being written."""
        return str(self._system.getUri().getScheme()) in _RENAMING_SCHEMES

    def path(self, path: str) -> str:
        return f"{self.root}/{path}" if path else self.root

    def list(self, path: str) -> list[DirectoryEntry]:
        with _translate_java_errors(path):
            if not self._system.exists(self._java_path(path)):
                return []
            entries = [
                DirectoryEntry(str(status.getPath().getName()), bool(status.isDirectory()), int(status.getLen()))
                for status in self._system.listStatus(self._java_path(path))
            ]
        return sorted(entries)

    def exists(self, path: str) -> bool:
        with _translate_java_errors(path):
            return bool(self._system.exists(self._java_path(path)))

    def find_length(self, path: str) -> int | None:
        with _translate_java_errors(path):
            if not self._system.exists(self._java_path(path)):
                return None
            return int(self._system.getFileStatus(self._java_path(path)).getLen())

    def read(self, path: str) -> str | None:
        with _translate_java_errors(path):
            if not self._system.exists(self._java_path(path)):
                return None
            stream = self._system.open(self._java_path(path))
            held = self._bytes()
            # The last argument closes both.
            self._io.copyBytes(stream, held, 65_536, True)  # noqa: FBT003 - Java has no keywords
        return bytes(held.toByteArray()).decode(errors="replace")

    def list_tree(self, path: str) -> dict[str, int]:
        with _translate_java_errors(path):
            if not self._system.exists(self._java_path(path)):
                return {}
            files, base = self._system.listFiles(self._java_path(path), True), len(self.path(path)) + 1  # noqa: FBT003 - all levels
            entries = {}
            while files.hasNext():
                status = files.next()
                entries[str(status.getPath().toString())[base:]] = int(status.getLen())
        return dict(sorted(entries.items()))

    def write(self, path: str, text: str) -> None:
        """Replaces a small file atomically, even if this process is killed."""
        if not self.has_atomic_rename:
            self._create(path, text)
            return
        parent, _, name = path.rpartition("/")
        # Spark and Hadoop ignore names that begin with an underscore.
        draft = f"{parent}/_{name}.new" if parent else f"_{name}.new"
        self._create(draft, text)
        with _translate_java_errors(path):
            self._rename_over(draft, path)

    def _create(self, path: str, text: str) -> None:
        with _translate_java_errors(path):
            stream = self._plain.create(self._java_path(path), True)  # noqa: FBT003 - overwrite
            try:
                stream.write(text.encode())
            finally:
                stream.close()

    def _rename_over(self, draft: str, path: str) -> None:
        if self._plain is not self._system:
            if not self._plain.rename(self._java_path(draft), self._java_path(path)):
                raise FilesUnavailable(f"{self.path(draft)} could not be renamed to {self.path(path)}")
            return
        rename = getattr(self._fs, "Options$Rename")
        overwrite = self._array(rename, 1)
        overwrite[0] = rename.OVERWRITE
        context = self._fs.FileContext.getFileContext(self._system.getUri(), self._system.getConf())
        context.rename(self._java_path(draft), self._java_path(path), overwrite)

    def delete(self, path: str) -> None:
        with _translate_java_errors(path):
            self._system.delete(self._java_path(path), True)  # noqa: FBT003 - recursive

    def _java_path(self, path: str) -> Any:  # noqa: ANN401 - a Java object
        return self._path(self.path(path))


def has_match(spark: SparkSession, pattern: str) -> bool:
    """Returns whether a path or glob matches a file or directory.

    Raises:
        OptionError: A matching file has a name that Spark ignores.
        FilesUnavailable: The file system does not exist or does not answer.
    """
    jvm: Any = spark.sparkContext._jvm  # noqa: SLF001 - the only way to Hadoop's file systems
    session: Any = spark._jsparkSession  # noqa: SLF001 - likewise
    with _translate_java_errors(pattern):
        path = jvm.org.apache.hadoop.fs.Path(pattern)
        statuses = path.getFileSystem(session.sessionState().newHadoopConf()).globStatus(path)
    for status in statuses or ():
        name = str(status.getPath().getName())
        if not status.isDirectory() and (name.startswith((".", "_")) or name.endswith("._COPYING_")):
            raise OptionError(f"{status.getPath().toString()}: Spark ignores files with such names")
    return statuses is not None and len(statuses) > 0


@contextmanager
def _translate_java_errors(path: str) -> Iterator[None]:
    try:
        yield
    except Py4JJavaError as error:
        reason = error.java_exception
        text = str(reason.getMessage() or reason.getClass().getName()).splitlines()[0]
        raise FilesUnavailable(f"{path}: {text}") from error
