"""Compare file readers with generated files, SciPy and scikit-learn, and test ingestion and dataset cards."""

import bz2
import contextlib
import gzip
import hashlib
import json
import lzma
import pickle
import re
import struct
import sys
import threading
import time
import tracemalloc
import zipfile
import zlib
from collections import Counter
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import fsspec
import google_crc32c
import h5py
import numcodecs
import numpy as np
import pytest
import scipy.io
import scipy.sparse
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.datasets import dump_svmlight_file, load_svmlight_file

from dmo.blocks import rows
from dmo.datasets import CARDS, ingest, ingest_files, read_card, read_description, read_samples
from dmo.formats import text as text_files
from dmo.formats.arff import open_arff, read_arff, read_label_list
from dmo.formats.arrays import open_npy, open_npz, open_vecs, open_zarr
from dmo.formats.files import DataError, SequentialRows, Stacked
from dmo.formats.frames import read_frame
from dmo.formats.matlab import matlab_variables, read_matlab
from dmo.formats.tables import open_rows
from dmo.formats.text import open_csv, open_svmlight, read_csv, read_names, read_svmlight
from dmo.progress import bars
from dmo.stores import StoreError, open_features, verify
from tests.made_files import bombs, peaks, repeating_parquet

ROOT = Path(__file__).resolve().parents[2]
RNG = np.random.default_rng(0)

VECS = {
    "hvec": "HH",
    "hvecs": "HH",
    "hvec32": "II",
    "hvecs32": "II",
    "fvec": "If",
    "fvecs": "If",
    "dvec": "Id",
    "dvecs": "Id",
}


def vecs_bytes(X, ending):
    """Encode rows without NumPy in the documented format: each row has its length d, followed by d values."""
    head, value = VECS[ending]
    return b"".join(struct.pack(f"<{head}{len(row)}{value}", len(row), *row.tolist()) for row in X)


def put(folder, name, content):
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def refuses(path, expected, call, error=DataError):
    """Check that a call raises a one-line error that starts with the file name and contains `expected`."""
    with pytest.raises(error) as caught:
        call(path)
    message = str(caught.value)
    assert message.startswith(f"{path}")
    assert expected in message
    assert "\n" not in message
    assert not message.endswith(".")


# ---------------------------------------------------------------- .hvecs family


@settings(max_examples=40, deadline=None)
@given(data=st.data(), ending=st.sampled_from(sorted(VECS)), n=st.integers(1, 6), d=st.integers(1, 5))
def test_vecs_give_back_what_was_written(tmp_path_factory, data, ending, n, d):
    dtype = {"H": np.uint16, "I": np.uint32, "f": np.float32, "d": np.float64}[VECS[ending][1]]
    if np.dtype(dtype).kind == "u":
        values = st.integers(0, np.iinfo(dtype).max)
    else:
        values = st.floats(allow_nan=False, width=32 if dtype is np.float32 else 64)
    X = np.array(data.draw(st.lists(values, min_size=n * d, max_size=n * d)), dtype=dtype).reshape(n, d)
    source = open_vecs(put(tmp_path_factory.mktemp("vecs"), f"x.{ending}", vecs_bytes(X, ending)))
    assert source.shape == (n, d)
    assert source.dtype == dtype
    np.testing.assert_array_equal(source[:], X)
    low, high = sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n))))
    np.testing.assert_array_equal(source[low:high], X[low:high])


def test_vecs_of_the_size_that_their_description_gives(tmp_path):
    """The training annotations of Corel5k have 4500 x (2 + 260 x 2) = 2 349 000 bytes."""
    path = put(tmp_path, "a.hvecs", vecs_bytes(np.zeros((4500, 260), np.uint16), "hvecs"))
    assert path.stat().st_size == 2_349_000
    source = pickle.loads(pickle.dumps(open_vecs(path)))
    assert source.shape == (4500, 260)
    assert rows(source, slice(4499, 4500)).sum() == 0


def test_vecs_refuse_bad_files(tmp_path):
    X = np.arange(12, dtype=np.uint16).reshape(4, 3)
    good = vecs_bytes(X, "hvecs")
    refuses(
        put(tmp_path, "cut.hvecs", good[:-3]), "row 3 breaks off at byte 29, expected 8 bytes from byte 24", open_vecs
    )
    refuses(put(tmp_path, "empty.hvecs", b""), "ends at byte 0, expected 2 bytes", open_vecs)
    refuses(put(tmp_path, "zero.hvecs", b"\0" * 16), "the dimension at byte 0 is 0", open_vecs)
    refuses(put(tmp_path, "x.vec", good), "expected a file name that ends in one of .dvec, .dvecs", open_vecs)
    wrong = good[:16] + struct.pack("<H", 7) + good[18:]
    path = put(tmp_path, "wrong.hvecs", wrong)
    refuses(path, "row 2 at byte 16 declares 7 values, expected 3", lambda path: open_vecs(path)[1:])
    np.testing.assert_array_equal(open_vecs(path)[:2], X[:2])
    refuses(tmp_path / "none.hvecs", "no such file", open_vecs, FileNotFoundError)
    refuses(tmp_path, "is a folder", open_vecs)


# ---------------------------------------------------------------- MATLAB


@pytest.mark.parametrize("compressed", [False, True])
def test_matlab_matrices_are_what_scipy_writes_and_reads(tmp_path, compressed):
    contents = {
        "counts": RNG.integers(0, 9, (7, 4)).astype(np.uint16),
        "doubles": RNG.normal(size=(3, 2)),
        "singles": RNG.normal(size=(1, 3)).astype(np.float32),
        "signed": RNG.integers(-9, 9, (2, 3, 2)).astype(np.int64),
        "flags": RNG.integers(0, 2, (5, 2)).astype(bool),
        "one": np.uint8([[3]]),
        "nothing": np.zeros((0, 4)),
        "words": scipy.sparse.random_array((7, 5), density=0.4, rng=0, format="csc"),
        "blank": scipy.sparse.csc_array((3, 4)),
    }
    others = {"name": "corel", "cell": np.array([1, "a"], dtype=object), "record": {"a": 1.0}}
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, contents | others, do_compression=compressed)
    theirs = scipy.io.loadmat(path, spmatrix=False)
    listed = {name: (shape, kind) for name, shape, kind in scipy.io.whosmat(path)}
    # SciPy reports the type "logical" for "flags", and the number of texts as the shape of "name".
    listed |= {"flags": ((5, 2), "uint8"), "name": ((1, 5), "char")}
    assert matlab_variables(path) == listed
    found = read_matlab(path)
    assert set(found) == set(contents)
    for name, array in contents.items():
        if scipy.sparse.issparse(array):
            assert found[name].format == "csr"
            np.testing.assert_array_equal(found[name].toarray(), array.toarray())
        else:
            assert found[name].dtype == theirs[name].dtype
            np.testing.assert_array_equal(found[name], array)
    assert list(read_matlab(path, ["one"])) == ["one"]


def test_matlab_big_endian_and_small_types(tmp_path):
    """Read a big-endian file in which MATLAB stored the values of a double matrix as bytes."""
    flags, shape = struct.pack(">4I", 6, 8, 6, 0), struct.pack(">2I2i", 5, 8, 2, 3)
    name, values = struct.pack(">2H4s", 1, 1, b"X"), struct.pack(">2I6B2x", 2, 6, *range(6))
    body = flags + shape + name + values
    head = b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack(">H", 0x0100) + b"MI"
    path = put(tmp_path, "a.mat", head + struct.pack(">2I", 14, len(body)) + body)
    X = read_matlab(path)["X"]
    np.testing.assert_array_equal(X, scipy.io.loadmat(path)["X"])
    np.testing.assert_array_equal(X, [[0, 2, 4], [1, 3, 5]])
    assert X.dtype == np.uint8


def test_matlab_refuses_bad_files(tmp_path):
    path = tmp_path / "a.mat"
    contents = {"X": np.ones((9, 9)), "cell": np.array([1, "a"], dtype=object), "z": np.array([[1j]])}
    scipy.io.savemat(path, contents | {"S": scipy.sparse.eye_array(4, format="csc")})
    good = path.read_bytes()
    cut = put(tmp_path, "cut.mat", good[:400])
    refuses(cut, "ends at byte 400, expected 696 bytes from byte 136 on; truncated", read_matlab)
    refuses(put(tmp_path, "tag.mat", good[:130]), "expected an 8-byte tag from byte 128", read_matlab)
    refuses(put(tmp_path, "text.mat", b"1,2,3\n" * 99), "no byte order mark at byte 126", read_matlab)
    v73 = b"MATLAB 7.3 MAT-file".ljust(512) + b"\x89HDF\r\n\x1a\n"
    refuses(put(tmp_path, "v73.mat", v73), "is not a complete MATLAB 7.3 file", read_matlab)
    refuses(put(tmp_path, "type.mat", good[:128] + b"\x63" + good[129:]), "element of type 99 at byte 128", read_matlab)
    refuses(path, "the variable 'Y' is missing, expected one of X, cell, z, S", lambda path: read_matlab(path, ["Y"]))
    refuses(path, "variable 'cell' is a cell, expected a numeric", lambda path: read_matlab(path, ["cell"]))
    refuses(path, "variable 'z' contains complex numbers", lambda path: read_matlab(path, ["z"]))
    taller = good.replace(struct.pack("<2I2i", 5, 8, 9, 9), struct.pack("<2I2i", 5, 8, 9, 8))
    taller = put(tmp_path, "taller.mat", taller)
    expected = (
        "the matrix at byte 128, byte 696 in it: expected 72 values before it for a matrix of shape (9, 8), got 81"
    )
    refuses(taller, expected, lambda path: read_matlab(path, ["X"]))
    rows_part = struct.pack("<2I4i", 5, 16, 0, 1, 2, 3)
    assert good.count(rows_part) == 1
    far = put(tmp_path, "far.mat", good.replace(rows_part, struct.pack("<2I4i", 5, 16, 0, 1, 2, 10**6)))
    refuses(far, "row indices below 4 and 5 non-decreasing column starts", lambda path: read_matlab(path, ["S"]))
    packed = tmp_path / "packed.mat"
    scipy.io.savemat(packed, {"X": RNG.random((30, 9))}, do_compression=True)
    broken = bytearray(packed.read_bytes())
    broken[400:420] = bytes(20)
    expected = "the compressed matrix at byte 128 cannot be decompressed"
    refuses(put(tmp_path, "broken.mat", bytes(broken)), expected, read_matlab)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.integers(128, 900), st.integers(0, 255)), min_size=1, max_size=3), st.booleans())
def test_matlab_survives_damage_anywhere(tmp_path_factory, damage, compressed):
    path = tmp_path_factory.mktemp("mat") / "a.mat"
    contents = {"X": np.arange(12.0).reshape(4, 3), "S": scipy.sparse.eye_array(5, format="csc"), "n": "text"}
    scipy.io.savemat(path, contents, do_compression=compressed)
    data = bytearray(path.read_bytes())
    for position, value in damage:
        data[position % (len(data) - 128) + 128] = value
    path.write_bytes(bytes(data))
    with contextlib.suppress(DataError):
        for array in read_matlab(path).values():
            assert array.dtype.kind in "iuf"
            assert np.abs(array).sum() >= 0 or np.isnan(array.sum())


