"""Test the report in a browser: search, filters, details, map, content policy and accessibility."""

import shutil

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from dmo import report
from dmo.workflows.search import answering

HOSTILE = '</script><script>alert("x")</script><b>&'
NAMES = ["sea", "wide, flat", HOSTILE, "boat"]
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.fixture(scope="module")
def chromium():
    sync_api = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium):
    """Return a function that opens files in the browser and fails on messages of a page, such as policy violations."""
    said, contexts = [], []

    def open_(path, **options):
        contexts.append(chromium.new_context(**options))
        page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: said.append(f"alert: {dialog.message}"))
        page.goto(path.as_uri())
        return page

    yield open_
    for context in contexts:
        context.close()
    assert said == []


def evidence(n=40, names=NAMES, **options):
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(n, len(names)))
    Y = (scores + rng.normal(size=scores.shape) > 0.5).astype(float)
    Y[0, 0] = np.nan
    given = {"ridge": np.argsort(-scores, axis=1)[:, :2], HOSTILE: np.argsort(scores, axis=1)[:, :2]}
    ids = [f"sample {i}" for i in range(n - 1)] + [HOSTILE]
    options = {"planes": {"scores": scores[:, :2], "space": scores[:, 2:]}} | options
    options = {"features": lambda rows: {"wide": rows / 8, HOSTILE: [None if i % 2 else "fir" for i in rows]}} | options
    return report.Samples(ids, names, Y, scores, given, np.arange(n), **options)


def written(folder, samples):
    figure = Figure(figsize=(5, 3))
    figure.add_subplot().bar(["a", "b"], [1, 2])
    parts = [
        report.Table("scores", ["model", "F1"], [["ridge", 0.5], [HOSTILE, 0.25]], best=["F1"]),
        samples,
        report.PageFigure("bars", figure, "Two bars.", "b is twice a."),
        report.Table("labels", ["label", "samples"], [["sky", 3], ["sea", 25], ["sun", None]], interactive=True),
        report.Table("parameters", ["name", "value"], [["ridge", "1.0"]], folded=True),
    ]
    return report.write_report(folder / "r.html", "Report", parts, {"samples": 40}, "A lead.")[0]


@pytest.fixture
def path(tmp_path):
    return written(tmp_path, evidence(image=lambda i: np.full((80, 100, 3), i, np.uint8) if i % 2 else None))


