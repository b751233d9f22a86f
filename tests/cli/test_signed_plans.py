"""Signed plans: `apply` carries out exactly what one of the team's keys signed, and nothing else."""

from __future__ import annotations

import base64
import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import example, given
from hypothesis import strategies as st

from declarative.cli.apply import signers
from declarative.cli.plan_files import _signed, _string, check, keys_of, sign
from declarative.model.diagnostic import InvalidError
from declarative.model.spec.policy import PlanKey
from tests.end_to_end.test_saved_plans import refused, seal
from tests.support.cli import Project, fleet, task

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
PLAN = b'{"kind":"fleetform plan"}\n'


def keygen(*words: str | Path, **options: str) -> subprocess.CompletedProcess[str]:
    command = ("ssh-keygen", *map(str, words))
    return subprocess.run(command, capture_output=True, text=True, check=True, **options)  # type: ignore[call-overload, no-any-return]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    """A folder outside of the project with the keys of two people: `team` and `other`."""
    folder = tmp_path / "keys"
    folder.mkdir()
    for name in ("team", "other"):
        keygen("-q", "-t", "ed25519", "-N", "", "-C", f"{name}@example.org", "-f", folder / name)
    return folder


def declared(project: Project) -> None:
    project.declare(fleet(), task("job", "echo signed"))


def saved(project: Project, *words: str | Path) -> None:
    declared(project)
    done = project.run("plan", "--out", "p.plan", *map(str, words))
    assert ("signed: p.plan.sig, by SHA256:" in done.err) == bool(words)


def test_a_plan_that_is_signed_is_applied(project: Project, keys: Path) -> None:
    """By the key or a file of keys, by a variable, by the operator's policy."""
    team = (keys / "team.pub").read_text()
    both = project.write("team.keys", f"# who may\n{(keys / 'other.pub').read_text()}\n{team}")
    policy = keys / "policy.yaml"
    policy.write_text(json.dumps({"type": "policy", "plan_keys": [team]}))
    ways: tuple[tuple[tuple[str, ...], dict[str, str]], ...] = (
        (("--signed-by", team), {}),
        (("--signed-by", str(both)), {}),
        ((), {"FLEETFORM_SIGNED_BY": str(keys / "team.pub")}),
        (("--signed-by", str(keys / "other.pub")), {"FLEETFORM_POLICY": str(policy)}),  # which outranks it
    )
    for nodes, (words, env) in enumerate(ways, 1):
        project.declare(fleet(nodes=nodes))
        project.run("plan", "--out", "p.plan", "--sign", str(keys / "team"))
        assert "Apply complete: 1 created." in project.run("apply", "p.plan", *words, env=env).out


def test_openssh_signs_and_checks_as_well(project: Project, keys: Path) -> None:
    """So that a key may stay in an agent, and a reviewer needs no fleetform."""
    saved(project, "--sign", keys / "team")
    (keys / "allowed").write_text(f"team {(keys / 'team.pub').read_text()}")
    text = (project.path / "p.plan").read_text()
    found = ("-n", "fleetform-plan", "-s", project.path / "p.plan.sig")
    assert "Good" in keygen("-Y", "verify", "-f", keys / "allowed", "-I", "team", *found, input=text).stdout
    ours = (project.path / "p.plan.sig").read_text()
    (project.path / "p.plan.sig").unlink()
    keygen("-Y", "sign", "-n", "fleetform-plan", "-f", keys / "team", project.path / "p.plan")
    assert (project.path / "p.plan.sig").read_text() == ours
    project.run("apply", "p.plan", "--signed-by", str(keys / "team.pub"))


def test_what_is_not_signed_is_refused(project: Project, keys: Path) -> None:
    """Nothing of it is done, and nothing of it is looked at."""
    saved(project)
    by = ("--signed-by", str(keys / "team.pub"))
    found = refused(project, "plan-unsigned", *by)
    assert found["summary"] == "`p.plan` is not signed: there is no `p.plan.sig`"
    assert "ssh-keygen -Y sign -n fleetform-plan -f KEY p.plan" in found["hint"]
    saved(project, "--sign", keys / "other")
    said = keygen("-l", "-f", keys / "other.pub").stdout.split()[1]
    summary = f"`p.plan` is signed by a key that may not sign plans: {said}"
    assert refused(project, "plan-signature", *by)["summary"] == summary
    (project.path / "p.plan.sig").unlink()
    keygen("-q", "-Y", "sign", "-n", "git", "-f", keys / "team", project.path / "p.plan")
    assert "it was made for something else" in refused(project, "plan-signature", *by)["summary"]


