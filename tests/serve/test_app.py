"""Check that the page rejects requests without its token and requests that exceed a limit."""

import json
import threading
import time

import numpy as np
import pytest
from starlette.testclient import TestClient

from dmo.serve.app import _PAGE, HEADERS, Limits, make_app
from dmo.workflows.rows import open_trial

TOKEN = "the-token"
HERE = f"http://127.0.0.1:8000/{TOKEN}/"
ROW = ("new.csv", b"id,weight,color,price\nx,1,red,2\n")


@pytest.fixture(scope="module")
def trial(shop):
    return open_trial(str(shop / "model.zarr"), None, None, 50)


def client(trial, base=HERE, **limits):
    return TestClient(make_app(trial, "model.zarr", TOKEN, Limits(**limits)), base, raise_server_exceptions=False)


def test_the_page_asks_and_is_answered(trial):
    page = client(trial)
    html = page.get("")
    assert html.headers["content-type"].startswith("text/html")
    assert "<script>" not in html.text
    assert "style=" not in html.text
    for name in ("page.css", "page.js"):
        assert name in html.text
        assert page.get(name).status_code == 200
    about = page.get("model.json").json()
    assert about["labels"] == trial.names
    assert about["samples"] == 60
    assert (about["task"], about["space"]) == ("labels", "scores")
    assert [(field["name"], field["kind"], field["missing"]) for field in about["fields"]] == [
        ("weight", "number", False),
        ("color", "category", False),
        ("price", "number", False),
    ]
    (sample,) = page.post("describe", files={"file": ROW}).json()["samples"]
    assert sample["id"] == "x"
    assert sample["features"] == {"weight": "1", "color": "red", "price": "2"}
    assert page.post("describe?all=0", files={"file": ROW}).json()["samples"] == [sample]  # all four labels are shown
    for number in ("1", "-1", "x"):
        assert page.post(f"describe?all={number}", files={"file": ROW}).status_code == 422
    assert sample["labels"] == trial._answers(["x"], {"shop": np.array([[1.0, 0, 0, 1, 2]])})[0]["labels"]
    table = page.post("corrections.csv", json={"samples": [{"id": "x", "labels": ["warm", "new"]}]})
    assert table.text == "sample,labels\nx,warm;new\n"
    assert table.headers["content-type"].startswith("text/csv")


def test_the_routes_and_their_answers_are_those_that_are_documented(trial):
    jsonschema, page = pytest.importorskip("jsonschema"), client(trial)
    document = page.get("openapi.json").json()
    routes = {route.path: route.methods for route in page.app.app.routes}
    routes = {path.replace(":int", ""): methods for path, methods in routes.items() if path not in _PAGE}
    assert {path: {verb.upper() for verb in about} for path, about in document["paths"].items()} == {
        path: methods - {"HEAD"} for path, methods in routes.items()
    }
    answers = {
        ("/model.json", "get", "200"): page.get("model.json"),
        ("/describe", "post", "200"): page.post("describe", files=[("file", ROW)]),
        ("/describe", "post", "422"): page.post("describe"),
        ("/thumbnail/{row}", "get", "404"): page.get("thumbnail/0"),
        ("/corrections.csv", "post", "422"): page.post("corrections.csv", json={"samples": 3}),
    }
    for (path, verb, status), answer in answers.items():
        assert answer.status_code == int(status)
        told = document["paths"][path][verb]["responses"][status]
        if "$ref" in told:
            told = document["components"]["responses"][told["$ref"].rpartition("/")[2]]
        schema = told["content"]["application/json"]["schema"] | {"components": document["components"]}
        jsonschema.validate(answer.json(), schema)
    sent = {"samples": [{"id": "x", "labels": ["warm"]}]}
    jsonschema.validate(sent, document["components"]["schemas"]["Corrections"])
    assert page.post("corrections.csv", json=sent).status_code == 200


def test_every_answer_keeps_scripts_and_other_pages_out(trial):
    page = client(trial)
    for answer in (page.get(""), page.get("nothing"), page.get("/wrong/"), page.post("describe"), page.get("page.js")):
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS
    for directive in HEADERS["content-security-policy"].split("; "):
        assert "unsafe" not in directive


@pytest.mark.parametrize("path", ["/", "/model.json", "/the-toke/", "/the-tokenn/", "/%00/", "/\u00e9/", "//"])
def test_without_its_token_there_is_nothing(trial, path):
    answer = client(trial, "http://127.0.0.1:8000").get(path)
    assert answer.status_code == 404
    assert "token" in answer.json()["error"]


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((name, 200) for name in ("127.0.0.1:8000", "localhost:1", "LOCALHOST", "[::1]:8000", "10.0.0.7")),
        *((name, 421) for name in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example:80", "", "[::1")),
    ],
)
def test_a_name_that_was_made_to_point_here_gets_nothing(trial, host, status):
    assert client(trial).get("", headers={"host": host}).status_code == status


