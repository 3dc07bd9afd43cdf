"""Create files for several test modules, such as ONNX models and Reuters stories in SGML."""

import numpy as np


def field(number, value):
    """Encode a protocol buffer field that contains an integer or length-delimited bytes."""

    def varint(n):
        return bytes([n]) if n < 128 else bytes([n & 127 | 128]) + varint(n >> 7)

    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    data = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(data)) + data


def onnx_model(path, channels=3, side=16, operator="GlobalAveragePool", weights=None, inputs=1):
    """Write an ONNX model that computes the mean of every image channel.

    If `weights` is a file name, a second node adds the number in this file. If `inputs` is 0, the image is a constant.
    """

    def tensor(name, shape):
        dims = b"".join(field(1, field(1, size)) for size in shape)
        return field(1, name) + field(2, field(1, field(1, 1) + field(2, dims)))

    node = field(1, "x") + field(2, "y" if weights is None else "p") + field(4, operator)
    x, y = tensor("x", (1, channels, side, side)), tensor("y", (1, channels, 1, 1))
    graph = field(1, node)
    if weights is not None:
        outside = field(13, field(1, "location") + field(2, weights)) + field(14, 1)
        graph += field(1, field(1, "p") + field(1, "w") + field(2, "y") + field(4, "Add"))
        graph += field(5, field(1, 1) + field(2, 1) + field(8, "w") + outside)
    if not inputs:
        dims = b"".join(field(1, size) for size in (1, channels, side, side))
        graph += field(5, dims + field(2, 1) + field(8, "x") + field(9, bytes(4 * channels * side**2)))
    graph += field(2, "g") + field(11, x) * inputs + field(12, y)
    path.write_bytes(field(1, 8) + field(7, graph) + field(8, field(1, "") + field(2, 13)))
    return path


def story(number, topics, body, lewis="TRAIN", has="YES", title="A TITLE"):
    marked = "".join(f"<D>{topic}</D>" for topic in topics)
    return (
        f'<REUTERS TOPICS="{has}" LEWISSPLIT="{lewis}" CGISPLIT="TRAINING-SET" OLDID="1" NEWID="{number}">\n'
        f"<DATE>26-FEB-1987</DATE>\n<TOPICS>{marked}</TOPICS>\n<PLACES><D>usa</D></PLACES>\n<TEXT>&#2;\n"
        f"<TITLE>{title}</TITLE>\n<DATELINE> X - </DATELINE><BODY>{body}\n&#3;</BODY></TEXT>\n</REUTERS>\n"
    )


def bombs(folder, n=1_000_000):
    """Write small compressed files that expand to n x 5 equal numbers, and return their paths by name."""
    import lzma

    import h5py
    import pandas as pd
    import scipy.io
    import scipy.sparse

    X = np.ones((n, 5))
    np.savez_compressed(folder / "a.npz", x=X)
    scipy.sparse.save_npz(folder / "sparse.npz", scipy.sparse.csr_array(X))
    scipy.io.savemat(folder / "a.mat", {"X": X}, do_compression=True)
    with h5py.File(folder / "new.mat", "w", userblock_size=512) as file:
        # The chunks of X are not stored. Readers reject a file that is smaller than X after compression with deflate,
        # so random data in Y enlarge the file to about 0.1 % of X.
        file["Y"] = np.random.default_rng(0).random((1, 40 * n // 8000))
        file.create_dataset("X", (5, n), "f8", chunks=(5, 1024), compression="gzip")
        for dataset in file.values():
            dataset.attrs["MATLAB_class"] = np.bytes_("double")
    pd.DataFrame(X, columns=list("abcde")).to_parquet(folder / "a.parquet")
    repeating_parquet(folder / "texts.parquet", n // 1000, 50_000)
    repeating_parquet(folder / "prefixes.parquet", n // 1000, 50_000, "DELTA_BYTE_ARRAY")
    (folder / "a.csv.xz").write_bytes(lzma.compress(b"a,b,c,d,word\n" + b"1,1,1,1,w\n" * n, preset=0))
    (folder / "wide.csv").write_text(",".join("1" for _ in range(n // 4)))
    return {path.name: path for path in sorted(folder.iterdir())}


def repeating_parquet(path, n, length, encoding=None):
    """Write a Parquet table of n rows with numbers and a constant text, which the file stores once."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts = pa.DictionaryArray.from_arrays(np.zeros(n, np.int32), ["x" * length])
    table = pa.table({"a": np.arange(n), "text": texts.cast(pa.string()) if encoding else texts})
    how = {"use_dictionary": False, "column_encoding": {"text": encoding}} if encoding else {}
    pq.write_table(table, path, store_schema=False, write_statistics=False, compression="zstd", **how)
    return path


PEAK = """
import re, sys
from pathlib import Path
import pandas, pyarrow.parquet, scipy.sparse  # imports are counted before reading
from dmo.errors import UserError
{setup}
def peak():  # peak memory of this program, since getrusage includes memory before exec
    return 1024 * int(re.search("VmHWM:(.*)kB", Path("/proc/self/status").read_text())[1])
for path in sys.argv[1:]:
    before = peak()
    try:
        {read}
        said = ""
    except UserError as error:
        said = str(error)
    print(path.rpartition("/")[2], peak() - before, said, sep="|")
"""


def peaks(setup, read, paths):
    """Measure for each file how much the peak memory of a new process grows while it runs the code `read`.
    Return the growth and the error message of each file.
    """
    import subprocess
    import sys

    script = PEAK.format(setup=setup, read=read)
    found = subprocess.run([sys.executable, "-c", script, *map(str, paths)], capture_output=True, text=True, check=True)
    lines = [line.split("|") for line in found.stdout.splitlines()]
    return {name: (int(grown), said) for name, grown, said in lines}