@pytest.mark.slow
def test_a_plan_that_was_edited_is_refused(project: Project, keys: Path) -> None:
    """Though its checksum was made anew; not even a blank may be added."""
    saved(project, "--sign", keys / "team")
    path = project.path / "p.plan"
    text = path.read_text()
    changed = json.loads(text.replace("echo signed", "echo forged"))
    for forged in (seal(changed), text + " "):
        path.write_text(forged)
        found = refused(project, "plan-signature", "--signed-by", str(keys / "team.pub"))
        assert found["summary"] == "`p.plan` is not what was signed: it or its signature was changed since"
    project.run("apply", "p.plan", "--wait")  # without a required signature
    assert "signed" in project.logs("job")


def test_the_operators_policy_requires_it(project: Project, keys: Path) -> None:
    """Whatever the caller says; with no keys in it, no plan is applied."""
    saved(project, "--sign", keys / "other")
    policy = keys / "policy.yaml"
    env = {"FLEETFORM_POLICY": str(policy), "FLEETFORM_SIGNED_BY": str(keys / "other.pub")}
    for allowed in ([(keys / "team.pub").read_text()], []):
        policy.write_text(json.dumps({"plan_keys": allowed}))
        done = project.run("apply", "p.plan", code=1, env=env)
        assert "error[plan-signature]" in done.err
    private = (keys / "team").read_text().splitlines()[1]
    policy.write_text(f"plan_keys:\n  - {private}\n")
    done = project.run("apply", "p.plan", code=1, env=env)
    assert "this is not a public Ed25519 key" in done.err
    assert f"{policy}:2:5" in done.err
    assert private not in done.err + done.out


def test_keys_that_cannot_be_used(project: Project, keys: Path) -> None:
    """The error comes before any planning, and shows no key. An empty variable permits nothing."""
    declared(project)
    private = (keys / "team").read_text()
    keygen("-q", "-t", "ed25519", "-N", "secret", "-f", keys / "locked")
    keygen("-q", "-t", "rsa", "-N", "", "-f", keys / "rsa")
    for name, why in (
        ("locked", "has a passphrase"),
        ("rsa", "is not a private Ed25519 key"),
        ("team.pub", "is not a private Ed25519 key"),
        ("none", "cannot be read: No such file or directory"),
    ):
        done = project.run("plan", "--out", "p.plan", "--sign", str(keys / name), code=1)
        assert "error[plan-key]" in done.err
        assert why in done.err
        assert not (project.path / "p.plan").exists()
    saved(project, "--sign", keys / "team")
    for words, env in (
        (("--signed-by", str(keys / "team")), {}),
        (("--signed-by", private), {}),
        (("--signed-by", str(keys / "rsa.pub")), {}),
        (("--signed-by", str(keys / "none")), {}),
        (("--signed-by", ""), {}),
        ((), {"FLEETFORM_SIGNED_BY": ""}),
    ):
        done = project.run("apply", "p.plan", *words, code=1, env=env)
        assert "error[plan-key]" in done.err
        assert not any(line in done.err + done.out for line in private.splitlines()[1:-1])
    assert "`--signed-by` or FLEETFORM_SIGNED_BY is empty" in done.err


@pytest.mark.parametrize("policy", [None, ()])
@pytest.mark.parametrize("given", [None, "option"])
@pytest.mark.parametrize("variable", [None, "variable"])
def test_the_policy_says_who_has_to_sign_before_the_option_and_the_variable(
    tmp_path, monkeypatch, policy, given, variable
) -> None:
    """Nobody, if none of them does."""
    public = KEY.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    for name in ("option", "variable"):
        (tmp_path / name).write_text(f"{public} {name}\n")
    monkeypatch.delenv("FLEETFORM_SIGNED_BY", raising=False)
    if variable:
        monkeypatch.setenv("FLEETFORM_SIGNED_BY", str(tmp_path / variable))
    session: Any = SimpleNamespace(policy=lambda: SimpleNamespace(plan_keys=policy))
    found = signers(session, given and str(tmp_path / given))
    if policy is not None or not (given or variable):
        assert found is policy
    else:
        assert found == keys_of(str(tmp_path / (given or variable)))


@pytest.mark.parametrize(
    ("given", "why"), [("/none/a.pub", "No such file or directory"), ("a\0b", "it is not the name of a file")]
)
def test_keys_that_cannot_be_read(given: str, why: str) -> None:
    with pytest.raises(InvalidError) as caught:
        keys_of(given)
    assert caught.value.diagnostics[0].summary == f"the keys that may sign plans cannot be read: {why}"


def test_options_that_go_with_a_file(project: Project, keys: Path) -> None:
    """And what is in the way of a signature is left alone."""
    declared(project)
    assert "save it: `--out FILE`" in project.run("plan", "--sign", str(keys / "team"), code=1).err
    done = project.run("apply", "--signed-by", str(keys / "team.pub"), code=1)
    assert "`--signed-by` is about a saved plan" in done.err
    project.write("p.plan.sig", "mine")
    done = project.run("plan", "--out", "p.plan", "--sign", str(keys / "team"), code=1)
    assert "error[not-overwritten]" in done.err
    assert (project.path / "p.plan.sig").read_text() == "mine"
    os.mkfifo(project.path / "q.plan.sig")
    project.run("plan", "--out", "q.plan")
    writer = os.open(project.path / "q.plan.sig", os.O_RDWR)  # who never writes
    done = project.run("apply", "q.plan", "--signed-by", str(keys / "team.pub"), code=1)
    os.close(writer)
    assert "error[plan-signature]" in done.err