def test_pages_of_other_origins_are_refused(trial):
    page = client(trial)
    for origin, status in (
        ("http://127.0.0.1:8000", 200),
        ("http://127.0.0.1:9", 403),
        ("null", 403),
        ("http://[", 403),
    ):
        answer = page.post("corrections.csv", json={"samples": []}, headers={"origin": origin})
        assert answer.status_code == status


def test_requests_beyond_the_size_are_refused_told_or_not(trial):
    page = client(trial, megabytes=0.01)
    large = b"x" * 20_000
    assert page.post("describe", files={"file": ("a.csv", large)}).status_code == 413
    parts = (large[:4096] for _ in range(5))  # chunks without a Content-Length header
    answer = page.post("corrections.csv", content=parts)
    assert answer.status_code == 413
    assert "more than 0.01 MiB" in answer.json()["error"]
    head = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a.csv"\r\n\r\n'
    answer = page.post(
        "describe",
        content=iter([head, large, b"\r\n--b--\r\n"]),
        headers={"content-type": "multipart/form-data; boundary=b"},
    )
    assert answer.status_code == 413
    for length in ("-1", "many"):
        assert page.post("corrections.csv", content=b"{}", headers={"content-length": length}).status_code == 413


def test_files_and_rows_beyond_their_numbers_are_refused(trial):
    page = client(trial, files=2)
    assert page.post("describe", files=[("file", ROW)] * 3).status_code == 400
    answer = page.post("describe", files={"file": ("a.csv", b"weight,color,price\n" + b"1,red,2\n" * 51)})
    assert answer.status_code == 422
    assert "a.csv has 51 rows, but at most 50" in answer.json()["error"]


def test_requests_beyond_their_number_in_a_minute_are_refused_until_it_is_over(trial, monkeypatch):
    page = client(trial, a_minute=3)
    assert [page.get("page.css").status_code for _ in range(4)] == [200, 200, 200, 429]
    now = time.monotonic
    monkeypatch.setattr("dmo.serve.app.time.monotonic", lambda: now() + 61)
    assert page.get("page.css").status_code == 200


def test_requests_beyond_the_time_are_answered_and_those_at_once_are_few(trial, monkeypatch):
    begun, go = threading.Event(), threading.Event()

    def slow(self, uploads, seconds, only):
        begun.set()
        go.wait(20)
        return []

    monkeypatch.setattr(type(trial), "rows", slow)
    with client(trial, seconds=0.2) as page:
        late = page.post("describe", files={"file": ROW})
        assert late.status_code == 503
        assert "no answer after 0.2 seconds" in late.json()["error"]
        go.set()
    begun.clear(), go.clear()
    answers = []
    with client(trial, at_once=1) as page:
        first = threading.Thread(target=lambda: answers.append(page.post("describe", files={"file": ROW})))
        first.start()
        assert begun.wait(20)
        second = page.get("page.css")
        go.set()
        first.join()
    assert second.status_code == 503
    assert "1 requests are already being processed" in second.json()["error"]
    assert answers[0].status_code == 200


def test_names_of_files_are_no_paths(trial, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "precious.csv").write_text("mine")
    for name in (
        "../precious.csv",
        str(tmp_path / "precious.csv"),
        "precious.csv",
        "a\0b.csv",
        "..",
        "x" * 5000 + ".csv",
    ):
        client(trial).post("describe", files={"file": (name, ROW[1])})
    assert [path.name for path in tmp_path.iterdir()] == ["precious.csv"]
    assert (tmp_path / "precious.csv").read_text() == "mine"


@pytest.mark.parametrize(
    "asked",
    [
        b"",
        b"[]",
        b'{"samples": 3}',
        b'{"samples": [{"id": "", "labels": []}]}',
        b'{"samples": [{"id": "a", "labels": [1]}]}',
        json.dumps({"samples": [{"id": "a" * 301, "labels": []}]}).encode(),
        json.dumps({"samples": [{"id": "a", "labels": ["b;c"]}]}).encode(),
        b"[" * 100_000,
    ],
)
def test_corrections_that_are_none_are_refused_in_a_sentence(trial, asked):
    answer = client(trial).post("corrections.csv", content=asked)
    assert answer.status_code == 422
    assert answer.json()["error"]


def test_requests_that_are_none_are_refused(trial):
    page = client(trial)
    assert page.post("describe").status_code == 422
    assert page.post("describe", data={"file": "text"}).status_code == 400
    assert page.get("describe").status_code == 405
    assert page.get("thumbnail/0").status_code == 404
    assert page.get("thumbnail/x").status_code == 404
    assert page.get("../pyproject.toml").status_code == 404
