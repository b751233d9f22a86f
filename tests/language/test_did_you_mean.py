"""`did you mean …?`: names the mistyped word, and no other."""

from __future__ import annotations

import dataclasses

import click
import pytest

from declarative.cli import COMMANDS, cli, errors
from declarative.model.schema import Problem, decode, fields_of
from declarative.model.spec import DOCUMENTS
from declarative.model.spec.backend import CatalogOffer, Network
from declarative.model.spec.fleet import HostFields, ProxyJump, SshConfig
from declarative.model.spec.values import Resources
from declarative.model.text import suggest

REGIONS = (
    *("us-east-1", "us-east-2", "us-west-1", "us-west-2", "eu-west-1", "eu-central-1", "ap-northeast-1"),
    *("us-central1", "europe-west4", "westeurope", "eastus", "eastus2", "nyc3", "fra"),
)


def typos(word: str) -> set[str]:
    """Every word that is one slip away: two letters swapped, one left out, doubled, or replaced."""
    cut = [(word[:i], word[i:]) for i in range(len(word))]
    swapped = {a + b[1] + b[0] + b[2:] for a, b in cut if len(b) > 1}
    dropped = {a + b[1:] for a, b in cut}
    doubled = {a + b[0] + b for a, b in cut}
    replaced = {a + c + b[1:] for a, b in cut for c in "qx"}
    return (swapped | dropped | doubled | replaced) - {word}


def misses(known: tuple[str, ...], hint_of=None) -> list[tuple[str, str, str | None]]:
    """The slips for which the right word is not named, or more than three are."""
    hint_of = hint_of or (lambda typed: suggest(typed, known))
    return [
        (word, typed, hint)
        for word in known
        for typed in sorted(typos(word) - set(known))
        if len(typed) > 2 and f"`{word}`" not in ((hint := hint_of(typed)) or "")
    ]


@pytest.mark.parametrize(
    "known", [REGIONS, tuple(COMMANDS), tuple(DOCUMENTS)], ids=["regions", "commands", "documents"]
)
def test_one_slip_is_answered_with_the_word_that_was_meant(known):
    assert misses(known) == []


@pytest.mark.parametrize(
    "cls",
    [*DOCUMENTS.values(), Resources, CatalogOffer, Network, HostFields, ProxyJump, SshConfig],
    ids=lambda cls: cls.__name__,
)
def test_one_slip_in_a_field_is_answered_with_the_field(cls):
    """Unless it is the name of the field in another tool, which has an answer of its own."""

    def hint(typed: str) -> str | None:
        if typed in {**getattr(cls, "ELSEWHERE", {}), **getattr(cls, "FOREIGN", {})}:
            return f"`{typed}`" + " ".join(f"`{f.name}`" for f in fields_of(cls))
        problems: list[Problem] = []
        decode(cls, {typed: 1}, (), problems)
        return next(p.hint for p in problems if p.path == (typed,))

    assert misses(tuple(f.name for f in dataclasses.fields(cls)), hint) == []


def of_command(name: str) -> list[click.Command]:
    """A command, or those below it."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    return list(command.commands.values()) if isinstance(command, click.Group) else [command]


@pytest.mark.parametrize("name", list(COMMANDS))
def test_one_slip_in_an_option_is_answered_with_the_option(name):
    for command in of_command(name):
        long = [opt for param in command.params for opt in param.opts if opt.startswith("--")]

        def hint(typed: str, command: click.Command = command) -> str | None:
            error = click.NoSuchOption(typed, ctx=click.Context(command))
            return errors.usage(error, [typed]).diagnostics[0].hint

        wrong = [
            m
            for m in misses(tuple(long), hint)
            if m[1].startswith("--") and m[1].lstrip("-") not in errors.OPTIONS
        ]
        assert wrong == []


@pytest.mark.parametrize(
    ("typed", "known", "hint"),
    [
        ("us-esat-1", REGIONS, "did you mean `us-east-1`?"),
        ("US-EAST-1", REGIONS, "did you mean `us-east-1`?"),
        ("eu-est-1", ("eu-east-1", "eu-west-1"), "did you mean `eu-east-1` or `eu-west-1`?"),
        ("secrets", ("fleets", "regions", "retry"), None),
        ("workdir", ("files", "working_dir"), None),
        ("identity", ("identity_file", "user"), "did you mean `identity_file`?"),
        ("max", ("max_price", "maximum"), "did you mean `max_price`?"),
        ("creat", ("creation_policy", "creation_time"), None),
        ("cordon", tuple(COMMANDS), None),
        ("xy", ("gpu", "cpu"), None),
        ("", ("gpu",), None),
    ],
)
def test_far_words_are_not_named(typed, known, hint):
    assert suggest(typed, known) == hint
