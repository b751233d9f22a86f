"""`${{ … }}`: its values, which names are allowed where, and what a stranger cannot make it do."""

import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from declarative.language.template import (
    MAX_EXPRESSIONS,
    MAX_OUTPUT,
    MissingEnvError,
    Place,
    TemplateError,
    TemplateScope,
    env_names,
    for_ranks,
    interpolate,
    resolve_env,
)
from declarative.model.schema import Json

VARIABLES: dict[str, Json] = {
    "n": 4,
    "price": 2.5,
    "s": "abc",
    "b": True,
    "items": "it",
    "_u": 3,
    "long": "x" * 60_000,
}


def scope(**more) -> TemplateScope:
    return TemplateScope(VARIABLES, **more)


def value(text, place=Place.TEXT, within=None):
    out: list[TemplateError] = []
    result = interpolate(text, within or scope(), place, out)
    assert out == []
    return result


def fault(text, place=Place.TEXT, within=None) -> TemplateError:
    out: list[TemplateError] = []
    interpolate(text, within or scope(), place, out)
    (error,) = out
    return error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("plain", "plain"),
        ("", ""),
        ("${{ var.n }}", 4),
        ("${{var.price}}", 2.5),
        ("${{ var.b }}", True),
        ("${{ var.s }}", "abc"),
        ("a-${{ var.n }}-${{ var.b }}", "a-4-true"),
        (" ${{ var.n }}", " 4"),
        ("${{ var.n * 2 + 1 }}", 9),
        ("${{ var.n // 3 }}", 1),
        ("${{ -var.n }}", -4),
        ("${{ var.s ~ '-' ~ var.n }}", "abc-4"),
        ("${{ var.s + 'd' }}", "abcd"),
        ("${{ var.s | upper }}", "ABC"),
        ("${{ var.s | replace('b', '-') }}", "a-c"),
        ("${{ '7' | int + 1 }}", 8),
        ("${{ 'x' if var.n > 3 and var.b else 'y' }}", "x"),
        ("${{ var.items }}", "it"),  # not the method of a mapping
        ("${{ var._u }}${{ var._u + 1 }}", "34"),
        ("${{ '}}' }}", "}}"),
        ("${{ '${{' }} }}", "${{ }}"),
        ("${{ True }}", True),
        ("${{ " + "not " * 120 + "true }}", True),
        (
            "${{ 1\n}} {% for a in range(9) %}{{ a }}{% endfor %}",
            "1 {% for a in range(9) %}{{ a }}{% endfor %}",
        ),
    ],
)
def test_values(text, result):
    found = value(text)
    assert found == result
    assert type(found) is type(result)


@pytest.mark.parametrize(
    "text",
    [
        "${#x}",
        "${x}",
        "$x",
        "{{ x }}",
        "{% for a in b %}",
        "{# c #}",
        "{{ var.n }}",
        "$ {{ var.n }}",
        "}}",
        "a\r\n b ",
    ],
)
def test_shell_and_other_templates_pass_untouched(text):
    assert value(text) == text
    assert value(text + "${{ var.n }}" + text) == f"{text}4{text}"


@pytest.mark.parametrize("name", ["n", "price", "s", "b", "items", "_u"])
def test_a_single_name_means_what_it_means_to_jinja(name):
    """The shortcut for names and the compiled expression are one language."""
    assert value(f"${{{{ var.{name} }}}}") == value(f"${{{{ (var.{name}) }}}}") == VARIABLES[name]


