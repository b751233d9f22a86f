"""`fleetform fmt`."""

from __future__ import annotations

import contextlib
import difflib
import os
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from declarative.cli.errors import Failed
from declarative.cli.options import examples
from declarative.cli.output import emit_text
from declarative.language.loader.findings import Findings
from declarative.model.diagnostic import Severity, Span, in_order


class _RefusedError(Exception):
    """A file that is not formatted, and why."""

    def __init__(self, code: str, summary: str, hint: str | None = None) -> None:
        super().__init__(summary)
        self.code, self.summary, self.hint = code, summary, hint


@click.command(
    "fmt",
    epilog=examples(
        "fleetform fmt", "fleetform fmt --check --diff     in CI", "fleetform fmt fleets/gpu.yaml"
    ),
)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False))
@click.option("--check", is_flag=True, help="Write nothing; list the files that would change, and exit 1.")
@click.option("--diff", is_flag=True, help="Write nothing; show what would change.")
@click.pass_context
def fmt_command(ctx: click.Context, files: tuple[str, ...], check: bool, diff: bool) -> int:
    """Put the project's files, or FILES, into their normal form, and print the names of those that changed.

    Keys come in one order, values in one notation. Comments, templates and the order of lists stay, and the
    files mean the same. A file that is not valid YAML is reported and left alone.
    """
    root = Path(ctx.obj["directory"])
    findings = Findings()
    targets: dict[Path, str] = {}
    for name, path in [(name, Path(name)) for name in files] if files else _project(root, findings):
        with _reporting(name, findings):
            targets.setdefault(_target(path, root), name)
    changed = 0
    for target, name in targets.items():
        with _reporting(name, findings):
            changed += _one(name, target, findings, check=check, diff=diff)
    found = in_order(findings.items)
    if any(item.severity is Severity.ERROR for item in found):
        raise Failed(found)
    if found:
        Failed(found).show()
    return 1 if check and changed else 0


def _project(root: Path, findings: Findings) -> list[tuple[str, Path]]:
    """The files that the loader reads, by its own rules: which may be opened, and what `include` names."""
    from declarative.language.loader.documents import classify
    from declarative.language.loader.files import ProjectFiles
    from declarative.language.loader.project import complete, declared, excluded, find_project, settle

    other = Findings()  # about documents: `validate` says it
    files = ProjectFiles(root, findings)
    project = declared(find_project(classify(files.own(excluded=excluded), other), other), other)
    project = complete(project, settle(project, other, {}, (), os.environ), other)
    if project.document is not None and project.spec.include:
        files.included(project.document, project.spec.include)
    refused = {item.span.file for item in findings.items if item.span and item.code == "not-a-file"}
    return [(name, root / name) for name in files.names() if name not in refused]


@contextlib.contextmanager
def _reporting(name: str, findings: Findings) -> Iterator[None]:
    """What goes wrong with a file becomes a finding."""
    try:
        yield
    except _RefusedError as refused:
        findings.add(refused.code, refused.summary, refused.hint, span=Span(name, 1, 1, 1, 1))
    except OSError as error:
        findings.add("unreadable", f"`{name}`: {error.strerror}", span=Span(name, 1, 1, 1, 1))


def _one(name: str, path: Path, findings: Findings, *, check: bool, diff: bool) -> bool:
    """Format one file, or say what would change; whether anything does."""
    from declarative.language.source.format import format_text
    from declarative.render.text import clean

    content = _content(path)
    formatted = format_text(content, name)
    findings.extend(formatted.diagnostics)
    if formatted.text is None or formatted.text.encode() == content:
        return False
    if diff:
        emit_text("".join(_diff(content.decode(), formatted.text, clean(name))))
    elif check:
        emit_text(f"{clean(name)}\n")
    else:
        _replace(path, formatted.text.encode())
        emit_text(f"{clean(name)}\n")
    return True


def _target(path: Path, root: Path) -> Path:
    """The file itself: a link is followed as long as it stays in the project."""
    target = path.resolve()
    if path.is_symlink() and not target.is_relative_to(root.resolve()):
        summary = f"`{path}` is a link that leads outside of the project"
        raise _RefusedError("outside-project", summary, "name the file itself")
    return target


def _content(path: Path) -> bytes:
    from declarative.language.source import MAX_BYTES

    if not stat.S_ISREG(path.stat().st_mode):
        raise _RefusedError("not-a-file", f"`{path.name}` is not a regular file", "rename or remove it")
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)


def _replace(path: Path, content: bytes) -> None:
    """Put new content in the place of a file, whole or not at all, with the same mode and owner."""
    status = path.stat()
    if not status.st_mode & 0o222 or not os.access(path, os.W_OK):
        summary = f"`{path.name}` is read-only, and would change"
        raise _RefusedError("unwritable", summary, f"make it writable: `chmod u+w {path.name}`")
    try:
        descriptor, temporary = tempfile.mkstemp(
            dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".tmp"
        )
    except OSError as error:
        raise _RefusedError("unwritable", f"`{path.parent}` cannot be written: {error.strerror}") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
                with contextlib.suppress(OSError):
                    os.fchown(file.fileno(), status.st_uid, status.st_gid)
            os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode))
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except OSError as error:
        raise _RefusedError("unwritable", f"`{path.name}` cannot be written: {error.strerror}") from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()
    _sync(path.parent)


def _sync(folder: Path) -> None:
    """Make the new name last, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _diff(old: str, new: str, name: str) -> Iterator[str]:
    """A unified diff; what cannot be seen, or turns what can, is shown as its escape."""
    from declarative.render.text import clean

    found = difflib.unified_diff(_lines(old), _lines(new), f"a/{name}", f"b/{name}")
    for line in found:
        shown = "\t".join(map(clean, line.removesuffix("\n").split("\t")))
        yield f"{shown}\n" if line.endswith("\n") else f"{shown}\n\\ No newline at end of file\n"


def _lines(text: str) -> Sequence[str]:
    *lines, last = text.replace("\r", "^M").split("\n")
    return [*(f"{line}\n" for line in lines), *([last] if last else [])]
