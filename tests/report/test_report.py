"""Test the HTML and the figures of reports."""

import base64
import hashlib
import io
import json
import re
import subprocess
import sys
from html.parser import HTMLParser

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image
from shell import disk_full
from sklearn.calibration import calibration_curve
from sklearn.metrics import average_precision_score, precision_recall_fscore_support

from dmo import report
from dmo.metrics import top_scores
from dmo.report import page as pages
from dmo.report.figures import cooccurrence, pooled_measures, reliability, together

HOSTILE = '<script>alert("x")</script> & $\\frac{1}$'


class Page(HTMLParser):
    """Parser that collects the tags, attributes and texts of an HTML page."""

    def __init__(self, path):
        super().__init__()
        self.tags, self.texts, self.open = [], {}, []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "img", "input", "br"):
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, text):
        for tag in set(self.open):
            self.texts[tag][-1] += text

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def figure():
    figure = Figure(figsize=(1, 1))
    figure.add_subplot().plot([0, 1], [1, 0])
    return figure


def drawn(figure):
    """Draw a figure, and check that all elements are inside the figure."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    box, (width, height) = figure.get_tightbbox(canvas.get_renderer()), figure.get_size_inches()
    assert min(box.x0, box.y0) > -0.02
    assert box.x1 < width + 0.02
    assert box.y1 < height + 0.02


def words(figure):
    return [text.get_text() for text in figure.texts]


def test_the_page_is_one_file_that_asks_the_network_for_nothing(tmp_path, figure):
    images = [report.PageFigure("one", figure, "first"), report.PageFigure("two-2", figure, "second", alt="a line")]
    written = report.write_report(tmp_path / "new" / "report.html", "title", images)
    assert written == [tmp_path / "new" / name for name in ("report.html", "one.png", "two-2.png")]
    assert sorted(path.name for path in written[0].parent.iterdir()) == ["one.png", "report.html", "two-2.png"]
    page = Page(written[0])
    assert not page.open
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "link", "iframe", "a", "object"})
    assert "url(" not in page.texts["style"][0]
    assert any("default-src 'none'" in meta.get("content", "") for meta in page.all("meta"))
    assert page.texts["title"][1:] == ["first", "second"]
    assert page.texts["desc"] == ["first", "a line"]
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for svg in page.all("svg"):
        assert svg["role"] == "img"
        assert set(svg["aria-labelledby"].split()) <= set(ids)
    for _, attributes in page.tags:
        for name, value in attributes.items():
            if name.endswith("href") and not value.startswith("data:"):
                assert value.removeprefix("#") in ids
            for target in re.findall(r"url\(#(.*?)\)", value or ""):
                assert target in ids
    for path in written[1:]:
        assert path.read_bytes().startswith(b"\x89PNG")


def test_all_text_is_escaped(tmp_path, figure):
    table = report.Table(HOSTILE, [HOSTILE, "n"], [[HOSTILE, 1.0]], best=["n"], note=HOSTILE)
    image = report.PageFigure("p", figure, HOSTILE)
    path = tmp_path / "r.html"
    report.write_report(path, HOSTILE, [table, image], {HOSTILE: HOSTILE}, lead=HOSTILE)
    page = Page(path)
    assert not page.all("script")
    assert page.texts["title"] == [HOSTILE] * 2  # the page and the chart have titles
    assert page.texts["desc"] == page.texts["h1"] == page.texts["h2"] == [HOSTILE]
    assert page.texts["dt"] == page.texts["dd"] == page.texts["figcaption"] == [HOSTILE]
    assert page.texts["p"] == [HOSTILE, HOSTILE]
    assert page.texts["td"] == [HOSTILE, "1"]


def test_numbers_in_tables_and_facts(tmp_path):
    rows = [["KGHA", 0.8351, 12345, 1e-5, None], ["r-MLR", 0.9, 7, 2.5e-5, 10.25]]
    table = report.Table("t", ["method", "F1", "n", "error", "seconds"], rows, best=["F1", "seconds"])
    report.write_report(tmp_path / "r.html", "t", [table], facts={"samples": 4999, "ridge": 1e-2, "view": "gist"})
    page = Page(tmp_path / "r.html")
    expected = ["KGHA", "0.835", "12,345", "1.00e-05", "–", "r-MLR", "0.900", "7", "2.50e-05", "10.2"]
    assert page.texts["td"] == expected
    assert page.texts["b"] == ["0.900", "10.2"]
    report.write_report(tmp_path / "r.html", "t", [report.Table("t", ["F1"], [[0.90001], [0.9], [0.5]], best=["F1"])])
    assert Page(tmp_path / "r.html").texts["b"] == ["0.900"] * 2  # equal after rounding
    assert [cell.get("class") for cell in page.all("th")] == [None, "n", "n", "n", "n"]
    assert page.texts["dd"] == ["4,999", "0.01", "gist"]


def test_a_column_of_very_different_numbers_keeps_digits_of_all(tmp_path):
    rows = [["price", 139845.25], ["area", 0.7361], ["none", 0.0], ["unknown", None]]
    report.write_report(tmp_path / "r.html", "t", [report.Table("t", ["target", "RMSE"], rows)])
    assert Page(tmp_path / "r.html").texts["td"][1::2] == ["139,845", "0.736", "0", "–"]


def test_a_report_is_replaced_whole_and_is_the_same_every_time(tmp_path, figure):
    path = tmp_path / "r.html"
    path.write_text("an old report " * 10_000)
    report.write_report(path, "t", [report.PageFigure("p", figure, "c")])
    first = path.read_bytes(), (tmp_path / "p.png").read_bytes()
    report.write_report(path, "t", [report.PageFigure("p", figure, "c")])
    assert (path.read_bytes(), (tmp_path / "p.png").read_bytes()) == first


@pytest.mark.parametrize(
    ("tables", "names", "sentence"),
    [
        ([report.Table("t", ["a", "b"], [[1, 2], [1]])], [], "table 't': row 1 has 1 cells, expected 2"),
        ([report.Table("t", ["a"], [[1]], best=["F1"])], [], "table 't': column 'F1' of `best` does not exist"),
        ([], ["../up"], "figure name '../up' is not a file name; use letters"),
        ([], ["p", "p"], "two figures are called 'p'"),
    ],
)
def test_a_bad_report_is_refused_and_nothing_is_written(tmp_path, figure, tables, names, sentence):
    images = [report.PageFigure(name, figure, "") for name in names]
    with pytest.raises(ValueError, match=sentence):
        report.write_report(tmp_path / "new" / "r.html", "t", [*tables, *images])
    assert not list(tmp_path.iterdir())


def test_no_image_touches_global_matplotlib_state():
    # Skip the parameter "backend", because Matplotlib imports pyplot when "backend" is read.
    program = (
        "import sys; from dmo import report; assert 'matplotlib' not in sys.modules; import matplotlib as m\n"
        "state = lambda: {k: m.rcParams[k] for k in m.rcParams if k != 'backend'}; before = state()\n"
        "report.heat_map([[1.0]], 'a', 'b').savefig(sys.stdout.buffer); assert state() == before\n"
        "assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)


def test_long_and_hostile_names_are_cut_to_their_place():
    name = "$\\frac{ a label of enormous length that no image has room for"
    figure = report.biplot(np.eye(2), np.eye(2), [name, HOSTILE])
    drawn(figure)
    shown = figure.axes[0].texts[-2].get_text()
    assert shown.startswith("\\$")
    assert shown.endswith("…")


def test_a_biplot_has_an_arrow_for_each_of_the_longest_loadings_and_names_do_not_overlap():
    rng = np.random.default_rng(0)
    loadings = rng.uniform(-1, 1, size=(30, 2))
    Z = rng.normal(size=(400, 2))
    figure = report.biplot(Z, loadings, [f"column {j}" for j in range(30)])
    drawn(figure)
    longest = np.argsort(-np.linalg.norm(loadings, axis=1))[:10]
    arrows, names = (figure.axes[0].texts[part] for part in (slice(10), slice(10, None)))
    np.testing.assert_allclose([arrow.xy for arrow in arrows], loadings[longest] * np.abs(Z).max(axis=0))
    assert [name.get_text() for name in names] == [f"column {j}" for j in longest]
    boxes = [name.get_window_extent() for name in names]
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])


def test_precision_recall_panels_show_the_commonest_labels_best_first():
    rng = np.random.default_rng(0)
    Y = (rng.random((200, 6)) < [0.5, 0.4, 0.3, 0.2, 0.0, 0.05]).astype(np.uint8)
    S = rng.normal(size=Y.shape) + Y * np.array([0, 3, 1, 2, 0, 9])
    names = ["a", HOSTILE, "c", "d", "e", "f"]
    figure = report.precision_recall_per_label(Y, S, names, most=4)
    drawn(figure)
    panels = [ax for ax in figure.axes if ax.lines]
    scores = {l: average_precision_score(Y[:, l], S[:, l]) for l in range(4)}
    order = sorted(scores, key=lambda l: -scores[l])
    assert [ax.texts[0].get_text() for ax in panels] == [f"AP {scores[l]:.2f}" for l in order]
    assert [ax.get_title(loc="left")[0] for ax in panels] == [names[l][0] for l in order]
    for ax, l in zip(panels, order):
        recall, precision = ax.lines[0].get_data()
        area = np.sum(np.diff(recall) * precision[1:])
        assert area == pytest.approx(scores[l], abs=1e-12)
        assert ax.lines[1].get_ydata()[0] == Y[:, l].mean()


def test_embedding_per_label_puts_the_label_over_the_others():
    rng = np.random.default_rng(0)
    Z, Y = rng.normal(size=(50, 2)), (rng.random((50, 4)) < 0.3).astype(np.uint8)
    figure = report.embedding_per_label(Z, Y, ["a", "b", "c", "d"], most=3)
    drawn(figure)
    order = np.argsort(-Y.sum(axis=0), kind="stable")[:3]
    for ax, l in zip(figure.axes, order):
        assert ax.get_title(loc="left") == "abcd"[l]
        np.testing.assert_array_equal(ax.collections[1].get_offsets(), Z[Y[:, l] == 1])
        np.testing.assert_array_equal(ax.collections[0].get_offsets(), Z[Y[:, l] == 0])


def test_heat_map_writes_its_values_and_frames_the_largest():
    values = np.array([[0.1, 0.25], [np.nan, 0.125], [0.3, 0.2]])
    figure = report.heat_map(values, [1e-3, 1e-2, 0.1], ["a", "b"], "ridge", "balance", "F1")
    drawn(figure)
    ax = figure.axes[0]
    assert [text.get_text() for text in ax.texts] == ["0.100", "0.250", "–", "0.125", "0.300", "0.200"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["0.001", "0.01", "0.1"]
    assert ax.lines[0].get_xydata().mean(axis=0) == pytest.approx([-0.1, 1.9])
    np.testing.assert_array_equal(ax.images[0].get_array().filled(np.nan), values)


Z, Y = np.zeros((3, 2)), np.eye(3, dtype=int)
BAD = {
    "names": (lambda: report.precision_recall_per_label(Y, Y, ["a"]), r"1 label names for labels of shape \(3, 3\)"),
    "empty labels": (lambda: report.precision_recall_per_label(0 * Y, Y, "abc"), "no label occurs in Y"),
    "one column": (lambda: report.embedding_per_label(Z[:, :1], Y, "abc"), "at least two components"),
    "nan": (lambda: report.embedding_per_label(Z * np.nan, Y, "abc"), "Z contains NaN"),
    "loadings": (lambda: report.biplot(Z, np.ones((3, 1)), "abc"), "expected at least two columns"),
    "component": (lambda: report.loading_plot(np.ones((3, 1)), "abc", 1), "loadings have 1 components"),
    "rows": (lambda: report.embedding_per_label(Z[:2], Y, "abc"), "Z has 2 rows, labels have 3"),
    "heat": (lambda: report.heat_map(Z, "ab", "ab"), r"shape \(3, 2\), expected 2 rows and 2 columns"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_in_one_sentence(case):
    call, sentence = BAD[case]
    with pytest.raises(ValueError, match=sentence) as caught:
        call()
    assert "\n" not in str(caught.value)


# --- tables that sort, and images of many samples ------------------------------------------------------------------


def interactive(folder, rows):
    table = report.Table("labels", ["label", "samples"], rows, interactive=True)
    return report.write_report(folder / "report.html", "title", [table, report.Table("plain", ["a"], [[1]])])[0]


def test_a_table_that_sorts_brings_the_one_script_that_the_page_allows(tmp_path):
    path = interactive(tmp_path, [[HOSTILE, 3], ["sea", None]])
    page = Page(path)
    assert not page.open
    assert len(page.all("script")) == 1
    policy = next(meta["content"] for meta in page.all("meta") if "default-src" in meta.get("content", ""))
    digest = base64.b64encode(hashlib.sha256(page.texts["script"][0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    assert [button["type"] for button in page.all("button")] == ["button"] * 2  # only sortable tables have buttons
    assert HOSTILE in page.texts["td"]


def test_cooccurrence_is_what_counting_gives():
    rng = np.random.default_rng(0)
    Y = (rng.random((40, 5)) < 0.4).astype(np.uint8)
    Y[:, 4] = 0
    found = cooccurrence(together(Y, Y))
    for a, b in np.ndindex(5, 5):
        with_a = [row for row in Y if row[a]]
        assert found[a, b] == pytest.approx(np.mean([row[b] for row in with_a]) if with_a else 0)


def test_labels_that_come_together_stand_side_by_side():
    rng = np.random.default_rng(1)
    groups = rng.integers(0, 3, 200)
    Y = (groups[:, None] == np.array([0, 1, 2, 0, 1, 2])).astype(np.uint8)
    names = ["sea", "sky", "fir", "boat", "cloud", "moss"]
    figure = report.label_cooccurrence(Y, names)
    drawn(figure)
    order = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert {frozenset(order[i : i + 2]) for i in (0, 2, 4)} == {
        frozenset(pair) for pair in (("sea", "boat"), ("sky", "cloud"), ("fir", "moss"))
    }
    drawn(report.label_cooccurrence(Y[:, :1], ["sea"]))
    drawn(report.label_cooccurrence(Y, names, most=4))
    with pytest.raises(ValueError, match="no label occurs"):
        report.label_cooccurrence(0 * Y, names)


# --- samples to search, and curves of all labels ---------------------------------------------------------------------


def test_samples_are_embedded_whole(tmp_path):
    rng = np.random.default_rng(0)
    scores, Y = rng.normal(size=(9, 3)) * 1e6, np.array([[0, 1, np.nan]] * 9)
    rows = {"a": np.array([[2, 0]] * 9)}
    pixels = rng.integers(0, 255, (8, 8), dtype=np.uint8)
    given = report.Samples(
        list("abcdefghi"), [HOSTILE, "sea", "sky"], Y, scores, rows, np.arange(9)[::-1], image=lambda i: pixels
    )
    page = Page(report.write_report(tmp_path / "r.html", "t", [given])[0])
    assert [attributes.get("type") for attributes in page.all("script")] == ["application/json", None, None]
    data = json.loads(page.texts["script"][0])
    steps = np.frombuffer(base64.b64decode(data["scores"]), "<u2").reshape(9, 3) / 65535
    found = data["low"] + steps * (data["high"] - data["low"])
    np.testing.assert_allclose(found, scores, atol=np.ptp(scores) / 65535)
    assert data["names"] == [HOSTILE, "sea", "sky"]
    assert (data["has"][0], data["unknown"][0], data["given"][0]["rows"][0]) == ([1], [2], [2, 0])
    assert data["rank"] == list(range(9))[::-1]
    image = Image.open(io.BytesIO(base64.b64decode(data["images"]["4"].split(",")[1])))
    np.testing.assert_array_equal(np.asarray(image), pixels)
    policy = next(meta["content"] for meta in page.all("meta") if "default-src" in meta.get("content", ""))
    for script in page.texts["script"][1:]:
        assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() in policy
    assert "unsafe-eval" not in policy


def test_very_many_labels_are_named_but_not_all_searched():
    rng = np.random.default_rng(0)
    Y = (rng.random((50, 3000)) < 0.01).astype(np.uint8)
    rows = {"a": rng.integers(0, 3000, (50, 5))}
    names = [str(j) for j in range(3000)]
    found = report.Samples([str(i) for i in range(50)], names, Y, 1.0 * Y, rows, np.arange(50)).payload()
    data = found["data"]
    assert found["notes"] == ["1,000 of 3,000 labels can be searched for, those with the most samples."]
    assert Y.sum(axis=0)[[int(name) for name in data["names"][:1000]]].min() >= np.sort(Y.sum(axis=0))[-1000]
    for i in range(50):
        assert {data["names"][j] for j in data["has"][i]} == {names[j] for j in np.flatnonzero(Y[i])}
        assert [data["names"][j] for j in data["given"][0]["rows"][i]] == [names[j] for j in rows["a"][i]]


def test_images_stop_at_their_limit_and_the_page_says_so(monkeypatch):
    monkeypatch.setattr(pages, "IMAGE_BYTES", 2000)
    pixels = np.random.default_rng(0).integers(0, 255, (16, 16), dtype=np.uint8)
    Y = np.eye(8)
    names, given = list("abcdefgh"), {"a": np.arange(8)[:, None]}
    found = report.Samples(names, names, Y, Y, given, np.arange(8), image=lambda i: pixels).payload()
    assert list(found["data"]["images"]) == ["0", "7", "1", "6"][: len(found["data"]["images"])]
    assert 0 < len(found["data"]["images"]) < 8
    assert "of 8 samples are shown with their images" in found["notes"][0]
    with pytest.raises(ValueError, match=r"map' has shape \(3, 2\), expected \(8, 2\)"):
        report.Samples(names, names, Y, Y, given, np.arange(8), {"map": np.zeros((3, 2))})
    with pytest.raises(ValueError, match="`given` is empty"):
        report.Samples(names, names, Y, Y, {}, np.arange(8))


def test_calibration_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    P = rng.random((300, 4))
    Y = (rng.random(P.shape) < P**2).astype(float)
    Y[:5] = np.nan
    expected, observed, _, error = reliability(Y, P)
    shares, means = calibration_curve(Y[5:].ravel(), P[5:].ravel(), n_bins=10)
    np.testing.assert_allclose((expected, observed), (means, shares))
    weights = np.histogram(P[5:], np.linspace(0, 1, 11))[0]
    assert error == pytest.approx(np.average(np.abs(means - shares), weights=weights))
    drawn(report.calibration_curves(Y, {HOSTILE: P, "b": P**2}))
    with pytest.raises(ValueError, match="outside 0"):
        report.calibration_curves(Y, {"a": P - 1})


@pytest.mark.parametrize("most", [1000, 100])
def test_thresholds_are_those_of_counting(monkeypatch, most):
    monkeypatch.setattr("dmo.report.figures._SORTED", most)
    rng = np.random.default_rng(0)
    Y, S = (rng.random((60, 5)) < 0.3).astype(float), rng.normal(size=(60, 5))
    thresholds, found = pooled_measures(Y, S)
    assert len(thresholds) == min(most, 300)
    for place in (0, 50, -1):
        given = thresholds[place] <= S
        scores = precision_recall_fscore_support(Y.ravel(), given.ravel(), average="binary")[:3]
        assert [found[name][place] for name in ("precision", "recall", "F1")] == pytest.approx(list(scores))
    figure = report.threshold_curves(Y, {"a": S, "b": -S}, 2)
    drawn(figure)
    f1 = top_scores(Y, S, 3).f1
    assert figure.axes[1].lines[0].get_ydata()[2] == pytest.approx(f1)
    drawn(report.threshold_curves(Y, {"a": S}, 2))


def test_models_are_drawn_on_the_same_axes():
    rng = np.random.default_rng(0)
    Y = (rng.random((80, 4)) < 0.4).astype(np.uint8)
    S = {"first": Y + rng.normal(size=Y.shape), "second": rng.normal(size=Y.shape)}
    figure = report.precision_recall_per_label(Y, S, list("abcd"))
    drawn(figure)
    for ax in figure.axes:
        label = "abcd".index(ax.get_title(loc="left"))
        recall, precision = ax.lines[2].get_data()
        area = np.sum(np.diff(recall) * precision[1:])
        assert area == pytest.approx(average_precision_score(Y[:, label], S["second"][:, label]))
    drawn(report.label_counts({"true": Y.sum(axis=1), HOSTILE: np.full(80, 40)}))
    drawn(report.label_differences(rng.normal(size=50), [f"label {j}" for j in range(50)], "F1 %"))
    drawn(report.residuals(S["first"], S["second"], list("abcd")))


def test_the_style_sheet_closes_what_it_opens_and_says_nothing_twice(tmp_path):
    report.write_report(tmp_path / "r.html", "Title", [])
    style = (tmp_path / "r.html").read_text().split("<style>")[1].split("</style>")[0]
    depths = np.cumsum([(mark == "{") - (mark == "}") for mark in style])
    assert depths.min() == depths[-1] == 0
    rules = [line for line in style.splitlines() if not line.startswith((" ", "}", "@"))]
    assert len(rules) == len(set(rules))


@pytest.mark.slow
def test_labels_of_control_characters_and_of_none_are_shown_as_escapes(tmp_path):
    """XML cannot represent control characters, and some of the characters affect terminals or pages."""
    codes = [*range(32), *range(127, 160), 0x202E, 0x2028, 0xD800, 0xDFFF, 0xFFFE, 0xFFFF]
    names = [f"label {chr(code)} {code}" for code in codes]
    figures = [
        report.heat_map(np.eye(len(names)), names, names),
        report.label_cooccurrence(np.eye(len(names), dtype=int), names, most=len(names)),
    ]
    parts = [report.PageFigure(f"figure-{i}", figure, names[27], names[0]) for i, figure in enumerate(figures)]
    report.write_report(
        tmp_path / "a.html", names[8], [report.Table("T", ["label"], [[name] for name in names]), *parts]
    )
    text = (tmp_path / "a.html").read_bytes().decode("utf-8")
    assert r"label \x1b 27" in text
    body = re.sub(r"<script.*?</script>", "", text, flags=re.DOTALL)
    assert not [name for name in names if name in body and ord(name[6]) not in (9, 10)]


def test_a_full_disk_leaves_nothing_of_a_report_and_keeps_the_former_one(tmp_path):
    parts = [report.PageFigure(name, report.heat_map(np.eye(3), "abc", "abc"), "") for name in ("one", "two")]
    report.write_report(tmp_path / "a.html", "first", parts)
    former = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    for page in (tmp_path / "a.html", tmp_path / "new" / "a.html"):
        # The disk has enough space for the figures, but not for the page.
        with disk_full(300_000), pytest.raises(OSError, match=r"a\.html: cannot write the file"):
            report.write_report(page, "second", parts, lead="x" * 400_000)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == former
    assert not list((tmp_path / "new").iterdir())