def test_a_name_alone_needs_no_jinja():
    code = (
        "import sys; from declarative.language.template import *; out = [];"
        "interpolate('d-${{ var.x }}-${{ node_rank }}', TemplateScope({'x': 1}), Place.VOLUME, out);"
        "assert not out;"
        "assert 'jinja2' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ------------------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("text", "place", "code", "summary", "hint"),
    [
        (
            "${{ var.prize }}",
            Place.TEXT,
            "undefined-variable",
            "no variable `prize` is declared",
            "`var.price`",
        ),
        (
            "${{ var.zzz }}",
            Place.TEXT,
            "undefined-variable",
            "no variable `zzz` is declared",
            "declare it in the",
        ),
        (
            "${{ var.zzz + 1 }}",
            Place.TEXT,
            "undefined-variable",
            "no variable `zzz` is declared",
            "declare it",
        ),
        (
            "${{ price }}",
            Place.TEXT,
            "undefined-variable",
            "`price` is not defined",
            "did you mean `var.price`?",
        ),
        ("${{ nod_rank }}", Place.VOLUME, "undefined-variable", "`nod_rank` is not defined", "`node_rank`"),
        (
            "${{ dstack.run }}",
            Place.TEXT,
            "undefined-variable",
            "`dstack.run` is not defined",
            "known: `var.x` (declare x",
        ),
        (
            "${{ qqqqq }}",
            Place.TEXT,
            "undefined-variable",
            "`qqqqq` is not defined",
            "known: `var.x` (declare x",
        ),
        ("${{ secrets.A }}", Place.ENV, "undefined-variable", "`secrets.A` is not defined", "env.NAME"),
        ("${{ env.HOME }}", Place.TEXT, "env-here", "`env.HOME` cannot be used here", "write `env: [HOME]`"),
        (
            "${{ env.HOME }}",
            Place.VOLUME,
            "env-here",
            "`env.HOME` cannot be used here",
            "write `env: [HOME]`",
        ),
        (
            "${{ node_rank }}",
            Place.TEXT,
            "node-rank-here",
            "`node_rank` can be used only",
            "$FLEETFORM_NODE_RANK",
        ),
        (
            "${{ dstack.job_num + 1 }}",
            Place.ENV,
            "node-rank-here",
            "`node_rank` can be used only",
            "$FLEETFORM",
        ),
        (
            "data:/x/${{ node_rank }}",
            Place.VOLUME,
            "node-rank-here",
            "`node_rank` can be used only",
            "$FLEETFORM",
        ),
        ("${{ env.A | upper }}", Place.ENV, "template-error", "an `env` name can be no part", "alone"),
        (
            "a ${{ var.x",
            Place.TEXT,
            "template-error",
            "`${{ var.x` is never closed",
            "end the expression with `}}`",
        ),
        ("${{ 'a }}", Place.TEXT, "template-error", "a `'` in `${{ 'a }}` is never closed", "another `'`"),
        ("${{ var.x }", Place.TEXT, "template-error", "`${{ var.x }` is never closed", "end the expression"),
        (
            "${{ }}",
            Place.TEXT,
            "template-error",
            "`${{ }}` is empty",
            "such as `${{ var.x }}`",
        ),
        ("${{ 1 + }}", Place.TEXT, "template-error", "`1 +` is not an expression: ", "behind `+`"),
        ("${{ 1 %}x{% }}", Place.TEXT, "template-error", "`1 %}x{%` is not an expression: ", "no loops"),
        ("${{ 1 / 0 }}", Place.TEXT, "template-error", "`1 / 0` fails: division by zero", "not 0"),
        ("${{ none }}", Place.TEXT, "template-error", "`none` gives neither text nor a number", None),
        (
            "${{ '${{' }}",
            Place.ENV,
            "template-error",
            "`'${{'` gives text with `${{`, which would be evaluated",
            None,
        ),
        ("${{ '\\0' ~ '' }}", Place.TEXT, "template-error", "`'\\0' ~ ''` gives text with U+0000", None),
    ],
)
def test_errors(text, place, code, summary, hint):
    error = fault(text, place)
    assert error.code == code
    assert error.summary.startswith(summary)
    assert (hint in (error.hint or "")) if hint else error.hint is None


def test_every_expression_of_a_text_is_reported():
    out: list[TemplateError] = []
    interpolate("${{ var.aaaa }} ${{ env.X }} ${{ node_rank }}", scope(), Place.TEXT, out)
    assert [error.code for error in out] == ["undefined-variable", "env-here", "node-rank-here"]


def test_variables_without_a_value_have_been_reported_before():
    assert fault("${{ var.q }}", within=scope(unset=frozenset({"q"}))).code == "unset"
    assert fault("${{ var.q }}", within=scope(open=True)).code == "unset"


# ------------------------------------------------------------------------------------------------ env, ranks


