"""Keys are written where the hosts stand in the YAML, and every other byte of the file stays."""

from __future__ import annotations

import base64

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from declarative.language import formatter
from declarative.language.formatter import with_host_keys
from declarative.language.source import parse
from declarative.model.spec.fleet import HostKey, fingerprint
from declarative.planner.hosts import in_flow
from tests.providers.ssh.machines import run


def key_of(number: int) -> str:
    """A whole key, which no one has."""
    body = b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + bytes([number]) * 32
    return f"ssh-ed25519 {base64.b64encode(body).decode()}"


KEY, OTHER = key_of(1), key_of(2)
HEAD = """\
# the rack
type: fleet
name: rack   # as on the door
placement: any
ssh_config:
  user: root
  hosts:   # from left to right
"""
TAIL = """
---
type: task
name: train   # stays
commands: ["true"]
"""
FORMS = {
    "a name": ("    - h1   # top", "    - {hostname: h1, host_keys: [KEY]}   # top"),
    "an address": ("    - 10.0.0.1", "    - {hostname: 10.0.0.1, host_keys: [KEY]}"),
    "an address of IPv6": ('    - "fe80::1"', '    - {hostname: "fe80::1", host_keys: [KEY]}'),
    "a flow mapping": (
        "    - {port: 2200, hostname: h1}  # x",
        "    - {port: 2200, hostname: h1, host_keys: [KEY]}  # x",
    ),
    "a flow mapping with a last comma": (
        "    - {hostname: h1, port: 2200, }",
        "    - {hostname: h1, port: 2200, host_keys: [KEY] }",
    ),
    "a block mapping": (
        "    - hostname: h1   # x\n      port: 2200  # y",
        "    - hostname: h1   # x\n      host_keys: [KEY]\n      port: 2200  # y",
    ),
    "a block mapping with its name last": (
        "    -\n      port: 2200\n      hostname: h1",
        "    -\n      port: 2200\n      hostname: h1\n      host_keys: [KEY]",
    ),
    "another key": ("    - {hostname: h1, host_keys: [OTHER]}", "    - {hostname: h1, host_keys: [KEY]}"),
    "other keys in lines": (
        (
            "    - hostname: h1\n      host_keys:  # why\n        - OTHER  # a\n        - OTHER  # b\n"
            "      port: 22"
        ),
        "    - hostname: h1\n      host_keys:  # why\n        - KEY  # a\n      port: 22",
    ),
}


def text_of(*lines: str) -> str:
    return (HEAD + "\n".join(lines) + TAIL).replace("KEY", KEY).replace("OTHER", OTHER)


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
@pytest.mark.parametrize("form", FORMS)
def test_a_key_is_written_where_its_host_stands(form, ending):
    """Above and below another host, with every comment in its place."""
    old, new = FORMS[form]
    for lines, index in (((old, "    - last  # z"), 0), (("    - first  # z", old), 1)):
        before = text_of(*lines).replace("\n", ending)
        after = text_of(*(new if line is old else line for line in lines)).replace("\n", ending)
        assert with_host_keys(before, "x.yaml", 3, {("ssh_config", "hosts", index): KEY}) == after


def test_a_key_of_a_host_on_the_way():
    before = text_of("    - h1").replace("  user: root\n", "  user: root\n  proxy_jump: {hostname: gate}\n")
    after = before.replace("{hostname: gate}", f"{{hostname: gate, host_keys: [{KEY}]}}")
    assert with_host_keys(before, "x.yaml", 3, {("ssh_config", "proxy_jump"): KEY}) == after


@pytest.mark.parametrize("line", [1, 99])
def test_nothing_is_written_where_no_document_is_named(line):
    """Somebody has moved it meanwhile."""
    assert (
        with_host_keys(f"{HEAD}  hosts: [h0]\n", "main.yaml", line, {("ssh_config", "hosts", 0): KEY}) is None
    )


def test_a_template_stays_one():
    before = text_of("    - ${{ var.first }}.lab")
    after = text_of('    - {hostname: "${{ var.first }}.lab", host_keys: [KEY]}')
    assert with_host_keys(before, "x.yaml", 3, {("ssh_config", "hosts", 0): KEY}) == after


def test_a_mapping_that_an_alias_repeats_gets_the_key_once():
    before = text_of(
        "    - {hostname: h1, proxy_jump: &gate {hostname: gate}}", "    - {hostname: h2, proxy_jump: *gate}"
    )
    paths = [("ssh_config", "hosts", i, "proxy_jump") for i in range(2)]
    after = before.replace("{hostname: gate}", f"{{hostname: gate, host_keys: [{KEY}]}}")
    assert with_host_keys(before, "x.yaml", 3, dict.fromkeys(paths, KEY)) == after
    assert with_host_keys(before, "x.yaml", 3, {paths[0]: KEY}) is None