def test_matlab_refuses_a_sparse_matrix_of_absurdly_many_rows(tmp_path):
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, {"S": scipy.sparse.csc_array((np.ones(1), ([0], [0])), shape=(2_000_000_000, 1))})
    with pytest.raises(DataError, match="fewer than 2000000000 rows for a matrix"):
        read_matlab(path)


def test_matlab_decompresses_no_more_than_the_matrix_has(tmp_path):
    """A kilobyte of compressed zeros can expand to a megabyte, which exceeds the size in the header."""
    path = tmp_path / "a.mat"
    scipy.io.savemat(path, {"X": np.arange(12.0).reshape(4, 3)}, do_compression=True)
    data = path.read_bytes()
    inner = zlib.compress(zlib.decompress(data[136:]) + bytes(10**6))
    put(tmp_path, "a.mat", data[:132] + struct.pack("<I", len(inner)) + inner)
    refuses(path, "cannot be decompressed (its size differs from the declared size of the matrix)", read_matlab)


def test_matlab_73_as_matlab_wrote_it():
    """SciPy's test data contain a MATLAB 7.3 file, which SciPy cannot read."""
    path = Path(scipy.io.__file__).parent / "matlab" / "tests" / "data" / "testhdf5_7.4_GLNX86.mat"
    if not path.exists():
        pytest.skip("SciPy was installed without its tests")
    assert matlab_variables(path) == {"testdouble": ((1, 9), "double")}
    np.testing.assert_allclose(read_matlab(path)["testdouble"], [np.arange(9) * np.pi / 4])


def matlab73(path):
    """Write a file in the layout of MATLAB 7.3, with transposed matrices and attributes for class and sparsity."""
    rng = np.random.default_rng(0)
    contents = {
        "counts": rng.integers(0, 9, (70, 40)).astype(np.uint16),
        "doubles": rng.normal(size=(3, 2)),
        "flags": rng.integers(0, 2, (5, 2)).astype(np.uint8),
        "nothing": np.zeros((0, 4)),
        "words": scipy.sparse.random_array((7, 5), density=0.4, rng=0, format="csc"),
        "blank": scipy.sparse.csc_array((3, 4)),
    }
    kinds = {"counts": "uint16", "flags": "logical"}
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, array in contents.items():
            if scipy.sparse.issparse(array):
                parts = {"data": array.data, "ir": array.indices, "jc": array.indptr}
                for part, values in parts.items():
                    if len(values):
                        values = values if part == "data" else values.astype(np.uint64)
                        file.create_dataset(f"{name}/{part}", data=values)
                file[name].attrs["MATLAB_sparse"] = np.uint64(array.shape[0])
            elif array.size:
                file.create_dataset(name, data=array.T, compression="gzip" if name == "counts" else None)
            else:
                file.create_dataset(name, data=np.array(array.shape, np.uint64)).attrs["MATLAB_empty"] = np.uint8(1)
            file[name].attrs["MATLAB_class"] = np.bytes_(kinds.get(name, "double"))
        file.create_dataset("text", data=np.zeros((3, 1), np.uint16)).attrs["MATLAB_class"] = np.bytes_("char")
        file["z"] = np.zeros((1, 1), [("real", "f8"), ("imag", "f8")])
        file["z"].attrs["MATLAB_class"] = np.bytes_("double")
        file.create_group("#refs#")
    with open(path, "r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file".ljust(124) + b"\0\2IM")
    return contents


def test_matlab_73_matrices(tmp_path):
    path = tmp_path / "a.mat"
    contents = matlab73(path)
    kinds = {"counts": "uint16", "flags": "uint8", "words": "sparse", "blank": "sparse"}
    listed = {name: (array.shape, kinds.get(name, "double")) for name, array in contents.items()}
    assert matlab_variables(path) == listed | {"text": ((), "char"), "z": ((1, 1), "double")}
    found = read_matlab(path, list(contents))
    for name, array in contents.items():
        if scipy.sparse.issparse(array):
            assert found[name].format == "csr"
            array = array.toarray()
            found[name] = found[name].toarray()
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    refuses(path, "variable 'text' is a char, expected a numeric", lambda path: read_matlab(path, ["text"]))
    refuses(path, "variable 'z' contains complex numbers", lambda path: read_matlab(path, ["z"]))
    refuses(put(tmp_path, "cut.mat", path.read_bytes()[:3000]), "is not a complete MATLAB 7.3 file", read_matlab)


def test_matlab_73_values_come_from_that_file_and_fit_into_it(tmp_path):
    path = tmp_path / "a.mat"
    matlab73(path)
    (tmp_path / "secret").write_bytes(bytes(80))
    with h5py.File(path, "r+") as file:
        del file["z"]
        file["linked"] = h5py.ExternalLink(str(path), "/doubles")
    refuses(path, "'linked' is missing, or a link to another file", read_matlab)
    with h5py.File(path, "r+") as file:
        del file["linked"]
        outside = file.create_dataset("outside", (10, 1), "f8", external=[(str(tmp_path / "secret"), 0, 80)])
        huge = file.create_dataset("huge", (1 << 40, 1), "f8", chunks=(1024, 1))
        for dataset in (outside, huge):
            dataset.attrs["MATLAB_class"] = np.bytes_("double")
    refuses(path, "values in this file, got a reference to another file", lambda path: read_matlab(path, ["outside"]))
    refuses(path, f"got {8 << 40}; the file is damaged", lambda path: read_matlab(path, ["huge"]))


@pytest.mark.parametrize(
    ("filters", "said"), [(["deflate"] * 2, "deflate, deflate"), (["szip"], "number 4"), ([], "got 8388608")]
)
def test_a_chunk_of_matlab_73_is_bounded_before_it_is_unpacked(tmp_path, filters, said):
    """A large chunk must be rejected, because reading a single value decompresses the whole chunk."""
    path, plan = tmp_path / "a.mat", h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_chunk((1 << 20,))
    for name in filters:
        plan.set_deflate(9) if name == "deflate" else plan.set_filter(
            h5py.h5z.FILTER_SZIP, h5py.h5z.FLAG_OPTIONAL, (4, 8)
        )
    with h5py.File(path, "w", userblock_size=512) as file:
        space = h5py.h5s.create_simple((1,), (h5py.h5s.UNLIMITED,))
        made = h5py.Dataset(h5py.h5d.create(file.id, b"x", h5py.h5t.IEEE_F64LE, space, plan))
        made.attrs["MATLAB_class"] = np.bytes_("double")
        if filters:
            made[...] = 0
    refuses(path, said, read_matlab)
    with h5py.File(path, "r+") as file:
        file["x"].attrs["MATLAB_empty"] = np.uint8(1)
    refuses(path, "shape of an empty matrix is chunked", read_matlab)


def test_a_missing_h5py_is_named_with_its_cure(tmp_path, monkeypatch):
    matlab73(tmp_path / "a.mat")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(
        ImportError, match=r"MATLAB 7.3 files need h5py, which is not installed; run: pip install dmo-learn\[matlab\]"
    ):
        read_matlab(tmp_path / "a.mat")


# ---------------------------------------------------------------- .npy, .npz, Zarr


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f8", ">f4", "u2", "?"])
@pytest.mark.parametrize("kept", [0, 1 << 20])
def test_npy_and_npz_rows(tmp_path, monkeypatch, order, dtype, kept):
    monkeypatch.setattr("dmo.formats.arrays._KEPT", kept)
    X = np.asarray(RNG.integers(0, 9, (11, 3)), dtype=dtype, order=order)
    np.save(tmp_path / "x.npy", X)
    np.savez(tmp_path / "plain.npz", X=X, words=np.array(["sun", "sea"]))
    np.savez_compressed(tmp_path / "packed.npz", X=X)
    np.testing.assert_array_equal(open_npy(tmp_path / "x.npy")[2:5], X[2:5])
    for name in ("plain.npz", "packed.npz"):
        member = open_npz(tmp_path / name)["X"]
        assert member.shape == (11, 3)
        assert member.dtype == np.dtype(dtype).newbyteorder("=")
        for where in (slice(0, 4), slice(4, 11), slice(2, 3), slice(5, 5), slice(None), slice(0, 11, 2)):
            np.testing.assert_array_equal(member[where], X[where])
        np.testing.assert_array_equal(pickle.loads(pickle.dumps(member))[3:5], X[3:5])
    assert rows(open_npz(tmp_path / "plain.npz")["words"]).tolist() == ["sun", "sea"]


def test_a_packed_array_is_decompressed_once_however_often_its_rows_are_read(tmp_path, monkeypatch):
    X, sizes, unpack = RNG.standard_normal((3000, 4)), [], zipfile.ZipExtFile.read
    np.savez_compressed(tmp_path / "x.npz", X=X)
    monkeypatch.setattr(zipfile.ZipExtFile, "read", lambda file, n=-1: sizes.append(n) or unpack(file, n))
    store = ingest_files({"x": tmp_path / "x.npz"}, tmp_path / "s.zarr", block=1000)
    assert sizes.count(X.nbytes) == 1
    assert max(size for size in sizes if size != X.nbytes) < 1000  # small reads are headers
    np.testing.assert_array_equal(store.views["x"][:], X)


@pytest.mark.parametrize(("columns", "size"), [(128, 4096), (129, 1024)])
def test_rows_of_few_numbers_are_stored_in_larger_blocks(tmp_path, columns, size):
    np.save(tmp_path / "x.npy", np.zeros((5000, columns)))
    ingest_files({"x": tmp_path / "x.npy"}, tmp_path / "s.zarr")
    assert zarr.open(tmp_path / "s.zarr")["x"].chunks == (size, columns)


def test_npz_of_a_sparse_matrix(tmp_path):
    X = scipy.sparse.random_array((8, 5), density=0.3, rng=0, format="csc")
    scipy.sparse.save_npz(tmp_path / "x.npz", X)
    found = open_rows(tmp_path / "x.npz")
    assert found.format == "csr"
    np.testing.assert_array_equal(found.toarray(), X.toarray())


def test_npz_of_a_sparse_matrix_refuses_bad_parts(tmp_path):
    path = tmp_path / "x.npz"
    parts = {"format": b"csr", "shape": (2, 3), "data": [1.0], "indptr": [0, 1, 1]}
    np.savez(path, indices=[1], **parts)
    np.testing.assert_array_equal(open_rows(path).toarray(), [[0, 1, 0], [0, 0, 0]])
    np.savez(path, indices=[3], **parts)
    refuses(path, "the sparse matrix is damaged (", open_npz)
    np.savez(path, indices=[1], **parts | {"indptr": [0, 2, 1]})
    refuses(path, "the sparse matrix is damaged (", open_npz)
    # SciPy accepts decreasing index pointers but crashes when it converts the matrix.
    np.savez(path, indices=[1], **parts | {"indptr": [0, 1, 0]})
    refuses(path, "the sparse matrix is damaged (decreasing index pointers)", open_npz)
    np.savez(path, indices=[1], **parts | {"data": np.zeros(1, [("a", "<f8")])})
    refuses(path, "the sparse matrix is damaged (values of type", open_npz)
    np.savez(path, indices=[1], **parts | {"shape": (2**60, 2), "format": b"csc"})
    refuses(path, "the sparse matrix is damaged (shape (1152921504606846976, 2))", open_npz)
    np.savez(path, indices=[1], **parts | {"shape": (2**40, 2), "format": b"csc"})
    refuses(path, "the sparse matrix is damaged (1099511627776 rows for 1 values)", open_npz)
    np.savez(path, indices=[1], **parts | {"shape": 2})
    refuses(path, "the sparse matrix is damaged (", open_npz)
    np.savez(path, indices=[1], **parts | {"format": b"coo"})
    refuses(path, "a sparse matrix of format b'coo', expected csr or csc", open_npz)


