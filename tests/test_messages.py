"""Show the messages that users meet, each with the input that triggers it.

The table can be read from top to bottom. Each entry has the files of the user, a command or a Python expression, and the
complete message.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.io
import scipy.sparse
from shell import run
from typer.testing import CliRunner

import dmo
from dmo import (
    JEC,
    KGHA,
    MOPE,
    MORP,
    CoupledSVR,
    Exact,
    FastTag,
    Graph,
    Krylov,
    MultiSetCCA,
    MultiViewRidge,
    Nystrom,
    Prepare,
    TraceEmbedding,
    Views,
)
from dmo.cli.app import app
from dmo.datasets import Samples
from dmo.datasets.samples import analyzer
from dmo.decoders import PlugIn, Scores
from dmo.features import Embedding, read_image
from dmo.formats.arrays import open_hdf5
from dmo.kernels import RBF, parse
from dmo.metrics import annotation_scores, auc_scores
from dmo.model_selection import MultilabelStratifiedKFold
from dmo.stores import ViewSpec, create_features

RNG = np.random.default_rng(0)
X = RNG.standard_normal((12, 3))
Y = np.tile(np.eye(2, dtype=int), (6, 1))
VIEWS = {"color": X, "shape": X[:, :2] ** 2}
NAN = np.where(np.arange(36).reshape(12, 3) == 4, np.nan, X)
CLASSES = np.array(["sun", "rain"] * 6)
RIDGE = MultiViewRidge(ridge=0.1).fit(X, Y)
TWO = MultiViewRidge(combine="kernels").fit(VIEWS, Y)
NAMED = MultiViewRidge(ridge=0.1).fit(pd.DataFrame(X, columns=["a", "b", "c"]), [["sky"], ["sea"]] * 6)
TABLE = "id,size,weight,label\n" + "".join(f"s{i},{i}.5,{(7 * i) % 5}.25,{('sun', 'rain')[i % 2]}\n" for i in range(12))

Action = str | Callable[[], Any]


def when(name: str, action: Action, message: str, files: Mapping[str, Any] | None = None) -> Any:
    """Describe what the user did, the complete message, and the files of the user."""
    return pytest.param(action, message, files or {}, id=name)


def without(module: str, action: Action) -> Callable[[], Any]:
    """Run the action as if a module were not installed."""

    def run() -> Any:
        with pytest.MonkeyPatch.context() as patch:
            for name in [module, *(name for name in sys.modules if name.startswith(f"{module}."))]:
                patch.setitem(sys.modules, name, None)
            return message_of(action)

    return run


def message_of(action: Action) -> str:
    """Return the message of a Python call or a command."""
    if isinstance(action, str):
        result = CliRunner().invoke(app, shlex.split(action)[1:])
        assert result.exit_code, result.output
        lines = result.stderr.strip().splitlines()
        return " ".join([line.strip("│ ") for line in lines if line.startswith("│")] or [lines[-1]])
    try:
        found = action()
    except Exception as error:
        return str(error)
    assert isinstance(found, str), found
    return found


def write(folder: Path, files: Mapping[str, Any]) -> None:
    """Write files of text, bytes, arrays, or dictionaries of arrays."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif isinstance(content, str):
            path.write_text(content)
        elif isinstance(content, pd.DataFrame):
            content.to_parquet(path)
        elif isinstance(content, np.ndarray):
            np.save(path, content)
        elif path.suffix == ".mat":
            scipy.io.savemat(path, content)
        else:
            np.savez(path, **content)


