"""An archive's directory, through Hadoop's file systems: local disks, HDFS, object stores, whatever Spark can reach."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.protocol import Py4JJavaError

from queuey.errors import QueueyError
from queuey.spark.errors import OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_PATTERNS = frozenset("*?[]{}\\")
"""What Spark takes a name with these for is not always a directory of that name."""


class FilesUnavailable(QueueyError):
    """A file system refused what it was asked."""

    code = "FilesUnavailable"


class DirectoryEntry(NamedTuple):
    """What a directory holds: a name, whether it is a directory, and the length of a file in bytes."""

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
        self._path = hadoop.fs.Path
        self._io = hadoop.io.IOUtils
        self._bytes = jvm.java.io.ByteArrayOutputStream
        try:
            path = self._path(directory)
            self._system = path.getFileSystem(session.sessionState().newHadoopConf())
            self.root = str(self._system.makeQualified(path).toString()).rstrip("/")
        except Py4JJavaError as error:
            raise _refused(directory, error) from error
        if not _PATTERNS.isdisjoint(self.root):
            raise OptionError(f"{self.root}: the name of an archive has none of {' '.join(sorted(_PATTERNS))}")

    def path(self, path: str) -> str:
        """Returns a place as Spark takes it."""
        return f"{self.root}/{path}" if path else self.root

    def list(self, path: str) -> list[DirectoryEntry]:
        """Returns what a directory holds, by name; nothing if it is not there."""
        try:
            if not self._system.exists(self._at(path)):
                return []
            found = [
                DirectoryEntry(str(status.getPath().getName()), bool(status.isDirectory()), int(status.getLen()))
                for status in self._system.listStatus(self._at(path))
            ]
        except Py4JJavaError as error:
            raise _refused(path, error) from error
        return sorted(found)

    def exists(self, path: str) -> bool:
        """Returns whether a file or directory is there."""
        try:
            return bool(self._system.exists(self._at(path)))
        except Py4JJavaError as error:
            raise _refused(path, error) from error

    def read(self, path: str) -> str | None:
        """Returns a small file's text; None: it is not there."""
        try:
            if not self._system.exists(self._at(path)):
                return None
            stream = self._system.open(self._at(path))
            held = self._bytes()
            # The last argument closes both.
            self._io.copyBytes(stream, held, 65_536, True)  # noqa: FBT003 - Java has no keywords
        except Py4JJavaError as error:
            raise _refused(path, error) from error
        return bytes(held.toByteArray()).decode(errors="replace")

    def write(self, path: str, text: str) -> None:
        """Replaces a small file. A reader finds the new text, the old one or, for a moment, no file: never a part."""
        parent, _, name = path.rpartition("/")
        # Spark and Hadoop take no notice of names that begin so.
        draft = f"{parent}/_{name}.new" if parent else f"_{name}.new"
        try:
            stream = self._system.create(self._at(draft), True)  # noqa: FBT003 - overwrite
            try:
                stream.write(text.encode())
            finally:
                stream.close()
        except Py4JJavaError as error:
            raise _refused(path, error) from error
        self.move(draft, path)

    def move(self, source: str, target: str) -> None:
        """Renames a file or a directory; what is at the target goes."""
        self.delete(target)
        try:
            self._system.mkdirs(self._at(target).getParent())
            moved = self._system.rename(self._at(source), self._at(target))
        except Py4JJavaError as error:
            raise _refused(target, error) from error
        if not moved:
            raise FilesUnavailable(f"{self.path(source)} could not be renamed to {self.path(target)}")

    def delete(self, path: str) -> None:
        """Removes a file, or a directory with what it holds, if it is there."""
        try:
            self._system.delete(self._at(path), True)  # noqa: FBT003 - recursive
        except Py4JJavaError as error:
            raise _refused(path, error) from error

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
    try:
        path = jvm.org.apache.hadoop.fs.Path(pattern)
        found = path.getFileSystem(session.sessionState().newHadoopConf()).globStatus(path)
    except Py4JJavaError as error:
        raise _refused(pattern, error) from error
    for status in found or ():
        name = str(status.getPath().getName())
        if not status.isDirectory() and (name.startswith((".", "_")) or name.endswith("._COPYING_")):
            raise OptionError(f"{status.getPath().toString()}: Spark overlooks files of such names")
    return found is not None and len(found) > 0


def _refused(path: str, error: Py4JJavaError) -> FilesUnavailable:
    reason = error.java_exception
    text = str(reason.getMessage() or reason.getClass().getName()).splitlines()[0]
    return FilesUnavailable(f"{path}: {text}")
