"""EC2 logins without credentials in the backend: by profile, by role, by the machine. All servers are on
loopback.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from declarative.model.state import Address
from declarative.provider import PermanentError, PermanentKind, TransientError
from tests.providers.ec2.run import SECRETS, provider
from tests.providers.ec2.scripted import Scripted, answer

NONE = answer("DescribeInstances", "<reservationSet/>")
STS = "https://sts.amazonaws.com/doc/2011-06-15/"


@pytest.fixture(autouse=True)
def nowhere(monkeypatch, tmp_path):
    """Nothing of this machine's: no variables, no files, no metadata."""
    for name in [n for n in os.environ if n.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))


@pytest.fixture
def cloud():
    def answers(asked):
        return {
            "DescribeInstances": NONE,
            "DescribeVolumes": answer("DescribeVolumes", "<volumeSet/>"),
            "DescribeKeyPairs": answer("DescribeKeyPairs", "<keySet/>"),
            "DescribeSecurityGroups": answer("DescribeSecurityGroups", "<securityGroupInfo/>"),
        }[asked["Action"]]

    with Scripted(answers) as server:
        yield server


def without(cloud, tmp_path, **more):
    """A provider whose backend names no credentials."""
    return provider(cloud.port, tmp_path, "lineage-1", credentials={}, **more)


def used(cloud):
    """The access key and the token of each request, each pair once."""
    pairs = [
        (h["Authorization"].partition("Credential=")[2].partition("/")[0], h.get("x-amz-security-token"))
        for h in cloud.headers
    ]
    return list(dict.fromkeys(pairs))


def profile(tmp_path, name, key):
    with (tmp_path / "credentials").open("a") as file:
        file.write(f"[{name}]\naws_access_key_id = {key}\naws_secret_access_key = hunter2-{key}\n")


