"""A stranger's YAML planned online: what it may read, which servers it may contact, and the operator's
policy.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from declarative.converge.project import CallerPermissions
from declarative.language.loader.project import find_policy, read_policy
from declarative.model.diagnostic import InvalidError
from declarative.model.schema import BadValueError
from declarative.model.spec.policy import OperatorPolicy, PlanKey
from declarative.store import StateError
from declarative.store.postgres import target_of, trusted
from tests.support.cli import Project, fleet

SECRET = "hunter2-0123456789"
STRICT = {
    "FLEETFORM_ALLOW_VARIABLE": "",
    "FLEETFORM_ALLOW_PATH": "",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "GITHUB_TOKEN": SECRET,
    "PGPASSWORD": SECRET,
    "PGUSER": "me",
}


@contextmanager
def answering(answer: Callable[[bytes], bytes]) -> Iterator[tuple[int, list[bytes]]]:
    """A server: its port, and what it is sent."""
    got: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    link, _ = server.accept()
                except OSError:
                    return
                with link:
                    link.settimeout(10)
                    while begun := link.recv(65536):
                        got.append(begun)
                        said = answer(begun)
                        if not said:
                            break
                        link.sendall(said)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1], got
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.fixture
def listener() -> Iterator[tuple[int, list[bytes]]]:
    """A server that refuses whatever it is asked."""
    with answering(lambda _: b"") as made:
        yield made


def planned(project: Project, *words: str, env: dict[str, str] | None = None) -> str:
    """What an online plan says, which may be anything but a secret or a traceback."""
    done = project.run("plan", *words, code=None, env={**STRICT, **(env or {})})
    said = done.out + done.err
    assert SECRET not in said
    assert "Traceback" not in said
    return " ".join(said.replace("|", " ").split())


def hosts(project: Project, *, backend: dict[str, Any] | None = None, **config: Any) -> None:
    """A fleet of one host that does not answer."""
    options = {"type": "backend", "name": "ssh", "options": backend} if backend else None
    one = {"type": "fleet", "name": "lab", "ssh_config": {"hosts": ["127.0.0.1"], "user": "x", **config}}
    project.declare(*filter(None, [options, one]))


@pytest.mark.parametrize("where", ["backend", "fleet", "jump"])
def test_no_file_of_somebody_else_is_read_for_a_project(project: Project, where: str) -> None:
    """Least of all the environment, in which secrets stand."""
    name = "/proc/self/environ"
    if where == "backend":
        hosts(project, backend={"known_hosts": name})
    elif where == "fleet":
        hosts(project, known_hosts=name)
    else:
        hosts(project, proxy_jump={"hostname": "127.0.0.1", "identity_file": name})
    said = planned(project)
    assert f"is neither in the project nor in ~/.ssh: {name}" in said
    assert f"`--allow-path {name}`" in said
    assert "backend/local" not in said, "it reads none of ssh's files"


def test_a_link_out_of_the_project_is_such_a_file(project: Project) -> None:
    """What counts is where it leads."""
    (project.path / "known").symlink_to("/proc/self/environ")
    hosts(project, known_hosts="known")
    assert "is neither in the project nor in ~/.ssh: known" in planned(project)


def test_no_message_has_a_line_of_a_file_in_it(project: Project) -> None:
    """Also of a file that may be read, which need not be what it claims to be."""
    project.write(".env", f"[{SECRET}\n")
    hosts(project, known_hosts=".env")
    assert ".env cannot be read: line 1 is not one of known hosts" in planned(project)
    project.write("config", f"Port {SECRET}\n")
    hosts(project, backend={"ssh_config": "config"})
    assert "config cannot be read: line 1" in planned(project)


@pytest.mark.parametrize(
    "line",
    [
        "ProxyCommand touch OWNED",
        "Match exec 'touch OWNED'",
        "Match host 127.0.0.1 exec 'touch OWNED'",
        "Include /etc/passwd",
        "SendEnv *",
        "HostName ${AWS_SECRET_ACCESS_KEY}.example.com",
        "HostName `touch OWNED`.example.com",
        "PKCS11Provider /tmp/x.so",
        "IdentityFile /proc/self/environ",
        "UserKnownHostsFile /proc/self/environ",
        "ForwardAgent yes",
        "proxycommand=touch OWNED",
        '"ProxyCommand" touch OWNED',
    ],
)
def test_no_ssh_config_of_a_project_runs_commands(project: Project, line: str) -> None:
    """Nor does it load libraries, or send what stands in the environment."""
    owned = project.path / "OWNED"
    project.write("config", f"Host *\n  Port 1\n  {line.replace('OWNED', str(owned))}\n")
    hosts(project, backend={"ssh_config": "config"})
    said = planned(project)
    assert "line 3 of the project's `ssh_config` does more than name hosts and keys" in said
    assert "`--allow-commands`" in said
    assert not owned.exists()


def test_the_caller_may_allow_commands_and_files(project: Project, tmp_path: Path) -> None:
    """Who calls knows what stands in the project."""
    owned, known = project.path / "OWNED", tmp_path / "known_hosts"
    known.write_text("")
    project.write("config", f"Host *\n  ProxyCommand touch {owned}\n")
    hosts(project, backend={"ssh_config": "config"}, known_hosts=str(known))
    planned(project, "--allow-commands", "--allow-path", str(known))
    assert owned.exists()


def test_what_is_not_of_the_project_may_do_all(project: Project, tmp_path: Path) -> None:
    """An `ssh_config` of the user's own, or the operator's, is no stranger's."""
    owned, config = tmp_path / "OWNED", tmp_path / "config"
    config.write_text(f"Host *\n  ProxyCommand touch {owned}\n")
    hosts(project, backend={"ssh_config": str(config)})
    planned(project, "--allow-path", str(config))
    assert owned.exists()