def cards(page):
    return page.locator(".card .name").all_inner_texts()


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_axe_finds_nothing_to_mend(path, opened, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = opened(path, viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.locator("summary").click()
    found = axe.run(page).response["violations"]
    page.fill("[name=labels]", "sea")
    page.locator(".card").first.click()
    found += axe.run(page).response["violations"]
    assert [(each["id"], [node["html"] for node in each["nodes"]]) for each in found] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_samples_are_ranked_as_dmo_search_ranks_them(path, opened):
    page, samples = opened(path), evidence()
    page.fill("[name=labels]", "boat, WIDE, flat")
    best = np.argsort(-answering(samples.scores, [3, 1]), kind="stable")
    assert cards(page) == [samples.ids[i] for i in best[:12]]
    page.locator(".more").click()
    assert cards(page) == [samples.ids[i] for i in best[:36]]
    page.select_option("[name=order]", "worst")
    assert cards(page)[0] == samples.ids[best[-1]]
    page.fill("[name=labels]", "boa, hill")
    assert "no label “hill”; boat: " in page.locator(".found").inner_text()


@pytest.mark.parametrize("kind", ["right", "wrong", "missed"])
def test_samples_are_shown_by_what_was_given(path, opened, kind):
    page, samples = opened(path), evidence()
    page.fill("[name=labels]", "sea")
    page.select_option("[name=show]", kind)
    page.select_option("[name=order]", "stored")
    given, true = (samples.given["ridge"] == 0).any(axis=1), samples.Y[:, 0]
    wanted = {"right": given & (true == 1), "wrong": given & (true == 0), "missed": ~given & (true == 1)}[kind]
    assert wanted.sum() > 0
    while page.locator(".more").is_visible():
        page.locator(".more").click()
    assert cards(page) == [samples.ids[i] for i in np.flatnonzero(wanted)]


def test_a_sample_opens_with_its_scores_and_what_every_model_gives_it(path, opened):
    page, samples = opened(path), evidence()
    page.select_option("[name=order]", "stored")
    page.locator(".card").nth(1).click()
    dialog = page.locator("dialog")
    assert dialog.locator("h3").inner_text() == "sample 1"
    assert dialog.locator("img").evaluate("image => image.naturalWidth") == 100
    for place in (page.locator(".card").nth(1), dialog):
        assert place.locator(".features span").all_inner_texts() == ["wide", "0.125", HOSTILE, "–"]
    heads = dialog.locator("thead th").all_inner_texts()
    assert heads == ["label", "ridge", HOSTILE, "score"]
    for row in dialog.locator("tbody tr").all():
        name = row.locator("th").inner_text()
        label = NAMES.index(name)
        cells = row.locator("td").all_inner_texts()
        assert float(cells[2].replace("−", "-")) == pytest.approx(samples.scores[1, label], rel=0.01, abs=1e-3)
        for cell, rows in zip(cells, samples.given.values()):
            truth, given = samples.Y[1, label] == 1, label in rows[1]
            assert cell.split()[-1:] == ([["missed"], ["right"]][given] if truth else [[], ["wrong"]][given])
    dialog.locator(".next").click()
    assert dialog.locator("h3").inner_text() == "sample 2"
    assert dialog.locator("img").count() == 0
    page.keyboard.press("ArrowLeft")
    assert dialog.locator("h3").inner_text() == "sample 1"
    page.keyboard.press("Escape")
    assert not dialog.is_visible()


def test_the_map_names_the_sample_below_the_pointer_and_zooms(path, opened):
    page, samples = opened(path), evidence()
    canvas, tip = page.locator("canvas"), page.locator(".tip")
    box = canvas.bounding_box()
    far = int(np.argmax(samples.planes["scores"][:, 0]))  # index of the rightmost point
    low, high = samples.planes["scores"][:, 1].min(), samples.planes["scores"][:, 1].max()
    y = box["height"] - 24 - (samples.planes["scores"][far, 1] - low) / (high - low) * (box["height"] - 38)
    canvas.hover(position={"x": box["width"] - 14, "y": y})
    assert tip.locator("b").inner_text() == samples.ids[far]
    before = canvas.evaluate("canvas => canvas.toDataURL()")
    page.get_by_role("button", name="zoom in").click()
    page.wait_for_function("before => document.querySelector('canvas').toDataURL() !== before", arg=before)
    assert tip.is_hidden()
    canvas.click(position={"x": 5, "y": 5})  # click where no point is drawn
    page.get_by_role("button", name="whole map").click()
    page.wait_for_function("before => document.querySelector('canvas').toDataURL() === before", arg=before)
    canvas.click(position={"x": box["width"] - 14, "y": y})
    assert page.locator("dialog h3").inner_text() == samples.ids[far]


def test_map_offers_spaces_and_exports_selected_ids(path, opened):
    page, samples = opened(path, viewport={"width": 1280, "height": 1200}), evidence()
    canvas = page.locator("canvas")
    before = canvas.evaluate("canvas => canvas.toDataURL()")
    page.select_option("[name=map]", "space")
    assert canvas.evaluate("canvas => canvas.toDataURL()") != before
    page.select_option("[name=map]", "scores")
    page.get_by_role("button", name="select by drawing").click()
    box = canvas.bounding_box()
    corners = [(1, 1), (box["width"] / 2, 1), (box["width"] / 2, box["height"] - 1), (1, box["height"] - 1)]
    page.mouse.move(box["x"] + 1, box["y"] + 1)
    page.mouse.down()
    for x, y in corners:
        page.mouse.move(box["x"] + x, box["y"] + y, steps=3)
    page.mouse.up()
    places = (
        samples.planes["scores"] - (samples.planes["scores"].max(axis=0) + samples.planes["scores"].min(axis=0)) / 2
    )
    x = 24 + (places[:, 0] / np.abs(places).max() + 1) / 2 * (box["width"] - 38)
    wanted = [samples.ids[i] for i in np.flatnonzero(x < box["width"] / 2)]
    assert page.locator(".found").inner_text() == f"{len(wanted)} selected; {len(wanted)} of 40 samples"
    with page.expect_download() as file:
        page.get_by_role("button", name="download ids").click()
    saved = pd.read_csv(file.value.path())
    assert file.value.suggested_filename == "samples.csv"
    assert saved["sample"].tolist() == wanted
    page.get_by_role("button", name="clear selection").click()
    assert page.locator(".found").inner_text() == "40 of 40 samples"


def test_the_map_is_colored_by_the_rarest_of_the_common_labels_and_its_legend_names_them(tmp_path, opened):
    Y = np.zeros((40, 4))
    Y[:30, 0] = Y[:12, 1] = Y[35:, 3] = 1  # twelve samples have labels 0 and 1
    scores = np.random.default_rng(0).random((40, 4))
    given = {"ridge": np.argsort(-scores, axis=1)[:, :1]}
    corners = np.c_[np.r_[np.full(12, -1.0), np.full(28, 1.0)], np.linspace(-1, 1, 40)]
    plain = {"given": given, "order": np.arange(40), "planes": {"corners": corners}, "score": "probability"}
    page = opened(written(tmp_path, report.Samples([*"abcdefgh"] * 5, NAMES, Y, scores, **plain)))
    legend = page.locator(".map figcaption")
    assert legend.locator(".key").all_inner_texts() == ["sea", "wide, flat", "boat", "others"]
    assert "the rarest of these labels" in legend.inner_text()
    colors = """canvas => { const found = {}, half = canvas.width / 2, {data} =
      canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      for (let i = 0; i < data.length; i += 4) if (data[i + 3] == 255) {
        const side = i / 4 % canvas.width < half ? "left" : "right", color = [data[i], data[i + 1], data[i + 2]].join();
        ((found[side] ??= {})[color] ??= 0, found[side][color]++); }
      return Object.fromEntries(Object.entries(found).map(([side, counts]) =>
        [side, Object.entries(counts).filter(([, count]) => count > 60).map(([color]) => color).sort()])); }"""
    drawn = page.locator("canvas").evaluate(colors)
    assert len(drawn["left"]) == 1  # "wide, flat" is rarer than "sea"
    assert drawn["left"][0] not in drawn["right"]
    page.locator(".card").first.click()
    cell = page.locator("dialog tbody td.n").first.inner_text()
    assert cell.endswith(" %")
    assert float(cell[:-2]) == pytest.approx(100 * scores[0].max(), abs=0.06)


def test_a_map_of_more_samples_than_a_page_holds_says_so_and_answers(tmp_path, opened):
    page = opened(written(tmp_path, evidence(30_000)))
    assert "20,000 of 30,000 samples, evenly chosen." in page.locator(".samples .note").all_inner_texts()
    page.fill("[name=labels]", "sea")
    assert page.locator(".found").inner_text().endswith("20,000 of 20,000 samples")


def test_a_table_is_sorted_and_filtered(path, opened):
    page = opened(path)
    rows = page.locator(".sorts tbody tr th, .sorts tbody tr td:first-child")
    page.get_by_role("button", name="samples", exact=True).click()
    assert rows.all_inner_texts() == ["sea", "sky", "sun"]
    page.locator(".sorts input").fill("su")
    assert page.locator(".sorts output").inner_text() == "1 of 3"
