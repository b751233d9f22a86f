"""`fleetform import`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from declarative.cli.failure import Failed, failed
from declarative.cli.session import emit_text

if TYPE_CHECKING:
    from declarative.source import Document

FORMATS = ("dstack", "skypilot")


@click.command("import")
@click.argument("source", metavar="|".join(FORMATS), type=click.Choice(FORMATS))
@click.argument(
    "files",
    metavar="FILE…",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
)
@click.option(
    "--out", metavar="FILE", type=click.Path(path_type=Path), help="Write a new file instead of stdout."
)
def command(source: str, files: tuple[Path, ...], out: Path | None) -> int:
    """Print documents of fleetform for those of another tool, with a comment on what was lost or changed.

    Nothing is contacted, and no file is changed; --out makes a new one. Read the comments, then
    `fleetform validate`.
    """
    from declarative.loader.documents import file_name
    from declarative.loader.foreign_formats import Draft, backends_of, text_of

    if source == "dstack":
        from declarative.loader.from_dstack import convert
    else:
        from declarative.loader.from_skypilot import convert
    drafts: list[Draft] = []
    for file in files:
        name = file_name(file.name) or "imported"
        for number, document in enumerate(_documents(file)):
            drafts += convert(document, f"{name}-{number}" if number else name)
    drafts = [*backends_of(drafts), *drafts]
    text = text_of(drafts, f"Converted from {source}: {', '.join(file.name for file in files)}")
    if out is None:
        emit_text(text)
        return 0
    try:
        with out.open("x", encoding="utf-8") as file_out:
            file_out.write(text)
    except FileExistsError:
        raise failed("not-overwritten", f"`{out}` is there: it is left alone", "name another file") from None
    except OSError as error:
        raise failed("unwritable", f"`{out}` cannot be written: {error.strerror}") from None
    emit_text(f"Wrote {out}. Next: read its comments, then `fleetform validate`.\n")
    return 0


def _documents(file: Path) -> list[Document]:
    """What stands in a file; `Failed` with all that is wrong with its YAML."""
    from declarative.diagnostic import InvalidError
    from declarative.source import MAX_BYTES, read

    try:
        with file.open("rb") as opened:
            return read(opened.read(MAX_BYTES + 1), file.name)
    except InvalidError as error:
        raise Failed(error.diagnostics) from None
    except OSError as error:
        raise failed("unreadable", f"`{file}` cannot be read: {error.strerror}") from None