def test_env_is_kept_for_the_start_of_the_rank():
    kept = value("u=${{env.USER}}/${{ var.n }}/${{ env.B }}", Place.ENV)
    assert kept == "u=${{ env.USER }}/4/${{ env.B }}"
    assert env_names(kept) == ("USER", "B")
    assert resolve_env(kept, {"USER": "me", "B": "${{ env.USER }}"}) == "u=me/4/${{ env.USER }}"
    assert value("${{ env.USER }}", Place.ENV) == "${{ env.USER }}"
    assert env_names("no ${USER}") == ()


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("a $${{ var.n }} b", "a ${{ var.n }} b"),
        ("$${{ '", "${{ '"),
        ("${{ var.n }}$${{ var.n }}", "4${{ var.n }}"),
        ("$$${{ x }}", "$${{ x }}"),
        ("{$${{ x }}}", "{${{ x }}}"),
    ],
)
def test_two_dollars_are_the_text(text, result):
    """`$${{` is `${{` as text, in `env` from the start of the rank on: no variable is read there."""
    assert value(text, Place.TEXT) == result
    kept = value(text, Place.ENV)
    assert env_names(kept) == ()
    assert resolve_env(kept, {"x": "no"}) == result
    assert (
        resolve_env(value("$${{ env.A }} ${{ env.A }}", Place.ENV), {"A": "$${{ b"}) == "${{ env.A }} $${{ b"
    )


def test_two_dollars_are_no_part_of_a_mount():
    assert fault("data-$${{ node_rank }}:/data", Place.VOLUME).code == "template-error"


def test_no_value_makes_text_of_what_comes_after_it():
    """A value that ends with `$` would make `$${{` of what is kept for the start of the rank."""
    found = fault("${{ 'a$' }}${{ env.B }}", Place.ENV)
    assert found.summary == "the value before `env.B` ends with `$`, which would change its meaning"


@pytest.mark.parametrize("text", ["0..${{ '' }}", "${{ ' ' }}..4", "H100:1..${{ '' }}:80GB", "0.. ${{ '' }}"])
def test_an_end_of_a_range_is_not_empty(text):
    """`0..` is a range without a limit; `0..${{ var.n }}` has one, whose value is missing."""
    assert fault(text, Place.AMOUNT).code == "template-error"
    assert value(text, Place.TEXT) == value(
        text.replace("${{ '' }}", "").replace("${{ ' ' }}", " "), Place.TEXT
    )
    assert value("0..${{ var.n }}", Place.AMOUNT) == "0..4"


def test_a_missing_variable_is_named_and_no_value_is():
    with pytest.raises(MissingEnvError, match="the environment variable `B` is not set") as info:
        resolve_env("${{ env.A }}${{ env.B }}", {"A": "secret"})
    assert info.value.name == "B"
    assert "secret" not in str(info.value)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("data-${{ node_rank }}", ["data-0", "data-1"]),
        ("data-${{ dstack.node_rank }}", ["data-0", "data-1"]),
        ("data-${{dstack.job_num}}", ["data-0", "data-1"]),
        ("data-${DSTACK_NODE_RANK}", ["data-0", "data-1"]),
        ("${{ var.s }}-${{ node_rank + var.n }}", ["abc-4", "abc-5"]),
        ("${{ var.s ~ '-' ~ node_rank }}", ["abc-0", "abc-1"]),
    ],
)
def test_names_by_rank(text, names):
    within = scope()
    kept = value(text + ":/data", Place.VOLUME, within)
    assert kept.endswith(":/data")
    name = for_ranks(kept.removesuffix(":/data"), within)
    assert name is not None
    assert [name(rank) for rank in (0, 1)] == names


def test_a_name_that_all_ranks_have():
    assert for_ranks("data-0", scope()) is None


# ------------------------------------------------------------------------------------------------ hostile

