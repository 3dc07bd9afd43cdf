"""One page for each command of `dmo`, from the commands themselves: what it does, its arguments, its options."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dmo.cli import app as command_line
from dmo.cli.commands import Lazy, command_of

FOLDER = "reference/commands"
GROUPS = {"fit": command_line.fit, "plan": command_line.plan, "tune": command_line.tune}


def setup(app: Any) -> dict[str, bool]:
    write_pages(app)  # before Sphinx looks for files
    return {"parallel_read_safe": True}


def write_pages(app: Any) -> None:
    folder = Path(app.srcdir, FOLDER)
    folder.mkdir(parents=True, exist_ok=True)
    for name, entry in command_line.COMMANDS.items():
        _write(folder / f"{name}.rst", "\n".join(_page(name, entry)))
    listed = "\n".join(f"   {name}" for name in command_line.COMMANDS)
    _write(folder / "index.rst", f"{_title('Commands', '=')}\n.. toctree::\n   :maxdepth: 2\n\n{listed}\n")


def _page(name: str, entry: Lazy) -> list[str]:
    path = f"dmo {name}"
    if name in GROUPS:
        entries: Mapping[str, Lazy] = GROUPS[name].info.cls.entries  # type: ignore[union-attr]
        members = {inner: command_of(member, f"{path} {inner}") for inner, member in entries.items()}
    else:
        command = command_of(entry, path)
        members = getattr(command, "commands", None)
    if not members:
        return [_title(path, "="), _paragraph(command.help), *_usage(command, path)]
    parts = [_title(path, "="), _paragraph(entry.help)]
    for inner, member in members.items():
        parts += [_title(f"{path} {inner}", "-"), _paragraph(member.help), *_usage(member, f"{path} {inner}")]
    return parts


def _usage(command: Any, path: str) -> list[str]:
    parameters = [p for p in command.params if p.name != "help" and not getattr(p, "hidden", False)]
    arguments = [p for p in parameters if p.param_type_name == "argument"]
    usage = " ".join([path, *(_argument(p) for p in arguments), "[OPTIONS]"])
    entries = [_entry(_argument(p), p) for p in arguments]
    entries += [_entry(_flags(p), p) for p in parameters if p.param_type_name == "option"]
    return [f".. code-block:: text\n\n   {usage}\n", *entries]


def _argument(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required else f"[{name}]"


def _flags(option: Any) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    return names if option.is_flag else f"{names} {option.metavar or option.display_type(None)}"


def _entry(names: str, parameter: Any) -> str:
    words, default = " ".join((parameter.help or "").split()), parameter.default
    if (
        isinstance(default, int | float | str)
        and not isinstance(default, bool)
        and default != ""
        and "efault" not in words
    ):
        words += f" Default: {default}."
    return f"``{names}``\n   {_plain(words) or 'Required.'}\n"


def _paragraph(text: str | None) -> str:
    return f"{_plain(' '.join((text or '').split()))}\n"


def _title(text: str, under: str) -> str:
    return f"{text}\n{under * len(text)}\n"


def _plain(text: str) -> str:
    """Help as reStructuredText: `names` are code, what else looks like markup is meant as it stands."""
    parts = text.split("`")
    if len(parts) % 2 == 0:
        return re.sub(r"([*`|_\\])", r"\\\1", text)
    return "".join(f"``{part}``" if i % 2 else re.sub(r"([*|_\\])", r"\\\1", part) for i, part in enumerate(parts))


def _write(path: Path, text: str) -> None:
    """Only where it differs, so that Sphinx reads again what has changed."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
