"""Take the pictures of reports in the README and the documentation with `python docs/screenshots.py`.

The script needs Playwright and Chromium.
"""

import shutil
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from dmo.cli.demo import demo

FOLDER = Path(__file__).parent / "_static"
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def keep(page: Page, name: str) -> None:
    """Save a screenshot of the window as a PNG file with 96 colors, which needs a quarter of the bytes."""
    path = FOLDER / f"{name}.png"
    page.screenshot(path=path)
    Image.open(path).convert("RGB").quantize(96, dither=Image.Dither.NONE).save(path, optimize=True)


def main() -> None:
    """Run the demo, and take pictures of its report."""
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


if __name__ == "__main__":  # The workers of the demo import this module.
    main()