EVIL = [
    "'x' * 10",
    "10 * 'x'",
    "2 ** 100",
    "'%999999999d' % 1",
    "range(10)",
    "[1] * 10",
    "(1, 2)",
    "{'a': 1}",
    "var.s.upper()",
    "var.s.__class__",
    "var['s']",
    "var.s[0]",
    "''.join(var.s)",
    "var",
    "dstack",
    "1.5 | round(999999999)",
    "var.s | center(999999999)",
    "var.s | length",
    "var.n is defined",
    "self",
    "lipsum()",
    "cycler",
    "namespace()",
    "loop",
    "var.long | replace('', var.long)",
    "var.long ~ var.long",
    "999999999999999999 * 999999999999999999",
    "(" * 200 + "1" + ")" * 200,
    "(" * 240 + "1" + ")" * 240,
    "-" * 450 + "1",
    "x" * 501,
    "1 if",
    "a b",
    "'\\ud800' ~ ''",
    "\\",
    "|",
    "1e999",
    "1e308 * 10 - 1e308 * 10",
]


@pytest.mark.parametrize("text", EVIL, ids=lambda v: v[:20])
def test_what_could_loop_call_or_eat_memory_is_refused(text):
    start = time.process_time()
    out: list[TemplateError] = []
    interpolate("${{ " + text + " }}", scope(), Place.TEXT, out)
    assert out or text.startswith("(" * 200)  # deep parentheses alone are no harm, if they can be read
    assert all(len(error.summary) < 400 for error in out)
    assert time.process_time() - start < 2


def test_the_number_of_expressions_is_limited():
    within = scope()
    out: list[TemplateError] = []
    for i in range(MAX_EXPRESSIONS + 5):
        interpolate(f"${{{{ ({i} }}}}", within, Place.TEXT, out)
    assert len(out) == MAX_EXPRESSIONS + 5
    assert out[-1].summary == "there are more than 2000 different expressions"


def test_the_output_of_a_project_is_limited():
    within = scope()
    out: list[TemplateError] = []
    text = interpolate("${{ var.long }}" * 1000, within, Place.TEXT, out)
    assert out[-1].summary == "`var.long` gives too much text"
    assert len(str(text)) <= MAX_OUTPUT


@given(st.text(max_size=80), st.sampled_from(Place))
def test_any_text_gives_a_value_or_an_error(text, place):
    out: list[TemplateError] = []
    result = interpolate(text, scope(), place, out)
    assert isinstance(result, str | int | float)
    if "${{" not in text and "${DSTACK" not in text:
        assert (result, out) == (text, [])


WORDS = [
    "var.n",
    "var.s",
    "node_rank",
    "env.A",
    "+",
    "*",
    "~",
    "(",
    ")",
    "|",
    "upper",
    "'a'",
    "1",
    "if",
    "else",
    ".",
    "}}",
    "${{",
]


@given(st.lists(st.sampled_from(WORDS), max_size=12), st.sampled_from(Place))
def test_any_expression_gives_a_value_or_an_error(words, place):
    out: list[TemplateError] = []
    within = scope()
    result = interpolate("${{ " + " ".join(words) + " }}", within, place, out)
    assert isinstance(result, str | int | float)
    assert all(error.code and error.summary for error in out)


