"""``queuey doctor`` on the embedded store."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from queuey.model.errors import StoreIncompatible, StoreUnavailable
from queuey.model.messages import Finding
from queuey.storage.sqlite import connection, schema
from queuey.storage.sqlite.connection import SqliteOptions
from queuey.storage.sqlite.database import MIN_FREE_BYTES

LOW_FREE_BYTES = 256 << 20
"""Min free bytes on the disk without a warning: several times the size of the write-ahead log."""
_MOUNTS = Path("/proc/self/mounts")
_NETWORK_FILE_SYSTEMS = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "ceph", "glusterfs", "lustre"})


def examine(directory: Path, options: SqliteOptions, *, whole: bool = True) -> list[Finding]:
    """Checks the directory, the file and the disk, without changing anything.

    If there is no store, or it belongs to another user, that is the only finding.
    """
    path = connection.file_of(directory)
    directory = path.parent
    try:
        owner = path.stat().st_uid
    except OSError as error:
        advice = "Pass the directory with --data. queuey serve creates a store there."
        return [Finding("directory", "fail", f"there is no store at {directory}: {error.strerror}", advice)]
    if owner != os.geteuid():
        # Opening it would create files beside it that the service cannot write.
        return [
            Finding(
                "directory", "fail", f"{path} belongs to another user", "Run this as the user that the service runs as."
            )
        ]
    integrity = [_check_integrity(path)] if whole else []
    return [
        _check_directory(directory),
        _check_mount(directory),
        _check_free_space(directory),
        *integrity,
        _check_sync(options),
    ]


def judge_free_space(free: int) -> Finding:
    text = f"{free / (1 << 20):,.0f} MiB are free"
    if free < MIN_FREE_BYTES:
        return Finding("disk", "fail", text, "Free disk space. Until then posts are refused.")
    if free < LOW_FREE_BYTES:
        return Finding(
            "disk", "warn", text, "Free disk space: the write-ahead log alone needs about 16 MiB, more during backups."
        )
    return Finding("disk", "ok", text)


def judge_mount(directory: Path, mounts: str) -> Finding:
    """Returns a failure for a network file system. A file system not listed in ``mounts`` is ok."""
    mount, kind = "", ""
    for line in mounts.splitlines():
        _, path, type_, *_ = line.split(" ")
        path = path.replace("\\040", " ")
        if directory.is_relative_to(path) and len(path) >= len(mount):
            mount, kind = path, type_
    if kind in _NETWORK_FILE_SYSTEMS:
        advice = "Move the directory to a local disk: the processes share memory through a file beside the store."
        return Finding("file system", "fail", f"{kind} at {mount}", advice)
    return Finding("file system", "ok", f"{kind} at {mount}" if kind else "not known")


def _check_directory(directory: Path) -> Finding:
    mode = stat.S_IMODE(directory.stat().st_mode)
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK):
        return Finding("directory", "fail", f"{directory} is not writable", f"chmod u+rwx {directory}")
    if mode & 0o077:
        return Finding("directory", "warn", f"{directory} is open to others (mode {mode:o})", f"chmod 700 {directory}")
    return Finding("directory", "ok", str(directory))


def _check_mount(directory: Path) -> Finding:
    try:
        return judge_mount(directory.resolve(), _MOUNTS.read_text("utf-8", "replace"))
    except (OSError, ValueError):
        return Finding("file system", "ok", "not known")


def _check_free_space(directory: Path) -> Finding:
    disk = os.statvfs(directory)
    return judge_free_space(disk.f_bavail * disk.f_frsize)


def _check_integrity(path: Path) -> Finding:
    advice = "Stop the service and restore a backup: queuey restore; see docs/operations.md."
    try:
        complaints = schema.check(path)
    except (StoreIncompatible, StoreUnavailable) as error:
        return Finding("integrity", "fail", str(error), advice)
    if complaints:
        return Finding("integrity", "fail", f"{len(complaints)} defects, the first: {complaints[0]}", advice)
    return Finding("integrity", "ok", "SQLite's integrity check found no defects")


def _check_sync(options: SqliteOptions) -> Finding:
    if options.sync == "full":
        return Finding("acknowledged", "ok", "on this machine's disk (fsync) before the answer")
    advice = "Set sync to full if a power failure must not lose messages."
    return Finding("acknowledged", "warn", "handed to the operating system before the answer", advice)