def test_npy_refuses_bad_files(tmp_path):
    np.save(tmp_path / "x.npy", np.ones((5, 4)))
    good = (tmp_path / "x.npy").read_bytes()
    cut = put(tmp_path, "cut.npy", good[:-8])
    refuses(cut, "ends at byte 280, expected 160 bytes from byte 128 on (shape (5, 4), float64)", open_npy)
    refuses(put(tmp_path, "head.npy", good[:60]), "no .npy header at byte 0", open_npy)
    refuses(put(tmp_path, "text.npy", "1,2,3\n"), "no .npy header at byte 0", open_npy)
    refuses(put(tmp_path, "empty.npy", ""), "no .npy header at byte 0", open_npy)
    for shape in (b"(-5, 4)", b"(0, 2 ** 99)", b"(0, 9999999999999999999)"):
        expected = "no .npy header" if b"*" in shape else "expected non-negative lengths"
        head = good[:128].replace(b"(5, 4), }" + b" " * (len(shape) - 6), shape + b", }")
        refuses(put(tmp_path, "shape.npy", head + good[128:]), expected, open_npy)
    np.save(tmp_path / "objects.npy", np.array([1, "a"], dtype=object), allow_pickle=True)
    refuses(tmp_path / "objects.npy", "contains Python objects at byte 128, expected numbers", open_npy)


def test_npz_refuses_bad_files(tmp_path):
    path = tmp_path / "x.npz"
    np.savez_compressed(path, X=RNG.random((50, 40)))
    good = path.read_bytes()
    refuses(put(tmp_path, "cut.npz", good[:500]), "expected a zip directory before byte 500", open_npz)
    refuses(put(tmp_path, "text.npz", "a,b\n"), "expected a zip directory before byte 4", open_npz)
    with zipfile.ZipFile(tmp_path / "other.npz", "w") as archive:
        archive.writestr("readme.txt", "x")
    refuses(tmp_path / "other.npz", "a zip archive without arrays", open_npz)
    with zipfile.ZipFile(tmp_path / "fake.npz", "w") as archive:
        archive.writestr("X.npy", "not an array")
    with pytest.raises(DataError, match=r"fake.npz::X: no .npy header at byte 0"):
        open_npz(tmp_path / "fake.npz")
    broken = bytearray(good)
    broken[9000:9010] = bytes(10)
    refuses(put(tmp_path, "broken.npz", bytes(broken)), "damaged after byte", lambda path: open_npz(path)["X"][:])


def test_zarr_arrays(tmp_path):
    X = RNG.random((10, 3))
    for version in (2, 3):
        path = tmp_path / f"v{version}.zarr"
        group = zarr.open_group(path, mode="w", zarr_format=version)
        group.create_array("gist", data=X, chunks=(4, 3))
        np.testing.assert_array_equal(open_zarr(path)[2:7], X[2:7])
        np.testing.assert_array_equal(open_zarr(path / "gist")[:], X)
        np.testing.assert_array_equal(rows(open_rows(f"{path}::gist"), slice(3, 4)), X[3:4])


def test_zarr_refuses_bad_stores(tmp_path):
    refuses(tmp_path / "none.zarr", "no such store", open_zarr, FileNotFoundError)
    refuses(put(tmp_path, "file.zarr", "x"), "a file without a zip directory", open_zarr)
    (tmp_path / "empty.zarr").mkdir()
    refuses(tmp_path / "empty.zarr", "no Zarr array or group", open_zarr)
    path = tmp_path / "two.zarr"
    group = zarr.open_group(path, mode="w")
    for name in ("a", "b"):
        group.create_array(name, data=RNG.random((100, 3)), chunks=(10, 3))
    refuses(path, "a group with the arrays a, b, expected one", open_zarr)
    refuses(path, "the array 'c' is missing, expected one of a, b", lambda path: open_zarr(path, "c"))
    chunk = path / "b" / "c" / "3" / "0"
    chunk.write_bytes(chunk.read_bytes()[:20])
    np.testing.assert_array_equal(open_zarr(path, "b")[:30].shape, (30, 3))
    refuses(path, "a chunk with rows 25 to 44 cannot be decoded", lambda path: open_zarr(path, "b")[25:45])
    group.attrs["complete"] = False
    refuses(path, "writing was interrupted", lambda path: open_zarr(path, "a"))
    put(path, "zarr.json", '{"zarr_format"')
    refuses(path, "the store is damaged or of another format", open_zarr)


@pytest.mark.parametrize("version", [2, 3])
def test_blosc_chunks_must_have_the_bytes_that_they_speak_of(tmp_path, version):
    """Blosc reads beyond the end of truncated chunks, which can crash the process."""
    path = tmp_path / "a.zarr"
    blosc = numcodecs.Blosc() if version == 2 else zarr.codecs.BloscCodec()
    X = RNG.random((100, 3))
    array = zarr.create_array(path, data=X, chunks=(10, 3), compressors=[blosc], zarr_format=version)
    chunk = path / array.metadata.encode_chunk_key((3, 0))
    data = chunk.read_bytes()
    np.testing.assert_array_equal(open_zarr(path)[25:45], X[25:45])
    for damaged in (data[:14] + b"\\u0000" + data[14:], data[:-1], data[:9]):
        chunk.write_bytes(damaged)
        refuses(path, "a chunk with rows 25 to 44 cannot be decoded", lambda path: open_zarr(path)[25:45])
        np.testing.assert_array_equal(open_zarr(path)[:30], X[:30])


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("name", ["GZip", "Zlib", "Zstd", "LZ4", "Blosc"])
def test_a_chunk_that_unfolds_beyond_its_declared_size_is_refused(tmp_path, name, version):
    codec = getattr(numcodecs, name)()
    codecs = {"GZip": zarr.codecs.GzipCodec, "Zstd": zarr.codecs.ZstdCodec, "Blosc": zarr.codecs.BloscCodec}
    if version == 3 and name not in codecs:
        return
    given = codec if version == 2 else codecs[name]()
    path = tmp_path / "a.zarr"
    X = RNG.random((8, 4))
    array = zarr.create_array(path, data=X, chunks=(4, 4), compressors=[given], zarr_format=version)
    np.testing.assert_array_equal(open_zarr(path)[:], X)
    (path / array.metadata.encode_chunk_key((1, 0))).write_bytes(codec.encode(bytes(1 << 25)))
    said = "expands to more than the 192 bytes of a chunk"
    tracemalloc.start()
    refuses(path, said, lambda path: open_zarr(path)[:])
    assert tracemalloc.get_traced_memory()[1] < 1 << 23
    tracemalloc.stop()


@pytest.mark.parametrize("where", ["memory://bomb.zarr", "zip"])
def test_chunks_behind_urls_and_in_archives_are_bounded_too(tmp_path, where):
    path = tmp_path / "a.zip" if where == "zip" else where
    store = zarr.storage.ZipStore(path, mode="w") if where == "zip" else path
    X = RNG.random((8, 4))
    array = zarr.create_array(store, shape=X.shape, dtype=X.dtype, chunks=(4, 4), overwrite=where != "zip")
    array[:4] = X[:4]
    bomb = numcodecs.Zstd().encode(bytes(1 << 25))
    if where == "zip":
        array.store.close()
        with zipfile.ZipFile(path, "a") as archive:
            archive.writestr("c/1/0", bomb)
    else:
        fsspec.filesystem("memory").pipe_file("/bomb.zarr/c/1/0", bomb)
    np.testing.assert_array_equal(open_zarr(path)[:4], X[:4])
    with pytest.raises(DataError, match="c/1/0 expands to more than the 192 bytes of a chunk"):
        open_zarr(path)[:]


@pytest.mark.parametrize("place", ["start", "end"])
@pytest.mark.parametrize("name", ["GZip", "Zstd", "Blosc"])
def test_compressed_chunks_in_shards_are_bounded_one_by_one(tmp_path, name, place):
    codec = {"GZip": zarr.codecs.GzipCodec, "Zstd": zarr.codecs.ZstdCodec, "Blosc": zarr.codecs.BloscCodec}[name]()
    path, X = tmp_path / "s.zarr", RNG.random((20, 6))
    shards = {"shape": (8, 6), "index_location": place}
    array = zarr.create_array(path, data=X, chunks=(2, 3), shards=shards, compressors=[codec])
    for where in (slice(None), slice(3, 4), slice(7, 9), slice(19, 20)):
        np.testing.assert_array_equal(open_zarr(path)[where], X[where])
    file = path / array.metadata.encode_chunk_key((1, 0))  # the shard contains rows 8 to 15 in 4 x 2 chunks
    data, bomb = file.read_bytes(), getattr(numcodecs, name)().encode(bytes(1 << 25))
    size = 16 * 8 + 4
    index = np.frombuffer(data[:size] if place == "start" else data[-size:], "<u8", 16).copy()
    index[8:10] = (size if place == "start" else 0), len(bomb)  # replace the first chunk of rows 12 and 13
    head = index.tobytes()
    head += google_crc32c.value(head).to_bytes(4, "little")
    file.write_bytes(head + bomb + data[size:] if place == "start" else bomb + data[:-size] + head)
    tracemalloc.start()
    refuses(path, "expands to more than the 112 bytes of a chunk", lambda path: open_zarr(path)[12:13])
    assert tracemalloc.get_traced_memory()[1] < 1 << 23
    tracemalloc.stop()
    np.testing.assert_array_equal(open_zarr(path)[16:], X[16:])
    file.write_bytes(data[:100])
    refuses(path, "is cut or damaged", lambda path: open_zarr(path)[8:9])


def test_unknown_filters_are_refused(tmp_path):
    X = RNG.integers(0, 9, (8, 4))
    zarr.create_array(tmp_path / "plain.zarr", data=X, chunks=(2, 4), shards=(4, 4), compressors=None)
    np.testing.assert_array_equal(open_zarr(tmp_path / "plain.zarr")[:], X)
    filters = [numcodecs.Delta(X.dtype)]
    zarr.create_array(tmp_path / "f.zarr", data=X, chunks=(4, 4), filters=filters, compressors=None, zarr_format=2)
    refuses(tmp_path / "f.zarr", "codec 'delta' is none of", lambda path: open_zarr(path)[:])


def test_a_codec_that_is_not_known_is_refused(tmp_path):
    path = tmp_path / "a.zarr"
    zarr.create_array(path, data=RNG.random((8, 4)), chunks=(4, 4), compressors=[numcodecs.LZMA()], zarr_format=2)
    refuses(path, "codec 'lzma' is none of blosc, crc32c, gzip", lambda path: open_zarr(path)[:])


def test_a_row_of_an_archive_beyond_every_sample_is_refused(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", X=np.zeros((1, 1 << 23)))
    refuses(tmp_path / "a.npz", "a row of shape (8388608,) has 67108864 bytes", lambda path: open_npz(path)["X"])


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("100", "1" + "0" * 26, "the metadata are damaged"),
        ('"shape": [100, 3]', '"shape": [100, 99999999]', "the metadata are damaged"),
        ('"chunk_shape": [10, 3]', '"chunk_shape": [999999999, 3]', "the metadata are damaged"),
        ('"chunk_shape": [10, 3]', '"chunk_shape": [0, 3]', ""),
        ('"zstd"', '"none"', "the store is damaged or of another format"),
        ('"data_type"', "[" * 9999, "the store is damaged or of another format"),
    ],
)
def test_zarr_refuses_damaged_metadata(tmp_path, old, new, expected):
    path = tmp_path / "a.zarr"
    zarr.create_array(path, data=RNG.random((100, 3)), chunks=(10, 3))
    text = json.dumps(json.loads((path / "zarr.json").read_text()))
    assert old in text
    put(path, "zarr.json", text.replace(old, new, 1))
    refuses(path, expected, lambda path: open_zarr(path)[0:3])