def temporary(key, seconds):
    """Credentials as STS writes them."""
    ends = (datetime.now(UTC) + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return (
        f"<Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>hunter2-{key}</SecretAccessKey>"
        f"<SessionToken>token-{key}</SessionToken><Expiration>{ends}</Expiration></Credentials>"
    )


def assumed(action, key, seconds=3600):
    user = "<AssumedRoleUser><Arn>arn:aws:sts::1:x</Arn><AssumedRoleId>a:b</AssumedRoleId></AssumedRoleUser>"
    return answer(action, f"<{action}Result>{temporary(key, seconds)}{user}</{action}Result>", STS)


def test_a_profile_is_taken_by_variable_or_by_option(cloud, tmp_path, monkeypatch):
    profile(tmp_path, "default", "AKIDONE")
    profile(tmp_path, "research", "AKIDTWO")
    without(cloud, tmp_path).inventory()
    monkeypatch.setenv("AWS_PROFILE", "research")
    without(cloud, tmp_path).inventory()
    options = {"timeout": 30, "profile": "default"}
    without(cloud, tmp_path, options=options).inventory()
    assert [key for key, _ in used(cloud)] == ["AKIDONE", "AKIDTWO"]
    assert cloud.headers[-1]["Authorization"].count("AKIDONE") == 1


def test_credentials_that_are_named_come_first(cloud, tmp_path, monkeypatch):
    profile(tmp_path, "default", "AKIDONE")
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    provider(cloud.port, tmp_path, "lineage-1").inventory()
    assert used(cloud) == [(SECRETS["FLEETFORM_TEST_KEY"], None)]
    options = {"timeout": 30, "profile": "default"}
    with pytest.raises(PermanentError) as caught:
        provider(cloud.port, tmp_path, "lineage-1", options=options).inventory()
    assert caught.value.about == "options.profile"


def test_a_role_of_a_profile_is_assumed(cloud, tmp_path, monkeypatch):
    profile(tmp_path, "base", "AKIDBASE")
    (tmp_path / "config").write_text(
        "[profile ci]\nrole_arn = arn:aws:iam::1:role/ci\nsource_profile = base\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "ci")
    with Scripted(lambda _: assumed("AssumeRole", "ASIAROLE")) as sts:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{sts.port}")
        without(cloud, tmp_path).inventory()
    assert [(a["Action"], a["RoleArn"]) for a in sts.asked] == [("AssumeRole", "arn:aws:iam::1:role/ci")]
    assert used(cloud) == [("ASIAROLE", "token-ASIAROLE")]


def test_a_token_of_the_ci_is_a_login_that_is_renewed(cloud, tmp_path, monkeypatch):
    """Web identity. What is about to end is asked for anew, by the provider that there is."""
    (tmp_path / "token").write_text("hunter2-oidc")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/ci")
    given = [
        assumed("AssumeRoleWithWebIdentity", "ASIAONE", 60),
        assumed("AssumeRoleWithWebIdentity", "ASIATWO"),
    ]
    with Scripted(lambda _: given.pop(0)) as sts:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{sts.port}")
        there = without(cloud, tmp_path)
        there.find(Address("node", "gpu-0"), "t" * 32)
        there.find(Address("node", "gpu-0"), "t" * 32)
    assert [a["WebIdentityToken"] for a in sts.asked] == ["hunter2-oidc"] * 2
    assert used(cloud) == [("ASIAONE", "token-ASIAONE"), ("ASIATWO", "token-ASIATWO")]
    assert given == []


class Metadata(ThreadingHTTPServer):
    """What a machine of EC2 asks about itself, by the second version of that service."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Asked)
        self.paths: list[str] = []
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Asked(BaseHTTPRequestHandler):
    server: Metadata

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""

    def _say(self, text: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def do_PUT(self) -> None:
        self.server.paths.append(self.path)
        self._say("session")

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        if self.headers.get("x-aws-ec2-metadata-token") != "session":
            self._say("", 401)
        elif self.path.endswith("/security-credentials/"):
            self._say("role")
        else:
            ends = (datetime.now(UTC) + timedelta(hours=6)).strftime("%Y-%m-%dT%H:%M:%SZ")
            pair = {"AccessKeyId": "ASIAHOST", "SecretAccessKey": "hunter2-host", "Token": "token-host"}
            self._say(json.dumps({"Code": "Success", "Type": "AWS-HMAC", "Expiration": ends, **pair}))


def test_a_machine_of_ec2_has_its_role(cloud, tmp_path, monkeypatch):
    """And nothing is asked before something has to be."""
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    with Metadata() as host:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://127.0.0.1:{host.server_port}/")
        there = without(cloud, tmp_path)
        there.offers()
        assert (host.paths, cloud.asked) == ([], [])
        there.inventory()
        assert host.paths
    assert used(cloud) == [("ASIAHOST", "token-host")]


def test_without_any_login_it_is_said_what_to_do(cloud, tmp_path, monkeypatch):
    with pytest.raises(PermanentError) as caught:
        without(cloud, tmp_path).inventory()
    assert (caught.value.kind, caught.value.about) == (PermanentKind.AUTH, "credentials")
    assert "AWS_PROFILE" in str(caught.value.hint)
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(PermanentError, match="ProfileNotFound"):
        without(cloud, tmp_path).inventory()
    monkeypatch.setitem(sys.modules, "botocore.session", None)
    with pytest.raises(PermanentError, match="botocore is not installed") as caught:
        without(cloud, tmp_path).inventory()
    assert "`pip install botocore`" in str(caught.value.hint)
    assert cloud.asked == []


def test_a_role_that_is_refused_is_told_without_secrets(cloud, tmp_path, monkeypatch):
    (tmp_path / "token").write_text("hunter2-oidc")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::1:role/ci")
    told = "<Error><Code>AccessDenied</Code><Message>hunter2-oidc</Message></Error>"
    refused = f"<ErrorResponse>{told}</ErrorResponse>"
    with Scripted(lambda _: (403, refused)) as sts:
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{sts.port}")
        with pytest.raises(PermanentError, match="AccessDenied") as caught:
            without(cloud, tmp_path).inventory()
    assert "hunter2" not in repr(caught.value) + caught.value.summary + str(caught.value.hint)
    with pytest.raises(TransientError):  # nothing listens there any more
        without(cloud, tmp_path).inventory()
