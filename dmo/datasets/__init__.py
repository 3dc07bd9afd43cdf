"""Readers of data files and of public data sets, and conversion of data to feature stores."""

from dmo.datasets.cards import CARDS, Card, read_card
from dmo.datasets.files import ingest_files, read_description, read_samples
from dmo.datasets.ingest import ingest
from dmo.datasets.samples import Samples
from dmo.formats.arff import Arff, Attribute, open_arff, read_arff, read_label_list
from dmo.formats.arrays import NpzMember, Vecs, ZarrRows, open_npy, open_npz, open_vecs, open_zarr
from dmo.formats.files import DataError, SequentialRows, Stacked
from dmo.formats.matlab import matlab_variables, read_matlab
from dmo.formats.sources import Source, parse_source
from dmo.formats.tables import Table, open_rows, open_table
from dmo.formats.text import Delimited, Svmlight, open_csv, open_svmlight, read_csv, read_names, read_svmlight

__all__ = [
    "CARDS",
    "Arff",
    "Attribute",
    "Card",
    "DataError",
    "Delimited",
    "NpzMember",
    "Samples",
    "SequentialRows",
    "Source",
    "Stacked",
    "Svmlight",
    "Table",
    "Vecs",
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
    "parse_source",
    "read_arff",
    "read_card",
    "read_csv",
    "read_description",
    "read_label_list",
    "read_matlab",
    "read_names",
    "read_samples",
    "read_svmlight",
]