# ---------------------------------------------------------------- ARFF

HEADER = """% comment
@RELATION 'a set'

@attribute plain numeric
@ATTRIBUTE 'two words' REAL
@attribute grade {low, high, 'very high'}
@attribute sunny {0,1}
@attribute sea {0,1}
@data
"""


def test_dense_arff_as_scipy_reads_it(tmp_path):
    body = "1.5, -2e3, low, 0, 1\n% between\n\n-0.25,7,high,1,0\n?,0.1,low,1,1\n"
    path = put(tmp_path, "a.arff", HEADER + body)
    theirs, _ = scipy.io.arff.loadarff(path)
    arff = open_arff(path)
    assert arff.relation == "a set"
    assert arff.names == ["plain", "two words", "grade", "sunny", "sea"]
    assert arff.attributes[2].values == ("low", "high", "very high")
    (X,) = arff.blocks()
    assert isinstance(X, np.ndarray)
    grades = [value.decode() for value in theirs["grade"]]
    np.testing.assert_array_equal(X[:, 2], [arff.attributes[2].values.index(grade) for grade in grades])
    for column, name in [(0, "plain"), (1, "two words"), (3, "sunny"), (4, "sea")]:
        np.testing.assert_array_equal(X[:, column], theirs[name].astype(float))
    X, Y = read_arff(path, ["sea", "sunny"])
    assert X.shape == (3, 3)
    np.testing.assert_array_equal(Y, [[1, 0], [0, 1], [1, 1]])
    np.testing.assert_array_equal(read_arff(path, -2)[1], Y[:, ::-1])
    np.testing.assert_array_equal(read_arff(path, 1)[1], X[:, :1])


def test_dense_arff_of_numbers_takes_the_fast_way_to_the_same_numbers(tmp_path):
    X = RNG.normal(size=(300, 7)).round(6)
    header = "@relation r\n" + "".join(f"@attribute a{j} numeric\n" for j in range(7)) + "@data\n"
    path = put(tmp_path, "a.arff", header + "\n".join(",".join(map(str, row)) for row in X))
    found, Y = read_arff(path)
    assert Y.shape == (300, 0)
    np.testing.assert_array_equal(found, X)
    theirs = np.array(scipy.io.arff.loadarff(path)[0].tolist())
    np.testing.assert_array_equal(found, theirs)


def test_arff_quotes_and_tight_braces(tmp_path):
    header = '@relation r\n@attribute "a, \\"b\\"" real\n@attribute c{\'x, y\',"it\'s" ,z}\n@data\n'
    path = put(tmp_path, "a.arff", header + "1,'x, y'\n2,\"it's\"\n3 , z\n4,?\n")
    assert open_arff(path).names == ['a, "b"', "c"]
    np.testing.assert_array_equal(read_arff(path)[0], [[1, 0], [2, 1], [3, 2], [4, np.nan]])
    np.testing.assert_array_equal(read_arff(put(tmp_path, "l.arff", header + '{1 "it\'s"}\n'))[0].toarray(), [[0, 1]])
    latin = "@relation r\n@attribute größe real\n@data\n1\n"
    assert open_arff(put(tmp_path, "u.arff", latin)).names == ["größe"]
    assert open_arff(put(tmp_path, "u.arff", latin.encode("latin-1"))).names == ["größe"]


@pytest.mark.parametrize(("ending", "pack"), [("", bytes), (".xz", lzma.compress), (".gz", gzip.compress)])
def test_sparse_arff(tmp_path, ending, pack):
    body = "{0 1.5,3 1}\n{}\n{ 1 -2, 2 'very high', 4 1 }\n{2 low,4 0}\n"
    path = put(tmp_path, f"a.arff{ending}", pack((HEADER + body).encode()))
    X, Y = read_arff(path, ["sunny", "sea"])
    assert X.format == "csr"
    np.testing.assert_array_equal(X.toarray(), [[1.5, 0, 0], [0, 0, 0], [0, -2, 2], [0, 0, 0]])
    np.testing.assert_array_equal(Y, [[1, 0], [0, 0], [0, 1], [0, 0]])
    blocks = list(open_arff(path).blocks(3))
    assert [block.shape for block in blocks] == [(3, 5), (1, 5)]


def test_sparse_arff_of_numbers_takes_the_fast_way_to_the_same_numbers(tmp_path):
    X = scipy.sparse.random_array((200, 30), density=0.1, rng=1, format="csr")
    header = "@relation r\n" + "".join(f"@attribute a{j} numeric\n" for j in range(30)) + "@data\n"
    lines = []
    for i in range(200):
        row = X[i : i + 1].tocoo()
        lines.append("{" + ",".join(f"{j} {v!r}" for j, v in zip(row.coords[1], row.data.tolist())) + "}")
    found, _ = read_arff(put(tmp_path, "a.arff", header + "\n".join(lines)))
    np.testing.assert_array_equal(found.toarray(), X.toarray())


def test_arff_refuses_bad_headers(tmp_path):
    def refuse(text, expected):
        refuses(put(tmp_path, "bad.arff", text), expected, open_arff)

    refuse("", "ends after line 0 without @data")
    refuse(HEADER.partition("@data")[0], "ends after line 8 without @data; fetch it again")
    refuse("1,2,3\n4,5,6\n", "line 1 begins with '1,2,3', expected @relation, @attribute or @data")
    refuse("@relation r\n@data\n1\n", "@data in line 2, expected an @attribute before it")
    refuse("@attribute t relational\n@data\n", "line 1 declares 't' as 'relational', expected numeric")
    refuse("@attribute a numeric\n@attribute a real\n@data\n", "line 2 declares 'a' again")
    refuse("@attribute a {}\n@data\n", "line 1 declares 'a' as '{}', expected values separated by commas")
    refuse("@attribute a {x,'y}\n@data\n", "line 1 declares 'a' as")


def test_arff_refuses_bad_rows(tmp_path):
    def refuse(body, expected, header=HEADER):
        refuses(put(tmp_path, "bad.arff", header + body), expected, lambda path: read_arff(path))

    refuse("", "ends after @data in line 9, expected at least one row")
    refuse("1,2,low,0,1\n1,2,low\n", "line 11 has 3 values, expected 5")
    refuse("1,2,low,0,1\n\n1,x,low,0,1\n", "line 12 has 'x' for 'two words', expected a number")
    refuse("1,2,middle,0,1\n", "line 10 has 'middle' for 'grade', expected one of low, high, very high")
    refuse("1,2,low,0,2\n", "line 10 has '2' for 'sea', expected one of 0, 1")
    refuse("1,2,'low,0,1\n", "line 10 has an unclosed quote")
    refuse("1,2,low,0,1\n{0 1}\n", "line 11 is a sparse row, expected a dense row")
    refuse("{0 1}\n1,2,low,0,1\n", "line 11 is not in braces")
    refuse("{0 1}\n{0 1,3\n", "line 11 is not in braces")
    refuse("{0 1}\n{0 1,5 1}\n", "line 11 has '5 1', expected a column below 5 and a value")
    refuse("{3 1,1 1}\n", "line 10 has column 1 after 3, expected ascending columns")
    refuse("{0 1,3}\n", "line 10 has '3', expected a column below 5 and a value")
    grouped = "@relation r\n@attribute a real\n@data\n"
    refuse("1_000\n", "line 4 has '1_000' for 'a', expected a number", grouped)
    refuse("{0 1}\n{0 1_000}\n", "line 5 has '1_000' for 'a', expected a number", grouped)
    swapped = "@relation r\n@attribute a {1,0}\n@data\n"
    refuse("{0 1}\n", "attribute 'a' declares 1 first, expected 0, because sparse rows omit", swapped)
    packed = lzma.compress((HEADER + "1,2,low,0,1\n" * 50_000).encode())
    refuses(put(tmp_path, "cut.arff.xz", packed[:-40]), "cannot be decompressed after line", read_arff)
    refuses(put(tmp_path, "text.arff.gz", HEADER), "cannot be decompressed after line 0", read_arff)
    path = put(tmp_path, "a.arff", HEADER + "1,2,low,0,1\n")
    refuses(
        path, "no attribute 'moon' above line 9 (1 of 2 labels are missing)", lambda p: read_arff(p, ["sea", "moon"])
    )
    refuses(path, "has 5 attributes, got 5 labels, expected at least one", lambda p: read_arff(p, -5))


def test_label_lists(tmp_path):
    space = 'xmlns="http://mulan.sourceforge.net/labels"'
    text = f'<labels {space}><label name="a"><label name="a.1"/></label><label name="b &amp; c"></label></labels>'
    assert read_label_list(put(tmp_path, "l.xml", text)) == ["a", "a.1", "b & c"]
    assert read_label_list(put(tmp_path, "l.xml.xz", lzma.compress(text.encode()))) == ["a", "a.1", "b & c"]
    refuses(put(tmp_path, "cut.xml", text[:-9]), "not valid XML in line 1, column", read_label_list)
    refuses(put(tmp_path, "text.xml", "sun\nsea\n"), "not valid XML in line 1, column 0", read_label_list)
    refuses(put(tmp_path, "other.xml", "<words><w/></words>"), "the root <words> has no <label", read_label_list)
    refuses(put(tmp_path, "unnamed.xml", "<labels><label/></labels>"), "has no <label", read_label_list)
    refuses(put(tmp_path, "cut.xml.xz", lzma.compress(text.encode())[:-20]), "cannot be decompressed", read_label_list)
    for name, squeeze in (("a.xml.gz", gzip.compress), ("a.xml.bz2", bz2.compress), ("a.xml.xz", lzma.compress)):
        squeezed = bytearray(squeeze(text.encode()))
        squeezed[12:18] = b"damage"
        refuses(put(tmp_path, name, bytes(squeezed)), "cannot be decompressed", read_label_list)
    refuses(put(tmp_path, "code.xml", '<?xml version="1.0" encoding="utf-77"?><l/>'), "not valid XML", read_label_list)
    refuses(put(tmp_path, "long.xml.gz", gzip.compress(bytes(2**24 + 1))), "has more than 16777216", read_label_list)


def test_a_line_of_text_is_bounded(tmp_path, monkeypatch):
    """A few compressed kilobytes can expand to a line of any length."""
    monkeypatch.setattr("dmo.formats.files.LONGEST_LINE", 100)
    path = put(tmp_path, "a.csv.gz", gzip.compress(b"1,2\n" + b"3," * 10**5))
    refuses(path, "line 2 has 100 bytes or more; the file is of another format", read_csv)


# ---------------------------------------------------------------- svmlight


