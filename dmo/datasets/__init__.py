"""Readers of public formats, the cards of public data sets, and the way from files into a feature store."""

from dmo.datasets.arff import Arff, Attribute, open_arff, read_arff, read_label_list
from dmo.datasets.arrays import NpzMember, ZarrRows, open_npy, open_npz, open_zarr
from dmo.datasets.cards import Card, File, View
from dmo.datasets.delimited import Delimited, open_csv, read_csv, read_names
from dmo.datasets.described import ingest_files, read_description
from dmo.datasets.facts import CARDS
from dmo.datasets.files import DataError, SequentialRows, Stacked
from dmo.datasets.ingest import ingest
from dmo.datasets.matlab import matlab_variables, read_matlab
from dmo.datasets.svmlight import Svmlight, open_svmlight, read_svmlight
from dmo.datasets.tables import Table, open_rows, open_table
from dmo.datasets.vecs import Vecs, open_vecs

__all__ = [
    "CARDS",
    "Arff",
    "Attribute",
    "Card",
    "DataError",
    "Delimited",
    "File",
    "NpzMember",
    "SequentialRows",
    "Stacked",
    "Svmlight",
    "Table",
    "Vecs",
    "View",
    "ZarrRows",
    "ingest",
    "ingest_files",
    "matlab_variables",
    "open_arff",
    "open_csv",
    "open_npy",
    "open_npz",
    "open_rows",
    "open_svmlight",
    "open_table",
    "open_vecs",
    "open_zarr",
    "read_arff",
    "read_csv",
    "read_description",
    "read_label_list",
    "read_matlab",
    "read_names",
    "read_svmlight",
]
