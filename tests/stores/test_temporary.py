"""Test arrays in temporary files, and files that become visible only when they are complete."""

import sys
from pathlib import Path

import numpy as np
import pytest
from shell import disk_full

from dmo.stores.temporary import disk_array, new_file, rows_on_disk


def _anonymous() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("RssAnon")).split()[1]) << 10


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux reports RssAnon")
def test_disk_arrays_take_no_anonymous_memory(tmp_path: Path) -> None:
    block = np.ones((1 << 10, 1 << 7))
    before = _anonymous()
    (found,) = rows_on_disk(
        1 << 16, ((slice(i, i + len(block)), [block]) for i in range(0, 1 << 16, len(block))), tmp_path
    )
    assert found.sum() == 1 << 23
    assert _anonymous() - before < found.nbytes / 4
    assert list(tmp_path.iterdir()) == []


def test_disk_array_rejects_a_full_disk(tmp_path: Path) -> None:
    with disk_full(1000), pytest.raises(OSError, match=r"temporary rows \(File too large\); free disk space"):
        disk_array((1000, 2), np.float64, tmp_path)
    assert disk_array((0, 2), np.float64, tmp_path).shape == (0, 2)


def test_new_file_keeps_the_former_file_if_the_block_raises(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"former")

    def stopped() -> None:
        with new_file(tmp_path / "a") as file:
            file.write(b"new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        stopped()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"former"]