@pytest.mark.parametrize("zero_based", [True, False])
def test_svmlight_as_scikit_learn_reads_it(tmp_path, zero_based):
    X = scipy.sparse.lil_array(scipy.sparse.random_array((60, 9), density=0.3, rng=2).toarray() + np.eye(60, 9))
    X[:, 8] = 1.0  # scikit-learn skips empty lines, so every row needs a feature
    X = X.tocsr()
    Y = RNG.integers(0, 2, (60, 4))
    Y[5] = 0
    path = tmp_path / "a.svm"
    dump_svmlight_file(X, Y, str(path), multilabel=True, zero_based=zero_based, comment="written by scikit-learn")
    theirs, labels = load_svmlight_file(str(path), multilabel=True, zero_based=zero_based)
    found, indicator, ids = read_svmlight(path)
    np.testing.assert_array_equal(found.toarray(), theirs.toarray())
    assert ids == ["0", "1", "2", "3"]
    assert [tuple(np.flatnonzero(row)) for row in indicator] == labels
    source = open_svmlight(path)
    assert source.shape == (60, 9)
    pieces = list(source.blocks(25))
    assert [piece.shape[0] for piece in pieces] == [25, 25, 10]
    np.testing.assert_array_equal(scipy.sparse.vstack(pieces).toarray(), theirs.toarray())


def test_svmlight_with_a_first_line_of_sizes(tmp_path):
    path = put(tmp_path, "a.svm.gz", gzip.compress(b"2 6 3\n0,2 1:1.5 4:2\n1 0:1\n"))
    X, Y, ids = read_svmlight(path)
    assert X.shape == (2, 6)
    np.testing.assert_array_equal(Y, [[1, 0, 1], [0, 1, 0]])
    assert ids == ["0", "1", "2"]


def test_svmlight_refuses_bad_files(tmp_path):
    def refuse(text, expected, **arguments):
        refuses(put(tmp_path, "bad.svm", text), expected, lambda path: open_svmlight(path, **arguments))

    refuse("1 1:2\n# note\n2 3:x\n", "line 3 begins with '2 3:x', expected \"label,label index:value ...\"")
    refuse("1 5:1 3:1\n", "line 1 begins with '1 5:1 3:1'")
    refuse("a,b,c\n", "line 1 begins with 'a,b,c'")
    refuse("1 1:2\n1 2:0.5 3:", "line 2 begins with '1 2:0.5 3:'")
    refuse("", "has 0 rows, expected at least one")
    refuse("3 6 3\n1 2:1\n", "has 1 rows, expected 3; fetch the file again")
    refuse("1 7:1\n", "the largest index is 7, expected at most 6 for 6 features", n_features=6)
    refuse("1 0:1\n", "the smallest index is 0, expected at least 1", base=1)
    refuse("1\n2\n", "has no feature values")
    refuse("1 99999999999:1\n", "line 1 begins")
    refuse("1 99999999999999999999 3\n1 2:1\n", "declares 99999999999999999999 features, expected at most")
    file = open_svmlight(put(tmp_path, "a.svm", "4 1:1\n"))
    refuses(file.path, "row 0 has label 4, expected one of 2 known labels", lambda path: file.indicator(["1", "2"]))


# ---------------------------------------------------------------- CSV and names


@pytest.mark.parametrize(("name", "mark"), [("a.csv", ","), ("a.csv", ";"), ("a.tsv", "\t"), ("a.csv", "\t")])
@pytest.mark.parametrize("header", [None, ["left", "right side", "n"]])
def test_csv_as_numpy_writes_it(tmp_path, name, mark, header):
    X = RNG.normal(size=(20, 3))
    path = tmp_path / name
    np.savetxt(path, X, delimiter=mark, fmt="%.17g", header=mark.join(header) if header else "", comments="")
    if not header:
        path.write_text(path.read_text().lstrip("\n"))
    file = open_csv(path)
    assert (file.columns, file.count(), file.delimiter) == (3, 20, mark)
    assert file.names == (None if header is None else tuple(header))
    np.testing.assert_array_equal(read_csv(path), X)
    assert [block.shape[0] for block in file.blocks(8)] == [8, 8, 4]


@pytest.mark.parametrize("cells", [39, 40, 41, 79, 80, 81, 3])
def test_blocks_of_wide_text_are_short(tmp_path, monkeypatch, cells):
    X = np.arange(400.0).reshape(10, 40)
    np.savetxt(tmp_path / "a.csv", X, delimiter=",")
    monkeypatch.setattr("dmo.formats.text._CELLS", cells)
    blocks = list(open_csv(tmp_path / "a.csv").blocks(3))
    assert len(blocks[0]) == max(min(cells // 40, 3), 1)
    np.testing.assert_array_equal(np.concatenate(blocks), X)


def test_csv_with_quotes_and_one_column(tmp_path):
    path = put(tmp_path, "a.csv", '"a,b",c\n"1",2\n')
    assert open_csv(path).names == ("a,b", "c")
    np.testing.assert_array_equal(read_csv(path), [[1, 2]])
    np.testing.assert_array_equal(read_csv(put(tmp_path, "b.csv", "4\n5\n")), [[4], [5]])
    np.testing.assert_array_equal(read_csv(put(tmp_path, "c.csv", "1,2\n3,4\n"), header=True), [[3, 4]])


def test_csv_refuses_bad_files(tmp_path):
    def refuse(text, expected):
        refuses(put(tmp_path, "bad.csv", text), expected, read_csv)

    refuse("1,2\n3\n", "line 2 has 1 columns, expected 2")
    refuse("a,b\n1,2\n\n3,x\n", "line 4, column 2 is 'x', expected a number")
    refuse("1,2\n3,\n", "line 2, column 2 is '', expected a number")
    refuse("1,x\n2,3\n", "line 1 mixes numbers and names")
    refuse("", "is empty, expected lines of numbers")
    refuse("a,b\n", "ends after its header in line 1")
    refuse(b"\x80\x04\0\0", "is not a text file")
    refuse("1;2,5\n", "line 1 mixes numbers and names")
    refuse("1,2\n3,1_000\n", "line 2, column 2 is '1_000', expected a number")


def test_names(tmp_path):
    assert read_names(put(tmp_path, "n.txt", "sun\n deep sea \n\n")) == ["sun", "deep sea"]
    refuses(put(tmp_path, "n.txt", "sun\nsea\nsun\n"), "line 3 repeats 'sun' of line 1", read_names)
    refuses(put(tmp_path, "n.txt", "\n"), "has no names", read_names)
    refuses(put(tmp_path, "n.txt", b"sun\n\xff\xfe\n"), "line 2 is not UTF-8 text", read_names)
    refuses(put(tmp_path, "n.txt.gz", "sun\n"), "cannot be decompressed after line 0", read_names)


# ---------------------------------------------------------------- row sources


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=6), st.integers(1, 5))
def test_sequential_and_stacked_rows_slice_like_an_array(slices, size):
    X = np.arange(24.0).reshape(12, 2)
    passes = []

    def blocks():
        passes.append(1)
        return (X[i : i + size] for i in range(0, 12, size))

    sequential = SequentialRows(X.shape, X.dtype, blocks, "x")
    stacked = Stacked([X[:5], X[5:6], X[6:]], "x")
    for low, high in slices:
        np.testing.assert_array_equal(sequential[low:high], X[low:high])
        np.testing.assert_array_equal(stacked[low:high], X[low:high])
    forward = SequentialRows(X.shape, X.dtype, blocks, "x")
    passes.clear()
    for low in range(0, 12, 3):
        forward[low : low + 3]
    assert len(passes) == 1


def test_sequential_rows_notice_a_file_that_shrank():
    source = SequentialRows((5, 1), np.dtype(float), lambda: iter([np.zeros((3, 1))]), "x.csv")
    with pytest.raises(DataError, match=r"x\.csv: ends after row 3, expected 5 rows"):
        source[:5]
    with pytest.raises(DataError, match=r"view: the files have \[1, 2\] columns"):
        Stacked([np.zeros((2, 1)), np.zeros((2, 2))], "view")


def test_rows_by_name_of_file(tmp_path):
    X = RNG.integers(0, 5, (6, 4)).astype(np.uint8)
    np.savez(tmp_path / "two.npz", X=X, Y=X, s=np.arange(3))
    scipy.io.savemat(tmp_path / "one.mat", {"X": X, "name": "x"})
    np.testing.assert_array_equal(rows(open_rows(f"{tmp_path}/two.npz::Y")), X)
    np.testing.assert_array_equal(rows(open_rows(f"{tmp_path}/two.npz::Y.T")), X.T)
    np.testing.assert_array_equal(rows(open_rows(tmp_path / "one.mat")), X)
    np.testing.assert_array_equal(open_rows(f"{tmp_path}/two.npz::s"), [[0], [1], [2]])
    np.savez(tmp_path / "words.npz", words=np.array([["a", "b"]]), z=X + 1j)
    for spec, expected in [
        ("two.npz", "contains the matrices X, Y, expected one; write"),
        ("two.npz::Z", "the array 'Z' is missing, expected one of X, Y, s"),
        ("words.npz::words", "is of type <U1, expected real numbers"),
        ("words.npz::z", "is of type complex128, expected real numbers"),
        ("x.doc", "ends in '.doc', expected one of"),
        ("x.csv::X", "a .csv file has a single array, got ::X"),
    ]:
        refuses(str(tmp_path / spec).partition("::")[0], expected, lambda path, spec=spec: open_rows(tmp_path / spec))


# ---------------------------------------------------------------- ingestion of files


def write_views(folder):
    """Write two dense views and labels in two splits, and return the files of each view and the arrays."""
    G, H = RNG.random((25, 3)).astype(np.float32), RNG.integers(0, 9, (25, 4)).astype(np.uint16)
    Y = RNG.integers(0, 2, (25, 2)).astype(np.uint16)
    for split, where in (("train", slice(0, 16)), ("test", slice(16, 25))):
        put(folder, f"{split}_gist.fvec", vecs_bytes(G[where], "fvec"))
        put(folder, f"{split}_hue.hvecs", vecs_bytes(H[where], "hvecs"))
        put(folder, f"{split}_annot.hvecs", vecs_bytes(Y[where], "hvecs"))
    put(folder, "words.txt", "sun\nsea\n")
    files = {
        name: {split: f"{split}_{stem}" for split in ("train", "test")}
        for name, stem in (("gist", "gist.fvec"), ("hue", "hue.hvecs"), ("labels", "annot.hvecs"))
    }
    return files, G, H, Y


def test_described_files_become_a_feature_store(tmp_path):
    files, G, H, Y = write_views(tmp_path)
    description = {
        "views": {"gist": files["gist"], "hue": files["hue"]},
        "labels": files["labels"],
        "label_names": "words.txt",
        "histograms": ["hue"],
        "dtypes": {"gist": "float64"},
    }
    path = put(tmp_path, "description.json", json.dumps(description))
    with bars(disable=True) as seconds:
        store = ingest("files", path, tmp_path / "store.zarr", block=8)
    assert {"scan gist", "check the files", "write gist", "write hue"} <= set(seconds)
    np.testing.assert_array_equal(rows(store.views["gist"]), G.astype(np.float64))
    np.testing.assert_array_equal(rows(store.views["hue"]), H)
    assert rows(store.views["gist"]).dtype == np.float64
    np.testing.assert_array_equal(store.labels, Y)
    assert store.label_names == ["sun", "sea"]
    assert store.view_info("hue").histogram
    assert not store.view_info("gist").histogram
    _, labels, index = store.select("test")
    np.testing.assert_array_equal(index, np.arange(16, 25))
    np.testing.assert_array_equal(labels, Y[16:])
    recorded = store.provenance["parameters"]["files"]["hue/test"]
    digest = hashlib.sha256((tmp_path / "test_hue.hvecs").read_bytes()).hexdigest()
    assert recorded == {"name": "test_hue.hvecs", "sha256": digest}
    one = ingest("files", path, tmp_path / "one.zarr", views=["hue"])
    assert list(one.views) == ["hue"]