def cloud(endpoint: str, variable: str = "AWS_SECRET_ACCESS_KEY") -> dict[str, Any]:
    """A backend whose credentials are all in one variable."""
    return {
        "type": "backend",
        "name": "aws",
        "driver": "ec2",
        "regions": ["us-east-1"],
        "image": "ami-1",
        "endpoint": endpoint,
        "credentials": {"key": variable, "secret": variable},
    }


def test_no_driver_gets_a_secret_that_is_not_its_own(project: Project, listener: Any) -> None:
    """`credentials: {key: GITHUB_TOKEN}`: no request is sent, whether or not a server is there."""
    port, got = listener
    project.declare(cloud(f"http://127.0.0.1:{port}", "GITHUB_TOKEN"), fleet(nodes=1, backends=["aws"]))
    said = planned(project)
    assert "the driver `ec2` is not given the variable `GITHUB_TOKEN`" in said
    assert "`--allow-variable GITHUB_TOKEN`" in said
    assert got == []


def test_a_plan_offline_may_name_any_variable(project: Project, listener: Any) -> None:
    """It reads none of them, and contacts nobody."""
    port, got = listener
    document = cloud(f"http://127.0.0.1:{port}", "GITHUB_TOKEN")
    project.declare(document, fleet(nodes=1, backends=["aws"], resources={"cpu": 2}))
    done = project.run("plan", "--offline", "--json", env=STRICT)
    assert [a["id"] for a in done.json["actions"]] == ["create:node/gpu-0"]
    assert done.json["diagnostics"] == []
    assert SECRET not in done.out + done.err
    assert got == []


def test_no_secret_is_sent_in_clear(project: Project) -> None:
    """Only to this machine."""
    project.declare(cloud("http://cloud.example.org"), fleet(nodes=1, backends=["aws"]))
    assert "`endpoint` is not `https`: secrets would be sent in clear" in planned(project)


