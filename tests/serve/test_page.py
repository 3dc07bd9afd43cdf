"""Use `dmo serve` in a browser: upload a file, correct a label, and download a table."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import urlopen

import psutil
import pytest
import uvicorn
from shell import run

from dmo.cli.serve import _listening, _until_interrupted

BROWSER = Path("/usr/bin/chromium")
REQUESTS = int(os.environ.get("DMO_REQUESTS", "300"))


@contextmanager
def served(*arguments, **settings):
    """Run `dmo serve ARGUMENTS`, and yield its address, and the output and exit code after an interrupt."""
    command = [sys.executable, "-m", "dmo", "serve", *map(str, arguments)]
    left = {}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | settings
    ) as server:
        try:
            yield server.stdout.readline().strip(), left
        finally:
            server.send_signal(signal.SIGINT)
            _, left["said"] = server.communicate(timeout=30)
            left["code"] = server.returncode


def test_ctrl_c_before_the_page_runs_ends_it_without_a_warning(capsys):
    class Interrupted(uvicorn.Config):
        def get_loop_factory(self):
            signal.raise_signal(signal.SIGINT)
            return super().get_loop_factory()

    async def silent(scope, receive, send):
        pass

    server = uvicorn.Server(Interrupted(silent, log_level="warning", lifespan="off"))
    with _listening("127.0.0.1", 0) as listener, _until_interrupted(server):
        server.run([listener])
    assert capsys.readouterr().err == "stopped\n"


@pytest.mark.skipif(not BROWSER.exists(), reason="needs Chromium")
def test_a_row_is_dropped_put_right_and_taken_home(shop, tmp_path):
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python").Axe()
    evil = "<img src=x onerror=alert(1)>"
    (tmp_path / "new.csv").write_text(f"id,weight,color,price\n{evil},4,red,21\nb,2,green,10\n")
    (tmp_path / "bad.csv").write_text("weight\n1\n")
    with served(shop / "model.zarr") as (address, left), playwright.sync_playwright() as play:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", address)
        browser = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page(viewport={"width": 390, "height": 800}, color_scheme="dark")
        errors = []
        page.on("console", lambda message: errors.append(message.text))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        page.get_by_text("At most 64 MiB and 500 rows per request").wait_for()
        assert "predicts which of 4 labels a sample has" in page.locator("#about").text_content()
        assert page.locator("#example pre").text_content().startswith("weight,color,price\n")
        page.get_by_role("button", name="Predict").click()
        row = page.locator(".sample").filter(has=page.get_by_role("heading", name="Row 1", exact=True))
        row.get_by_text("item 0 1.00").wait_for()  # the example row is the first known sample
        assert row.locator("th").all_text_contents() == ["weight", "color", "price"]
        assert row.locator("td").all_text_contents()[1] == "red"
        assert "Cosine similarity of the scores of the model" in row.locator(".meaning").text_content()
        page.get_by_label("weight").fill("9.5")
        page.get_by_role("button", name="Predict").click()
        page.get_by_role("heading", name="Row 2", exact=True).wait_for()
        assert page.locator(".sample").first.locator("td").first.text_content() == "9.5"
        for name in ("Row 1", "Row 2"):
            page.get_by_role("button", name=f"Remove {name}").click()
        page.set_input_files("#files", [tmp_path / "new.csv"])
        page.get_by_text("Done.", exact=True).wait_for()
        assert errors == []
        page.set_input_files(
            "#files", [tmp_path / "bad.csv", tmp_path / "new.csv"]
        )  # a new upload replaces the previous one
        page.get_by_text("bad.csv: the column 'color").wait_for()
        page.get_by_text("1 of 2 rejected.").wait_for()
        assert page.locator("h3").all_text_contents() == [evil, "b"]  # HTML in names is escaped
        sample = page.locator(".sample").filter(has_text=evil)
        warm = sample.get_by_label(re.compile("^warm"))
        assert warm.is_checked()
        warm.uncheck()
        sample.get_by_label("Another label").fill("a new one")
        sample.get_by_role("button", name="Add").click()
        assert page.locator("#count").text_content() == "1 of 2 checked, 1 corrected"
        page.get_by_role("button", name="Mark all as checked").click()
        with page.expect_download() as waited:
            page.get_by_role("button", name="Download").click()
        waited.value.save_as(tmp_path / "corrections.csv")
        violations = [found["id"] for width in (390, 1280) for found in _violations(page, axe, width)]
        assert violations == []
        assert len(errors) == 1  # the browser logs one rejected request
        assert "422" in errors[0]
        browser.close()
    assert left["code"] == 0, left["said"]
    assert left["said"].splitlines()[-1] == "stopped"
    rows = (tmp_path / "corrections.csv").read_text().splitlines()
    assert rows[0] == "sample,labels"
    corrected = next(row for row in rows if row.startswith(evil))
    assert "a new one" in corrected
    assert "warm" not in corrected
    assert "Traceback" not in left["said"]


def _violations(page, axe, width):
    """Return the accessibility violations of a page, and check that the page is not wider than the screen."""
    page.set_viewport_size({"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    return axe.run(page).response["violations"]


@pytest.mark.slow
def test_many_requests_and_silent_connections_keep_nobody_from_the_page_and_leave_it_as_it_was(shop):
    table = b"id,weight,color,price\r\nx,1,red,2\r\n"
    form = b'--b\r\nContent-Disposition: form-data; name="file"; filename="%s"\r\n\r\n' + table + b"\r\n--b--\r\n"
    kinds = ("page", "table", "words", "cut", "slow", "large", "token", "junk", "json")

    def ask(number):
        """Send a request, and return its kind and status, or 0 after a closed connection and -1 after an error."""
        kind = kinds[number % len(kinds)]
        body = {"table": form % b"a.csv", "words": form % b"a.exe", "cut": form % b"a.csv", "json": b"[" * 5000}.get(
            kind, b""
        )
        path = {"page": "", "token": "../wrong/", "json": "corrections.csv"}.get(kind, "describe")
        length = {"cut": 2 * len(body), "slow": 10, "large": 1 << 40}.get(kind, len(body))
        head = (
            f"{'GET' if kind in ('page', 'token') else 'POST'} {where.path}{path} HTTP/1.1\r\nHost: {where.netloc}\r\n"
            f"Content-Type: multipart/form-data; boundary=b\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
        ).encode()
        with (
            suppress(ConnectionError, TimeoutError),
            socket.create_connection((where.hostname, where.port), timeout=40) as connection,
        ):
            connection.sendall(b"\x00\xff junk \r\n\r\n" if kind == "junk" else head + body)
            if kind == "slow":
                time.sleep(0.2)
                connection.sendall(b"--b--\r\n \r\n")
            if kind == "cut":
                connection.shutdown(socket.SHUT_WR)
            answer = connection.makefile("rb").readline()
            return kind, int(answer.split()[1]) if answer else 0
        return kind, -1

    def taken():
        family = [server, *server.children(recursive=True)]
        return sum(process.memory_info().rss for process in family)

    with served(shop / "model.zarr", "--no-browser", "--seconds", "20") as (address, left):
        where = urlsplit(address)
        (server,) = (p for p in psutil.Process().children() if "serve" in p.cmdline())
        for number in range(3 * len(kinds)):
            ask(number)
        before = taken()
        silent = [socket.create_connection((where.hostname, where.port)) for _ in range(70)]
        for connection in silent[1::2]:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: 127")
        with ThreadPoolExecutor(8) as pool:
            found = Counter(pool.map(ask, range(REQUESTS)))
        for connection in silent:  # the server must close every silent connection
            connection.settimeout(30)
            with suppress(ConnectionResetError):
                assert connection.recv(1) == b""
            connection.close()
        time.sleep(1)
        grown = taken() - before
        print(f"{REQUESTS} requests: {sorted(found.items())}; memory {before >> 20} MiB, grown by {grown >> 20} MiB")
        # The server may answer with 429 after 600 requests in a minute.
        with suppress(HTTPError), urlopen(address, timeout=30) as answer:
            assert answer.status == 200
    assert left["code"] == 0, left
    assert "Traceback" not in left["said"]
    expected = {"page": {200}, "table": {200}, "words": {422}, "cut": {0, 400, 422}, "slow": {400, 422}, "large": {413}}
    expected |= {"token": {404}, "junk": {400}, "json": {422}}
    for kind in kinds:
        assert {status for of, status in found if of == kind} <= {*expected[kind], 429, 503}, (kind, found)
    assert found["page", 200]
    assert found["table", 200]
    assert grown < 64 << 20


@pytest.mark.slow
def test_the_token_is_not_visible_to_other_users(shop, tmp_path):
    browser = tmp_path / "browser"
    browser.write_text(f'#!/bin/sh\nprintf %s "$*" > {tmp_path}/arguments\n')
    browser.chmod(0o755)
    with served(shop / "model.zarr", "--browser", BROWSER=f"{browser} %s") as (address, _):
        for _ in range(300):
            if (tmp_path / "arguments").exists() and (given := (tmp_path / "arguments").read_text()):
                break
            time.sleep(0.1)
        assert urlsplit(address).path.strip("/") not in given
        page = Path(urlsplit(given).path)
        assert (page.stat().st_mode & 0o777, page.parent.stat().st_mode & 0o777) == (0o600, 0o700)
        assert f"url={address}" in page.read_text()
    assert not page.exists()


def test_addresses_that_cannot_be_listened_on_are_refused(shop):
    model = shop / "model.zarr"
    assert "cannot listen on 203.0.113.7, port 0" in run("serve", model, "--host", "203.0.113.7", code=2).stderr
    assert "no store" in run("serve", model, shop / "nothing.zarr", code=2).stderr.lower()


def test_a_missing_extra_is_said(shop, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "pip install dmo-learn[serve]" in run("serve", shop / "model.zarr", code=2).stderr