def test_every_format_becomes_the_same_store(tmp_path):
    X = RNG.integers(0, 3, (30, 5)).astype(np.float64)
    Y = RNG.integers(0, 2, (30, 3))
    X[0, 4] = Y[0, 2] = 1
    Y[:, 0] |= ~Y.any(axis=1)
    np.save(tmp_path / "x.npy", X)
    np.savez_compressed(tmp_path / "x.npz", X=X, y=Y)
    scipy.io.savemat(tmp_path / "x.mat", {"X": X, "target": Y.T.astype(np.uint8)})
    np.savetxt(tmp_path / "x.csv", X, delimiter=",")
    zarr.create_array(tmp_path / "x.zarr", data=X, chunks=(7, 5))
    put(tmp_path, "x.dvec", vecs_bytes(X, "dvec"))
    dump_svmlight_file(X, Y, str(tmp_path / "x.svm"), multilabel=True, zero_based=False)
    header = "@relation r\n" + "".join(f"@attribute a{j} numeric\n" for j in range(5))
    header += "".join(f"@attribute y{j} {{0,1}}\n" for j in range(3)) + "@data\n"
    both = np.hstack([X, Y]).astype(int)
    put(tmp_path, "x.arff", header + "\n".join(",".join(map(str, row)) for row in both.tolist()))
    put(tmp_path, "x.xml", "<labels>" + "".join(f'<label name="y{j}"/>' for j in range(3)) + "</labels>")
    views = {end: tmp_path / f"x.{end}" for end in ("npy", "csv", "zarr", "dvec", "arff")}
    views |= {"npz": f"{tmp_path}/x.npz::X", "mat": f"{tmp_path}/x.mat::X"}
    store = ingest_files(views, tmp_path / "a.zarr", labels=tmp_path / "x.xml", block=8)
    for name in views:
        np.testing.assert_array_equal(rows(store.views[name]), X)
    np.testing.assert_array_equal(store.labels, Y)
    assert store.label_names == ["y0", "y1", "y2"]
    assert store.split is None
    sparse = ingest_files({"words": tmp_path / "x.svm"}, tmp_path / "b.zarr", block=8)
    assert sparse.view_info("words").kind == "sparse"
    np.testing.assert_array_equal(rows(sparse.views["words"]).toarray(), X)
    np.testing.assert_array_equal(sparse.labels, Y)
    assert sparse.label_names == ["0", "1", "2"]
    counts = ingest_files(
        {"counts": tmp_path / "x.csv"},
        tmp_path / "c.zarr",
        labels=f"{tmp_path}/x.mat::target.T",
        dtypes={"counts": "uint8"},
    )
    assert rows(counts.views["counts"]).dtype == np.uint8
    np.testing.assert_array_equal(counts.labels, Y)


def test_svmlight_splits_share_columns_and_labels(tmp_path):
    put(tmp_path, "a.svm", "1,4 1:1 3:2\n4 2:1\n")
    put(tmp_path, "b.svm", "9 5:1\n")
    views = {"words": {"train": tmp_path / "a.svm", "test": tmp_path / "b.svm"}}
    store = ingest_files(views, tmp_path / "s.zarr")
    np.testing.assert_array_equal(
        rows(store.views["words"]).toarray(), [[1, 0, 2, 0, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 1]]
    )
    np.testing.assert_array_equal(store.labels, [[1, 1, 0], [0, 1, 0], [0, 0, 1]])
    assert store.label_names == ["1", "4", "9"]


def test_svmlight_rows_without_labels_make_a_store_without_labels(tmp_path):
    store = ingest_files({"words": put(tmp_path, "a.svm", "1:1 3:2\n2:1\n")}, tmp_path / "s.zarr")
    assert store.labels is None
    assert store.views["words"].shape == (2, 3)


def test_splits_of_a_text_format_must_fit_together(tmp_path):
    header = "@relation r\n@attribute a real\n@attribute y {0,1}\n@data\n"
    dense, sparse = put(tmp_path, "d.arff", header + "1,0\n"), put(tmp_path, "s.arff", header + "{0 1}\n")
    other = put(tmp_path, "o.arff", header.replace("a real", "b real") + "1,0\n")
    table = put(tmp_path, "t.csv", "1\n")
    for test, expected in [
        (sparse, "some files are sparse and some are dense"),
        (other, "its attributes differ from"),
        (table, "the files end in .arff, .csv, expected one format"),
    ]:
        with pytest.raises(DataError, match=expected):
            ingest_files({"x": {"train": dense, "test": test}}, tmp_path / "s.zarr", labels=-1)
    assert not (tmp_path / "s.zarr").exists()


def test_an_interrupted_ingestion_goes_on_bit_identical(tmp_path, monkeypatch):
    files, G, *_ = write_views(tmp_path)
    views = {name: {split: tmp_path / file for split, file in files[name].items()} for name in ("gist", "hue")}
    ingest_files(views, tmp_path / "whole.zarr", block=4)

    import dmo.formats.arrays as arrays

    read, reads = arrays.Vecs.__getitem__, []

    def failing(self, where):
        reads.append(where)
        if len(reads) == 9:
            raise OSError("the disk is gone")
        return read(self, where)

    monkeypatch.setattr(arrays.Vecs, "__getitem__", failing)
    with pytest.raises(OSError, match="the disk is gone"):
        ingest_files(views, tmp_path / "parts.zarr", block=4)
    with pytest.raises(StoreError, match="incomplete"):
        open_features(tmp_path / "parts.zarr")
    before = len(reads)
    store = ingest_files(views, tmp_path / "parts.zarr", block=4)
    assert 0 < len(reads) - before < 16  # there are 14 blocks, and opening each view needs another read
    np.testing.assert_array_equal(rows(store.views["gist"]), G)
    assert verify(tmp_path / "parts.zarr") == []
    contents = [
        {file.relative_to(root): file.read_bytes() for file in root.rglob("*") if file.is_file()}
        for root in (tmp_path / "whole.zarr", tmp_path / "parts.zarr")
    ]
    assert contents[0] == contents[1]
    put(tmp_path, "test_hue.hvecs", vecs_bytes(np.ones((9, 4), np.uint16), "hvecs"))
    with pytest.raises(StoreError, match="sha256"):
        ingest_files(views, tmp_path / "parts.zarr", block=4)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a program is read from /proc")
def test_files_that_do_not_fit_into_memory_are_refused_before_they_are_read(tmp_path):
    setup = """
from types import SimpleNamespace
import h5py, pandas, psutil
from dmo.datasets import ingest_files
psutil.virtual_memory = lambda: SimpleNamespace(available=20_000_000)"""
    files = bombs(tmp_path)
    del files["wide.csv"], files["a.parquet"]  # numeric Parquet tables are read by row group
    for name in ("a.npz::x.T", "new.mat::X"):
        files[name] = f"{files.pop(name.partition('::')[0])}::{name.partition('::')[2]}"
    found = peaks(setup, "ingest_files({'x': path}, 'never.zarr', labels=None)", files.values())
    assert list(found) == list(files)
    for name, (grown, said) in found.items():
        needed, free = map(int, re.search(r"needs (\d+) bytes .* has (\d+) free", said).groups())
        assert needed > free == 20_000_000, name
        assert grown < 50e6, name  # text readers fill the free memory, and pyarrow needs buffers


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak of a program is read from /proc")
def test_a_text_that_parquet_holds_once_counts_as_often_as_it_is_repeated(tmp_path):
    path = repeating_parquet(tmp_path / "texts.parquet", 2100, 1 << 20)
    assert path.stat().st_size < 1 << 20
    setup = """
from types import SimpleNamespace
import psutil
from dmo.formats.frames import read_frame
psutil.virtual_memory = lambda: SimpleNamespace(available=4_000_000_000)"""
    grown, said = peaks(setup, "read_frame(path)", [path])["texts.parquet"]
    assert int(re.search(r"needs (\d+) bytes", said)[1]) > 2 * 2100 << 20
    assert grown < 60e6  # the text has 2.2e9 bytes
    few = repeating_parquet(tmp_path / "few.parquet", 30, 1000)
    assert read_frame(few)["text"].tolist() == ["x" * 1000] * 30


def test_refused_data_leave_no_store(tmp_path):
    files, *_ = write_views(tmp_path)
    views = {name: {split: tmp_path / file for split, file in files[name].items()} for name in ("gist", "hue")}
    store = tmp_path / "store.zarr"

    def refuse(match, error=ValueError, **arguments):
        with pytest.raises(error, match=match) as caught:
            ingest_files(**{"views": views, "store": store, "block": 4} | arguments)
        assert not store.exists()
        assert "\n" not in str(caught.value)

    damaged = bytearray((tmp_path / "test_hue.hvecs").read_bytes())
    damaged[40:42] = b"\x07\x00"
    put(tmp_path, "bad.hvecs", bytes(damaged))
    bad = {**views, "hue": {"train": views["hue"]["train"], "test": tmp_path / "bad.hvecs"}}
    refuse(r"bad\.hvecs: row 4 at byte 40 declares 7 values, expected 4", DataError, views=bad)
    G = RNG.random((25, 3))
    G[17, 2] = np.inf
    np.save(tmp_path / "inf.npy", G)
    refuse(r"view 'x', row 17, column 2 is inf", views={"x": tmp_path / "inf.npy"})
    negative = put(tmp_path, "n.csv", "1,2\n" * 3 + "1,-1\n")
    refuse(r"view 'x' is a histogram, but row 3, column 1 is -1", views={"x": negative}, histograms=["x"])
    np.save(tmp_path / "half.npy", np.full((25, 3), 0.5))
    fractions = {"x": tmp_path / "half.npy"}
    refuse(r"view 'x', rows 0 to 3 have values that are not uint8", DataError, views=fractions, dtypes={"x": "uint8"})
    annotations = dict.fromkeys(("train", "test"), tmp_path / "test_annot.hvecs")
    refuse(r"'labels' has the rows 9 train, 9 test, but 'gist' has 16 train, 9 test", labels=annotations)
    refuse(r"'hue' has the rows 9 test, 16 train", views={**views, "hue": dict(reversed(views["hue"].items()))})
    refuse(r"histograms: got view 'x', expected one of gist, hue", histograms=["x"])
    refuse(r"got no views", views={})
    refuse(r"labels -2: no view contains these columns", DataError, labels=-2)
    refuse(r"none\.npy: no such file", FileNotFoundError, views={"x": tmp_path / "none.npy"})
    refuse(r"label_names", label_names=["a"])


def test_descriptions_are_checked(tmp_path):
    refuses(put(tmp_path, "d.json", '{"views"'), "not valid JSON in line 1, column 9", read_description)
    refuses(put(tmp_path, "d.json", '{"labels": "x"}'), "no object 'views'", read_description)
    refuses(put(tmp_path, "d.json", "[1]"), "no object 'views'", read_description)
    refuses(put(tmp_path, "d.json", '{"views": {}, "label": "x"}'), "unknown key 'label'", read_description)
    refuses(put(tmp_path, "d.json", b'{"\xff'), "not UTF-8 text at byte 2", read_description)
    refuses(put(tmp_path, "d.json", "[" * 99999), "nested too deeply", read_description)
    refuses(tmp_path / "none.json", "no such file", read_description, FileNotFoundError)