def test_the_operators_policy_decides(project: Project, tmp_path: Path, listener: Any) -> None:
    """It lies outside of the project, and outranks what the caller allows where it speaks."""
    port, got = listener
    policy = tmp_path / "policy.yaml"
    env = {"FLEETFORM_POLICY": str(policy)}
    project.declare(cloud(f"http://127.0.0.1:{port}", "GITHUB_TOKEN"), fleet(nodes=1, backends=["aws"]))
    policy.write_text("credentials: {ec2: ['AWS_*']}\n")
    said = planned(project, "--allow-variable", "GITHUB_TOKEN", env=env)
    assert "the operator's policy does not let it have the variable `GITHUB_TOKEN`" in said
    policy.write_text("endpoints: ['https://*.example.org']\n")
    assert "the operator's policy does not allow this `endpoint`" in planned(project, env=env)
    policy.write_text("drivers: [ssh, local]\n")
    assert "the operator's policy does not allow the driver `ec2`" in planned(project, env=env)
    assert got == []


def test_a_policy_is_checked_as_yaml_is(project: Project, tmp_path: Path) -> None:
    """With line and column; one that cannot be read allows nothing."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("drivers: [ec2]\nendpoint: ['https://x']\n")
    project.declare(fleet(nodes=1))
    said = planned(project, env={"FLEETFORM_POLICY": str(policy)})
    assert "error[unknown-field]" in said
    assert f"{policy}:2:1" in said
    assert "did you mean `endpoints`?" in said
    assert "cannot be read" in planned(project, env={"FLEETFORM_POLICY": str(tmp_path / "none.yaml")})
    # Elsewhere nothing behind a field is no field; here everything would be allowed by it.
    policy.write_text("drivers:\n")
    said = planned(project, env={"FLEETFORM_POLICY": str(policy)})
    assert "error[bad-value]: `drivers` has no value" in said
    policy.write_text("type: fleet\nname: x\n---\ndrivers: []\n")
    said = planned(project, env={"FLEETFORM_POLICY": str(policy)})
    assert "error[unknown-type]" in said
    assert "error[duplicate-name]: a policy is one document" in said


def test_who_may_be_given_what() -> None:
    """Without a policy, and with the caller's word."""
    allowed = OperatorPolicy(more_variables=("GITHUB_TOKEN",))
    assert allowed.refused_variable("ec2", "GITHUB_TOKEN") is None
    assert OperatorPolicy().refused_variable("ec2", "AWS_ACCESS_KEY_ID") is None
    assert OperatorPolicy().refused_variable("openstack", "AWS_ACCESS_KEY_ID")
    assert OperatorPolicy().refused_variable("linode", "LINODE_TOKEN") is None
    assert OperatorPolicy().refused_variable("my-cloud", "MY_CLOUD_TOKEN") is None
    assert OperatorPolicy().refused_variable("my-cloud", "MY-CLOUD_TOKEN")
    for good in ("https://x", "http://127.0.0.1:1", "http://[::1]:1", "http://localhost"):
        assert OperatorPolicy().refused_endpoint(good) is None
    for bad in ("http://x", "http://127.0.0.1.x", "http://localhost.x"):
        assert OperatorPolicy().refused_endpoint(bad)
    listed = OperatorPolicy(endpoints=("https://*.lab", "http://old.lab/"))
    for good in ("https://a.lab", "https://a.lab/", "http://old.lab"):
        assert listed.refused_endpoint(good) is None
    for bad in ("https://a.labs", "http://a.lab", "http://127.0.0.1"):
        assert listed.refused_endpoint(bad) == "the operator's policy does not allow this `endpoint`"


@pytest.mark.parametrize(
    "value", [3, None, ["ssh-ed25519 AAAA"], "ssh-ed25519 AAAA", "ssh-ed25519 " + "A" * 68]
)
def test_what_is_no_public_key_is_refused_without_showing_it(value: Any) -> None:
    with pytest.raises(BadValueError) as caught:
        PlanKey.parse(value)
    assert caught.value.summary == "this is not a public Ed25519 key"