@pytest.mark.parametrize(
    "text",
    [
        HEAD.replace("  hosts:   # from left to right\n", '  hosts: "${{ var.hosts }}"\n'),
        HEAD + "    - &one h1\n" + "env: {A: *one}\n" + TAIL,
        HEAD + "    - &one {hostname: h1}\n" + "env: {A: *one}\n" + TAIL,
    ],
    ids=["a template", "an alias", "an alias of a mapping"],
)
def test_what_cannot_be_written_in_place_is_left_alone(text):
    assert with_host_keys(text, "x.yaml", 3, {("ssh_config", "hosts", 0): KEY}) is None


NAMES = st.from_regex(r"[a-z][a-z0-9.-]{0,12}", fullmatch=True)
COMMENTS = st.sampled_from(["", "  # x", "  # {not: this}", "   "])
HOSTS = st.tuples(NAMES, COMMENTS, st.integers(0, 3)).map(
    lambda item: [
        f"    - {item[0]}{item[1]}",
        f"    - {{hostname: {item[0]}}}{item[1]}",
        f"    - hostname: {item[0]}{item[1]}\n      port: 22",
        f"    - port: 22{item[1]}\n      hostname: {item[0]}",
    ][item[2]]
)


@given(st.lists(HOSTS, min_size=1, max_size=6), st.data())
def test_all_other_lines_stay(hosts, data):
    """Whatever keys are written: lines without one are those of before, in their order."""
    chosen = data.draw(st.sets(st.integers(0, len(hosts) - 1), min_size=1))
    before = text_of(*hosts)
    after = with_host_keys(before, "x.yaml", 3, {("ssh_config", "hosts", i): key_of(i) for i in chosen})
    assert after is not None
    found = parse(after, "x.yaml").documents[0].data["ssh_config"]["hosts"]
    assert {i: host["host_keys"] for i, host in enumerate(found) if "host_keys" in host} == {
        i: [key_of(i)] for i in chosen
    }
    rest = [line for line in after.splitlines() if "host_keys" not in line]
    kept = iter(before.splitlines())
    assert all(line in kept for line in rest)


def test_a_file_is_read_twice_however_many_keys_are_written(monkeypatch):
    """As it was, and as it is: to read eight hundred hosts takes longer than to look at them."""
    readings = []

    def counted(text, file):
        readings.append(text)
        return parse(text, file)

    monkeypatch.setattr(formatter, "parse", counted)
    before = text_of(*(f"    - h{i}" for i in range(40)))
    after = with_host_keys(before, "x.yaml", 3, {("ssh_config", "hosts", i): KEY for i in range(40)})
    assert readings == [before, after]


def test_a_host_and_the_one_on_its_way_get_their_keys_at_once():
    for old, new in (
        (
            "    - {hostname: h1, proxy_jump: {hostname: g}}",
            "    - {hostname: h1, proxy_jump: {hostname: g, host_keys: [OTHER]}, host_keys: [KEY]}",
        ),
        (
            "    - proxy_jump:\n        hostname: g\n      hostname: h1",
            (
                "    - proxy_jump:\n        hostname: g\n        host_keys: [OTHER]\n"
                "      hostname: h1\n      host_keys: [KEY]"
            ),
        ),
    ):
        host = ("ssh_config", "hosts", 0)
        for keys in (
            ((host, KEY), ((*host, "proxy_jump"), OTHER)),
            (((*host, "proxy_jump"), OTHER), (host, KEY)),
        ):
            assert with_host_keys(text_of(old), "x.yaml", 3, dict(keys)) == text_of(new)


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_a_fingerprint_is_that_of_ssh_keygen(tmp_path, kind):
    run("ssh-keygen", "-q", "-t", kind, "-N", "", "-C", "", "-f", str(tmp_path / "key"))
    shown = run("ssh-keygen", "-lf", str(tmp_path / "key.pub")).split()
    assert fingerprint(HostKey.parse((tmp_path / "key.pub").read_text())) == f"{shown[1]} {shown[-1]}"


@example({"identity_file": "~"})
@given(
    st.dictionaries(
        NAMES, st.one_of(NAMES, st.text(max_size=8), st.integers(-9, 9**9), st.booleans()), max_size=3
    )
)
def test_a_line_to_paste_means_what_it_stands_for(fields):
    printable = {
        key: value for key, value in fields.items() if not isinstance(value, str) or value.isprintable()
    }
    reading = parse(f"k: {in_flow(printable)}\n", "x.yaml")
    assert not reading.diagnostics
    assert reading.documents[0].data == {"k": printable}