# ---------------------------------------------------------------- cards and public sets


@pytest.mark.parametrize("name", CARDS)
def test_the_cards_that_come_with_dmo_are_whole(name):
    card = read_card(name)
    assert card.name == name
    assert f"`dmo ingest {name} " in card.about
    assert all(re.fullmatch(r"[0-9a-f]{64}", file.sha256) for file in card.files)
    assert card.license
    assert card.citation


OWN = """
title = "three points"
license = "none"
citation = "nobody"
[rows]
train = 2
test = 1
[labels]
files = {train = "y.npz::old", test = "y.npz::new"}
names = "kind {}"
number = 2
total = {train = 2, test = 1}
[views]
x = {files = "x.npy", dimension = 2, dtype = "float32", total = 15.0}
y = {files = "y.npz::x.T", dimension = 2, dtype = "float64", total = 15.0, kind = "sparse", order = "y.npz::order"}
[files]
"x.npy" = {sha256 = "X", source = "here"}
"y.npz" = {sha256 = "Y", source = "here"}
"""


@pytest.fixture
def own_card(tmp_path):
    """Write a custom dataset card in TOML and the files of the data set."""
    X, Y = np.arange(6.0).reshape(3, 2), np.array([[1, 0], [0, 1], [1, 0]])
    np.save(tmp_path / "x.npy", X)
    order = np.array([2, 0, 1])
    np.savez(tmp_path / "y.npz", old=Y[:2], new=Y[2:], x=X[np.argsort(order)].T, order=order)
    text = OWN
    for mark, name in (("X", "x.npy"), ("Y", "y.npz")):
        text = text.replace(f'"{mark}"', f'"{hashlib.sha256((tmp_path / name).read_bytes()).hexdigest()}"')
    return put(tmp_path, "points.toml", text)


def test_a_card_of_ones_own_is_read_as_those_that_come_with_dmo(own_card, tmp_path):
    store = ingest(own_card, tmp_path, tmp_path / "s.zarr")
    np.testing.assert_array_equal(rows(store.views["x"]), np.arange(6.0).reshape(3, 2))
    np.testing.assert_array_equal(rows(store.views["y"]).toarray(), np.arange(6.0).reshape(3, 2))
    assert (rows(store.views["x"]).dtype, store.view_info("y").kind) == (np.float32, "sparse")
    assert (store.labels.tolist(), store.label_names) == ([[1, 0], [0, 1], [1, 0]], ["kind 1", "kind 2"])
    assert store.split.tolist() == ["train", "train", "test"]
    assert store.attributes["dataset"] == "points"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("[rows]", "[rows", r"points\.toml: not valid TOML \(.*line 5"),
        (
            'license = "none"',
            "",
            r"points\.toml: license: Field required; compare it with a card such as .*yeast\.toml",
        ),
        ("dimension = 2", 'dimension = "two"', r"points\.toml: views\.0\.dimension: Input should be a valid integer"),
        ("dimension = 2", "dimension = 2, colour = 1", r"views\.0\.colour: Unexpected keyword argument"),
        ("[views]", "[view]", r"points\.toml: views: Field required"),
        ("test = 1}", "tset = 1}", r"points\.toml: expected .* in \[labels\] a total for each split"),
        ('"x.npy" =', '"z.npy" =', r"card points: file 'x\.npy' is used but not listed; add it to \[files\]"),
        (
            "train = 2,",
            "train = 3,",
            r"points: the train samples have 2 positives \(1\.000 per sample\), expected 3",
        ),
        ("y.npz::order", "y.npz::perm", r"y\.npz: the array 'perm' is missing, expected one of old, new, x, order"),
    ],
)
def test_what_is_no_card_is_refused(own_card, tmp_path, old, new, said):
    assert old in own_card.read_text()
    own_card.write_text(own_card.read_text().replace(old, new))
    with pytest.raises(DataError, match=said):
        ingest(own_card, tmp_path, tmp_path / "s.zarr")
    assert not (tmp_path / "s.zarr").exists()


FOLDERS = {"corel5k": "corel5k", "espgame": "espgame", "rcv1subset": "rcv1"}
FOLDERS |= {name: f"mulan/{name}" for name in ("yeast", "scene", "emotions", "enron", "bibtex")}
FOLDERS |= dict.fromkeys(("edm", "enb", "jura", "sf1", "slump"), "multi_target")


def test_the_files_have_the_checksums_of_their_cards(dmo_data):
    from dmo.formats.files import sha256

    assert set(FOLDERS) == set(CARDS)
    for name, folder in FOLDERS.items():
        for file in read_card(name).files:
            assert sha256(dmo_data / folder / file.name) == file.sha256, file.name


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted({*CARDS} - {"corel5k"}))
def test_public_sets_pass_their_cards(dmo_data, tmp_path, name):
    card = read_card(name)
    store = ingest(name, dmo_data / FOLDERS[name], tmp_path / "store.zarr")
    assert list(store.views) == [view.name for view in card.views]
    for view in card.views:
        assert store.views[view.name].shape == (card.n_samples, view.dimension)
        assert store.view_info(view.name).kind == view.kind
    assert store.labels.shape == (card.n_samples, card.labels.number)
    assert len(store.label_names) == card.labels.number
    assert store.real_labels == (FOLDERS[name] == "multi_target")
    assert store.attributes["citation"] == card.citation


def test_yeast_is_what_scipy_reads(dmo_data, tmp_path):
    store = ingest("yeast", dmo_data / "mulan/yeast", tmp_path / "store.zarr")
    packed = (dmo_data / "mulan/yeast/yeast-test.arff.xz").read_bytes()
    theirs, _ = scipy.io.arff.loadarff(put(tmp_path, "yeast.arff", lzma.decompress(packed)))
    views, labels, _ = store.select("test")
    table = np.array([theirs[f"Att{j + 1}"] for j in range(103)]).T
    np.testing.assert_array_equal(rows(views["features"]), table)
    assert sorted(store.label_names) == sorted(f"Class{j + 1}" for j in range(14))
    for column, name in zip(labels.T, store.label_names):
        np.testing.assert_array_equal(column, theirs[name].astype(float))


def test_corel5k(dmo_data, tmp_path):
    folder = dmo_data / "corel5k"
    views = ["gist", "dense_hue", "harris_hue", "morp491", "lear_dense_hue"]
    store = ingest("corel5k", folder, tmp_path / "store.zarr", views=views)
    assert list(store.views) == views
    train, Y, _ = store.select("train")
    _, Y2, _ = store.select("test")
    assert (Y.shape, Y2.shape) == ((4500, 260), (499, 260))
    assert store.labels.sum(axis=1).mean() == pytest.approx(3.396, abs=1e-3)
    assert (Y.sum(axis=1) == 0).sum() == 7
    for split, labels in (("train", Y), ("test", Y2)):
        np.testing.assert_array_equal(labels.toarray(), open_vecs(folder / f"corel5k_{split}_annot.hvecs")[:])
    assert store.label_names == read_names(folder / "words260.txt")
    entries = read_names(folder / "corel_train_list.txt") + read_names(folder / "corel_test_list.txt")
    assert store.sample_ids == [entry.partition("/")[2] for entry in entries]
    assert [name for name in views if store.view_info(name).histogram] == ["dense_hue", "harris_hue", "lear_dense_hue"]
    with np.load(folder / "features/corel5k_Gist.npz") as archive:
        np.testing.assert_array_equal(rows(train["gist"]), archive["X"][:4500])
    matrices = scipy.io.loadmat(folder / "lear_DenseHue__corel5k.mat")
    with np.load(folder / "recovered_order_corel5k.npz") as archive:
        order = archive["perm"]
    np.testing.assert_array_equal(matrices["Y_all"][order], store.labels.toarray())
    np.testing.assert_array_equal(matrices["X_all"][order], rows(store.views["lear_dense_hue"]))
    words = open_vecs(folder / "corel5k_test_DenseSift.hvecs")
    assert words.shape == (499, 1000)
    assert words[:].sum() == 600796


def test_corel5k_has_the_eight_views_of_the_paper():
    eight = ["rgb", "lab", "hsv", "gist", "dense_sift", "harris_sift", "dense_hue", "harris_hue"]
    views = read_card("corel5k").choose(None)
    assert [view.name for view in views] == eight
    assert [view.dimension for view in views] == [5184, 5184, 5184, 512, 3000, 3000, 300, 300]


def test_espgame_rows_are_in_the_official_order(dmo_data, tmp_path):
    store = ingest("espgame", dmo_data / "espgame", tmp_path / "store.zarr")
    matrices = scipy.io.loadmat(dmo_data / "espgame/lear_DenseHue__espgame.mat")
    keys = [row.tobytes() for row in np.packbits(matrices["Y_all"], axis=1)]
    place = {key: i for i, key in enumerate(keys)}
    counts = Counter(keys)
    X = rows(store.views["dense_hue"])
    for i, key in enumerate(row.tobytes() for row in np.packbits(store.labels.toarray(), axis=1)):
        if counts[key] == 1:
            np.testing.assert_array_equal(X[i], matrices["X_all"][place[key]])
    assert Counter(row.tobytes() for row in X) == Counter(row.tobytes() for row in matrices["X_all"])
    with np.load(dmo_data / "espgame/derived_espgame_annot_official_order.npz") as archive:
        np.testing.assert_array_equal(store.labels.toarray(), np.concatenate([archive["train"], archive["test"]]))
        assert store.sample_ids[0] == archive["train_ids"][0]
    assert store.labels.sum(axis=1).mean() == pytest.approx(4.686, abs=1e-3)


def test_targets_are_what_the_file_says(dmo_data, tmp_path):
    X, Y = read_arff(dmo_data / "multi_target/enb.arff", ["Y1", "Y2"])
    store = ingest("enb", dmo_data / "multi_target", tmp_path / "s.zarr")
    np.testing.assert_array_equal(rows(store.views["features"]), X)
    np.testing.assert_array_equal(store.labels, Y)
    assert (store.label_names, store.labels[0].tolist()) == (["Y1", "Y2"], [15.55, 21.33])


def copy_yeast(dmo_data, folder):
    folder.mkdir(exist_ok=True)
    for path in (dmo_data / "mulan/yeast").iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def test_named_sets_refuse_what_differs_from_the_card(dmo_data, tmp_path):
    folder, store = copy_yeast(dmo_data, tmp_path / "yeast"), tmp_path / "store.zarr"

    def refuse(match, error=DataError, **arguments):
        with pytest.raises(error, match=match) as caught:
            ingest("yeast", folder, store, **arguments)
        assert not store.exists()
        assert "\n" not in str(caught.value)

    packed = folder / "yeast-test.arff.xz"
    original = packed.read_bytes()
    head, data = lzma.decompress(original).decode().split("@data\n")
    lines = data.strip().split("\n")
    packed.unlink()

    def change(changed):
        put(folder, "yeast-test.arff", head + "@data\n" + "\n".join(changed) + "\n")

    change(lines[:-1])
    refuse(r"yeast: .*yeast-test.arff has SHA-256 \w{12}\.\.\., expected 4aaac102bff9\.\.\.")
    refuse(r"yeast: view 'features' has shape 2416 x 103, expected 2417 x 103", checksums=False)
    flipped = lines[0][:-1] + str(1 - int(lines[0][-1]))
    change([flipped, *lines[1:]])
    refuse(r"yeast: the test samples have 3\d\d\d positives \(4\.25\d per sample\), expected 3899", checksums=False)
    change(["9" + lines[0][1:], *lines[1:]])
    refuse(
        r"view 'features' has the sum .*, expected 15\.373083 as in the card; the files are damaged", checksums=False
    )
    packed.write_bytes(original[:-100])
    refuse(r"yeast-test.arff.xz: cannot be decompressed", checksums=False)
    packed.unlink()
    (folder / "yeast-test.arff").unlink()
    (folder / "yeast.xml.xz").unlink()
    where = r"\(github.com/tsoumakas/mulan\)"
    refuse(
        rf"yeast: .* does not contain yeast-test.arff.xz {where}; yeast.xml.xz {where}; get the files",
        FileNotFoundError,
    )
    refuse(r"yeast: got view 'gist', expected views among features", ValueError, views=["gist"])