# Input, the error, and a part of the hint.
SAID = [
    ("${{ var.x } }", "`${{ var.x } }` is never closed", "two braces, no space"),
    ("${{ var x }}", "`var x` is not an expression: a `.` is missing", "write `var.x`"),
    ("${{ x y }}", "`x y` is not an expression: two values stand side by side", "`~` joins text"),
    ("${{ 'a' + x y }}", "`'a' + x y` is not an expression: two values", "`~` joins text"),
    ("${{ 500 GB }}", "`500 GB` is not an expression: a number and a word", "without `${{ }}`"),
    ("${{ var.x | uper }}", "`var.x | uper` is not an expression: there is no filter", "`upper`?"),
    ("${{ var.x | length }}", "`var.x | length` is not an expression: there is no filter", "float, int"),
    ("${{ var.x | default('a') }}", "`var.x | default('a')` is not an expression", "`default:`"),
    ("${{ var.x | }}", "`var.x |` is not an expression: something is missing behind `|`", "behind `|`"),
    ("${{ | upper }}", "`| upper` is not an expression: nothing stands before `|`", "before it"),
    ("${{ var.x is defined }}", "`is` cannot be used in an expression", "`==`"),
    ("${{ {% if a %} }}", "`{% if a %}` is not an expression: there are no statements", "a if b else c"),
    ("${{ if var.x }}", "`if var.x` is not an expression: there are no statements", "a if b else c"),
    ("${{ for a in b }}", "`for a in b` is not an expression: there are no statements", "no loops"),
    ("${{ var.x }}}", "there is an extra `}` after `${{ var.x }}`", "two of them"),
    ("${{{ var.x }}}", "`{ var.x` is not an expression: there is an extra `{`", "two of them"),
    ("${{ ${{ var.x }} }}", "`${{ var.x` is not an expression: `{{` occurs in it", "names alone"),
    ("${{ a && b }}", "`a && b` is not an expression: `&&` is not an operator", "`and`"),
    ("${{ a || 'b' }}", "`a || 'b'` is not an expression: `||` is not an operator", "`or`"),
    ("${{ !a }}", "`!a` is not an expression: `!` is not an operator", "`not`"),
    ("${{ a ? 1 : 2 }}", "`a ? 1 : 2` is not an expression: `?` is not an operator", "`a if b else c`"),
    ("${{ a === 1 }}", "`a === 1` is not an expression: `===` is not an operator", "`==`"),
    ("${{ a = 1 }}", "`a = 1` is not an expression: `=` is not an operator", "`==`"),
    ("${{ $x }}", "`$x` is not an expression: `$` has no meaning", "the name alone"),
    ("${{ a ; }}", "`a ;` is not an expression: it contains a sign that has no meaning", "in quotes"),
    ("${{ a @ b }}", "`a @ b` is not an expression: `@` has no meaning here", "in quotes"),
    ("${{ (a }}", "`(a` is not an expression: `(` is never closed", "`)`"),
    ("${{ a) }}", "`a)` is not an expression: `)` closes nothing", "remove it"),
    ("${{ var. }}", "`var.` is not an expression: a name is missing", "`var.x`"),
    ("${{ a.b.c }}", "a name has two parts at most", "`var.x`"),
    ("${{ var.x[0] }}", "`[ ]` cannot be used", "with a dot"),
    ("${{ f(1) }}", "functions and methods cannot be called", "filters"),
    ("${{ 2 ** 9 }}", "`**` cannot be used", "`*`"),
    ("${{ 1, 2 }}", "`,` cannot be used", "`~` joins text"),
    ("${{ [1] }}", "a list cannot be written", "text or a number"),
    ("${{ {'a': 1} }}", "a mapping cannot be written", "text or a number"),
    ("${{ 'a' < 1 }}", "`'a' < 1` fails: text and numbers cannot be compared", "`var.x | int`"),
    ("${{ 'a' | upper(1) }}", "`'a' | upper(1)` fails: `upper` takes 1", "what it takes"),
    ("${{ 'a' * 2 }}", "`'a' * 2` fails: `*` is for numbers", "`~`"),
    ("${{ " + "a" * 501 + " + 1 }}", "an expression has at most 500 characters", "several"),
]


@pytest.mark.parametrize(("text", "summary", "hint"), SAID)
def test_what_is_no_expression_is_said_in_the_words_of_the_user(text, summary, hint):
    """No word of Jinja2's own: `token`, `print statement`, the names of its nodes."""
    error = fault(text)
    assert error.code == "template-error"
    assert error.summary.startswith(summary), error.summary
    assert hint in (error.hint or "")
    assert not any(word in error.summary for word in ("token", "statement'", "getattr", "do_", "unexpected"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{a: ${{ 1 }}}", "{a: 1}"),
        ("${X:-${{ 1 }}}", "${X:-1}"),
        ("${{ 1 }} }", "1 }"),
        ("${{ 1 }}${{ '}' }}", "1}"),
        ("x ${{ 1 }} { ${{ 2 }}}", "x 1 { 2}"),
    ],
)
def test_a_brace_behind_an_expression_is_text_where_one_was_opened(text, value):
    assert interpolate(text, TemplateScope(), Place.TEXT, []) == value


def test_a_long_name_of_a_volume_is_read_in_linear_time():
    text = "${DSTACK_NODE_RANK}" * 100_000
    start = time.process_time()
    interpolate(text, TemplateScope(), Place.VOLUME, [])
    assert time.process_time() - start < 5