MESSAGES = [
    # --- Installation and extras ---
    when(
        "h5py is missing",
        without("h5py", "dmo ingest files out.zarr --view x=a.h5"),
        "dmo: a.h5: HDF5 files need h5py, which is not installed; run: pip install dmo-learn[matlab]",
        {"a.h5": b"\x89HDF\r\n\x1a\n"},
    ),
    when(
        "h5py is missing for a reader",
        without("h5py", lambda: open_hdf5("a.h5")),
        "a.h5: HDF5 files need h5py, which is not installed; run: pip install dmo-learn[matlab]",
        {"a.h5": b"\x89HDF\r\n\x1a\n"},
    ),
    when(
        "h5py is missing for a MATLAB file",
        without("h5py", "dmo ingest files out.zarr --view x=a.mat"),
        "dmo: a.mat: MATLAB 7.3 files need h5py, which is not installed; run: pip install dmo-learn[matlab], "
        "or save with -v7",
        {"a.mat": b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM" + bytes(384) + b"\x89HDF\r\n\x1a\n"},
    ),
    when(
        "Pillow is missing",
        without("PIL", lambda: read_image("a.png")),
        "reading images needs Pillow, OpenCV and PyWavelets, which are not all installed; run: pip install "
        "dmo-learn[images]",
        {"a.png": b"PNG"},
    ),
    when(
        "onnxruntime is missing",
        without("onnxruntime", lambda: Embedding("a.onnx", "0" * 64, 8, 1)(np.zeros((8, 8, 3), np.uint8))),
        "embeddings need onnxruntime, which is not installed; run: pip install dmo-learn[onnx]",
    ),
    when(
        "uvicorn is missing",
        without("uvicorn", "dmo serve model.zarr"),
        "dmo: dmo serve needs Starlette, uvicorn and python-multipart, which are not all installed; run: pip "
        "install dmo-learn[serve]",
    ),
    when(
        "snowballstemmer is missing",
        without("snowballstemmer", lambda: analyzer.__wrapped__("porter")),
        "stemming needs snowballstemmer, which is not installed; run: pip install dmo-learn[text]",
    ),
    when(
        "pynndescent is missing",
        without("pynndescent", lambda: dmo.graphs.neighbors(X, 3, method="approximate")),
        "neighbors: method='approximate' needs pynndescent, which is not installed; run: pip install "
        "dmo-learn[approximate], or use method='exact'",
    ),
    when(
        "dask-jobqueue is missing",
        without("dask_jobqueue", lambda: dmo.cluster.connect("slurm").__enter__()),
        "--scheduler slurm needs dask-jobqueue, which is not installed; run: pip install dmo-learn[jobqueue]",
    ),
    when("unknown attribute", lambda: dmo.KHGA, "module 'dmo' has no attribute 'KHGA'; did you mean dmo.KGHA?"),
    # --- Files ---
    when(
        "no such file",
        "dmo ingest files out.zarr --view x=nothing.csv",
        "dmo: nothing.csv: no such file; check the path",
    ),
    when(
        "nothing to show",
        "dmo info nothing.csv",
        "dmo: no store at {folder}/nothing.csv; check the path, or create the store first",
    ),
    when(
        "unknown file type",
        "dmo ingest files out.zarr --view x=a.xyz",
        "dmo: a.xyz: ends in '.xyz', expected one of .csv, .tsv, .txt, .parquet, .pq, .arrow, .arrows, "
        ".feather, .jsonl, .ndjson, .npy, .npz, .h5, .hdf5, .mat, .zarr, .arff, .svm, .svmlight, .libsvm, "
        ".dvec, .dvecs, .fvec, .fvecs, .hvec, .hvec32, .hvecs, .hvecs32; rename or convert it",
        {"a.xyz": "1"},
    ),
    when(
        "a folder instead of a file",
        "dmo ingest files out.zarr --view x=folder.csv",
        "dmo: folder.csv: is a folder, expected a file; pass the path of a file",
        {"folder.csv/a": "1"},
    ),
    when(
        "empty CSV file",
        "dmo ingest files out.zarr --view x=a.csv",
        "dmo: a.csv: is empty, expected a table; write one row per sample",
        {"a.csv": ""},
    ),
    when(
        "CSV file with a header only",
        "dmo ingest files out.zarr --view x=a.csv",
        "dmo: a.csv: ends after its header, expected at least one row; write one row per sample",
        {"a.csv": "a,b\n"},
    ),
    when(
        "row with too few fields",
        "dmo ingest files out.zarr --view x=a.csv",
        "dmo: a.csv: line 3 has 1 fields, expected 2 as above it (delimiter ','); quote fields that "
        "contain ',', or pass another --delimiter",
        {"a.csv": "a,b\n1,2\n3\n"},
    ),
    when(
        "column name twice",
        "dmo ingest files out.zarr --view x=a.csv",
        "dmo: a.csv: 2 columns are named 'a', expected unique names; rename all but one",
        {"a.csv": "a,a\n1,2\n3,4\n"},
    ),
    when(
        "binary data in a CSV file",
        "dmo ingest files out.zarr --view x=a.csv",
        "dmo: a.csv: byte 6 is not text, expected a table; write it as UTF-8",
        {"a.csv": b"a,b\n1,\x002\n"},
    ),
    when(
        "JSON document instead of lines",
        "dmo ingest files out.zarr --view x=a.json",
        "dmo: a.json: is a single JSON document, expected a table; write a .csv table with one row per "
        "image (name, and labels separated by |), or a .jsonl file with one object per line",
        {"a.json": '{"a": 1}'},
    ),
    when(
        "invalid JSON line",
        "dmo ingest files out.zarr --view x=a.jsonl",
        "dmo: a.jsonl: line 2 is not valid JSON (Expecting value: line 2 column 1 (char 7)); write one object per line",
        {"a.jsonl": '{"a": 1}\n{"a": \n'},
    ),
    when(
        "truncated gzip file",
        "dmo ingest files out.zarr --view x=a.csv.gz",
        "dmo: a.csv.gz: cannot be decompressed (Compressed file ended before the end-of-stream marker was "
        "reached); fetch it again",
        {"a.csv.gz": b"\x1f\x8b\x08\x00"},
    ),
    when(
        "damaged Parquet file",
        "dmo ingest files out.zarr --view x=a.parquet",
        "dmo: a.parquet: cannot be read as Parquet (Parquet file size is 4 bytes, smaller than the minimum "
        "file footer (8 bytes)); fetch it again",
        {"a.parquet": b"PAR1"},
    ),
    when(
        "Parquet file without vector columns",
        "dmo ingest files out.zarr --view x=a.parquet::v",
        "dmo: a.parquet: has no column 'v'; it has 'a'",
        {"a.parquet": pd.DataFrame({"a": [1.0, 2.0]})},
    ),
    when(
        "truncated .npy file",
        "dmo ingest files out.zarr --view x=a.npy",
        "dmo: a.npy: no .npy header at byte 0 (EOF: reading magic string, expected 8 bytes got 6), expected a"
        " complete file; fetch it again, or write it with numpy.save",
        {"a.npy": b"\x93NUMPY"},
    ),
    when(
        "objects in a .npy file",
        "dmo ingest files out.zarr --view x=a.npy",
        "dmo: a.npy: contains Python objects at byte 128, expected numbers; save it with a numeric dtype",
        {"a.npy": np.array([["a", None]], object)},
    ),
    when(
        "text in a .npy file",
        "dmo ingest files out.zarr --view x=a.npy",
        "dmo: a.npy: is of type <U1, expected real numbers; save it with a type such as float32",
        {"a.npy": np.array([["a"], ["b"]])},
    ),
    when(
        "complex numbers in a .npy file",
        "dmo ingest files out.zarr --view x=a.npy",
        "dmo: a.npy: is of type complex128, expected real numbers; save it with a type such as float32",
        {"a.npy": np.array([[1j], [2j]])},
    ),
    when(
        "several arrays in a .npz file",
        "dmo ingest files out.zarr --view x=a.npz",
        "dmo: a.npz: contains the matrices b, c, expected one; write a.npz::NAME",
        {"a.npz": {"b": X, "c": X}},
    ),
    when(
        "unknown array of a .npz file",
        "dmo ingest files out.zarr --view x=a.npz::d",
        "dmo: a.npz: the array 'd' is missing, expected one of b, c; write a.npz::b",
        {"a.npz": {"b": X, "c": X}},
    ),
    when(
        "damaged .npz file",
        "dmo ingest files out.zarr --view x=a.npz",
        "dmo: a.npz: File is not a zip file, expected a zip directory before byte 2; fetch the file again, or"
        " write it with numpy.savez",
        {"a.npz": b"PK"},
    ),
    when(
        "several variables in a MATLAB file",
        "dmo ingest files out.zarr --view x=a.mat",
        "dmo: a.mat: contains the matrices b, c, expected one; write a.mat::NAME",
        {"a.mat": {"b": X, "c": X}},
    ),
    when(
        "unknown variable of a MATLAB file",
        "dmo ingest files out.zarr --view x=a.mat::d",
        "dmo: a.mat: the array 'd' is missing, expected one of b, c; write a.mat::b",
        {"a.mat": {"b": X, "c": X}},
    ),
    when(
        "text variable of a MATLAB file",
        "dmo ingest files out.zarr --view x=a.mat::b",
        "dmo: a.mat: variable 'b' is a char, expected a numeric or sparse matrix; choose another variable",
        {"a.mat": {"b": "text", "c": X}},
    ),
    when(
        "complex variable of a MATLAB file",
        "dmo ingest files out.zarr --view x=a.mat::b",
        "dmo: a.mat: variable 'b' contains complex numbers, expected real ones; save its real and imaginary "
        "parts as two variables",
        {"a.mat": {"b": 1j * X}},
    ),
    when(
        "not a MATLAB file",
        "dmo ingest files out.zarr --view x=a.mat",
        "dmo: a.mat: no byte order mark at byte 126, expected the header of a MATLAB version 5 file; fetch it"
        " again, or save it with -v7",
        {"a.mat": b"0" * 200},
    ),
    when(
        "damaged HDF5 file",
        "dmo ingest files out.zarr --view x=a.h5",
        "dmo: a.h5: cannot be read as HDF5 (Unable to synchronously open file (bad byte number in an "
        "address)), expected a complete file; fetch it again",
        {"a.h5": b"\x89HDF\r\n\x1a\n"},
    ),
    when(
        "ARFF file without @data",
        "dmo ingest files out.zarr --view x=a.arff",
        "dmo: a.arff: ends after line 2 without @data; fetch it again, or write @data above the rows",
        {"a.arff": "@relation r\n@attribute a numeric\n"},
    ),
    when(
        "ARFF attribute of unknown type",
        "dmo ingest files out.zarr --view x=a.arff",
        "dmo: a.arff: line 2 declares 'a' as 'money', expected numeric, real, integer, string or {values}; "
        "correct the type",
        {"a.arff": "@relation r\n@attribute a money\n@data\n1\n"},
    ),
    when(
        "text in a numeric ARFF attribute",
        "dmo ingest files out.zarr --view x=a.arff --label-count 0",
        "dmo: a.arff: line 4 has 'one' for 'a', expected a number; write ? if it is missing",
        {"a.arff": "@relation r\n@attribute a numeric\n@data\none\n"},
    ),
    when(
        "ARFF row with too many values",
        "dmo ingest files out.zarr --view x=a.arff --label-count 0",
        "dmo: a.arff: line 4 has 2 values, expected 1 as declared by @attribute; correct the line",
        {"a.arff": "@relation r\n@attribute a numeric\n@data\n1,2\n"},
    ),
    when(
        "ARFF labels not declared",
        "dmo ingest files out.zarr --view x=a.arff",
        "dmo: a.arff: the label attributes are not declared; pass a Mulan list (--labels FILE.xml), their "
        "names (--label-columns), or their number (--label-count 6: the first six, -6: the last six, 0: "
        "none)",
        {"a.arff": "@relation r\n@attribute a numeric\n@attribute b {0,1}\n@data\n1,0\n2,1\n"},
    ),
    when(
        "Mulan list of another file",
        "dmo ingest files out.zarr --view x=a.arff --labels a.xml",
        "dmo: labels ['sea']: no view contains these columns; pass the names of the label columns "
        "(--label-columns NAME); numbers of columns are supported only for ARFF files",
        {"a.arff": "@relation r\n@attribute a numeric\n@data\n1\n", "a.xml": '<labels><label name="sea"/></labels>'},
    ),
    when(
        "Mulan list that is not XML",
        "dmo ingest files out.zarr --view x=a.arff --labels a.xml",
        "dmo: a.xml: not valid XML in line 1, column 0, expected a Mulan label list such as <labels><label "
        'name="sky"/></labels>',
        {"a.arff": "@relation r\n@attribute a numeric\n@data\n1\n", "a.xml": "sea"},
    ),
    when(
        "svmlight row without index",
        "dmo ingest files out.zarr --view x=a.svm",
        "dmo: a.svm: line 2 begins with '0 2', expected \"label,label index:value ...\" with ascending indices;"
        " correct the line",
        {"a.svm": "1 1:0.5\n0 2\n"},
    ),
    when(
        "shards with different columns",
        "dmo ingest files out.zarr --view 'x=part-*.csv'",
        "dmo: part-2.csv: has other columns than part-1.csv ('b' is in only one of them), expected the same "
        "columns in every shard; add or remove the column",
        {"part-1.csv": "a,b\n1,2\n3,4\n", "part-2.csv": "a,c\n1,2\n3,4\n"},
    ),
    when(
        "pattern without files",
        "dmo ingest files out.zarr --view 'x=nothing-*.csv'",
        "dmo: nothing-*.csv: does not match any file, expected at least one shard; check the path and pattern",
    ),
    when(
        "missing shard",
        "dmo info 'shard-*.npy'",
        "dmo: shard-*.npy: number 2 is missing from the shards shard-0.npy to shard-3.npy; restore it, or "
        "list the shards to read in a file and pass @FILE",
        {"shard-0.npy": X, "shard-1.npy": X, "shard-3.npy": X},
    ),
    when(
        "list of files is empty",
        "dmo info @list.txt",
        "dmo: list.txt: is empty, expected one path per line; write the paths into it",
        {"list.txt": ""},
    ),
    when(
        "not an image folder",
        "dmo extract store.zarr out.zarr",
        "dmo: store.zarr contains no images; pass a folder with files that end in .bmp .gif .jpeg .jpg "
        ".pbm .pgm .png .ppm .tif .tiff .webp",
    ),
    when(
        "folder without images",
        "dmo extract empty out.zarr",
        "dmo: empty contains no images; pass a folder with files that end in .bmp .gif .jpeg .jpg .pbm "
        ".pgm .png .ppm .tif .tiff .webp",
        {"empty/readme.txt": "none"},
    ),
    when(
        "damaged image",
        "dmo extract images out.zarr --unreadable refuse --set rgb_v3h1",
        "dmo: 1 of 1 images cannot be read, the first: {folder}/images/a.png: cannot be read as an image "
        "(cannot identify image file '{folder}/images/a.png'); remove or repair a.png, or pass "
        "--unreadable skip (unreadable='skip')",
        {"images/a.png": b"PNG"},
    ),
    when(
        "image labels for other images",
        "dmo extract images out.zarr --labels a.csv",
        "dmo: a.csv does not list any image of images; write paths relative to this folder in the first column",
        {"images/a.png": b"PNG", "a.csv": "file,labels\nb.png,sky\n"},
    ),
    when(
        "image labels without a header",
        "dmo extract images out.zarr --labels a.csv",
        "dmo: a.csv: line 1 begins with 'a.png,sky', expected a header with a first column 'file', followed "
        "by the labels; write the line file,labels above it",
        {"images/a.png": b"PNG", "a.csv": "a.png,sky\n"},
    ),
    when(
        "unknown image features",
        "dmo extract images out.zarr --set gits",
        "dmo: descriptor 'gits' is unknown; known: kgha8, morp491, rgb, rgb_v3h1, lab, lab_v3h1, hsv, "
        "hsv_v3h1, gist, dense_sift, dense_sift_v3h1, harris_sift, harris_sift_v3h1, dense_hue, "
        "dense_hue_v3h1, harris_hue, harris_hue_v3h1, correlogram, moments, wavelets, histogram216; did you "
        "mean 'gist'?",
        {"images/a.png": b"PNG"},
    ),
    # --- Schema and column types ---
    when(
        "date column",
        "dmo ingest files out.zarr --view x=a.csv",
        "dmo: x: column 'day' has dates ('2024-01-31' ...); leave it out (--drop-columns day), or convert "
        "it to days (--type day=date)",
        {"a.csv": "a,day\n1,2024-01-31\n2,2024-02-28\n3,2024-03-05\n"},
    ),
    when(
        "free text column",
        "dmo ingest files out.zarr --view x=a.csv",
        "dmo: x: column 'note' has free text ('the day number 0 was quite sunny and war' ...); leave it "
        "out (--drop-columns note), or pass it as documents (--text note, in Python text='note')",
        {"a.csv": "a,note\n" + "".join(f"{i},the day number {i} was quite sunny and warm\n" for i in range(40))},
    ),
    when(
        "column of names",
        "dmo ingest files out.zarr --view x=a.csv",
        "dmo: x: column 'name' has 60 different values in 60 rows ('n0x'), too many for a category; leave "
        "it out (--drop-columns name), or use it as sample ids (--id name)",
        {"a.csv": "a,name\n" + "".join(f"{i},n{i}x\n" for i in range(60))},
    ),
    when(
        "codes with leading zeros",
        "dmo ingest files out.zarr --view x=a.csv",
        "dmo: x: column 'zip', row 0 is '01234': digits with leading zeros can be codes or numbers; pass "
        "--type zip=category or --type zip=number, or leave the column out (--drop-columns zip)",
        {"a.csv": "a,zip\n1,01234\n2,10115\n3,00501\n"},
    ),
    when(
        "ambiguous decimal mark",
        "dmo ingest files out.zarr --view x=a.csv",
        "dmo: x: column 'price' has '1,234': the decimal mark may be ',' or '.'; pass --decimal , or "
        "--decimal . (the other mark is then the thousands separator)",
        {"a.csv": 'a,price\n1,"1,234"\n2,"5,678"\n3,"9,012"\n'},
    ),
    when(
        "text among numbers",
        "dmo ingest files out.zarr --view x=a.csv",
        "dmo: x: column 'b', row 30 is 'n.v.', expected a number as in most rows; pass --missing 'n.v.' if "
        "it marks a missing value",
        {"a.csv": "a,b\n" + "".join(f"{i},{i * 3}\n" for i in range(30)) + "31,n.v.\n"},
    ),
    when(
        "lists written as text",
        "dmo ingest files out.zarr --view x=a.csv",
        "dmo: x: column 'tags' has lists written as text (\"['sky']\"); pass it as labels "
        "(--label-columns tags), or leave it out (--drop-columns tags)",
        {"a.csv": "a,tags\n1,\"['sky']\"\n2,\"['sea']\"\n3,\"['sky', 'sea']\"\n"},
    ),
    when(
        "unknown column type",
        "dmo ingest files out.zarr --view x=table.csv --type size=nuumber",
        "dmo: type of column 'size' is 'nuumber', expected one of number, boolean, category, date, text, "
        "identifier, labels; did you mean 'number'?",
    ),
    when(
        "column type without a column",
        "dmo ingest files out.zarr --view x=table.csv --type number",
        "dmo: --type number: expected COLUMN=KIND, such as code=category",
    ),
    when(
        "unknown decimal mark",
        "dmo ingest files out.zarr --view x=table.csv --decimal x",
        "dmo: decimal = 'x', expected '.' or ','",
    ),
    when(
        "unknown label column",
        "dmo ingest files out.zarr --view x=table.csv --label-columns labl",
        "dmo: x: has no label column 'labl'; did you mean 'label'? it has 'id', 'size', 'weight', 'label'",
    ),
    when(
        "unknown id column",
        "dmo ingest files out.zarr --view x=table.csv --id idd --label-columns label",
        "dmo: x: has no column of ids 'idd'; did you mean 'id'? it has 'id', 'size', 'weight', 'label'",
    ),
    when(
        "id occurs twice",
        "dmo ingest files out.zarr --view x=a.csv --id id",
        "dmo: x: the id 's1' occurs in 2 rows, expected one row per sample; write all labels of a sample "
        "into one cell, separated by |",
        {"a.csv": "id,a\ns1,1\ns1,2\ns2,3\n"},
    ),
    when(
        "id is missing",
        "dmo ingest files out.zarr --view x=a.csv --id id",
        "dmo: x: the id in row 1 is missing; add an id",
        {"a.csv": "id,a\ns1,1\n,2\ns2,3\n"},
    ),
    when(
        "no ids in common",
        "dmo ingest files out.zarr --view x=a.csv --view y=b.csv --id id",
        "dmo: 'y' has no rows for 's1', 's2' of 'x'; add the rows, or pass --how inner (how='inner') to "
        "leave such samples out, or --how outer (how='outer') to keep them",
        {"a.csv": "id,a\ns1,1\ns2,2\n", "b.csv": "id,b\nt1,1\nt2,2\n"},
    ),
    when(
        "ids in only one table",
        "dmo ingest files out.zarr --view x=a.csv --view y=b.csv --id id",
        "dmo: 'y' has no rows for 's2' of 'x'; add the rows, or pass --how inner (how='inner') to leave "
        "such samples out, or --how outer (how='outer') to keep them",
        {"a.csv": "id,a\ns1,1\ns2,2\n", "b.csv": "id,b\ns1,1\ns3,2\n"},
    ),
    when(
        "tables with different numbers of rows",
        "dmo ingest files out.zarr --view x=a.csv --view y=b.csv",
        "dmo: view 'y' has 3 rows, but 'x' has 2; pass the same samples in each",
        {"a.csv": "a\n1\n2\n", "b.csv": "b\n1\n2\n3\n"},
    ),
    when(
        "column of the training data is missing",
        "dmo annotate table.model.zarr a.csv out.csv",
        "dmo: a.csv: the column 'weight' of the training data is missing, the columns are size; add it",
        {"a.csv": "size\n1.5\n"},
    ),
    when(
        "text in a number column of new data",
        "dmo annotate table.model.zarr a.csv out.csv",
        "dmo: a.csv: column 'weight', row 0 is 'heavy', expected a number as in the training data; pass "
        "--missing 'heavy' if it marks a missing value",
        {"a.csv": "size,weight\n1.5,heavy\n2.5,light\n"},
    ),
    # --- Views: shapes, NaN, names, lazy arrays ---
    when(
        "views with different numbers of rows",
        lambda: KGHA().fit({"color": X, "shape": X[:9]}, Y),
        "KGHA: view 'shape' has 9 rows, expected 12 as in view 'color'; pass the same samples in every view",
    ),
    when(
        "labels with another number of rows",
        lambda: KGHA().fit(VIEWS, Y[:9]),
        "KGHA: found input variables with inconsistent numbers of samples: y has 9 rows, X has 12; pass "
        "one row of y per sample",
    ),
    when(
        "labels first",
        lambda: KGHA().fit(Y, VIEWS),
        "KGHA: y is views ['color', 'shape'], expected labels with one row per sample; pass the views "
        "first and the labels second",
    ),
    when(
        "one-dimensional view",
        lambda: KGHA().fit({"color": X[:, 0]}, Y),
        "KGHA: view 'color' has shape (12,), expected samples x features; pass one feature as n x 1",
    ),
    when(
        "three-dimensional view",
        lambda: KGHA().fit({"color": X[None]}, Y),
        "KGHA: view 'color' has shape (1, 12, 3), expected samples x features; pass one row of numbers per sample",
    ),
    when("no views", lambda: KGHA().fit({}, Y), "KGHA: no views; pass at least one array of samples x features"),
    when(
        "empty view",
        lambda: KGHA().fit({"color": X[:, :0]}, Y),
        "KGHA: view 'color' is empty (shape (12, 0)); leave it out, or pass its data",
    ),
    when(
        "one sample",
        lambda: KGHA().fit(X[:1], Y[:1]),
        "KGHA: got n_samples = 1 (1 sample), needs at least 2; pass more samples",
    ),
    when(
        "text as features",
        lambda: KGHA().fit({"color": np.array([["red"]] * 12)}, Y),
        "KGHA: view 'color' has 'red' at row 0, column 0, but features must be numbers; leave the column "
        "out, or encode it, for example with scikit-learn's OneHotEncoder",
    ),
    when(
        "NaN",
        lambda: KGHA().fit({"color": NAN}, Y),
        "KGHA: view 'color' has NaN at row 1, column 1 (8% of the rows are NaN there); pass "
        "prepare=Prepare(impute='mean'), 'median' or 'zero', or drop the sample from every view",
    ),
    when(
        "infinity",
        lambda: KGHA().fit({"color": np.where(np.isnan(NAN), np.inf, NAN)}, Y),
        "KGHA: view 'color' has inf at row 1, column 1; replace it, or drop the sample from every view",
    ),
    when(
        "missing samples in an estimator of one view",
        lambda: MORP().fit({"color": np.where(np.arange(12)[:, None] == 2, np.nan, X)}, Y),
        "MORP: view 'color' has NaN at row 2, column 0 (8% of the rows are NaN there); pass "
        "prepare=Prepare(impute='mean'), 'median' or 'zero', or drop the sample from every view",
    ),
    when(
        "several views for an estimator of one view",
        lambda: MORP().fit(VIEWS, Y),
        "MORP: supports one view, got ['color', 'shape']; pass one array, or use KGHA, which supports several views",
    ),
    when(
        "array without names of views",
        lambda: Views(X),
        "Views: got one array without names of views; pass a mapping from name to array, or views={...}",
    ),
    when(
        "unknown columns of a view",
        lambda: Views(pd.DataFrame(X, columns=list("abc")), views={"color": ["a", "d"]}),
        "view 'color': X does not have these columns (\"['d'] not in index\"); pass some of its 3 columns",
    ),
    when(
        "columns by name of an array",
        lambda: Views(X, views={"color": ["a", "b"]}),
        "view 'color' has column names, but X is not a DataFrame; pass a slice or column indices",
    ),
    when(
        "unknown name of a view",
        lambda: Views(VIEWS)["colour"],
        "\"view 'colour' is unknown; the views are ['color', 'shape']\"",
    ),
    when(
        "histogram kernel of negative values",
        lambda: KGHA(kernel="chi2", prepare="none").fit(X, Y),
        "KGHA: chi2: needs non-negative rows, got -0.132105 at row 0, column 1; shift the features or use "
        "a kernel such as 'rbf'",
    ),
    when(
        "constant view",
        lambda: KGHA(kernel="rbf", prepare="none").fit({"color": np.ones((12, 3))}, Y),
        "KGHA: rbf: bandwidth 'mean' is 0 because rows are equal (or all features are constant, or too "
        "small: their squares underflow in float64); drop the constant view, scale the features, or pass a "
        "number",
    ),
    when(
        "scale of an unknown view",
        lambda: KGHA(prepare=Prepare({"colour": "l2"})).fit(VIEWS, Y),
        "KGHA: scale has no entry for view 'color'; pass one per view: ['color', 'shape']",
    ),
    when(
        "imputation of one view",
        lambda: dmo.impute_views(X),
        "impute_views: X is one view, but views are predicted from other views; pass a mapping of two or more",
    ),
    # --- Labels and classes ---
    when(
        "numbers as labels",
        lambda: KGHA(targets="labels").fit(X, X),
        "KGHA: labels must be 0 or 1, got 0.12573 at row 0, column 0; binarize them first, or pass targets='real'",
    ),
    when(
        "unknown labels in MOPE",
        lambda: MOPE().fit(X, np.where(np.arange(24).reshape(12, 2) == 5, np.nan, Y)),
        "MOPE: labels must be 0 or 1, got nan at row 2, column 1; drop samples with unknown labels, or fit "
        "a KGHA, MultiViewRidge, MORP or MLSI, which support them",
    ),
    when(
        "no sample has a label",
        lambda: KGHA().fit(X, np.zeros((12, 2), int)),
        "KGHA: no sample has a label; pass labels for some of them",
    ),
    when(
        "label outside of classes",
        lambda: MultiViewRidge(approximation=Nystrom(rank=3)).partial_fit(
            X, [["sky"], ["sea"]] * 6, classes=["sky", "sun"]
        ),
        "MultiViewRidge: y has the label 'sea', expected labels of classes=['sky', 'sun']; add it to classes",
    ),
    when(
        "labels of different types",
        lambda: KGHA().fit(X, [["sky"], [1]] * 6),
        "KGHA: labels have several types and cannot be sorted; pass all labels as text",
    ),
    when(
        "classes of different types",
        lambda: KGHA().fit(X, np.array(["sun", 1] * 6, object)),
        "KGHA: y mixes text and numbers; pass classes of one type",
    ),
    when(
        "missing class",
        lambda: KGHA().fit(X, np.array(["sun", None] * 6, object)),
        "KGHA: input y contains NaN or None at row 1; fill it, or drop the sample",
    ),
    when(
        "complex targets",
        lambda: KGHA().fit(X, Y * 1j),
        "KGHA: y contains complex numbers; pass real and imaginary parts as separate outputs",
    ),
    when(
        "labels with three dimensions",
        lambda: KGHA().fit(X, Y[:, :, None]),
        "KGHA: y has shape (12, 2, 1), expected samples x labels; pass one row per sample",
    ),
    when("a number as labels", lambda: KGHA().fit(X, 1), "KGHA: y is a single value, 1; pass one row per sample"),
    when(
        "infinite target",
        lambda: MultiViewRidge(targets="real").fit(X, np.where(Y, np.inf, 1.5)),
        "MultiViewRidge: input y contains NaN or infinity at row 0, output 0; fill the missing values, or "
        "drop the sample",
    ),
    when(
        "decoder for regression targets",
        lambda: MultiViewRidge(decoder="f1@1").fit(X, X),
        "MultiViewRidge: decoder = 'f1@1' applies to labels, but y has regression targets; leave it out",
    ),
    when(
        "hierarchy without these labels",
        lambda: KGHA(decoder=Scores(hierarchy={"oak": ["tree"]})).fit(X, [["sky"], ["sea"]] * 6),
        "KGHA: hierarchy: no label is the parent of another; use the names of the labels, which are 'sea', 'sky', ...",
    ),
    when(
        "category labels as text",
        "dmo ingest files out.zarr --view x=a.csv --label-columns l1,l2",
        "dmo: labels: columns 'l1' and 'l2' have classes, expected a single column; fit one model per "
        "column (--label-columns l1), or write one 0/1 column per class, for example with "
        "pandas.get_dummies",
        {"a.csv": "a,l1,l2\n1,sun,red\n2,rain,blue\n3,sun,red\n"},
    ),
    when(
        "label cell that is not 0 or 1",
        "dmo ingest files out.zarr --view x=a.csv --label-columns l1,l2",
        "dmo: labels: row 18, column 'l1' is -9, expected 0 or 1 as in most cells; pass --missing -9 "
        "(missing='-9') if it marks unknown labels, or --type l1=number for each column of regression "
        "targets",
        {"a.csv": "a,l1,l2\n" + "1,0,1\n2,1,0\n" * 9 + "3,-9,0\n"},
    ),
    # --- Weights ---
    when(
        "weights of another length",
        lambda: KGHA().fit(X, Y, sample_weight=np.ones(5)),
        "KGHA: sample_weight has shape (5,), expected (12,); pass one weight per sample",
    ),
    when(
        "negative weight",
        lambda: KGHA().fit(X, Y, sample_weight=-np.ones(12)),
        "KGHA: sample_weight is -1.0 at sample 0, expected finite numbers of at least 0; correct it",
    ),
    when(
        "text as weights",
        lambda: KGHA().fit(X, Y, sample_weight=["heavy"] * 12),
        "KGHA: sample_weight contains non-numeric values; pass one number per sample",
    ),
    when(
        "zero weights",
        lambda: KGHA().fit(X, Y, sample_weight=np.zeros(12)),
        "KGHA: view 'x': the weights of all samples are zero; leave the view out, or set some of its weights above 0",
    ),
    when(
        "weights of an unknown view",
        lambda: KGHA().fit(VIEWS, Y, sample_weight={"colour": np.ones(12)}),
        "KGHA: sample_weight has an entry for 'colour', expected 'labels' or one of the views ['color', "
        "'shape']; correct the name",
    ),
    when(
        "weights by view in MORP",
        lambda: MORP().fit(X, Y, sample_weight={"color": np.ones(12)}),
        "MORP: sample_weight is a mapping by view, which only KGHA, MultiViewRidge and MultiSetCCA "
        "support; pass one weight per sample",
    ),
    when(
        "weights in JEC",
        lambda: JEC().fit(VIEWS, Y, sample_weight=np.ones(12)),
        "JEC: fit does not support sample_weight; its parameters are X, y",
    ),
    when(
        "class weight of an unknown class",
        lambda: MultiViewRidge(class_weight={"snow": 2.0}).fit(X, CLASSES),
        "MultiViewRidge: class_weight has an entry for 'snow', but the classes are ['rain', 'sun']; correct the name",
    ),
    when(
        "class weights of label sets",
        lambda: KGHA(class_weight="balanced").fit(X, Y),
        "KGHA: class_weight needs a vector of classes, because the method learns all labels of a sample "
        "together; pass sample_weight, or use MultiViewRidge",
    ),
    when(
        "view weights of an unknown view",
        lambda: MultiViewRidge(weights={"color": 1, "form": 1}).fit(VIEWS, Y),
        "MultiViewRidge: weights has no entry for view 'shape'; pass one per view: ['color', 'shape']",
    ),
    when(
        "too few view weights",
        lambda: MultiViewRidge(weights=[1.0]).fit(VIEWS, Y),
        "MultiViewRidge: weights has 1 entries for 2 views; pass one per view",
    ),
    when(
        "view weights that are all zero",
        lambda: MultiViewRidge(weights=[0.0, 0.0]).fit(VIEWS, Y),
        "MultiViewRidge: weights {'color': 0.0, 'shape': 0.0} are all zero; set a positive weight for at "
        "least one view",
    ),
    when(
        "unknown rule of view weights",
        lambda: MultiViewRidge(weights="equalz").fit(VIEWS, Y),
        "MultiViewRidge: weights = 'equalz'; known: a weight per view, 'equal', 'tagprop', 'alignment'",
    ),
    when(
        "learned view weights for regression targets",
        lambda: MultiViewRidge(weights="tagprop").fit(VIEWS, X),
        "MultiViewRidge: weights = 'tagprop' needs labels, but y has regression targets; pass "
        "weights='alignment', or numbers",
    ),
    # --- Parameters of estimators ---
    when("misspelled parameter", lambda: KGHA(rigde=0.1), "KGHA has no parameter 'rigde'; did you mean ridge?"),
    when(
        "unknown parameter",
        lambda: KGHA(colour="red"),
        "KGHA has no parameter 'colour'; it has approximation, balance, center, class_weight, decoder, "
        "intercept, kernel, label_ridge, n_components, prepare, random_state, ridge, solver, targets",
    ),
    when("parameter of another name", lambda: KGHA(scale="l2"), "KGHA: scale is now prepare=Prepare(scale='l2')"),
    when(
        "set_params with an unknown name",
        lambda: KGHA().set_params(rigde=1),
        "KGHA has no parameter 'rigde'; did you mean ridge?",
    ),
    when(
        "unknown argument of fit",
        lambda: KGHA().fit(X, Y, weights=np.ones(12)),
        "KGHA: fit does not support weights; did you mean sample_weight?",
    ),
    when("ridge as text", lambda: KGHA(ridge="small").fit(X, Y), "KGHA: ridge = 'small'; needs a positive number"),
    when("negative ridge", lambda: KGHA(ridge=-1.0).fit(X, Y), "KGHA: ridge = -1.0; needs a positive number"),
    when(
        "ridge for one of two views",
        lambda: MultiViewRidge(ridge={"color": 0.1}).fit(VIEWS, Y),
        "MultiViewRidge: ridge has no entry for view 'shape'; pass one per view: ['color', 'shape']",
    ),
    when(
        "several ridges for one kernel",
        lambda: MultiViewRidge(ridge=[0.1, 1.0], combine="kernels").fit(VIEWS, Y),
        "MultiViewRidge: one combined kernel needs a single ridge, got [0.1, 1.0]; pass a number",
    ),
    when(
        "too many components",
        lambda: MORP(n_components=40).fit(X, Y),
        "MORP: n_components = 40, but there are 12 samples; needs a whole number from 1 to 11",
    ),
    when(
        "components as text",
        lambda: KGHA(n_components="two").fit(X, Y),
        "KGHA: n_components = 'two'; needs a whole number, or a fraction of the labels in (0, 1]",
    ),
    when(
        "misspelled choice",
        lambda: MultiViewRidge(combine="kernel").fit(VIEWS, Y),
        "MultiViewRidge: combine = 'kernel'; known: 'predictions', 'kernels', 'product'; did you mean 'kernels'?",
    ),
    when(
        "unknown kernel",
        lambda: KGHA(kernel="rfb").fit(X, Y),
        "KGHA: kernel 'rfb' is unknown; known: rbf, laplacian, exponential, chi2, intersection, linear, "
        "polynomial, cosine, precomputed, with a prefix hellinger-, l1-, l2- as in 'hellinger-rbf'; did "
        "you mean 'rbf'?",
    ),
    when(
        "kernel as number",
        lambda: KGHA(kernel=3).fit(X, Y),
        "kernel must be a name, a kernel or a dict, got int; pass a name such as 'rbf'",
    ),
    when(
        "unknown kernel parameter",
        lambda: parse("rbf").set_params(bandwith=2),
        "rbf: parameter 'bandwith' is unknown; known: bandwidth, normalize, scale, offset; did you mean 'bandwidth'?",
    ),
    when(
        "unknown rule of the bandwidth",
        lambda: KGHA(kernel=RBF(bandwidth="meen")).fit(X, Y),
        "rbf: bandwidth must be a number or one of 'mean', 'median', 'mean-fifth-neighbor', got 'meen'; "
        "did you mean 'mean'?",
    ),
    when(
        "negative bandwidth",
        lambda: KGHA(kernel=RBF(bandwidth=-1)).fit(X, Y),
        "rbf: bandwidth must be a positive number, got -1; pass one, or a rule",
    ),
    when(
        "a distance as kernel",
        lambda: KGHA(kernel="euclidean").fit(X, Y),
        "KGHA: kernel 'euclidean' is a distance, not a positive semidefinite kernel; use 'exponential', or "
        "use 'euclidean' for relation features with n_landmarks",
    ),
    when(
        "precomputed kernel that is not square",
        lambda: KGHA(kernel="precomputed", prepare="none").fit(X, Y),
        "KGHA: precomputed: the training kernel must be square, got 12 x 3; pass k(train, train), with the "
        "same samples in rows and columns",
    ),
    when(
        "precomputed kernel that is not symmetric",
        lambda: KGHA(kernel="precomputed", prepare="none").fit(np.triu(np.ones((12, 12))), Y),
        "KGHA: precomputed: the training kernel must be symmetric, got entries that differ by 1; pass "
        "k(x_i, x_j) for all pairs",
    ),
    when(
        "unknown method",
        lambda: TraceEmbedding(method="lap").fit(X, Y),
        "TraceEmbedding('lap'): method = 'lap'; known: 'pca', 'lsi', 'pls', 'opls', 'cca', 'mddm', "
        "'hsic-0', 'hsic-1', 'hsl-1', 'hsl-2', 'hsl-3', 'slvm', 'kde', 'morp', 'morp-simplified', 'mlsi', "
        "'usc', 'le', 'nsc', 'mds', 'isomap', 'lle', 'lpp', 'olpp', 'npp', 'onpp', 'fda', 'lfda', 'mfa', "
        "'mmc', 'dla', 'dne', 'olpp-r', 'sonpp', 'donpp', 'onpp-r', 'self', 'ssfda', 'ssmmc', 'mix'; did "
        "you mean 'lpp'?",
    ),
    when(
        "too many neighbors",
        lambda: dmo.graphs.neighbors(X, 50),
        "neighbors: k = 50 of 12 samples; expected a whole number from 1 to 11",
    ),
    when(
        "parameter that the method does not use",
        lambda: TraceEmbedding("pca", graph=Graph(n_neighbors=3)).fit(X, Y),
        "TraceEmbedding('pca'): does not use n_neighbors; leave it out (it uses: none)",
    ),
    when(
        "loss of a support vector regression",
        lambda: CoupledSVR(loss="hinge").fit(X, Y),
        "CoupledSVR: loss = 'hinge'; known: 'epsilon-insensitive', 'l1', 'l4/3', 'l3/2'",
    ),
    when(
        "base of FastTag",
        lambda: FastTag(base=KGHA()).fit(X, Y),
        "FastTag: base = KGHA(); needs a MultiViewRidge, whose scores are linear in the labels",
    ),
    when(
        "random state as text",
        lambda: KGHA(random_state="seed", approximation=Nystrom(rank=3)).fit(X, Y),
        "KGHA: random_state = 'seed'; needs a whole number of at least 0, or None",
    ),
    # --- Engines and memory ---
    when(
        "unknown engine",
        lambda: KGHA(approximation="nystroem").fit(X, Y),
        "KGHA: approximation = 'nystroem'; known: 'auto', 'exact', 'nystrom', 'meka', 'best', or Exact, "
        "Nystrom, Meka, BestLowRank objects",
    ),
    when(
        "more landmarks than samples",
        lambda: MOPE(graph=dmo.Graph(n_neighbors=3), n_landmarks=100).fit(X, Y),
        "MOPE: n_landmarks = 100 of 12 samples; needs a whole number from 1 to 12",
    ),
    when(
        "unknown landmarks",
        lambda: KGHA(approximation=Nystrom(landmarks="kmean")).fit(X, Y),
        "KGHA: view 'x': Nystrom: landmarks = 'kmean'; known: 'rpcholesky', 'kmeans', 'uniform'",
    ),
    when(
        "rank and memory",
        lambda: KGHA(approximation=Nystrom(rank=3, memory=1e6)).fit(X, Y),
        "KGHA: view 'x': Nystrom: tol and memory require rank='auto', got rank = 3; pass rank='auto', or neither",
    ),
    when(
        "stored kernels without a path",
        lambda: KGHA(approximation=Exact(storage="stored")).fit(X, Y),
        "Exact: storage 'stored' needs a path for the kernel stores; pass path='kernels'",
    ),
    when(
        "unknown storage",
        lambda: KGHA(approximation=Exact(storage="disk")).fit(X, Y),
        "Exact: storage = 'disk'; known: auto, memory, resident, recomputed, stored",
    ),
    when(
        "block of zero rows",
        lambda: KGHA(approximation=Exact(block=0)).fit(X, Y),
        "Exact: block = 0, expected at least 1 row per tile; use the default, block=2048",
    ),
    when(
        "unknown parameter of an engine",
        lambda: Nystrom().set_params(ranks=3),
        "Invalid parameter 'ranks' for estimator Nystrom(). Valid parameters are: ['fit_rows', 'kernel', "
        "'landmarks', 'memory', 'precision', 'random_state', 'rank', 'solver', 'tol'].",
    ),
    when(
        "low-rank form of a product of kernels",
        lambda: KGHA(kernel="product", approximation="nystrom").fit(VIEWS, Y),
        "KGHA: kernel='product' has no low-rank form; use approximation='exact'",
    ),
    when(
        "Krylov steps with a nonlinear kernel",
        lambda: MORP(kernel="rbf", approximation=Krylov()).fit(X, Y),
        "MORP: Krylov needs kernel='linear', got 'rbf'; use Nystrom or Meka",
    ),
    when(
        "partial_fit after fit",
        lambda: MultiViewRidge(approximation=Nystrom(rank=3)).fit(X, Y).partial_fit(X, Y),
        "MultiViewRidge: a model of fit cannot be continued by partial_fit; start with partial_fit, or fit "
        "all rows again",
    ),
    when(
        "partial_fit with class weights",
        lambda: MultiViewRidge(class_weight="balanced", approximation=Nystrom(rank=3)).partial_fit(X, CLASSES),
        "MultiViewRidge: partial_fit does not support class_weight, because the class frequencies are "
        "unknown; pass sample_weight",
    ),
    when(
        "partial_fit without all classes",
        lambda: MultiViewRidge(approximation=Nystrom(rank=3)).partial_fit(X, CLASSES),
        "MultiViewRidge: the first call of partial_fit with a vector of classes needs the list of all "
        "classes; pass classes=[...]",
    ),
    # --- Stores ---
    when(
        "no store",
        lambda: dmo.load("nothing.zarr"),
        "no store at {folder}/nothing.zarr; check the path, or create the store first",
    ),
    when(
        "not a store",
        lambda: dmo.load("folder"),
        "{folder}/folder is not a dmo store; pass the path of a store that dmo wrote",
        {"folder/a.txt": "text"},
    ),
    when(
        "a file instead of a store",
        lambda: dmo.load("table.csv"),
        "{folder}/table.csv is a file, but a store is a folder; choose another path",
    ),
    when(
        "feature store instead of a model",
        lambda: dmo.load("store.zarr"),
        "{folder}/store.zarr is a feature store, expected a model; pass the path of a model",
    ),
    when(
        "model instead of a feature store",
        lambda: dmo.stores.open_features("model.zarr"),
        "{folder}/model.zarr is a model, expected a feature store; pass the path of a feature store",
    ),
    when(
        "store exists",
        "dmo ingest files store.zarr --view x=table.csv --id id --label-columns label",
        "dmo: store.zarr exists; pass --overwrite to replace it, or choose another path",
    ),
    when(
        "model over a store",
        "dmo fit ridge store.zarr two.zarr --overwrite",
        "dmo: {folder}/two.zarr is a feature store, it is not replaced by a model; choose another path",
    ),
    when(
        "store over a folder",
        lambda: RIDGE.save("folder"),
        "{folder}/folder exists and is not a dmo store; choose another path or remove it",
        {"folder/a.txt": "text"},
    ),
    when(
        "name of a store is a number",
        lambda: dmo.load(3),
        "the name of a store is a path or URL, got int; pass a str or a Path",
    ),
    when(
        "empty name",
        lambda: dmo.load(""),
        "the name of a store is a path or URL, got an empty string; pass the path of a folder",
    ),
    when(
        "incomplete store",
        lambda: dmo.stores.open_features("incomplete.zarr"),
        "{folder}/incomplete.zarr is incomplete: its writer has not finished; run the program that wrote "
        "it again; it resumes where it stopped",
    ),
    when(
        "store of a newer version",
        lambda: dmo.stores.open_features("newer.zarr"),
        "{folder}/newer.zarr is a feature store of version 9, this dmo reads up to 2; run: pip install "
        "--upgrade dmo-learn",
    ),
    when(
        "damaged root",
        lambda: dmo.stores.open_features("damaged.zarr"),
        "{folder}/damaged.zarr: zarr.json is damaged, it is not valid JSON; restore it from a copy or make "
        "the store again",
    ),
    when(
        "damaged block",
        lambda: dmo.stores.open_features("cut.zarr").views["x"][:],
        "{folder}/cut.zarr: block 0 of view 'x' has 287 bytes instead of 292; restore the file x/c.0.0 "
        "from a copy or make the store again",
    ),
    # --- Models ---
    when(
        "other number of features",
        lambda: RIDGE.predict(X[:, :2]),
        "MultiViewRidge: X has 2 features, but MultiViewRidge is expecting 3 features as input.",
    ),
    when(
        "columns in another order",
        lambda: NAMED.predict(pd.DataFrame(X, columns=["b", "a", "c"])),
        "MultiViewRidge: The feature names should match those that were passed during fit.\nFeature names "
        "must be in the same order as they were in fit.\n",
    ),
    when(
        "missing view",
        lambda: TWO.predict({"color": X}),
        "MultiViewRidge: view 'shape' is missing; the model was fitted on ['color', 'shape'], got ['color']; "
        "pass a mapping with the names of the fit",
    ),
    when(
        "unknown view",
        lambda: TWO.predict(VIEWS | {"form": X}),
        "MultiViewRidge: view 'form' is unknown; the model was fitted on ['color', 'shape'], got ['color', "
        "'shape', 'form']; pass a mapping with the names of the fit",
    ),
    when(
        "not fitted",
        lambda: MultiViewRidge().predict(X),
        "This MultiViewRidge instance is not fitted yet. Call 'fit' with appropriate arguments before "
        "using this estimator.",
    ),
    when(
        "top above the number of labels",
        lambda: RIDGE.predict(X, top=5),
        "MultiViewRidge: top = 5, expected a number from 1 to 2, the number of labels",
    ),
    when(
        "labels of another length in score",
        lambda: RIDGE.score(X, np.ones((12, 3), int)),
        "MultiViewRidge: y has 3 labels, expected 2 as in earlier calls; pass all labels, in the same columns",
    ),
    when(
        "label names without names in the fit",
        lambda: RIDGE.score(X, [["sky"], ["sea"]] * 6),
        "MultiViewRidge: y has label names, but the fit had unnamed labels; pass a matrix of 0 and 1 with "
        "one column per label",
    ),
    when(
        "top of regression targets",
        lambda: MultiViewRidge().fit(X, X).predict(X, top=1),
        "MultiViewRidge: top and as_names apply to labels, but the model learned regression targets; leave them out",
    ),
    when(
        "probabilities without label sets",
        lambda: MultiViewRidge(decoder=Scores(label_sets=False)).fit(X, Y).predict_proba(X),
        "MultiViewRidge: probabilities are not learned with label_sets=False; fit with decoder=None, or "
        "use decision_function",
    ),
    when(
        "new samples of a spectral embedding",
        lambda: TraceEmbedding("le", graph=Graph(n_neighbors=3)).fit(X, Y).transform(X),
        "TraceEmbedding('le'): cannot embed new samples, only the samples that it was fitted on; use "
        "fit_transform, or the projection 'lpp'",
    ),
    when(
        "kernel function cannot be saved",
        lambda: MultiViewRidge(kernel=lambda x, y: x @ y.T).fit(X, Y).save("out.zarr"),
        "kernel <lambda>: a Python function cannot be saved, because models contain no code; use a named "
        "kernel, or pass the values of this one with kernel='precomputed'",
    ),
    when(
        "model without labels",
        "dmo annotate spaces.zarr store.zarr out.csv",
        "dmo: spaces.zarr is a MultiSetCCA, which does not score labels; use dmo fit ridge or dmo fit kgha",
    ),
    when(
        "model of other views",
        "dmo annotate views.zarr store.zarr out.csv",
        "dmo: {folder}/store.zarr: the view 'color', on which views.zarr was fitted, is missing; add it to the views x",
    ),
    when(
        "model of other features",
        "dmo annotate narrow.model.zarr store.zarr out.csv",
        "dmo: {folder}/store.zarr: view 'x' has 3 features, narrow.model.zarr was fitted on 2; ingest the "
        "same features",
    ),
    # --- Decoders and evaluation ---
    when(
        "unknown decoder",
        lambda: KGHA(decoder="f1-5").fit(X, Y),
        "KGHA: decoder = 'f1-5'; known: 'calibrated', 'probabilities', a metric such as 'f1@5', a "
        "guarantee such as 'recall>=0.9' (recall, recall-macro, precision, precision-micro; between 0 and "
        "1), and Calibration, PlugIn and PooledCalibration objects",
    ),
    when(
        "guarantee above 1",
        lambda: KGHA(decoder="recall>=9").fit(X, Y),
        "KGHA: decoder = 'recall>=9'; known: 'calibrated', 'probabilities', a metric such as 'f1@5', a "
        "guarantee such as 'recall>=0.9' (recall, recall-macro, precision, precision-micro; between 0 and "
        "1), and Calibration, PlugIn and PooledCalibration objects",
    ),
    when(
        "unknown metric of PlugIn",
        lambda: KGHA(decoder=PlugIn("f2")).fit(X, Y),
        "PlugIn: metric = 'f2'; known: 'f1@k', 'recall@k', 'n+@k', 'f1-macro@k', 'psp@k', 'precision@k', "
        "'f1-micro@k', 'f1-samples@k', 'jaccard@k', 'f1-micro', 'f1-macro', 'f1-samples', 'jaccard', "
        "'recall>=0.9', 'recall-macro>=0.9', 'precision>=0.9', 'precision-micro>=0.9'; k is a number, as "
        "in 'f1@5'",
    ),
    when(
        "scores of another shape",
        lambda: annotation_scores(Y, X, 1),
        "labels are 12 x 2, scores are 12 x 3; pass the same samples and the same labels in both",
    ),
    when(
        "scores with NaN",
        lambda: annotation_scores(Y, np.full((12, 2), np.nan), 1),
        "scores are NaN at row 0, label 0; check the model that computed them",
    ),
    when(
        "labels that are not 0 or 1",
        lambda: annotation_scores(2 * Y, Y * 1.0, 1),
        "labels have the value 2 at row 0, label 0; they must be 0 or 1 (convert -1/+1 labels by Y > 0)",
    ),
    when(
        "k above the number of labels",
        lambda: annotation_scores(Y, Y * 1.0, 7),
        "top is 7, expected a number from 1 to 2, the number of labels",
    ),
    when(
        "k as fraction", lambda: annotation_scores(Y, Y * 1.0, 1.5), "top must be a whole number, got 1.5; pass an int"
    ),
    when(
        "labels without both classes",
        lambda: auc_scores(np.ones((12, 2), int), Y * 1.0),
        "auc_scores: no label has both positive and negative samples; pass samples of both classes",
    ),
    when(
        "too many folds",
        lambda: next(iter(MultilabelStratifiedKFold(40).split(X, Y))),
        "folds = 40 for 12 samples; expected a number of folds from 2 to 12",
    ),
    when(
        "folds with groups",
        lambda: next(iter(MultilabelStratifiedKFold(3).split(X, Y, groups=np.ones(12)))),
        "MultilabelStratifiedKFold does not keep the samples of a group together, but groups were passed; "
        "pass groups=None, or use sklearn.model_selection.GroupKFold",
    ),
    when(
        "evaluate on the training samples",
        "dmo evaluate model.zarr store.zarr",
        "dmo: model.zarr was trained on all 12 samples of store.zarr, so that none remain for an evaluation; pass a "
        "store with other samples, --split all to evaluate training samples, or dmo evaluate --cv 4 to cross-validate",
    ),
    when(
        "evaluate without labels",
        "dmo evaluate model.zarr unlabeled.zarr --split all",
        "dmo: unlabeled.zarr has no labels to compare with; pass --label-columns NAMES or --labels FILE "
        "(for a store, to dmo ingest), or use dmo annotate",
    ),
    when(
        "evaluate on other labels",
        "dmo evaluate model.zarr others.zarr --split all",
        "dmo: others.zarr has 3 labels, the model scores 2; pass a store with the same labels",
    ),
    when(
        "unknown split",
        "dmo evaluate model.zarr store.zarr --split tset",
        "dmo: {folder}/store.zarr has no split 'tset'; pass --split all",
    ),
    # --- Search ---
    when(
        "estimator without a grid",
        lambda: dmo.tune(MultiSetCCA(), VIEWS, Y),
        "tune: MultiSetCCA has no default grid; pass the values to try, such as grid={'ridge': [0.1, 1.0]}",
    ),
    when(
        "unknown estimator",
        lambda: dmo.tune("KHGA", X, Y),
        "tune: estimator 'KHGA' is unknown; pass one of ridge, kgha, lltsvr, coupledsvr, fasttag, "
        "neighborvotes, tagprop, twopassknn, jec, labelpropagation, morp, mlsi, embedding, mope, mesd, "
        "multiviewridge, traceembedding, or an object",
    ),
    when(
        "unknown parameter of the grid",
        lambda: dmo.tune("KGHA", X, Y, grid={"rigde": [1]}),
        "sweep: KGHA has no parameter 'rigde'; did you mean ridge?",
    ),
    when(
        "number instead of a list in the grid",
        lambda: dmo.tune("KGHA", X, Y, grid={"ridge": 1}),
        "sweep: ridge needs a list of values, got 1; pass [1]",
    ),
    when(
        "unknown metric",
        lambda: dmo.tune("KGHA", X, Y, metric="f1@"),
        "metric 'f1@' is unknown; known: f1@5, precision@5, recall@5, n+@5, f1-macro@5, f1-micro@5, "
        "jaccard@5, f1-samples@5, p@5, r@5, ndcg@5, psp@5, auc-macro, auc-micro, lrap, ranking, accuracy, "
        "f1-macro, f1-micro, jaccard, f1-samples, r2, rmse, mae, arrmse",
    ),
    when(
        "one fold",
        lambda: dmo.tune("KGHA", X, Y, cv=1),
        "folds = 1 for 12 samples; expected a number of folds from 2 to 12",
    ),
    when(
        "tune without candidates",
        "dmo tune ridge store.zarr out.zarr --ridge ''",
        "dmo: --ridge: no value was passed; pass at least one value",
    ),
    when(
        "tune with a word as ridge",
        "dmo tune ridge store.zarr out.zarr --ridge 0.1,big",
        "dmo: --ridge big: expected a number",
    ),
    # --- Commands ---
    when(
        "unknown command",
        "dmo anotate model.zarr store.zarr out.csv",
        "No such command 'anotate'; did you mean 'annotate'?",
    ),
    when(
        "unknown estimator of dmo fit",
        "dmo fit ridgee store.zarr out.zarr",
        "No such command 'ridgee'; did you mean 'ridge'?",
    ),
    when(
        "unknown option",
        "dmo fit ridge store.zarr out.zarr --rigde 0.1",
        "No such option: --rigde (Possible options: --id, --ridge, --targets)",
    ),
    when(
        "option without a value", "dmo fit ridge store.zarr out.zarr --ridge", "Option '--ridge' requires an argument."
    ),
    when("missing argument", "dmo fit ridge store.zarr", "Missing argument 'model'."),
    when(
        "too many arguments",
        "dmo fit ridge store.zarr out.zarr more.zarr",
        "Got unexpected extra argument(s) (more.zarr)",
    ),
    when(
        "word instead of a number",
        "dmo fit ridge store.zarr out.zarr --ridge big",
        "dmo: --ridge big: expected a number",
    ),
    when(
        "unknown choice",
        "dmo fit ridge store.zarr out.zarr --combine kernel",
        "dmo: --combine kernel: expected predictions or kernels or product; did you mean kernels?",
    ),
    when(
        "value for an unknown view",
        "dmo fit ridge store.zarr out.zarr --kernel y=rbf",
        "dmo: --kernel y=rbf: view 'y' is not used; write VIEW=VALUE with one of x",
    ),
    when(
        "option of another engine",
        "dmo fit ridge store.zarr out.zarr --approximation exact --rank 10",
        "dmo: --approximation exact does not support --rank; its options are --storage, --precision, --block, --path",
    ),
    when(
        "missing input",
        "dmo fit ridge nothing.zarr out.zarr",
        "dmo: no store at {folder}/nothing.zarr; check the path, or create the store first",
    ),
    when(
        "output exists",
        "dmo annotate model.zarr store.zarr table.csv",
        "dmo: table.csv exists; pass --overwrite to replace it, or choose another path",
    ),
    when(
        "unknown output format",
        "dmo annotate model.zarr store.zarr out.xlsx",
        "dmo: the output out.xlsx ends in '.xlsx', which is not a known format; use .csv, .parquet or .zarr",
    ),
    when(
        "unknown view in --views",
        "dmo fit ridge store.zarr out.zarr --views colour",
        "dmo: {folder}/store.zarr has no view 'colour'; it has x",
    ),
    when(
        "labels of a table not specified",
        "dmo fit ridge shop.csv out.zarr",
        "dmo: shop.csv: the labels are not specified; pass --label-columns with some of its columns: id, "
        "size, weight, label",
        {"shop.csv": TABLE},
    ),
    when(
        "table option for a store",
        "dmo fit ridge store.zarr out.zarr --label-columns label",
        "dmo: --label-columns applies to tables and folders only, but store.zarr is neither; omit the option",
    ),
    when(
        "store without labels",
        "dmo fit ridge unlabeled.zarr out.zarr",
        "dmo: {folder}/unlabeled.zarr has no labels, which MultiViewRidge needs; add them when you create "
        "the store: dmo ingest files --labels FILE or --label-columns NAMES, dmo extract --labels folders "
        "or FILE",
    ),
    when(
        "estimator of one view",
        "dmo fit morp two.zarr out.zarr",
        "dmo: MORP needs one view, got 2; pass --view with one of color, shape",
    ),
    when(
        "transform by a model without components",
        "dmo transform model.zarr store.zarr out.csv",
        "dmo: model.zarr is a MultiViewRidge, which has no embedding; use dmo fit kgha",
    ),
    when(
        "quiet and verbose",
        "dmo info store.zarr --quiet --verbose",
        "dmo: --quiet and --verbose contradict each other; pass one of them",
    ),
    when(
        "top above the number of labels in a command",
        "dmo annotate model.zarr store.zarr out.csv --top 9",
        "dmo: --top 9: 2 labels have a training sample; pass a number from 1 to 2",
    ),
    when(
        "search without a query",
        "dmo search model.zarr store.zarr",
        "dmo: search: pass one of --image FILE, --sample ID and --labels 'sky, water'",
    ),
    when(
        "search for an unknown sample",
        "dmo search model.zarr store.zarr --sample s99",
        "dmo: --sample s99: {folder}/store.zarr does not contain this sample; its ids look like 's9'",
    ),
    when(
        "search for an unknown label",
        "dmo search model.zarr store.zarr --labels snu",
        "dmo: --labels: the model has no label 'snu'; did you mean 'sun'?",
    ),
    when(
        "unknown kind of suggestions",
        "dmo suggest model.zarr store.zarr --kind unsure",
        "dmo: --kind 'unsure': expected some of uncertain, wrong, different, separated by commas",
    ),
    when(
        "answers for an unknown sample",
        "dmo update model.zarr store.zarr out.zarr a.csv",
        "dmo: the answers contain the sample 's99', which is not in store.zarr; pass the store of this "
        "sample, or --new with its table or folder",
        {"a.csv": "sample,labels\ns99,sun\n"},
    ),
    when(
        "answers with an unknown label",
        "dmo update model.zarr store.zarr out.zarr a.csv",
        "dmo: the answers contain the label 'snow', which is not among the 2 labels of store.zarr (sun, "
        "rain, ...); correct it, or pass --new-labels",
        {"a.csv": "sample,labels\ns1,snow\n"},
    ),
    when(
        "answers that are not answers",
        "dmo update model.zarr store.zarr out.zarr a.csv",
        "dmo: a.csv contains no answers (expected one field of labels, got none; keep one field, named "
        "'labels'); export Label Studio's tasks or FiftyOne's classifications as JSON or CSV, or write "
        "columns 'sample' and 'labels'",
        {"a.csv": "a,b\n1,2\n"},
    ),
    when(
        "unknown data set",
        "dmo ingest corel5 folder out.zarr",
        "dmo: data set 'corel5' is unknown, expected one of bibtex, corel5k, edm, emotions, enb, enron, "
        "espgame, jura, rcv1subset, scene, sf1, slump, yeast, files, or a card NAME.toml; did you mean "
        "'corel5k'?",
    ),
    when(
        "unknown command in the place of an estimator",
        "dmo fit multisetca store.zarr out.zarr",
        "No such command 'multisetca'; did you mean 'multisetcca'?",
    ),
    when(
        "folder without the files of a data set",
        "dmo ingest yeast folder out.zarr",
        "dmo: yeast: folder does not contain yeast-train.arff.xz (github.com/tsoumakas/mulan); "
        "yeast-test.arff.xz (github.com/tsoumakas/mulan); yeast.xml.xz (github.com/tsoumakas/mulan); get "
        "the files from these sources and put them into folder",
        {"folder/a.txt": ""},
    ),
    when(
        "no view to ingest",
        "dmo ingest files out.zarr",
        "dmo: ingest files: pass --view NAME=FILE at least once, or --from DESCRIPTION.json, not both",
    ),
    when(
        "view without a file",
        "dmo ingest files out.zarr --view table.csv",
        "dmo: --view table.csv: expected NAME=FILE, such as x=features.npy",
    ),
    # --- Cluster addresses and settings ---
    when(
        "unknown cluster",
        lambda: dmo.cluster.connect("slrum").__enter__(),
        "cluster 'slrum' is unknown; pass 'in-process', 'local', an address such as tcp://host:8786, or a "
        "scheduler file; or start one: slurm, pbs, lsf, kubernetes, gateway, ssh",
    ),
    when(
        "number as cluster",
        lambda: dmo.cluster.connect(3).__enter__(),
        "cluster '3' of type int is not supported; pass a distributed.Client, a cluster of Dask, an "
        "address such as tcp://host:8786, or 'local'",
    ),
    when(
        "address without a port",
        "dmo fit ridge store.zarr out.zarr --scheduler tcp://",
        "dmo: tcp:// is not the address of a scheduler: missing port number in address ''; pass tcp://host:port",
    ),
    when(
        "memory limit as word",
        "dmo fit ridge store.zarr out.zarr --scheduler local --memory-limit much",
        "dmo: a memory limit of 'much' is invalid; pass bytes, or text such as 4GiB",
    ),
    when(
        "scheduler file of another program",
        lambda: dmo.cluster.connect("scheduler.json").__enter__(),
        "scheduler.json is not a scheduler file; pass the file that `dask scheduler --scheduler-file` wrote",
        {"scheduler.json": "{}"},
    ),
    when(
        "gateway without an address",
        "dmo fit ridge store.zarr out.zarr --scheduler gateway",
        "dmo: gateway: the address is missing; set dmo.gateway.address to http(s)://HOST of the Dask Gateway",
    ),
    # --- Report and serve ---
    when(
        "report with two stores",
        "dmo report model.zarr store.zarr two.zarr page.html",
        "dmo: report: got 1 models or results and 2 feature stores or files; pass one model (several with "
        "--compare), labeled samples in a feature store or in files, and a page that ends in .html",
    ),
    when(
        "sweep that is not a sweep",
        "dmo report model.zarr store.zarr page.html --split all --sweep table.csv",
        "dmo: table.csv is not the output of dmo tune --json; create it with dmo tune ... --json > table.csv",
    ),
    when(
        "serve a model that does not predict",
        "dmo serve spaces.zarr",
        "dmo: spaces.zarr is a MultiSetCCA, which does not score labels; use dmo fit ridge or dmo fit kgha",
    ),
    when(
        "port above 65535",
        "dmo serve model.zarr --port 70000",
        "Invalid value for '--port': Input should be less than or equal to 65535",
    ),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with the table, stores and models that the commands use."""
    place = tmp_path_factory.mktemp("messages")
    write(place, {"table.csv": TABLE, "a.csv": "size,weight\n1,2\n2,3\n3,5\n"})
    ids = [f"s{i}" for i in range(12)]

    def store(name: str, views: Any, labels: Any = None, names: Any = None) -> None:
        Samples(views, labels, names, ids=ids).write(place / name)

    store("store.zarr", {"x": X}, Y, ["sun", "rain"])
    store("two.zarr", VIEWS, Y, ["sun", "rain"])
    store("others.zarr", {"x": X}, Y[:, [0, 1, 1]], ["sun", "rain", "snow"])
    store("narrow.zarr", {"x": X[:, :2]}, Y, ["sun", "rain"])
    store("unlabeled.zarr", {"x": X})
    for name in ("newer", "damaged", "cut"):
        shutil.copytree(place / "store.zarr", place / f"{name}.zarr")
    root = place / "newer.zarr" / "zarr.json"
    root.write_text(root.read_text().replace('"version": 2', '"version": 9'))
    (place / "damaged.zarr" / "zarr.json").write_text("{")
    chunk = place / "cut.zarr" / "x" / "c.0.0"
    chunk.write_bytes(chunk.read_bytes()[:-5])
    create_features(place / "incomplete.zarr", 12, {"x": ViewSpec(3)})
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for command in (
            "dmo fit ridge store.zarr model.zarr",
            "dmo fit ridge two.zarr views.zarr",
            "dmo fit ridge narrow.zarr narrow.model.zarr",
            "dmo fit multisetcca two.zarr spaces.zarr",
            "dmo fit ridge table.csv table.model.zarr --id id --label-columns label",
        ):
            run(*shlex.split(command)[1:])
    return place


@pytest.mark.parametrize(("action", "message", "files"), MESSAGES)
def test_message(
    folder: Path, monkeypatch: pytest.MonkeyPatch, action: Action, message: str, files: Mapping[str, Any]
) -> None:
    monkeypatch.chdir(folder)
    write(folder, files)
    assert message_of(action).replace(str(folder), "{folder}") == message
