"""Take the pictures of pages that README and site show: `python docs/screenshots.py`; needs Playwright and Chromium."""

import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from dmo.cli.demo import demo

FOLDER = Path(__file__).parent / "_static"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def keep(page: Page, name: str) -> None:
    """The window as a PNG of few colors: a quarter of the bytes."""
    path = FOLDER / f"{name}.png"
    page.screenshot(path=path)
    Image.open(path).convert("RGB").quantize(96, dither=Image.Dither.NONE).save(path, optimize=True)


with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
    demo(Path(folder, "demo"))
    browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
    page = browser.new_page(viewport={"width": 1180, "height": 800})
    page.goto(Path(folder, "demo", "report.html").as_uri())
    page.locator("section.samples").scroll_into_view_if_needed()
    page.evaluate("document.querySelector('section.samples').scrollIntoView()")
    page.wait_for_timeout(500)
    keep(page, "report")
    page.locator(".card").nth(1).click()
    page.wait_for_timeout(300)
    keep(page, "report-opened")
    browser.close()