def test_a_policys_list_of_credentials_is_the_whole_list() -> None:
    """Neither the driver's own variables nor those for any driver are added to it."""
    policy = OperatorPolicy(credentials={"ec2": ("LAB_*",)}, more_variables=("SHARED",))
    assert policy.refused_variable("ec2", "LAB_KEY") is None
    for driver, variable in (("ec2", "AWS_ACCESS_KEY_ID"), ("ec2", "SHARED"), ("linode", "LINODE_TOKEN")):
        why = f"the driver `{driver}` the operator's policy does not let it have the variable `{variable}`"
        assert why == policy.refused_variable(driver, variable)


def test_what_is_allowed_adds_up(tmp_path: Path) -> None:
    """What the policy allows any driver, and what the caller does."""
    policy = tmp_path / "policy.yaml"
    policy.write_text("more_variables: [SHARED]\npaths: [/etc/keys]\n")
    both = CallerPermissions(paths=("/home/keys",), variables=("MINE",)).with_policy(
        read_policy({"FLEETFORM_POLICY": str(policy)})
    )
    assert (both.more_variables, both.paths) == (("SHARED", "MINE"), ("/etc/keys", "/home/keys"))


def test_where_a_policy_lies(tmp_path: Path) -> None:
    """The user's own, unless the machine has one, or the caller names one."""
    assert read_policy({"HOME": str(tmp_path)}) == OperatorPolicy()
    own = tmp_path / ".config" / "fleetform" / "policy.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("state_hosts: [db]\n")
    assert find_policy({"HOME": str(tmp_path)}) == own
    assert read_policy({"HOME": str(tmp_path)}).state_hosts == ("db",)
    own.write_text("state_hosts: 1\n")
    with pytest.raises(InvalidError):
        read_policy({"HOME": str(tmp_path)})


def test_a_server_that_only_the_project_names_gets_no_password(monkeypatch) -> None:
    """It gets the proof of one; a server that the user or the policy names may ask for more."""
    monkeypatch.delenv("PGREQUIREAUTH", raising=False)
    target = target_of("postgresql://db.example.org/fleet?require_auth=password")
    assert trusted(target, OperatorPolicy()).parameters["require_auth"] == "scram-sha-256,gss,sspi,none"
    assert trusted(target, None).parameters["require_auth"] == "password"
    named = OperatorPolicy(state_hosts=("*.example.org",))
    assert trusted(target, named).parameters["require_auth"] == "password"
    for url in ("postgresql://evil/fleet", "postgresql://db.example.org,evil/fleet"):
        with pytest.raises(StateError, match="does not allow a state on `evil`"):
            trusted(target_of(url), named)


def test_the_environments_tls_outranks_the_urls(monkeypatch) -> None:
    """`?sslmode=disable` of a project is nothing against PGSSLMODE=require."""
    url = "postgresql://db/fleet?sslmode=disable&sslrootcert=/evil"
    assert trusted(target_of(url), OperatorPolicy()).parameters["sslmode"] == "disable"
    monkeypatch.setenv("PGSSLMODE", "require")
    monkeypatch.setenv("PGSSLROOTCERT", "system")
    assert not {"sslmode", "sslrootcert"} & set(trusted(target_of(url), OperatorPolicy()).parameters)


def test_a_servers_question_for_the_password_is_not_answered(project: Project) -> None:
    """As a stranger's server asks for it: AuthenticationCleartextPassword."""

    def asks(begun: bytes) -> bytes:
        wants_tls = begun[4:8] in (b"\x04\xd2\x16/", b"\x04\xd2\x160")
        return b"N" if wants_tls else b"" if begun[:1] == b"p" else b"R\0\0\0\x08\0\0\0\x03"

    with answering(asks) as (port, got):
        url = f"postgresql://127.0.0.1:{port}/fleet"
        project.declare({"type": "project", "state": url}, fleet(nodes=1))
        said = planned(project)
        assert got
        assert SECRET.encode() not in b"".join(got)
        assert "asks for the password itself, and only the project's YAML names it" in said
        planned(project, "--state", url)
        assert SECRET.encode() in b"".join(got)
