"""The data cards: what a public data set must hold, and the same facts as text.

`ingest` checks what it reads against these cards, and the files under data/ repeat them in a block that `markdown`
writes; `python -m dmo.datasets data` renews those blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dmo.errors import UserError

BEGIN, END = "<!-- facts: written by `python -m dmo.datasets data` -->", "<!-- end of facts -->"


@dataclass(frozen=True)
class File:
    """A file of a public data set.

    Parameters
    ----------
    name : str
        Its name in the set's folder.
    sha256 : str
        SHA-256 of its decompressed bytes, in hexadecimal.
    source : str
        Where it can be had.
    url : str or None, default=None
        Address of its decompressed bytes, where it is known.

    Examples
    --------
    >>> from dmo.datasets import CARDS
    >>> CARDS["yeast"].files[0].name
    'yeast-train.arff.xz'
    """

    name: str
    sha256: str
    source: str
    url: str | None = None


@dataclass(frozen=True)
class ViewCard:
    """A view of a public data set: what its numbers must be.

    Parameters
    ----------
    name : str
        Its name in a feature store.
    dimension : int
        Columns.
    dtype : str
        Type to store.
    total : float
        Sum of all values over all samples.
    files : tuple of str
        What it is read from.
    kind : {"dense", "sparse"}, default="dense"
        How its rows are stored.
    histogram : bool, default=False
        The values are counts.
    optional : bool, default=False
        Left out unless asked for.

    Examples
    --------
    >>> from dmo.datasets import CARDS
    >>> view = CARDS["corel5k"].choose(["gist"])[0]
    >>> view.dimension, view.dtype
    (512, 'float32')
    """

    name: str
    dimension: int
    dtype: str
    total: float
    files: tuple[str, ...]
    kind: str = "dense"
    histogram: bool = False
    optional: bool = False


@dataclass(frozen=True)
class Card:
    """A public data set: what it must hold.

    Parameters
    ----------
    name : str
        Its name for `ingest`.
    title : str
        What it is.
    files : tuple of File
        All its files.
    license, citation : str
        What its users owe.
    views : tuple of ViewCard, default=()
        Its views.
    rows : dict of str to int, default={}
        Samples by split ("all" where there is none).
    labels : int, default=0
        Number of labels.
    positives : dict of str to int, default={}
        Positives by split.
    annotations : tuple of str, default=()
        The files that hold labels, names and split.
    regression : dict of str to tuple of int, default={}
        Of a set without views: file -> (samples, inputs, outputs).

    Examples
    --------
    >>> from dmo.datasets import CARDS
    >>> card = CARDS["corel5k"]
    >>> card.n_samples, card.labels, card.rows
    (4999, 260, {'train': 4500, 'test': 499})
    """

    name: str
    title: str
    files: tuple[File, ...]
    license: str
    citation: str
    views: tuple[ViewCard, ...] = ()
    rows: dict[str, int] = field(default_factory=dict)
    labels: int = 0
    positives: dict[str, int] = field(default_factory=dict)
    annotations: tuple[str, ...] = ()
    regression: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    @property
    def n_samples(self) -> int:
        """The number of samples, over all splits."""
        return sum(self.rows.values())

    def choose(self, names: Sequence[str] | None) -> list[ViewCard]:
        """Find views by their names.

        Parameters
        ----------
        names : sequence of str, default=None
            Some of the set's views; None: all that are not optional.

        Returns
        -------
        list of ViewCard
            In that order.

        Raises
        ------
        UserError
            For an unknown name, and for none.
        """
        known = {view.name: view for view in self.views}
        if names is None:
            return [view for view in self.views if not view.optional]
        unknown = [name for name in names if name not in known]
        if unknown or not names:
            got = repr(unknown[0]) if unknown else "none"
            raise UserError(f"{self.name}: got view {got}, expected some of {', '.join(known)}")
        return [known[name] for name in dict.fromkeys(names)]

    def files_for(self, views: Sequence[ViewCard]) -> list[File]:
        """Find the files that hold some views and the annotations.

        Parameters
        ----------
        views : sequence of ViewCard
            The views.

        Returns
        -------
        list of File
            What is needed.
        """
        needed = {name for view in views for name in view.files} | set(self.annotations)
        return [file for file in self.files if file.name in needed]


def markdown(card: Card) -> str:
    """Write the facts of a card as Markdown, between two marks: shapes, label counts, files, license, citation.

    Parameters
    ----------
    card : Card
        The data set.

    Returns
    -------
    str
        The text.

    Examples
    --------
    >>> from dmo.datasets.cards import CARDS, markdown
    >>> markdown(CARDS["yeast"]).splitlines()[2]
    '| split | samples | labels | positives | labels per sample |'
    """
    lines = [BEGIN, ""]
    if card.rows:
        lines += ["| split | samples | labels | positives | labels per sample |", "|---|---|---|---|---|"]
        for split, n in card.rows.items():
            marks = card.positives[split]
            lines.append(f"| {split} | {n} | {card.labels} | {marks} | {marks / n:.3f} |")
        lines += [
            "",
            "| view | dimension | type | stored | counts | sum of all values | file |",
            "|---|---|---|---|---|---|---|",
        ]
        for view in card.views:
            name = view.name + (" (on request)" if view.optional else "")
            counts = "yes" if view.histogram else "no"
            files = ", ".join(f"`{file}`" for file in view.files)
            lines.append(
                f"| {name} | {view.dimension} | {view.dtype} | {view.kind} | {counts} | {view.total:.10g} | {files} |"
            )
        lines.append("")
    if card.regression:
        lines += ["| file | samples | inputs | outputs |", "|---|---|---|---|"]
        lines += [f"| `{name}` | {n} | {d} | {k} |" for name, (n, d, k) in card.regression.items()] + [""]
    lines += ["| file | SHA-256 of the decompressed content | where it can be had |", "|---|---|---|"]
    lines += [f"| `{file.name}` | `{file.sha256}` | {file.url or file.source} |" for file in card.files]
    lines += ["", f"License: {card.license}.", "", f"Citation: {card.citation}", "", END]
    return "\n".join(lines)


def renew(path: Path, card: Card) -> None:
    """Write the facts into the card at `path`, in place of those between the marks (a new file: below a title)."""
    text = path.read_text(encoding="utf-8") if path.exists() else f"# {card.title}\n\n{BEGIN}{END}\n"
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    path.write_text(before + markdown(card) + after, encoding="utf-8")


def _files(listing: str, source: str, folder: str | None = None) -> tuple[File, ...]:
    """Files of one source from lines "SHA-256  name", as sha256sum prints them; `folder`: the address that they are below."""
    pairs = [line.split() for line in listing.split("\n") if line.strip()]
    return tuple(File(name, digest, source, folder and f"{folder}/{name}") for digest, name in pairs)


def _corel(
    name: str, file: str, dimension: int, total: float, dtype: str = "uint16", optional: bool = False
) -> ViewCard:
    where = (f"features/corel5k_{file}.npz",)
    return ViewCard(name, dimension, dtype, total, where, histogram=dtype == "uint16", optional=optional)


_RAW = "https://raw.githubusercontent.com"
LEAR_FILES = f"{_RAW}/Tnorm/nmf-based-label-space-factorization/cd5e0e3e9bccd3ac5461cb730c8e667bfdc8da15/Datasets"
SCENE_FILES = f"{_RAW}/tsoumakas/mulan/5862bed221a9ec2baf9a090f5e98637e9dfb088b/data/multi-label/scene"
LEAR_LICENSE = "none is stated for the LEAR descriptors and lists; Corel's photographs are under Corel's copyright"
COREL5K = Card(
    name="corel5k",
    title="Corel5k: photographs with 260 keywords",
    files=_files(
        """
        cb00c85a8d0b2634d2258e474f74474195dbe6887f78d804541e338dfe604136  features/corel5k_RgbV3H1.npz
        d4e3aec8ff6068d3514a15e6e08214cd3a9454e5b035e1bf67a11ecfcef53589  features/corel5k_LabV3H1.npz
        2b1d6fcdc3a08856ba7f4000f3c68bf7b6fd92bfba599825132c55bad2359b1e  features/corel5k_HsvV3H1.npz
        f2db1cbe57689a5cf31b205e38007737a3e5dbf0df31560ee0dd539ec93efd98  features/corel5k_Gist.npz
        3a440705a389bf897398f87b39c662b64fbb7c52ba377bcaa150bffad5e8b14f  features/corel5k_DenseSiftV3H1.npz
        9aa3733f4ec8bb9c95d410467dcebc3196be61307fe08caa0ece93df9f0f7f2b  features/corel5k_HarrisSiftV3H1.npz
        a69e51da9853ce72f2e951d24793076210f5623df1d68be417bf998271e18906  features/corel5k_DenseHueV3H1.npz
        fa3f17989e5d26310bb941c13312dc89a4df72353603a6b518c50767d7ded4ca  features/corel5k_HarrisHueV3H1.npz
        73acfcb9aec517da61fc5cc7ba61e7999a195f6fc509ec8a18abbb0472c00b58  features/corel5k_morp491.npz
        3a063fe4a82745f11f23ea779ba6450e000eb73dedc0b1f2be1b131619a5f3ca  features/corel5k_annotations.npz
        """,
        "computed from the photographs and lists as the data card corel5k says",
    )
    + _files(
        "0c44b53a6e5d882d95bac60ee73692a4f503b6d8b86962c203c5a5c9625c7b50  recovered_order_corel5k.npz",
        "derived from the labels of lear_DenseHue__corel5k.mat as the data card corel5k says",
    )
    + _files(
        "d83269a73dcc78e3fff72681a47095080dbde60e6ff9ea0bdad50cfb0d4dffd8  lear_DenseHue__corel5k.mat",
        "github.com/Tnorm/nmf-based-label-space-factorization",
        LEAR_FILES,
    )
    + _files(
        """
        67dbf89e8ec3ffec757d390bbd064714b59012639ee1575a861023029ba53d27  corel5k_train_annot.hvecs
        548eb1e6fccf0748790096eb6474472c47d6acb593daa879ed5906db48f8a564  corel5k_test_annot.hvecs
        """,
        "github.com/Jianlou/fasttag-semantic",
    )
    + _files(
        """
        4b7e3226c79ca2d8c194a27b239e7cc42cb3ac2b8c19ef8acf8ca0d4284ad017  corel5k_test_DenseSift.hvecs
        """,
        "a copy of the LEAR group's files; the training part is not public in full",
    )
    + _files(
        """
        ea429c6e51bcb660d543059ca6902551196425bc5fdbbb76cd614dddcc4e21d0  corel_train_list.txt
        833408c9fde1bc0bc1dcf678a122ec339990d5c07deca396711a96f4b2c1bb8b  corel_test_list.txt
        705bdcb9e59a4dcd98c95ac59fc06efb510fef52af4a1f6fe1e34bf565c53f19  words260.txt
        """,
        "github.com/ayushidutta/image-annot-quirks",
    ),
    views=(
        _corel("rgb", "RgbV3H1", 5184, 122855424),
        _corel("lab", "LabV3H1", 5184, 122855424),
        _corel("hsv", "HsvV3H1", 5184, 122855424),
        _corel("gist", "Gist", 512, 139259.51709747687, "float32"),
        _corel("dense_sift", "DenseSiftV3H1", 3000, 6418716),
        _corel("harris_sift", "HarrisSiftV3H1", 3000, 4960512),
        _corel("dense_hue", "DenseHueV3H1", 300, 6418716),
        _corel("harris_hue", "HarrisHueV3H1", 300, 4960512),
        _corel("morp491", "morp491", 491, 103783.45610391775, "float32", optional=True),
        ViewCard(
            "lear_dense_hue",
            100,
            "uint16",
            6017860,
            ("lear_DenseHue__corel5k.mat", "recovered_order_corel5k.npz"),
            histogram=True,
            optional=True,
        ),
    ),
    rows={"train": 4500, "test": 499},
    labels=260,
    positives={"train": 15223, "test": 1756},
    annotations=("features/corel5k_annotations.npz",),
    license=LEAR_LICENSE,
    citation="P. Duygulu, K. Barnard, J. F. G. de Freitas, D. A. Forsyth: Object recognition as machine translation: "
    "learning a lexicon for a fixed image vocabulary. ECCV 2002. Descriptors after M. Guillaumin, T. Mensink, "
    "J. Verbeek, C. Schmid: TagProp: discriminative metric learning in nearest neighbor models for image "
    "auto-annotation. ICCV 2009.",
)
ESPGAME = Card(
    name="espgame",
    title="ESP game: images with 268 keywords from a game",
    files=_files(
        "e94d121e89ca855dbaf528efc1173c7b5254c497eee62641e1634338090b8f63  lear_DenseHue__espgame.mat",
        "github.com/Tnorm/nmf-based-label-space-factorization",
        LEAR_FILES,
    )
    + _files(
        "cdf744ab7eca5c84cbb683b8be3cc772c904ffcc83a784cf063c149700a381d8  recovered_split_espgame.npz",
        "derived from the labels of lear_DenseHue__espgame.mat as the data card espgame says",
    )
    + _files(
        "04ef07cf465a95759d7794d6ae1b55444a9901f1add663d509f641b357d44365  derived_espgame_annot_official_order.npz",
        "rebuilt from github.com/ayushidutta/image-annot-quirks and github.com/ManulGoyal/BTech-Project",
    ),
    views=(
        ViewCard(
            "dense_hue",
            100,
            "uint16",
            6140121,
            ("lear_DenseHue__espgame.mat", "recovered_split_espgame.npz"),
            histogram=True,
        ),
    ),
    rows={"train": 18689, "test": 2081},
    labels=268,
    positives={"train": 87553, "test": 9774},
    annotations=("derived_espgame_annot_official_order.npz",),
    license="none is stated for the LEAR descriptors and lists",
    citation="L. von Ahn, L. Dabbish: Labeling images with a computer game. CHI 2004. Descriptors: M. Guillaumin, "
    "T. Mensink, J. Verbeek, C. Schmid: TagProp: discriminative metric learning in nearest neighbor models for image "
    "auto-annotation. ICCV 2009.",
)


def _mulan(
    name: str,
    title: str,
    digests: tuple[str, str, str],
    view: tuple,
    labels: int,
    counts: tuple,
    citation: str,
    folder: str | None = None,
) -> Card:
    """A set of Mulan's: digests of the train, test and XML file; view (name, dimension, sum, type, kind); counts, the
    train and test rows and positives; `folder`: the address that the files, decompressed, are below."""
    names = (f"{name}-train.arff.xz", f"{name}-test.arff.xz", f"{name}.xml.xz")
    view_name, dimension, total, dtype, kind = view
    return Card(
        name=name,
        title=title,
        files=tuple(
            File(file, digest, "github.com/tsoumakas/mulan", folder and f"{folder}/{file.removesuffix('.xz')}")
            for file, digest in zip(names, digests)
        ),
        views=(ViewCard(view_name, dimension, dtype, total, names[:2], kind=kind),),
        rows={"train": counts[0], "test": counts[1]},
        labels=labels,
        positives={"train": counts[2], "test": counts[3]},
        annotations=names,
        license="none is stated; Mulan asks for citation of the sources",
        citation=citation,
    )


YEAST = _mulan(
    "yeast",
    "yeast: genes with 14 functional classes",
    (
        "e759dc991ff54694a4ff9c4314f3be0d6fd2b1994a4b563f57e416394c6aebbd",
        "4aaac102bff9669a765bf0b378602e5cc8c3b181048282e2f003117b496d552a",
        "c3056cc26444b5158b1588d1b73bec9c45429e10f0957ad085903423cb81f247",
    ),
    ("features", 103, 15.373083, "float64", "dense"),
    14,
    (1500, 917, 6342, 3899),
    "A. Elisseeff, J. Weston: A kernel method for multi-labeled classification. NIPS 2001.",
)
SCENE = _mulan(
    "scene",
    "scene: photographs with 6 kinds of scenery",
    (
        "b53ba93bdf412de922e3960389bcee24744fa3e872ce610511fc1d750888b64d",
        "ea38d20296b3ff7e220f477a3b802a9bcb2d768881fe6ee163efbc97ea527a42",
        "55d8b247b949ad5c52e5a73d8c6775ec6e5469ce9682465b45b333b68ee4bcc5",
    ),
    ("features", 294, 218148.680153, "float64", "dense"),
    6,
    (1211, 1196, 1286, 1299),
    "M. R. Boutell, J. Luo, X. Shen, C. M. Brown: Learning multi-label scene classification. Pattern Recognition "
    "37(9), 1757-1771, 2004.",
    SCENE_FILES,
)
EMOTIONS = _mulan(
    "emotions",
    "emotions: pieces of music with 6 moods",
    (
        "bbe704106c79bb8fb99c1d1d2e9bde081d6a2daeb01f100862f11fd91a3c1f98",
        "f13d4b746b7b5c8eb484bd751d6ac463d4560dff998a93516a5c1fe35daf6c8f",
        "dbce8e6ccbbb2fcbfd9e9edbb230d7ed12692c6e13f59fdbc0161fa9b6cf2dc0",
    ),
    ("features", 72, 119051.602171, "float64", "dense"),
    6,
    (391, 202, 709, 399),
    "K. Trohidis, G. Tsoumakas, G. Kalliris, I. Vlahavas: Multilabel classification of music into emotions. "
    "ISMIR 2008.",
)
ENRON = _mulan(
    "enron",
    "enron: e-mails with 53 topics",
    (
        "2988cefc1cdf7a8004a20ef84615cc8fa1b5d7434c16687283b41454e2d9d194",
        "2f3aad54a8f54caaab4ab01246fe9dd385ba944a2633028f52747b57eac5474e",
        "ed40c92d7f613eed51714912cab10dddc4ce456262137d8fef230d44c7f4457b",
    ),
    ("words", 1001, 143090, "float32", "sparse"),
    53,
    (1123, 579, 3803, 1947),
    "B. Klimt, Y. Yang: The Enron corpus: a new dataset for email classification research. ECML 2004; topics by the UC "
    "Berkeley Enron Email Analysis Project.",
)
BIBTEX = _mulan(
    "bibtex",
    "bibtex: bibliography entries with 159 tags",
    (
        "8dcc9de6e0b2cebaec8c1f4fac78431adeeb73cfd3ab879b530a66d366e59174",
        "9b03329cde64d3f994bdf7fbbac3f3b10fe185c311cb9ae725475f59c7f3f922",
        "08fe20013c1e75dcf1888c185f5187c95e76495b8518ce289b4d3afce38d1232",
    ),
    ("words", 1836, 507746, "float32", "sparse"),
    159,
    (4880, 2515, 11616, 6146),
    "I. Katakis, G. Tsoumakas, I. Vlahavas: Multilabel text classification for automated tag suggestion. ECML PKDD "
    "2008 Discovery Challenge.",
)
RCV1SUBSET = Card(
    name="rcv1subset",
    title="RCV1 (subset 1): Reuters news stories with 101 categories",
    files=_files(
        "b2ee886a52fc33753a246afd5025e5e1bc91be8bc95533798e9abf87974f8495  rcv1subset1_top944.mat",
        "github.com/ZesenChen/multi-label-dataset",
    ),
    views=(ViewCard("words", 944, "float32", 303360, ("rcv1subset1_top944.mat",), kind="sparse"),),
    rows={"all": 6000},
    labels=101,
    positives={"all": 17278},
    annotations=("rcv1subset1_top944.mat",),
    license="none is stated for the word vectors; the stories are Reuters'",
    citation="D. D. Lewis, Y. Yang, T. G. Rose, F. Li: RCV1: a new benchmark collection for text categorization "
    "research. JMLR 5, 361-397, 2004.",
)
MULTI_TARGET = Card(
    name="multi_target",
    title="Five small regression sets with several numeric outputs",
    files=_files(
        """
        37777374030f592a53cbcf597ae0aa6105238a1c696dd04ccb229be982f6bc5b  edm.arff
        8277d9094ccda6da2cd1c2b79c90ca201fa3695e75aca173ffc43138dcab0071  enb.arff
        78ce7655f49073e3622ef7ba25657b3900a2b279ba3d48cb82e353e56bac3d2a  jura.arff
        8f78e64aca64f7c0c7ba4d9b2f114feb2a6f72e6116e87d7dab94e7cab426d93  sf1.arff
        3a9a9eba416b06c7668153b44073a0e165afbfc9e526d53b174e5f97a707ca6c  slump.arff
        """,
        "github.com/tsoumakas/mulan",
    ),
    regression={
        "edm.arff": (154, 16, 2),
        "enb.arff": (768, 8, 2),
        "jura.arff": (359, 15, 3),
        "sf1.arff": (323, 10, 3),
        "slump.arff": (103, 7, 3),
    },
    license="none is stated; Mulan asks for citation of the sources",
    citation="E. Spyromitros-Xioufis, G. Tsoumakas, W. Groves, I. Vlahavas: Multi-target regression via input space "
    "expansion: treating targets as inputs. Machine Learning 104, 55-98, 2016.",
)
REUTERS21578 = Card(
    name="reuters21578",
    title="Reuters-21578: news stories of 1987 with topics",
    files=_files(
        "69b723af691c25ec4bd46140863d6505f0677ce0e5fef30e74d5987dd5af2111  reuters21578.tar.xz",
        "github.com/colibri17/TextCategorization",
    ),
    license="copyright Reuters Ltd.; free distribution for research only; publications are to name the set",
    citation='D. D. Lewis: "Reuters-21578, Distribution 1.0", 1997.',
)
CARDS = {
    card.name: card
    for card in (
        COREL5K,
        ESPGAME,
        YEAST,
        SCENE,
        EMOTIONS,
        ENRON,
        BIBTEX,
        RCV1SUBSET,
        MULTI_TARGET,
        REUTERS21578,
    )
}
