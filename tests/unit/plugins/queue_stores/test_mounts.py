"""Which file system a path is on, according to the kernel's list of mounts."""

from __future__ import annotations

from pathlib import Path

import pytest

from eventmq.plugins.queue_stores.sqlite import disk
from eventmq.plugins.queue_stores.sqlite.disk import NETWORK, file_system_of, network_file_system

TABLE = r"""22 28 0:21 / /proc rw,nosuid - proc proc rw
28 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
30 28 0:30 / /srv rw shared:2 master:7 - nfs4 files:/srv rw,vers=4.2
31 30 8:2 / /srv/local rw - xfs /dev/sdb1 rw
32 28 0:32 / /home/ann/my\040share rw - cifs //host/share rw
33 28 0:33 / /mnt rw - autofs systemd-1 rw
34 33 0:34 / /mnt rw - fuse.sshfs ann@host:/ rw
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/", "ext4"),
        ("/var/lib/eventmq", "ext4"),
        ("/srv", "nfs4"),
        ("/srv/eventmq/data", "nfs4"),
        ("/srv/local/data", "xfs"),
        ("/srvs", "ext4"),
        ("/home/ann/my share/data", "cifs"),
        ("/mnt/data", "fuse.sshfs"),
    ],
)
def test_the_innermost_mount_counts(path: str, expected: str) -> None:
    """A later mount on the same path hides an earlier one; only whole names match."""
    assert expected == file_system_of(path, TABLE)


def test_lines_of_another_format_are_skipped() -> None:
    assert "" == file_system_of("/x", "nonsense\n1 2 3\n - \n")


def test_links_are_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file system of the files counts, not that of the link."""
    table = tmp_path / "table"
    table.write_text(f"1 0 8:1 / / rw - ext4 d rw\n2 1 0:9 / {tmp_path}/far rw - 9p d rw\n")
    monkeypatch.setattr(disk, "MOUNTS", table)
    (tmp_path / "far").mkdir()
    (tmp_path / "near").symlink_to(tmp_path / "far")
    assert "9p" == network_file_system(tmp_path / "near" / "data")
    assert "" == network_file_system(tmp_path / "data")


def test_a_system_without_a_list_of_mounts_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "MOUNTS", tmp_path / "missing")
    assert "" == network_file_system(tmp_path)


def test_local_file_systems_are_no_network() -> None:
    assert NETWORK.isdisjoint({"ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "fuseblk"})
    assert NETWORK.isdisjoint({"fuse.fuse-overlayfs", "virtiofs", "apfs"})
