"""Files written by other programs, for `fuzz.py`: text, arrays and archives."""

from __future__ import annotations

import io
import json
import struct
import sys
import tarfile
import tempfile
import zipfile
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import h5py
import numpy as np
import pandas as pd
import scipy.io
import scipy.sparse
import zarr
from _fuzzed import (
    JSON,
    LABELS,
    NUMBERS,
    ROOT,
    Files,
    Pack,
    Reader,
    Seed,
    X,
    compressed,
    read_rows,
    single,
    tree,
)
from datasets.reuters import read_reuters
from PIL import Image

from dmo.datasets import CARDS, read_card, read_description
from dmo.features import Embedding, read_image
from dmo.features.images import list_images
from dmo.formats.arff import read_arff, read_label_list
from dmo.formats.arrays import open_zarr
from dmo.formats.frames import read_frame
from dmo.formats.matlab import read_matlab
from dmo.formats.schema import learn_schema
from dmo.formats.tables import open_rows
from dmo.formats.text import read_csv, read_names, read_svmlight

# ---------------------------------------------------------------- text formats


def _arff() -> list[Seed]:
    head = "@relation 'two words'\n% a remark\n"
    dense = head + "".join(f"@attribute a{j} numeric\n" for j in range(4)) + "@attribute l {0,1}\n@data\n"
    dense += "".join(",".join(f"{v:g}" for v in row) + ",1\n" for row in X)
    quoted = head + "@attribute 'a b' {'x y', \"z\", 3}\n@attribute c REAL\n@data\n'x y',1\nz,?\n3,2e3\n"
    sparse = head + "".join(f"@attribute a{j} {{0, 1}}\n" for j in range(6))
    sparse += "@attribute b numeric\n@data\n{0 1, 5 1, 6 -2.5}\n{}\n{2 1,3 1}\n"
    return [
        *compressed("a.arff", dense.encode()),
        single("b.arff", quoted.encode()),
        *compressed("c.arff", sparse.encode()),
    ]


def _label_list() -> list[Seed]:
    text = '<?xml version="1.0"?>\n<labels xmlns="http://mulan.sourceforge.net/labels">\n'
    text += '<label name="a"><label name="b"/></label>\n<label name="c &amp; d"></label></labels>\n'
    bomb = '<!DOCTYPE l [<!ENTITY a "aaaaaaaaaaaaaaaaaaaa">' + "".join(
        f'<!ENTITY {chr(i + 1)} "{f"&{chr(i)};" * 20}">' for i in range(ord("a"), ord("h"))
    )
    return [*compressed("a.xml", text.encode()), single("b.xml", f'{bomb}]><l><label name="&b;"/></l>'.encode())]


def _svmlight() -> list[Seed]:
    plain = "".join(
        f"{i % 3},{i % 2} " + " ".join(f"{j + 1}:{v:g}" for j, v in enumerate(row)) + "\n" for i, row in enumerate(X)
    )
    return [
        *compressed("a.svm", plain.encode()),
        single("b.libsvm", b"3 5 4\n0,1 0:1 4:2.5\n 2:1\n2 1:1e-3 # note\n"),
    ]


def _csv() -> list[Seed]:
    plain = "".join(",".join(f"{v:g}" for v in row) + "\n" for row in X)
    return [
        *compressed("a.csv", plain.encode()),
        single("b.tsv", ("u\tv\tw\tx\n" + plain.replace(",", "\t")).encode()),
        single("c.csv", ('"u";"v";"w";x\n' + plain.replace(",", ";")).encode()),
    ]


def _names() -> list[Seed]:
    return compressed("names.txt", "sky\nsea\n\nbl\u00fcte\n".encode())


_STORY = (
    '<REUTERS TOPICS="YES" LEWISSPLIT="TRAIN" CGISPLIT="TRAINING-SET" OLDID="5544" NEWID="{n}">\n<DATE>26-FEB</DATE>\n'
    "<TOPICS><D>cocoa</D><D>corn</D></TOPICS>\n<TEXT>&#2;\n<TITLE>BAHIA &lt;X></TITLE>\n<BODY>Showers &#3;</BODY></TEXT>\n"
    "</REUTERS>\n"
)