def public_of(key: Ed25519PrivateKey) -> PlanKey:
    raw = key.public_key().public_bytes_raw()
    return keys_of("ssh-ed25519 " + base64.b64encode(b"\0\0\0\x0bssh-ed25519\0\0\0\x20" + raw).decode())[0]


def test_a_file_of_keys_may_have_comments_and_empty_lines(tmp_path: Path) -> None:
    key = public_of(KEY)
    line = "ssh-ed25519 " + base64.b64encode(_string(b"ssh-ed25519") + _string(key.raw)).decode()
    (tmp_path / "keys").write_text(f"# who may\n\n{line} one\n  # and\n{line} two\n")
    assert [found.raw for found in keys_of(str(tmp_path / "keys"))] == [key.raw, key.raw]


def blob_of(signature: bytes) -> bytes:
    return base64.b64decode(b"".join(signature.splitlines()[1:-1]))


def armored(blob: bytes) -> bytes:
    lines = (b"-----BEGIN SSH SIGNATURE-----", base64.b64encode(blob), b"-----END SSH SIGNATURE-----")
    return b"\n".join(lines)


BLOB = blob_of(sign(PLAN, KEY))


def by_algorithm(name: bytes) -> bytes:
    """A signature that is right in all but its hash's name."""
    public = _string(b"ssh-ed25519") + _string(KEY.public_key().public_bytes_raw())
    made = _string(b"ssh-ed25519") + _string(KEY.sign(_signed(b"fleetform-plan", b"", name, PLAN)))
    parts = (public, b"fleetform-plan", b"", name, made)
    return armored(b"SSHSIG\0\0\0\1" + b"".join(map(_string, parts)))


@pytest.mark.parametrize(
    ("signature", "why"),
    [
        (armored(BLOB).replace(b"BEGIN", b"BEGAN"), "it does not begin or end as one"),
        (armored(BLOB).replace(b"END", b"ENDED"), "it does not begin or end as one"),
        (armored(BLOB).replace(b"AAAA", b"AA!AA", 1), "it is damaged"),
        (armored(BLOB).replace(b"AAAA", b"AAAAA", 1), "it is damaged"),
        (armored(BLOB[:-70]), "it is cut short"),
        (armored(BLOB + b"\0\0\0\0"), "it has more parts than a signature"),
        (by_algorithm(b"sha1"), "its hash is neither sha256 nor sha512"),
    ],
)
def test_what_is_no_signature_is_named_as_what_it_is(tmp_path, signature, why) -> None:
    (tmp_path / "p.plan.sig").write_bytes(signature)
    with pytest.raises(InvalidError) as caught:
        check(str(tmp_path / "p.plan"), PLAN, [public_of(KEY)])
    assert caught.value.diagnostics[0].summary.endswith(f"is not the signature of a plan: {why}")


def test_a_signature_by_either_hash_holds(tmp_path) -> None:
    for name in (b"sha256", b"sha512"):
        (tmp_path / "p.plan.sig").write_bytes(by_algorithm(name))
        check(str(tmp_path / "p.plan"), PLAN, [public_of(KEY)])


def test_a_signature_that_cannot_be_read_is_an_error(tmp_path) -> None:
    (tmp_path / "p.plan.sig").symlink_to("p.plan.sig")
    with pytest.raises(InvalidError) as caught:
        check(str(tmp_path / "p.plan"), PLAN, [public_of(KEY)])
    assert "cannot be read: Too many levels of symbolic links" in caught.value.diagnostics[0].summary


@given(at=st.integers(0, len(BLOB) - 1), change=st.integers(1, 255), cut=st.booleans())
@example(at=len(BLOB) - 1, change=1, cut=False)
def test_no_signature_holds_that_was_changed(tmp_path_factory, at, change, cut) -> None:
    """With any byte changed, cut off at any byte, or with one more byte, it is refused with a message."""
    name = str(tmp_path_factory.mktemp("plan") / "p.plan")
    Path(name + ".sig").write_bytes(armored(BLOB))
    check(name, PLAN, [public_of(KEY)])
    changed = BLOB[:at] if cut else BLOB[:at] + bytes([BLOB[at] ^ change]) + BLOB[at + 1 :]
    for blob in (changed, BLOB + bytes([change])):
        Path(name + ".sig").write_bytes(armored(blob))
        with pytest.raises(InvalidError) as caught:
            check(name, PLAN, [public_of(KEY)])
        assert [d.code for d in caught.value.diagnostics] == ["plan-signature"]
