"""Tells which file system a path is on, and whether that is one of the network.

Locks and shared memory of SQLite's write-ahead log hold between processes of one machine, on file
systems of that machine: see "Write-Ahead Logging" in SQLite's documentation.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

__all__ = ["file_system_of", "network_file_system"]

#: Where the kernel lists what is mounted; see proc(5). Systems without it tell nothing.
MOUNTS = Path("/proc/self/mountinfo")

#: Types whose files other machines may have open, as the kernel and FUSE name them.
NETWORK = frozenset({
    "9p", "afs", "beegfs", "ceph", "cifs", "coda", "davfs", "gpfs", "glusterfs", "lustre", "ncpfs",
    "nfs", "nfs4", "orangefs", "pvfs2", "smb3", "smbfs",
    "fuse.blobfuse", "fuse.blobfuse2", "fuse.ceph", "fuse.ceph-fuse", "fuse.curlftpfs",
    "fuse.davfs", "fuse.davfs2", "fuse.gcsfuse", "fuse.glusterfs", "fuse.goofys", "fuse.juicefs",
    "fuse.mfs", "fuse.mount-s3", "fuse.mountpoint-s3", "fuse.rclone", "fuse.s3fs", "fuse.smbnetfs",
    "fuse.sshfs",
})  # fmt: skip

#: A character that the list writes as an octal number: space, tab, newline, backslash.
_ESCAPED = re.compile(r"\\([0-7]{3})")


def file_system_of(path: str, mounts: str) -> str:
    """Return the type of the file system of a path, "" where the list does not tell.

    Args:
        path: Absolute, without links; it need not be there.
        mounts: Text in the format of ``/proc/self/mountinfo``.
    """
    longest, found = -1, ""
    for line in mounts.splitlines():
        mount, _, source = line.partition(" - ")
        fields, kind = mount.split(" "), source.partition(" ")[0]
        if len(fields) <= _MOUNT_POINT or not kind:
            continue
        point = _ESCAPED.sub(lambda match: chr(int(match[1], 8)), fields[_MOUNT_POINT])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        # A later mount on the same place hides the earlier one.
        if inside and len(point) >= longest:
            longest, found = len(point), kind
    return found


#: Field of a line that has the mount point, counted from 0.
_MOUNT_POINT = 4


def network_file_system(path: Path) -> str:
    """Return the type of the network file system that a path is on, "" for none or none known."""
    try:
        mounts = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    kind = file_system_of(os.path.realpath(path), mounts)
    return kind if kind in NETWORK else ""