def _reuters() -> list[Seed]:
    head = '<!DOCTYPE lewis SYSTEM "lewis.dtd">\n'
    stories = (head + "".join(_STORY.format(n=n) for n in range(3))).encode("latin-1")
    parts = {"reut2-000.sgm": stories, "d/reut2-001.sgm": stories, "README": b"none"}

    def tar(mode: str) -> Pack:
        def pack(files: Files) -> Files:
            stream = io.BytesIO()
            with tarfile.open(fileobj=stream, mode=mode) as archive:  # type: ignore[call-overload]
                for name, data in files.items():
                    member = tarfile.TarInfo(name)
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))
            return {"r.tar" + mode[1:].replace(":", "."): stream.getvalue()}

        return pack

    return [
        *compressed("a.sgm", stories),
        Seed(parts, "r.tar", tar("w")),
        Seed(parts, "r.tar.gz", tar("w:gz")),
        Seed(parts, "r.tar.xz", tar("w:xz")),
        Seed({"f/a.sgm": stories, "f/b.sgm": stories}, "f"),
    ]


def _read_reuters(path: Path) -> None:
    for document in read_reuters(path):
        document.text.lower()


def _description() -> list[Seed]:
    document = {
        "views": {"a": "a.csv", "b": {"train": "a.csv", "test": "x.npy"}},
        "labels": {"train": "y.csv", "test": "y.csv"},
        "label_names": ["l", "m", "n"],
        "histograms": ["a"],
        "dtypes": {"a": "float32"},
    }
    return [single("d.json", json.dumps(document, indent=1).encode())]


def _images(files: Files) -> Files:
    stream = io.BytesIO()
    Image.new("RGB", (2, 2)).save(stream, "PNG")
    return {**files, **{f"pics/{name}.png": stream.getvalue() for name in "ab"}}


def _listing() -> list[Seed]:
    wide = b"file,sky,sea,split\na.png,1,0,train\nb.png,0,1,test\n"
    tall = b'\xef\xbb\xbffile,labels\na.png,"sky;sea"\nb.png,sea\n'
    listed = [{"file": f"{name}.png", "labels": ["sky"], "split": "train"} for name in "ab"]
    return [
        *(Seed({"l.csv": text}, "l.csv", _images) for text in (wide, tall)),
        Seed({"l.json": json.dumps(listed).encode()}, "l.json", _images),
        Seed({"l.json": json.dumps({"a.png": ["sky"], "b.png": ["sea", "x"]}).encode()}, "l.json", _images),
    ]


def _read_listing(path: Path) -> None:
    folder = path.parent / "pics"
    if not folder.is_dir():
        for name, data in _images({}).items():
            (path.parent / name).parent.mkdir(exist_ok=True)
            (path.parent / name).write_bytes(data)
    list_images(folder, path)


# ---------------------------------------------------------------- images, and formats read by pyarrow and onnxruntime


def _pictures() -> list[Seed]:
    gray, alpha = np.random.default_rng(0).integers(0, 255, (2, 40, 36), np.uint8)
    color = Image.merge("RGB", [Image.fromarray(part) for part in (gray, alpha, gray.T[:36, :36].repeat(2, 0)[:40])])
    clear, exif = Image.merge("LA", [Image.fromarray(gray), Image.fromarray(alpha)]), Image.Exif()
    exif[0x0112] = 6  # The image is rotated.
    pictures: list[tuple[Image.Image, str, dict[str, Any]]] = [
        *((color, name, {}) for name in ("BMP", "GIF", "PNG", "PPM", "TIFF", "WEBP")),
        *((color, "JPEG", given) for given in ({"exif": exif}, {"progressive": True})),
        *((clear, "PNG", {}), (clear.convert("RGBA"), "WEBP", {"lossless": True}), (clear.convert("CMYK"), "JPEG", {})),
        *((color, "TIFF", {"compression": name}) for name in ("tiff_lzw", "tiff_deflate", "jpeg", "packbits")),
        *(
            (Image.fromarray(gray * scale), name, {})
            for scale, name in ((np.uint16(257), "PNG"), (np.float32(1), "TIFF"))
        ),
        (color.quantize(16), "GIF", {"save_all": True, "append_images": [color.quantize(7)]}),
    ]
    return [single(f"a.{name.lower()}", _saved(picture, name, given)) for picture, name, given in pictures]