def test_files_may_be_decompressed_or_out_of_their_sub_folder(dmo_data, tmp_path):
    folder = copy_yeast(dmo_data, tmp_path / "yeast")
    packed = folder / "yeast-train.arff.xz"
    (folder / "yeast-train.arff").write_bytes(lzma.decompress(packed.read_bytes()))
    packed.unlink()
    assert ingest("yeast", folder, tmp_path / "store.zarr").n_samples == 2417
    flat = tmp_path / "corel"
    flat.mkdir()
    for name in ("corel5k_annotations.npz", "corel5k_HarrisHueV3H1.npz"):
        (flat / name).write_bytes((dmo_data / "corel5k/features" / name).read_bytes())
    assert ingest("corel5k", flat, tmp_path / "corel.zarr", views=["harris_hue"]).n_samples == 4999
    np.savez(flat / "corel5k_HarrisHueV3H1.npz", Y=np.zeros((4999, 300)))
    with pytest.raises(DataError, match=r"corel5k_HarrisHueV3H1.npz: the array 'X' is missing, expected one of Y"):
        ingest("corel5k", flat, tmp_path / "other.zarr", views=["harris_hue"], checksums=False)


@pytest.fixture
def served(tmp_path):
    """Serve the files of a small data set on a local server, and create the dataset card `tiny.toml`."""
    there = tmp_path / "there"
    there.mkdir()
    header = "@relation r\n@attribute x real\n@attribute sky {0,1}\n@data\n"
    (there / "scene-train.arff").write_text(header + "1,1\n2,0\n")
    (there / "scene-test.arff").write_text(header + "3,1\n")
    (there / "scene.xml").write_text('<labels xmlns="http://mulan.sourceforge.net/labels"><label name="sky"/></labels>')
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=there))
    Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    card = CARDS["scene"].read_text()
    facts = {
        "train = 1211": "train = 2",
        "test = 1196": "test = 1",
        "number = 6": "number = 1",
        "1286": "1",
        "1299": "1",
    }
    facts |= {"dimension = 294": "dimension = 1", "218148.680153": "6.0"}
    for name in ("scene-train.arff", "scene-test.arff", "scene.xml"):
        digest = hashlib.sha256((there / name).read_bytes()).hexdigest()
        facts |= {next(file.sha256 for file in read_card("scene").files if file.name == f"{name}.xz"): digest}
    for old, new in facts.items():
        assert old in card
        card = card.replace(old, new)
    put(tmp_path, "tiny.toml", re.sub(r'url = "https:.*/', f'url = "{address}/', card))
    yield there
    server.shutdown()
    server.server_close()


class HostileHandler(BaseHTTPRequestHandler):
    """HTTP server with faulty responses.

    /endless never ends, /slow sends single bytes, /long announces a huge file, /short stops early, /empty has no body
    and /none does not respond. /away redirects to a local file, /round to itself, and /elsewhere to another host.
    """

    def log_message(self, *_):
        pass

    def do_GET(self):
        kind = self.path.rpartition("/")[2]
        elsewhere = f"http://localhost:{self.server.server_port}/short"
        places = {"away": "file:///etc/passwd", "round": self.path, "elsewhere": elsewhere}
        if kind == "none":
            return
        self.send_response(302 if kind in places else 200)
        if kind in places:
            self.send_header("Location", places[kind])
        if kind in ("long", "short"):
            self.send_header("Content-Length", str(1 << 50 if kind == "long" else 1000))
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(b"" if kind == "empty" else b"@relation")
            while kind == "endless":
                self.wfile.write(bytes(1 << 16))
            for _ in range(40 if kind == "slow" else 0):
                self.wfile.write(b"@")
                time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["endless", "slow", "long", "short", "empty", "none", "away", "round", "elsewhere"])
def test_a_server_that_misbehaves_leaves_nothing_behind(tmp_path, monkeypatch, kind):
    server = ThreadingHTTPServer(("127.0.0.1", 0), HostileHandler)
    Thread(target=server.serve_forever, daemon=True).start()
    module = sys.modules[ingest.__module__]
    monkeypatch.setattr(module, "_LARGEST", 1 << 20)
    monkeypatch.setattr(module, "_LONGEST", 0.5 if kind == "slow" else 60)
    name = read_card("scene").files[0].name
    text = Path(CARDS["scene"]).read_text(encoding="utf-8")
    card = put(
        tmp_path, "scene.toml", re.sub(r'url = "[^"]*"', f'url = "http://127.0.0.1:{server.server_port}/{kind}"', text)
    )
    said = {"endless": "more than 1048576 bytes", "slow": r"did not finish within 0\.5 s"}
    with pytest.raises(
        (FileNotFoundError, DataError), match=said.get(kind, "the download failed|differs from the card")
    ) as refused:
        ingest(card, tmp_path / "set", tmp_path / "s.zarr", fetch=True)
    assert "\n" not in str(refused.value)
    assert name in str(refused.value) or kind in str(refused.value)
    assert not list((tmp_path / "set").rglob("*"))
    for thread in threading.enumerate():
        if thread.name == "dmo-fetch":
            thread.join(60)
            assert not thread.is_alive()
    server.shutdown()
    server.server_close()


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def test_files_of_a_card_are_fetched_with_their_checksums_or_said_to_be_missing(served, tmp_path):
    card, folder, store = tmp_path / "tiny.toml", tmp_path / "scene", tmp_path / "s.zarr"
    with pytest.raises(
        FileNotFoundError,
        match=r"does not contain scene-train.arff.xz \(http://127.*into .*scene, or download them with --fetch",
    ):
        ingest(card, folder, store)
    assert ingest(card, folder, store, fetch=True).labels.ravel().tolist() == [1, 0, 1]
    assert sorted(path.name for path in folder.iterdir()) == ["scene-test.arff", "scene-train.arff", "scene.xml"]
    whole = (served / "scene-test.arff").read_text()
    (served / "scene-test.arff").write_text(whole.replace("3,1", "4,1"))
    # Existing files are not downloaded again.
    assert ingest(card, folder, store, fetch=True, overwrite=True).n_samples == 3
    (folder / "scene-test.arff").unlink()
    with pytest.raises(DataError, match=r"scene-test.arff differs from the card; the download was"):
        ingest(card, folder, tmp_path / "t.zarr", fetch=True)
    (served / "scene-test.arff").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"does not contain scene-test.arff.xz \(http.*the download failed: 404.*put them"
    ):
        ingest(card, folder, tmp_path / "t.zarr", fetch=True)
    assert sorted(path.name for path in folder.iterdir()) == ["scene-train.arff", "scene.xml"]
    assert not (tmp_path / "t.zarr").exists()


def test_addresses_of_cards_end_in_the_names_of_their_files():
    known = [file for name in CARDS for file in read_card(name).files if file.url is not None]
    assert len(known) == 5
    assert all(file.url.rsplit("/", 1)[1] == file.name.removesuffix(".xz") for file in known)


def test_unknown_sets_are_refused(tmp_path):
    known = re.escape(f"expected one of {', '.join(CARDS)}, files, or a card NAME.toml")
    with pytest.raises(ValueError, match=rf"data set 'coral' is unknown, {known}; did you mean 'corel5k'\?$"):
        ingest("coral", tmp_path, tmp_path / "s.zarr")
    with pytest.raises(FileNotFoundError, match=r"coral\.toml: no such file"):
        ingest(tmp_path / "coral.toml", tmp_path, tmp_path / "s.zarr")


AWKWARD = {
    "no end": b"1,2\n3,4",
    "returns": b"a,b\r\n1,2\r\n3,4\r\n",
    "blank lines": b"\na,b\n\n1,2\n   \n3,4\n\n",
    "blank lines after returns": b"a,b\r\n\r\n1,2\r\r\n3,4\r\n",
    "a mark of order": b"\xef\xbb\xbfa,b\n1,2\n",
    "a comma too many": b"a,b\n1,2,\n3,4,\n",
    "a row cut short": b"a,b\n1,2\n3\n",
    "a row too long": b"a,b\n1,2\n3,4,5\n",
    "an empty cell": b"a,b\n1,\n3,4\n",
    "NA": b"a,b\n1,NA\n3,4\n",
    "nan": b"a,b\n1,nan\n3,4\n",
    "infinite": b"a,b\n1,1e400\n3,-Infinity\n",
    "digits apart": b"a,b\n1,1_000\n3,4\n",
    "hexadecimal": b"a,b\n1,0x10\n3,4\n",
    "whole numbers beyond 2^53": b"a,b\n9007199254740993,123456789012345678901234567890\n3,4\n",
    "seventeen digits": b"a,b\n0.1234567890123456789,2.718281828459045\n4.9e-324,1.7976931348623157e308\n",
    "spaces": b"a,b\n 1 , 2 \n+3 ,.5\n",
    "quotes": b'a,b\n"1","2"\n3,4\n',
    "a line feed in quotes": b'a,b\n"1\n",2\n3,4\n',
    "truth": b"a,b\nTrue,1\nFalse,2\n",
    "a letter far down": b"a,b\n" + b"1,2\n" * 5000 + b"1,z\n",
    "latin letters": b"\xe9,b\n1,2\n",
    "no rows": b"a,b\n",
}


@pytest.mark.parametrize("name", AWKWARD)
@pytest.mark.parametrize("size", [1, 4096])
def test_a_fast_parser_reads_what_lines_one_by_one_say_and_refuses_in_their_words(name, size, tmp_path, monkeypatch):
    path = tmp_path / "a.csv"
    path.write_bytes(AWKWARD[name])
    file = open_csv(path)

    def outcome():
        try:
            return file.count(), repr([row.tolist() for block in file.blocks(size) for row in block])
        except DataError as error:
            return str(error)

    found = outcome()
    monkeypatch.setattr(text_files, "_BLANK", re.compile(b""))

    def never(self, size):
        raise ValueError
        yield

    monkeypatch.setattr(text_files.Delimited, "_parsed", never)
    assert found == outcome()


def test_a_column_of_numbers_that_has_a_word_far_below_is_text_as_a_whole(tmp_path):
    cells = [*map(str, range(100_000)), "abc", " 7"]  # pandas parses this text in several chunks
    Path(tmp_path, "x.csv").write_text("a,b\n" + "".join(f"{cell},{i}\n" for i, cell in enumerate(cells)))
    found = read_frame(tmp_path / "x.csv")
    assert found["a"].tolist() == cells
    with pytest.raises(DataError, match="column 'a', row 100000 is 'abc', expected a number as in most rows"):
        read_samples(tmp_path / "x.csv")
