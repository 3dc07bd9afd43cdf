"""Check that text tables and typed tables are read by the same schema, also in later files."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import dmo
from dmo.datasets import DataError, ingest_files, read_samples
from dmo.errors import UserError
from dmo.formats.schema import MISSING, Column, Schema
from dmo.stores import open_features
from tests.datasets.awkward import awkward, outcome
from tests.shell import run

N = 30
K = np.arange(N)
X = (np.eye(3)[K % 3] * 3 + np.random.default_rng(0).normal(size=(N, 3)) * 0.1).round(3)
KINDS = np.array(["cat", "dog", "owl"])[K % 3]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def frame(**columns):
    return pd.DataFrame(X, columns=["a", "b", "c"]).assign(**columns)


def read(content, **options):
    Path("t.csv").write_text(content)
    return read_samples("t.csv", **options)


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_awkward_tables_are_equal_to_split_fields_or_rejected(first, tmp_path):
    for seed in range(first, first + 10):
        table = awkward(np.random.default_rng(seed))
        said = outcome(table, tmp_path / "t.csv")
        assert said == "equal" or (table.damaged and said.startswith("rejected")), (seed, said)


# --- structure -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a,b,c\n1,2,3\n4,5\n7,8,9\n", "line 3 has 2 fields, expected 3"),
        ("a,b,c\n1,2,3\n4,5,6,7\n7,8,9\n", "line 3 has 4 fields, expected 3"),
        ('a,b,c\n1,2,"x\ny"\n4,5,6,7\n7,8,9\n', "line 4 has 4 fields, expected 3"),
        ("a,b,c,d\n1,2\n4,5\n", "rows have 2 fields, the first line has 4"),
        ("a,b\n1,2,3,4\n5,6,7,8\n", "rows have 4 fields, the first line \\(a, b\\) has 2"),
        ("a,b,a\n1,2,3\n", "2 columns are named 'a', expected unique names"),
        ("5.1,3.5,setosa\n4.9,3.0,setosa\n", "line 1 mixes numbers and names; pass --header .* --no-header"),
        ("2019,2020,2021\n0.5,1,2\n0.25,3,4\n", "it contains only integers; pass --header"),
        ("sunny,hot\nrainy,hot\nsunny,cool\n", "its cells occur again below; pass --header"),
        ("a;b\n0,5;1\n1,5;2\n2,5;1.5\n", "column 'a' has '0,5', column 'b' has '1.5': the decimal mark"),
        ('a,b\n"1,234",1\n"2,345",2\n', "column 'a' has '1,234': the decimal mark may be ',' or '.'"),
        (
            "zip,b\n01234,1\n02345,2\n",
            "column 'zip', row 0 is '01234': digits with leading zeros can be codes or numbers",
        ),
        (
            "a,b\n1,1\n2,2\nunknown,3\n",
            "column 'a', row 2 is 'unknown', expected a number as in most rows; .*--missing",
        ),
        ("p,b\n1%,1\n2%,2\n", "column 'p' has numbers with a unit .'1%'."),
        ("p,b\n1 234,1\n2 345,2\n", "column 'p' has several numbers per cell .'1 234'.; write vectors as lists"),
        ("a,b\n", "ends after its header"),
    ],
)
def test_tables_of_several_readings_are_rejected_with_the_option(text, said):
    with pytest.raises(DataError, match=said):
        read(text)


def test_options_decide_what_a_table_is():
    values = {
        "5.1,3.5,setosa\n4.9,3.0,virginica\n4.5,3.0,virginica\n": ({"header": False}, [[5.1, 3.5], [4.9, 3], [4.5, 3]]),
        "2019,2020\n0.5,1\n0.25,3\n": ({"header": True}, [[0.5, 1], [0.25, 3]]),
        "a;b\n0,5;1\n2,5;1.500\n": ({"decimal": ","}, [[0.5, 1], [2.5, 1500]]),
        'a,b\n"1,234",1\n"2,345.5",2\n': ({"decimal": "."}, [[1234, 1], [2345.5, 2]]),
        "zip,b\n01234,1\n02345,2\n": ({"types": {"zip": "number"}}, [[1234, 1], [2345, 2]]),
        "a,b\n1,1\n-999,2\n-999.0,3\n": ({"missing": "-999"}, [[1, 1], [np.nan, 2], [np.nan, 3]]),
        "a~b\n1~2\n3~4\n": ({"delimiter": "~"}, [[1, 2], [3, 4]]),
        "a,b,note\n1,2,x\n3,4,y z\n": ({"drop_columns": ["n*"]}, [[1, 2], [3, 4]]),
        "a,day\n1,1970-01-02\n3,1970-01-31T12:00\n": ({"types": {"day": "date"}}, [[1, 1], [3, 30.5]]),
    }
    for text, (options, expected) in values.items():
        labels = ["2"] if "setosa" in text else None
        np.testing.assert_array_equal(read(text, labels=labels, **options).views["x"], expected)
    codes = read("zip,b\n01234,1\n02345,2\n", types={"zip": "category"})
    assert codes.feature_names["x"] == ["zip=01234", "zip=02345", "b"]
    for options, said in (
        ({"types": {"a": "float"}}, "type of column 'a' is 'float', expected one of number, boolean"),
        ({"decimal": ";"}, "decimal = ';'"),
        ({"delimiter": ", "}, "delimiter = ', ', expected a single character"),
        ({"drop_columns": "lenght"}, "has no column 'lenght'"),
        ({"row_names": True, "id": "a"}, "expected only one; each provides the sample ids"),
    ):
        with pytest.raises(UserError, match=said):
            read("a,length\n1,2\n3,4\n", **options)


R = '"a" "b" "kind"\n' + "".join(f'"Mazda {i}" {x[0]} {x[1]} "{kind}"\n' for i, (x, kind) in enumerate(zip(X, KINDS)))


def test_row_names_of_r_are_ids_and_join_tables():
    found = read(R, labels=["kind"])
    np.testing.assert_array_equal(found.views["x"], X[:, :2])
    assert (found.ids, found.y.tolist()) == ([f"Mazda {i}" for i in K], KINDS.tolist())
    assert "rows have one field more than the header" in found.notes[0]
    order = np.random.default_rng(0).permutation(N)
    lines = ["kind", *(f'"Mazda {i}",{KINDS[i]}' for i in order)]
    Path("y.csv").write_text("\n".join(['"","kind"', *lines[1:]]) + "\n")
    features = R.replace(' "kind"\n', "\n").replace(' "cat"', "").replace(' "dog"', "").replace(' "owl"', "")
    with pytest.raises(
        DataError, match="the row names differ from the row names of 'x', first in row 0; pass --row-names"
    ):
        read(features, labels="y.csv")
    joined = read(features, labels="y.csv", row_names=True)
    assert (joined.ids, joined.y.tolist()) == (found.ids, KINDS.tolist())


def test_spreadsheet_exports_are_read():
    text = frame(kind=KINDS).to_csv(index=False, sep=";", decimal=",", lineterminator="\r\n")
    forms = {
        "sep": f"sep=;\r\n{text}".encode(),
        "UTF-16": text.encode("utf-16"),
        "UTF-16 without mark": text.encode("utf-16-le"),
        "cp1252": text.replace("owl", "€owl").encode("cp1252"),
        "delimiters at the end": text.replace("\r\n", ";;\r\n").encode(),
        "rows of delimiters": (text + ";;;\r\n;;;\r\n").encode(),
        "comment": b"# export\r\n# of the lab\r\n" + text.encode(),
        "line breaks": text.replace("owl", '"ow\nl"').encode(),
        "spaces": frame(kind=KINDS).to_csv(index=False).replace(",", ", ").encode(),
    }
    for what, data in forms.items():
        Path("t.csv").write_bytes(data)
        found = read_samples("t.csv", labels=["kind"])
        np.testing.assert_array_equal(found.views["x"], X, err_msg=what)
        odd = {"cp1252": "€owl", "line breaks": "ow\nl"}.get(what, "owl")
        assert {*found.label_names} == {"cat", "dog", odd}, what
        assert any("2 empty rows are left out" in note for note in found.notes) == (what == "rows of delimiters")


def test_cells_of_many_lines_are_read():
    story = "a line\n" * 200
    found = read("id,text,a\n" + "".join(f'x{i},"{story}",{i}\n' for i in range(4)), id="id", text="text")
    assert (found.ids, found.views["x"].tolist()) == ([f"x{i}" for i in range(4)], [[0], [1], [2], [3]])


def test_rows_longer_than_a_block_of_arrow_are_read():
    long = "word " * 300_000
    found = read(f"id,a,text\nx,1,{long}\ny,2,b\n", id="id", text="text")
    assert found.views["text"].shape[0] == 2


# --- types -----------------------------------------------------------------------------------------------------------


def test_missing_markers_are_one_list_in_text_and_typed_tables():
    cells = [*MISSING, " NA ", "2", "0.5"]
    for given in (pd.DataFrame({"a": cells, "b": 1.0}), pa.table({"a": cells, "b": np.ones(len(cells))})):
        found = read_samples(given).views["x"]
        np.testing.assert_array_equal(found[:, 0], [*np.full(len(MISSING) + 1, np.nan), 2, 0.5])
    words = [*MISSING[1:4], "x", "y"]
    found = read_samples(pd.DataFrame({"w": words, "b": range(5)}))
    np.testing.assert_array_equal(found.views["x"][:, :2], [[np.nan] * 2] * 3 + [[1, 0], [0, 1]])


def test_types_of_columns_are_those_of_their_cells():
    table = pd.DataFrame({"n": ["1", "2.5", "1e3"], "t": ["TRUE", "False", "yes"], "w": ["001", "X9", "001"]})
    schema = read_samples(table).attributes["schema"]["views"]["x"]
    assert [(column["name"], column["kind"]) for column in schema["columns"]] == [
        ("n", "number"),
        ("t", "boolean"),
        ("w", "category"),
    ]
    assert Schema.from_dict(schema).features == ["n", "t", "w=001", "w=X9"]
    with pytest.raises(UserError, match="the schema of a table is damaged"):
        Schema.from_dict({**schema, "columns": [{"name": 1, "kind": "number"}]})
    codes = read_samples(pd.DataFrame({"w": ["12", "34", "X9"] * 9, "b": range(27)}))
    assert codes.feature_names["x"] == ["w=12", "w=34", "w=X9", "b"]


def test_columns_convert_features_back_to_cells():
    days = ["2026-01-31", "2026-02-01T12:30:00", None]
    table = pd.DataFrame({"n": [1.5, None, 3], "t": ["yes", None, "no"], "w": ["b", "a", None], "d": days})
    kinds = (Column("n", "number"), Column("t", "boolean"), Column("w", "category", ("a", "b")), Column("d", "date"))
    schema = Schema(kinds)
    X = schema.encode("t", table)
    ends = np.cumsum([len(column.features) for column in schema.columns])
    cells = {c.name: c.cells(X[:, end - len(c.features) : end]) for c, end in zip(schema.columns, ends)}
    assert cells == {"n": [1.5, None, 3], "t": ["true", None, "false"], "w": ["b", "a", None], "d": days}


def test_categories_are_those_of_the_training_rows():
    part = np.where(K < 20, "train", "test")
    color = np.where(K == 25, "new", np.where(K % 2, "red", "blue"))
    found = read_samples(frame(color=color, part=part, kind=KINDS), labels=["kind"], split="part")
    assert found.feature_names["x"][3:] == ["color=blue", "color=red"]
    assert found.views["x"][25, 3:].tolist() == [0, 0]
    assert any("'new' does not occur in training samples, encoded as all zeros" in note for note in found.notes)


def test_samples_without_any_cell_are_left_out_with_a_count():
    table = frame(kind=KINDS).assign(id=[f"s{i}" for i in K])
    table.loc[[4, 9], ["a", "b", "c"]] = np.nan
    found = read_samples(table, labels=["kind"], id="id")
    assert (found.n, len(found.labels), found.ids[4]) == (28, 28, "s5")
    assert any("2 samples without any feature values are left out ('s4', 's9')" in note for note in found.notes)


@pytest.mark.parametrize("form", ["[0.5, 1, 2]", "[0.5 1.  2. ]", "(0.5, 1.0, 2e0)", "[np.float64(0.5), 1, 2]"])
def test_vectors_written_as_text_are_a_view(form):
    found = read_samples(pd.DataFrame({"e": [form, form.replace("0.5", "3"), "NA"], "a": [1.0, 2, 3]}))
    np.testing.assert_array_equal(found.views["e"], [[0.5, 1, 2], [3, 1, 2], [np.nan] * 3])
    with pytest.raises(DataError, match="row 1 is a truncated vector"):
        read_samples(pd.DataFrame({"e": [form, "[0.5 ... 2]"], "a": [1.0, 2]}))


# --- later tables ----------------------------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path):
    table = frame(site=np.array(["001", "X9"])[K % 2], flag=np.array(["yes", "no"])[K % 2], kind=KINDS)
    table.assign(id=[f"{i:04d}" for i in K]).to_csv("t.csv", index=False)
    run("fit", "ridge", "t.csv", "m.zarr", "--label-columns", "kind", "--id", "id")
    run("annotate", "m.zarr", "t.csv", "all.csv", "--proba")
    return table.drop(columns="kind").assign(id=[f"{i:04d}" for i in K])


def test_rows_are_the_same_numbers_in_every_later_file(model):
    expected = pd.read_csv("all.csv", dtype=str).set_index("sample")
    some = model[::2]  # select rows of site 001
    some.to_csv("some.csv", index=False)
    some.to_csv("euro.csv", index=False, sep=";", decimal=",")
    some.to_parquet("some.parquet")
    some.to_json("some.jsonl", orient="records", lines=True)
    options = {"euro.csv": ["--decimal", ","]}
    for name in ("some.csv", "euro.csv", "some.parquet", "some.jsonl"):
        run("annotate", "m.zarr", name, f"{name}-p.csv", "--proba", *options.get(name, ()))
        found = pd.read_csv(f"{name}-p.csv", dtype=str).set_index("sample")
        pd.testing.assert_frame_equal(found, expected.loc[found.index])
        assert len(found) == len(some)


def test_later_cells_that_do_not_fit_are_named_with_the_option(model):
    wrong = {
        "a": (
            "much",
            "bad.csv: column 'a', row 3 is 'much', expected a number as in the training data; .*--missing 'much'",
        ),
        "flag": ("perhaps", "bad.csv: column 'flag', row 3 is 'perhaps', expected a boolean"),
        "b": ("1,5", "row 3 is '1,5', expected a number .*--decimal ','"),
    }
    for column, (cell, said) in wrong.items():
        table = model.astype({column: object})
        table.loc[3, column] = cell
        table.to_csv("bad.csv", index=False)
        refused = run("annotate", "m.zarr", "bad.csv", "p.csv", code=2).stderr
        assert pd.Series([" ".join(refused.split())]).str.contains(said).all(), refused
    model.drop(columns="b").to_csv("bad.csv", index=False)
    assert (
        "bad.csv: the column 'b' of the training data" in run("annotate", "m.zarr", "bad.csv", "p.csv", code=2).stderr
    )
    model.assign(site="new").to_csv("new.csv", index=False)
    said = run("annotate", "m.zarr", "new.csv", "p.csv").stderr
    assert "new.csv: column 'site' has 1 unknown category ('new') in 30 rows, encoded as all zeros" in said
    shown = run("info", "m.zarr").stdout + run("info", "t.zarr").stdout
    assert shown.count("2: 001, X9") == 2
    said = run("annotate", "m.zarr", "t.zarr", "q.csv", "--type", "a=number", code=2).stderr
    assert "t.zarr is a feature store, but table options apply only to data files; leave them out" in said


def test_frames_with_words_are_fitted_and_predicted_by_their_schema(tmp_path):
    table = frame(site=np.array(["001", "X9"])[K % 2], flag=np.array(["yes", "no"])[K % 2])
    fitted = dmo.MultiViewRidge().fit(table, KINDS)
    assert list(fitted.feature_names_in_) == ["a", "b", "c", "site=001", "site=X9", "flag"]
    plain = table.assign(
        **{"site=001": table.site == "001", "site=X9": table.site == "X9", "flag": table.flag == "yes"}
    )
    plain = plain[list(fitted.feature_names_in_)].astype(float)
    expected = dmo.MultiViewRidge().fit(plain, KINDS).decision_function(plain)
    np.testing.assert_allclose(fitted.decision_function(table), expected, atol=1e-10)
    fitted.save("f.zarr")
    loaded = dmo.load("f.zarr")
    np.testing.assert_allclose(loaded.decision_function(table[::2]), expected[::2], atol=1e-10)
    with pytest.raises(UserError, match="column 'a', row 0 is 'x', expected a number as in the training data"):
        loaded.predict(table.astype({"a": object}).assign(a="x"))
    several = dmo.MultiViewRidge().fit({"t": table, "z": X}, KINDS)
    assert several.predict({"t": table[:4], "z": X[:4]}).tolist() == KINDS[:4].tolist()


# --- exact text ------------------------------------------------------------------------------------------------------

IDS = ["00042", "1E1", "1.10", "+7", " a", "b ", "NA", "-0", "1e400", "12345678901234567890"]
EXACT = {
    "CSV": lambda table: table.to_csv("t.csv", index=False) or "t.csv",
    "TSV": lambda table: table.to_csv("t.tsv", index=False, sep="\t") or "t.tsv",
    "Parquet": lambda table: table.to_parquet("t.parquet") or "t.parquet",
    "Arrow file": lambda table: table.to_feather("t.arrow") or "t.arrow",
    "JSON lines": lambda table: table.to_json("t.jsonl", orient="records", lines=True) or "t.jsonl",
    "pandas": lambda table: table,
    "pyarrow": lambda table: pa.Table.from_pandas(table),
    "polars": lambda table: pytest.importorskip("polars").from_pandas(table),
}


@pytest.mark.parametrize("form", [*EXACT, "Arrow stream"])
def test_ids_and_classes_keep_their_characters(form):
    codes = np.array(["1000001", "0010", "1E3"])[np.arange(10) % 3]
    table = pd.DataFrame({"id": IDS, "a": np.arange(10.0), "code": codes})
    if form == "Arrow stream":
        given = "t.arrow"
        with pa.OSFile(given, "wb") as file, pa.ipc.new_stream(file, pa.Table.from_pandas(table).schema) as writer:
            writer.write_table(pa.Table.from_pandas(table))
    else:
        given = EXACT[form](table)
    found = read_samples(given, labels=["code"], id="id", types={"code": "category"})
    assert found.ids == IDS
    assert found.label_names == ["0010", "1000001", "1E3"]
    found.write("s.zarr")
    store = open_features("s.zarr")
    assert (store.sample_ids, store.label_names) == (IDS, found.label_names)


@pytest.mark.parametrize("form", ["pandas", "polars", "Parquet", "npy", "svm"])
def test_large_integers_are_exact_names(form):
    codes = np.array([20240101, 20240102, 9007199254740993])[K % 3]
    expected = ["20240101", "20240102", "9007199254740993"]
    if form == "npy":
        np.save("y.npy", codes)
        found = read_samples(frame(), labels="y.npy")
    elif form == "svm":
        Path("t.svm").write_text("".join(f"{code} 1:{x[0]} 2:1\n" for code, x in zip(codes, X)))
        found = read_samples("t.svm")
    else:
        ids = pd.array([9007199254740993 + i if i else 7 for i in K], "Int64")
        found = read_samples(EXACT[form](frame(code=codes, id=ids)), labels=["code"], id="id")
        assert found.ids == [str(one) for one in ids]
        missing = EXACT[form](frame(code=pd.array(codes, "Int64")).assign(gap=pd.array([None, *K[1:]], "Int64")))
        assert np.isnan(read_samples(missing, labels=["code"]).views["x"][0, 3])
    assert (found.label_names, found.classes) == (expected, True)


def test_a_named_index_is_the_column_of_ids():
    table = frame(kind=KINDS).set_axis(pd.Index([f"{i:03d}" for i in K], name="id"))
    table.to_parquet("t.parquet")
    for given in (table, "t.parquet"):
        assert read_samples(given, labels=["kind"], id="id").ids == [f"{i:03d}" for i in K]


# --- labels ----------------------------------------------------------------------------------------------------------

SETS = [["sea", "sky, blue"] if i % 2 else ["sea"] for i in K]
LISTS = {
    "Python lists": str,
    "JSON": json.dumps,
    "NumPy": lambda one: str(np.array(one)),
    "NumPy's names": lambda one: str([np.str_(label) for label in one]),
    "tuples": lambda one: str(tuple(one)),
    "a separator": "|".join,
    "Annif": lambda one: " ".join(f"<{label.replace(', ', '_')}>" for label in one),
}


@pytest.mark.parametrize("form", LISTS)
def test_lists_of_labels_in_cells_are_labels(form):
    table = frame(tags=[LISTS[form](one) for one in SETS])
    table.to_csv("t.csv", index=False)
    found = read_samples("t.csv", labels=["tags"])
    assert found.label_names == ["sea", "sky_blue" if form == "Annif" else "sky, blue"]
    np.testing.assert_array_equal(found.labels, np.stack([np.ones(N), K % 2], axis=1))


def test_annif_corpora_are_texts_and_labels():
    lines = [f"text number {i} about cats\t<http://x/{i % 3}> <http://x/9>" for i in K]
    Path("t.tsv").write_text("\n".join(lines) + "\n")
    found = read_samples("t.tsv", labels=["1"], text="0")
    assert (found.label_names, found.labels.sum(axis=0).tolist()) == (
        ["http://x/0", "http://x/1", "http://x/2", "http://x/9"],
        [10, 10, 10, 30],
    )
    records = [
        {"text": "a cat", "subjects": [{"uri": "u1", "label": "c"}]},
        {"text": "a dog", "subjects": [{"uri": "u2", "label": "d"}]},
    ]
    Path("t.jsonl").write_text("\n".join(map(json.dumps, records)))
    assert read_samples("t.jsonl", labels=["subjects"], text="text").label_names == ["u1", "u2"]


def test_marks_between_labels_are_told_from_marks_in_names():
    def names(cells, **options):
        found = read_samples(frame(tags=np.array(cells)[K % len(cells)]), labels=["tags"], **options)
        return found.label_names, " ".join(found.notes)

    assert names(["sea;sky", "sky;sun", "sun"])[0] == ["sea", "sky", "sun"]
    assert names(["sea, sky", "sky, sun", "sun"])[0] == ["sea", "sky", "sun"]
    kept, said = names(["Washington, DC", "Boston", "Austin"])
    assert kept == ["Austin", "Boston", "Washington, DC"]
    assert "'Washington, DC' in 'tags' is read as one label" in said
    assert names(["Washington, DC", "Boston"], separator=",")[0] == ["Boston", "DC", "Washington"]
    assert names(["Washington, DC|Boston", "Boston", "Austin|Boston"])[0] == ["Austin", "Boston", "Washington, DC"]
    cities = ["Portland, OR", "Portland, ME", "Salem, OR"]
    with pytest.raises(
        DataError, match="single labels or lists separated by ','; pass --separator ',', or --type tags=category"
    ):
        names(cities)
    assert names(cities, types={"tags": "category"})[0] == sorted(cities)
    kept, said = names(["dark blue", "light blue", "red"])
    assert (kept, "--separator ' '" in said) == (["dark blue", "light blue", "red"], True)
    assert (
        names(["haze primary", "clear primary water", "clear primary", "haze", "clear water", "cloudy"])[0][-1]
        == "water"
    )


def test_sentinels_among_labels_are_rejected_and_unknown_with_the_option():
    Y = np.random.default_rng(0).integers(0, 2, (N, 3))
    for mark in (-1, -999, 9):
        Z = np.where((K[:, None] % 7 == 0) & (np.arange(3) == 1), mark, Y)
        pd.DataFrame(np.c_[X, Z], columns=list("abcpqr")).to_csv("t.csv", index=False)
        with pytest.raises(
            DataError, match=rf"row 0, column 'q' is {mark}, expected 0 or 1 as in most cells; pass --missing {mark}"
        ):
            read_samples("t.csv", labels=["p", "q", "r"])
        found = read_samples("t.csv", labels=["p", "q", "r"], missing=str(mark))
        np.testing.assert_array_equal(found.labels, np.where(mark == Z, np.nan, Z))
        np.save("y.npy", Z)
        with pytest.raises(DataError, match=f"column 1 is {mark}, expected 0 or 1"):
            read_samples(frame(), labels="y.npy")
        types = dict.fromkeys("pqr", "number")
        assert read_samples("t.csv", labels=["p", "q", "r"], types=types).real
    found = read_samples(frame(y=np.array([0, 1, -1])[K % 3]), labels=["y"])
    assert (found.label_names, "--missing -1" in found.notes[0]) == (["-1", "0", "1"], True)


def test_label_columns_are_names_before_patterns():
    table = frame(**{"3": KINDS, "tag_a": K % 2, "tag_b": 1 - K % 2, "tag_*": K % 2})
    table.to_csv("t.csv", index=False)
    assert read_samples("t.csv", labels=["3"]).label_names == ["cat", "dog", "owl"]
    assert read_samples("t.csv", labels=["tag_*"]).label_names == ["tag_*=0", "tag_*=1"]
    assert read_samples("t.csv", labels=["tag_[ab]"]).label_names == ["tag_a", "tag_b"]
    with pytest.raises(DataError, match="x: has no label column 'tag_z'; did you mean 'tag_"):
        read_samples("t.csv", labels=["tag_z"])
    with pytest.raises(DataError, match="numbers of columns are supported only for ARFF files"):
        read_samples("t.csv", labels=-1)
    run("ingest", "files", "s.zarr", "--view", "x=t.csv", "--label-columns", "3", "--drop-columns", "tag_*")
    assert open_features("s.zarr").feature_names("x") == ["a", "b", "c", "tag_a", "tag_b"]


def test_numbers_of_two_spellings_are_no_class():
    with pytest.raises(DataError, match=r"has the same number as '1' and as '1\.0'"):
        read_samples(frame(y=np.array(["1", "1.0", "2"])[K % 3]), labels=["y"])
    found = read_samples(frame(y=np.array(["1", "1.0", "2"])[K % 3]), labels=["y"], types={"y": "category"})
    assert found.label_names == ["1", "1.0", "2"]


def test_real_targets_with_decimal_commas_are_numbers():
    frame(y=X[:, 0] * 2 + 0.25).to_csv("t.csv", index=False, sep=";", decimal=",")
    found = read_samples("t.csv", labels=["y"])
    assert found.real
    np.testing.assert_array_equal(found.labels[:, 0], X[:, 0] * 2 + 0.25)


def test_forms_that_are_no_table_are_named():
    Path("c.json").write_text(json.dumps({"images": [], "annotations": [], "categories": []}))
    with pytest.raises(
        DataError, match=r"annotations in COCO format, expected a table; write a .csv table with one row per image"
    ):
        read_samples(frame(), labels="c.json")
    pairs = pd.DataFrame({"ImageID": ["a", "a", "b"], "LabelName": ["/m/1", "/m/2", "/m/1"]})
    pairs.to_csv("open.csv", index=False)
    table = pd.DataFrame({"ImageID": ["a", "b"], "w": [1.0, 2.0]})
    with pytest.raises(DataError, match="the id 'a' occurs in 2 rows, expected one row per sample; write all labels"):
        read_samples(table, labels="open.csv", id="ImageID")


# --- other sources ---------------------------------------------------------------------------------------------------


def test_parts_of_a_table_are_read_from_folders_and_lists():
    Path("parts").mkdir()
    table = frame(kind=KINDS)
    for i, part in enumerate((table[:10], table[10:])):
        part.to_csv(f"parts/{i}.csv", index=False)
    Path("parts/_SUCCESS").write_text("")
    Path("d.json").write_text(json.dumps({"views": {"x": ["parts/0.csv", "parts/1.csv"]}, "labels": ["kind"]}))
    run("ingest", "files", "d.zarr", "--from", "d.json")
    np.save("a.npy", X[:10])
    np.save("b.npy", X[10:])
    np.save("k.npy", KINDS)
    sources = [
        read_samples("parts", labels=["kind"]),
        read_samples(["parts/0.csv", "parts/1.csv"], labels=["kind"]),
        read_samples(["a.npy", "b.npy"], labels=KINDS),
        open_features("d.zarr"),
        ingest_files({"x": ["a.npy", "b.npy"]}, "l.zarr", labels="k.npy"),
    ]
    for found in sources:
        np.testing.assert_array_equal(found.views["x"][:], X)
        assert found.label_names == ["cat", "dog", "owl"]
    table.rename(columns={"c": "d"}).to_csv("parts/2.csv", index=False)
    with pytest.raises(DataError, match=r"2.csv: has other columns than"):
        read_samples("parts", labels=["kind"])


def test_arff_of_opensmile_and_keel_is_read():
    smile = "@relation S\n\n@attribute name string\n@attribute f numeric\n@attribute e {joy,fear}\n@data\n"
    smile += "\n'a, b.wav',0.5,joy\n'c',2,fear\n"
    Path("s.arff").write_text(smile)
    found = read_samples("s.arff", labels=["e"])
    assert (found.views["x"].tolist(), found.label_names) == ([[0.5], [2.0]], ["joy", "fear"])
    assert "attributes of type string or date are left out: name" in found.notes[0]
    keel = "@relation a\n@attribute Sex {M, F}\n@attribute L real [0.0, 1.0]\n@attribute R integer[1, 29]\n"
    keel += "@inputs Sex, L\n@outputs R\n@data\nM, 0.5, 15\nF, <null>, 7\n"
    Path("k.arff").write_text(keel)
    found = read_samples("k.arff")
    np.testing.assert_array_equal(found.views["x"], [[1, 0, 0.5], [0, 1, np.nan]])
    assert (found.labels.tolist(), found.label_names) == ([[15], [7]], ["R"])


def test_label_counts_of_arff_files_are_an_option_of_their_own():
    Path("a.arff").write_text(
        "@relation r\n@attribute x real\n@attribute y {0,1}\n@attribute z {0,1}\n@data\n1,0,1\n2,1,0\n3,1,1\n"
    )
    run("ingest", "files", "s.zarr", "--view", "x=a.arff", "--label-count", "-2")
    assert open_features("s.zarr").label_names == ["y", "z"]
    said = run("ingest", "files", "t.zarr", "--view", "x=a.arff", "--label-count", "1", "--label-columns", "y", code=2)
    assert "pass one of --labels, --label-columns and --label-count" in said.stderr