def _saved(picture: Image.Image, name: str, given: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    picture.save(stream, name, **given)
    return stream.getvalue()


def _parquet() -> list[Seed]:
    table = pd.DataFrame(X, columns=list("uvwx")).assign(
        word=list("abcabcab") + [None], day=pd.Timestamp(0), n=range(9)
    )
    return [
        single("a.parquet", table.to_parquet(compression=kind, use_dictionary=kind != "gzip"))
        for kind in ("snappy", "gzip", "zstd", None)
    ]


def _read_parquet(path: Path) -> None:
    learn_schema("a", read_frame(path).drop(columns="day", errors="ignore"))


def _onnx() -> list[Seed]:
    import_module("onnxruntime")  # Import it now, so that its memory is not attributed to the first file.
    mean = "08083a580a190a01781201792211476c6f62616c41766572616765506f6f6c1201675a1b0a017812160a14080112100a02"
    mean += "08010a0208030a0208100a020810621b0a017912160a14080112100a0208010a0208030a0208010a02080142040a00100d"
    return [single("a.onnx", bytes.fromhex(mean))]


# ---------------------------------------------------------------- arrays


def _vecs() -> list[Seed]:
    kinds = {"hvec": "HH", "hvec32": "II", "fvec": "If", "dvec": "Id"}
    found = []
    for end, (head, value) in kinds.items():
        rows = [[int(abs(v) * 10) for v in row] for row in X]
        data = b"".join(struct.pack(f"<{head}{len(row)}{value}", len(row), *row) for row in rows)
        found.append(single(f"a.{end}", data))
    return found


def _matlab() -> list[Seed]:
    found = []
    for packed in (False, True):
        stream = io.BytesIO()
        contents = {"X": X, "Y": LABELS, "S": scipy.sparse.csc_array(LABELS * 1.5), "words": np.array(["a", "bc"])}
        scipy.io.savemat(stream, contents | {"c": {"d": 1.0}}, do_compression=packed)
        found.append(single("a.mat", stream.getvalue()))
    parts = struct.pack(">4I2I2iHH4s", 6, 8, 6, 0, 5, 8, 2, 3, 1, 1, b"X") + struct.pack(">2I6d", 9, 48, *range(6))
    swapped = b" " * 124 + b"\x01\x00MI" + struct.pack(">2I", 14, len(parts)) + parts
    return [*found, single("b.mat", swapped)]


def _matlab73() -> list[Seed]:
    found = []
    for options in ({}, {"compression": "gzip", "chunks": (2, 4)}):
        stream = io.BytesIO()
        with h5py.File(stream, "w", userblock_size=512) as file:
            file.create_dataset("X", data=X.T, **options)
            for name, part in {"data": np.ones(3), "ir": np.arange(3), "jc": np.arange(4)}.items():
                file.create_dataset(f"S/{name}", data=part)
            file["S"].attrs["MATLAB_sparse"] = np.uint64(9)
            for node in file.values():
                node.attrs["MATLAB_class"] = np.bytes_("double")
        head = b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\0\2IM"
        found.append(single("a.mat", head + stream.getvalue()[len(head) :]))
    return found


def _read_matlab(path: Path) -> None:
    for array in read_matlab(path).values():
        array.sum()


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def _npy_seeds() -> list[Seed]:
    return [single("a.npy", _npy(array)) for array in (X, np.asfortranarray(X.astype(">f4")), LABELS)]


def _zipped(files: Files) -> Files:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            archive.writestr(name, data)
    return {"a.npz": stream.getvalue()}


def _npz_seeds() -> list[Seed]:
    sparse = scipy.sparse.csr_array(LABELS * 2.0)
    found = []
    for matrix in (sparse, scipy.sparse.csc_array(sparse)):
        parts = {name: getattr(matrix, name) for name in ("indices", "indptr", "data")}
        parts |= {"shape": np.array(matrix.shape), "format": np.array(matrix.format.encode())}
        found.append(Seed({f"{name}.npy": _npy(np.asarray(part)) for name, part in parts.items()}, "a.npz", _zipped))
    return [*found, Seed({"X.npy": _npy(X)}, "a.npz", _zipped)]


def _zarr_seeds() -> list[Seed]:
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for version in (2, 3):
            path = Path(folder, f"v{version}.zarr")
            group = zarr.open_group(path, mode="w", zarr_format=version)  # type: ignore[arg-type]
            group.create_array("X", data=X, chunks=(4, 4))
            group.create_array("words", data=np.arange(3))
            found.append(Seed(tree(path.parent), path.name))
            (path / "zarr.json").unlink(missing_ok=True)
            for file in sorted(path.rglob("*"), reverse=True):
                file.unlink() if file.is_file() else file.rmdir()
            path.rmdir()
        zarr.save_array(Path(folder, "one.zarr"), X)
        found.append(Seed(tree(Path(folder)), "one.zarr"))
    return found


def _read_zarr(path: Path) -> None:
    read_rows(open_zarr(path, None if path.name == "one.zarr" else "X"))


_ARFF = (
    b"@data",
    b"@attribute",
    b"@relation",
    b"{",
    b"}",
    b"{0 1}",
    b"?",
    b"'",
    b'"',
    b",",
    b"\\",
    b"%",
    b"numeric",
    b"\n",
)
_MATLAB = tuple(struct.pack("<II", kind, 8) for kind in (1, 5, 6, 9, 14, 15)) + (b"\0" * 8, b"\xff" * 4, b"IM", b"MI")
_REUTERS = (
    b"<REUTERS ",
    b"</REUTERS>",
    b'NEWID="',
    b"<TOPICS>",
    b"</D>",
    b"<D>",
    b"<BODY>",
    b"<TEXT",
    b"&#99999999999;",
)
_XML = (
    b"<label",
    b'name="',
    b"</label>",
    b"<![CDATA[",
    b"&#0;",
    b"<!DOCTYPE a [",
    b'<!ENTITY a "b">',
    b"&a;",
    b"<?xml",
    b"-->",
)
_NPY = (
    b"'shape': ",
    b"(9, 4)",
    b"(99999999999,)",
    b"(-1, 4)",
    b"'<f8'",
    b"'|O'",
    b"True",
    b"'descr': ",
    b"\x93NUMPY",
    b"[('a','<f8')]",
)
_ZARR = (
    *ROOT,
    b"chunk_shape",
    b"codecs",
    b"zstd",
    b"blosc",
    b"fill_value",
    b'"zarr_format"',
    b'"|O"',
    b'"compressor"',
)

_ONNX = (
    b"Expand",
    b"Identity",
    b"Loop",
    b"Tile",
    b"\x12\x01y",
    b"*\x02",
    b"\x08\xff\xff\xff\xff\x07",
    b"\x08\x00",
    b"\x08\x80\x80\x01",
)

FILES: dict[str, Reader] = {
    "ARFF": Reader(_arff, lambda path: read_arff(path, 1), _ARFF + NUMBERS),
    "label lists (XML)": Reader(_label_list, read_label_list, _XML),
    "svmlight": Reader(_svmlight, read_svmlight, (b":", b",", b"#", b"qid:1", b"\n", b" 1:1", b"\0", *NUMBERS)),
    "CSV, TSV": Reader(_csv, read_csv, (b",", b";", b"\t", b'"', b'""', b"\r", b"\0", b"\n\n", *NUMBERS)),
    "lists of names": Reader(_names, read_names, (b"\n", b"\0", b"\xff", b"sky\n")),
    "Reuters (SGML, tar)": Reader(_reuters, _read_reuters, _REUTERS),
    "descriptions (JSON)": Reader(_description, read_description, (*JSON, b'"views"', b'"a://b"', *NUMBERS)),
    "cards (TOML)": Reader(
        lambda: [single("c.toml", CARDS[name].read_bytes()) for name in ("yeast", "espgame", "enb")],
        read_card,
        (b"[", b"=", b'"', b"{", b"}", b"total", b"[[[[", b"a.b.c = 1\n", *NUMBERS),
    ),
    "label tables": Reader(
        _listing, _read_listing, (*JSON, b'"', b",", b";", b"\r", b"file", b"split", b"labels", *NUMBERS)
    ),
    "vecs": Reader(_vecs, lambda path: read_rows(open_rows(path)), (b"\xff" * 4, b"\0" * 4, b"\x01\0")),
    "MATLAB 5": Reader(_matlab, _read_matlab, _MATLAB),
    "MATLAB 7.3": Reader(_matlab73, _read_matlab, (b"OHDR", b"TREE", b"HEAP", b"SNOD", b"MATLAB_", *_MATLAB)),
    "npy": Reader(_npy_seeds, lambda path: read_rows(open_rows(path)), _NPY + NUMBERS),
    "npz": Reader(_npz_seeds, lambda path: read_rows(open_rows(path)), (*_NPY, b"PK\x01\x02", b"PK\x05\x06", *NUMBERS)),
    "images": Reader(
        _pictures, read_image, (b"II*\0", b"MM\0*", b"IHDR", b"IDAT", b"acTL", b"VP8X", b"\xff\xc0", b"\xff\xda")
    ),
    "Parquet": Reader(
        _parquet, _read_parquet, (b"PAR1", b"pandas", b"\x15\x00", b"\x15\xfe\xff\xff\xff\x0f", b"\x19\xf1")
    ),
    "ONNX": Reader(_onnx, Embedding.open, _ONNX),
    "foreign Zarr": Reader(_zarr_seeds, _read_zarr, _ZARR + NUMBERS),
}
