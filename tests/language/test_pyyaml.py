"""YAML of dstack and SkyPilot is read as PyYAML reads it, which both use."""

from __future__ import annotations

import datetime as dt
import math

import pytest
import yaml  # type: ignore[import-untyped]
from hypothesis import example, given
from hypothesis import strategies as st

from declarative.language.source import read
from declarative.model.diagnostic import InvalidError

PLAIN = st.text(alphabet="01289abefxnoy_+-.:/~", min_size=1, max_size=9)
# A colon at the end of an item of a flow list makes a mapping of it: nobody writes `[a:]`.
SCALARS = st.one_of(
    PLAIN.filter(lambda text: text[-1] != ":"),
    st.sampled_from(["yes", "No", "on", "OFF", "y", "null", "~", "010", "0o10", "1:30", "1e3", "L4:1"]),
)


def as_ours(value):
    """PyYAML's value as we keep it: dates and odd numbers stay text, keys are text."""
    if isinstance(value, dict):
        return {str(k): as_ours(v) for k, v in value.items()}
    if isinstance(value, list):
        return [as_ours(item) for item in value]
    return value


def text_alone(value):
    """Whether PyYAML makes of it what we leave as text."""
    if isinstance(value, dict):
        keys = [k for k in value if not isinstance(k, str)]  # for Python, 1 and true are one key, 0 and false
        return (
            len(keys) > 1
            or keys in ([0], [1])
            or any(text_alone(k) or text_alone(v) for k, v in value.items())
        )
    if isinstance(value, list):
        return any(map(text_alone, value))
    odd = isinstance(value, float) and not math.isfinite(value)
    return odd or isinstance(value, dt.date) or (isinstance(value, int | float) and abs(value) > 2**53)


FORMS = st.one_of(
    st.lists(SCALARS, min_size=1, max_size=3).map(lambda items: "a: [" + ", ".join(items) + "]\n"),
    st.lists(SCALARS, min_size=1, max_size=3).map(lambda items: "a: {" + ", ".join(items) + "}\n"),
    st.tuples(SCALARS, SCALARS).map(lambda two: f"{two[0]}: {two[1]}\n"),
    st.tuples(SCALARS, SCALARS).map(lambda two: f"a: {{{two[0]}: {two[1]}}}\n"),
    SCALARS.map(lambda text: f"a: &x {{b: {text}, c: 1}}\nd:\n  <<: *x\n  c: 2\ne: {{<<: [*x, {{b: 3}}]}}\n"),
)


@given(FORMS)
@example("resources: {accelerators: {L4:1, A10G:1}}\n")
@example("a: [L4:1, H100:8]\nb: {cpu: arm:4}\n")
@example("a: 1\na: 2\n")
@example("a: {0, No}\n")
@example("envs: {FOO:, BAR:}\n")
@example("a: {'H100:1', \"A100:1\"}\n")
def test_it_is_read_as_pyyaml_reads_it(text):
    try:
        expected = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, TypeError, OverflowError):
        return
    if not isinstance(expected, dict) or text_alone(expected):
        return
    (document,) = read(text, "a.yaml", pyyaml=True)
    assert document.data == as_ours(expected)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a: {b: [", "yaml-syntax"),
        ("a: !!python/name:os.system", "unsupported-yaml"),
        ("a: {<<: 3}", "yaml-syntax"),
    ],
)
def test_what_pyyaml_refuses_is_an_error_with_its_place(text, code):
    with pytest.raises(InvalidError) as error:
        read(text, "a.yaml", pyyaml=True)
    (found,) = error.value.diagnostics
    assert found.code == code
    assert found.span is not None
    assert found.span.line == 1


def test_a_large_file_is_refused_at_once():
    with pytest.raises(InvalidError) as error:
        read("a: " + "x" * (1 << 19), "a.yaml", pyyaml=True)
    assert [d.code for d in error.value.diagnostics] == ["too-large"]
    deep = read("a: 1", "a.yaml", pyyaml=True)
    assert deep[0].data == {"a": 1}
    with pytest.raises(InvalidError) as error:
        read("a: " + "[" * 5000, "a.yaml", pyyaml=True)
    assert [d.code for d in error.value.diagnostics] == ["too-deep"]
