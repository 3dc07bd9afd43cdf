"""Check that progress messages are disabled by default and report failures correctly."""

import io
import re
import sys
import time
from types import SimpleNamespace

import dask
import pytest
from rich.console import Console
from rich.progress import Task, TaskID

import dmo.progress
from dmo.progress import bars, shown, stage


def last_line(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()[-1] if console.file.getvalue() else ""


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=120)


def test_a_library_call_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with stage("quiet", 3) as advance:
        advance(3)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("total", "steps", "counter"),
    [
        (4, [1, 1, 2], "4/4"),
        (10, [1, 1], "2/2"),
        (None, [1] * 3, "3/3"),
        (5, [], "5/5"),
        (None, [], "1/1"),
        (0, [], "1/1"),
    ],
)
def test_a_stage_that_ends_is_complete_with_the_steps_it_took(
    console: Console, total: int | None, steps: list[int], counter: str
) -> None:
    with bars(console), stage("work", total) as advance:
        for step in steps:
            advance(step)
    assert "work " in last_line(console)
    assert f" {counter} " in last_line(console)


def test_a_stage_that_raises_is_shown_as_failed(console: Console) -> None:
    def failing() -> None:
        with stage("work", 8) as advance:
            advance(3)
            raise ZeroDivisionError

    with bars(console) as seconds, pytest.raises(ZeroDivisionError):
        failing()
    assert "work (failed)" in last_line(console)
    assert "3/8" in last_line(console)
    assert "8/8" not in last_line(console)
    assert "work" in seconds


def test_seconds_of_stages_are_added_up_by_name(console: Console) -> None:
    with bars(console) as seconds:
        for _ in range(2):
            with stage("outer"), stage("inner"):
                time.sleep(0.02)
    assert set(seconds) == {"outer", "inner"}
    assert 0.04 <= seconds["inner"] <= seconds["outer"]


def test_a_stage_that_comes_again_keeps_its_line_and_adds_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(dmo.progress, "time", SimpleNamespace(perf_counter=lambda: now))
    console = Console(file=io.StringIO(), width=120, get_time=lambda: now)
    with bars(console):
        for total in (2, 3):
            with stage("again", total):
                now += 0.6
        with stage("other"):
            pass
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert [line.split()[0] for line in lines] == ["again", "other"]
    assert " 3/3 0:00:01 " in lines[0]


def test_bars_may_be_switched_off_and_still_take_the_time(console: Console) -> None:
    with bars(console, disable=True) as seconds, stage("work"):
        pass
    assert last_line(console) == ""
    assert seconds["work"] >= 0


def test_stages_after_the_block_are_silent_again(console: Console) -> None:
    with bars(console) as seconds:
        pass
    with stage("later"):
        pass
    assert seconds == {}


@pytest.mark.parametrize("brief", [False, True])
def test_a_long_stage_reports_progress_without_a_terminal(
    brief: bool, console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dmo.progress, "_LINES", 0.02)

    def until(said: str) -> None:
        for _ in range(6000):
            if re.search(said, console.file.getvalue(), re.MULTILINE):  # type: ignore[attr-defined]
                return
            time.sleep(0.01)
        raise AssertionError(f"{said} is not in {console.file.getvalue()!r}")  # type: ignore[attr-defined]

    with bars(console, brief=brief):
        with stage("outer", 3), stage("inner", 8) as advance:
            until(r"^inner: 0 steps in \d:\d\d:\d\d$")
            advance(2)
            until(r"^inner: 25% \(2 of 8 steps\) in \d:\d\d:\d\d, \d:\d\d:\d\d left$")
        with stage("unknown") as advance:
            advance(5)
            until(r"^unknown: 5 steps in \d:\d\d:\d\d$")
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "outer: " not in said
    assert (not brief) == bool(re.search("^outer +[━╸]", said, re.MULTILINE))


def test_the_time_left_is_as_the_steps_so_far() -> None:
    task = Task(TaskID(0), "pass", 8, 2, _get_time=lambda: 130.0)
    task.start_time = 10.0
    assert dmo.progress._progress_line(task) == "pass: 25% (2 of 8 steps) in 0:02:00, 0:06:00 left"


def test_on_a_terminal_there_are_bars_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dmo.progress, "_LINES", 0.001)
    terminal = Console(file=io.StringIO(), width=120, force_terminal=True)
    with bars(terminal), stage("work", 4) as advance:
        advance(1)
        time.sleep(0.05)
    assert "steps" not in terminal.file.getvalue()  # type: ignore[attr-defined]


class Terminal(io.StringIO):
    """Standard error that is a terminal."""

    def isatty(self) -> bool:
        return True


def work() -> None:
    with shown(), shown(), stage("work", 4) as advance:
        advance(1)
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("setting", "delay", "printed"),
    [(None, 0.001, True), (True, 0.001, True), (False, 0.001, False), (None, 9.0, False)],
)
def test_long_calls_show_bars_in_a_terminal(
    setting: bool | None, delay: float, printed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(dmo.progress, "_DELAY", delay)
    with dask.config.set({"dmo.progress": setting}):
        work()
    assert ("work" in terminal.getvalue()) == printed


def test_calls_show_no_bars_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dmo.progress, "_DELAY", 0.001)
    with dask.config.set({"dmo.progress": None}):
        work()
    assert capsys.readouterr() == ("", "")


def test_notebooks_show_bars_as_html(monkeypatch: pytest.MonkeyPatch) -> None:
    outputs: list[str] = []

    def display(html: str, display_id: bool) -> SimpleNamespace:
        return SimpleNamespace(update=outputs.append)

    monkeypatch.setattr(dmo.progress, "_DELAY", 0.001)
    monkeypatch.setattr(dmo.progress, "_REFRESH", 0.001)
    console = Console(file=io.StringIO(), force_jupyter=True)
    monkeypatch.setattr("rich.console.Console", lambda **_: console)
    shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel=None))
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(HTML=str, display=display))
    with dask.config.set({"dmo.progress": None}):
        work()
    assert re.match(r'<progress max="4" value="1" aria-label="work: 25% \(1 of 4 steps\)', next(filter(None, outputs)))
    assert outputs[-1] == console.file.getvalue() == ""  # type: ignore[attr-defined]
