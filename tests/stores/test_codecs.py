"""Read views in compressed blocks with dmo and zarr, and check the errors for damaged blocks."""

import dask
import google_crc32c
import numpy as np
import pytest
import scipy.sparse
import zarr

from dmo.blocks import Subset, sampled
from dmo.errors import UserError
from dmo.stores import StoreError, ViewSpec, create_features, open_features

RNG = np.random.default_rng(0)
COUNTS = (RNG.poisson(20, (250, 96)) * (RNG.random((250, 96)) < 0.15)).astype(np.uint16)
SPARSE = scipy.sparse.csr_array(COUNTS.astype(np.float32))


def made(path, codec, skip=()):
    views = {"dense": COUNTS, "sparse": SPARSE}
    specs = {name: ViewSpec(96, X.dtype, name, histogram=True, codec=codec) for name, X in views.items()}
    writer = create_features(path, 250, specs, block=64)
    for name, i in writer.missing():
        if (name, i) not in skip:
            writer.write(name, i, views[name][writer.rows(i)])
    return writer


def size(path):
    return sum(file.stat().st_size for file in path.rglob("c.*"))


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_compressed_views_read_like_others_and_are_smaller(tmp_path, codec):
    stores = {}
    for name in (None, codec):
        made(tmp_path / f"{name}.zarr", name).finish()
        stores[name] = open_features(tmp_path / f"{name}.zarr")
    views = stores[codec].views
    np.testing.assert_array_equal(views["dense"][:], COUNTS)
    np.testing.assert_array_equal(views["sparse"][60:130].toarray(), COUNTS[60:130])
    np.testing.assert_array_equal(zarr.open_array(views["dense"].url)[:], COUNTS)
    index = np.array([3, 70, 249])
    np.testing.assert_array_equal(sampled(views["dense"], index), COUNTS[index])
    np.testing.assert_array_equal(Subset(views["dense"], index)[:], COUNTS[index])
    packed, plain = (size(tmp_path / f"{name}.zarr" / "dense") for name in (codec, None))
    assert packed < plain / 2


def test_a_writer_goes_on_with_the_blocks_that_are_missing(tmp_path):
    path = tmp_path / "set.zarr"
    made(path, "zstd", skip=[("dense", 2), ("sparse", 0)])
    (path / "dense" / "c.1.0").write_bytes(b"torn")
    # Views without a codec use the configured codec.
    with dask.config.set({"dmo.stores.codec": "zstd"}):
        writer = made(path, None, skip=[("dense", i) for i in range(4)] + [("sparse", 0)])
    assert writer.missing() == [("dense", 1), ("dense", 2), ("sparse", 0)]


def flipped(data):
    return data[:40] + bytes([data[40] ^ 1]) + data[41:]


def forged(data):
    """Forge a block header that announces too many values, and add a matching checksum."""
    packed = data[:4] + (1 << 20).to_bytes(4, "little") + data[8:-4]
    return packed + google_crc32c.value(packed).to_bytes(4, "little")


@pytest.mark.parametrize("damage", [flipped, forged, lambda data: data[:-9], lambda data: b"", None])
def test_damaged_blocks_are_named(tmp_path, damage):
    made(tmp_path / "set.zarr", "lz4").finish()
    file = tmp_path / "set.zarr" / "dense" / "c.1.0"
    data = file.read_bytes()
    file.unlink() if damage is None else file.write_bytes(damage(data))
    view = open_features(tmp_path / "set.zarr").views["dense"]
    np.testing.assert_array_equal(view[:64], COUNTS[:64])
    with pytest.raises(StoreError, match="block 1 of view 'dense'"):
        view[:]


def test_unknown_codecs_are_refused():
    with pytest.raises(UserError, match="'lz4' or 'zstd', got 'snappy'"):
        ViewSpec(3, codec="snappy")
