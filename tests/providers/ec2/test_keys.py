"""The key of a state's nodes, their host keys, and how EC2 gets both."""

import base64
import json
import subprocess
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from declarative.model.spec.backend import Network, Reach
from declarative.model.state import Address, Record
from declarative.model.status import NodeState
from declarative.provider import Config, PermanentError, PermanentKind, TransientError, TransientKind
from providers.cloud.account import Account
from providers.cloud.keys import MOST, PROGRAM, Pairs, user_data
from providers.ssh import key_pairs
from providers.ssh.key_pairs import Login, make
from tests.providers.ec2.run import REGION, SECRETS, ZONE, provider
from tests.providers.ec2.scripted import Scripted, answer, instance, refusal, reservations, tag_set
from tests.support.model import of_node

NODE = Address("node", "gpu-0")
INPUTS = of_node(region=REGION, zone=ZONE, instance_type="t3.micro")
TOKEN = "1" * 32
GROUPS = "".join(f"<item><groupId>{name}</groupId><vpcId>vpc-1</vpcId></item>" for name in ("sg-1", "sg-2"))
SUBNET = (
    "<item><subnetId>subnet-1</subnetId><vpcId>vpc-1</vpcId>"
    f"<availabilityZone>{ZONE}</availabilityZone></item>"
)
EMPTY = {
    "DescribeKeyPairs": answer("DescribeKeyPairs", "<keySet/>"),
    "DescribeSubnets": answer("DescribeSubnets", f"<subnetSet>{SUBNET}</subnetSet>"),
    "DescribeSecurityGroups": answer(
        "DescribeSecurityGroups", f"<securityGroupInfo>{GROUPS}</securityGroupInfo>"
    ),
}
"""What there is: a network, and no key pair."""


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def login(tmp_path):
    make(tmp_path / "keys" / "one")
    return Login(tmp_path / "keys" / "one")


def openssh(path):
    """The public half of a private key, as OpenSSH computes it."""
    done = subprocess.run(["ssh-keygen", "-y", "-f", path], capture_output=True, text=True, check=True)
    return " ".join(done.stdout.split()[:2])


def test_a_key_is_made_once_and_nobody_else_reads_it(login):
    before = login.path.read_bytes()
    make(login.path)
    assert login.path.read_bytes() == before
    assert login.path.stat().st_mode & 0o777 == 0o600
    assert list(login.path.parent.iterdir()) == [login.path]
    assert openssh(login.path) == login.public


def test_a_host_key_is_one_that_openssh_takes_and_always_the_same(login, tmp_path):
    """By the login's key and the name alone."""
    key = login.host_key("a")
    assert Login(login.path).host_key("a") == key
    make(tmp_path / "keys" / "two")
    others = (login.host_key("b"), Login(tmp_path / "keys" / "two").host_key("a"))
    assert len({key.public, *(k.public for k in others)}) == 3
    file = tmp_path / "host"
    file.write_text(key.private)
    file.chmod(0o600)
    assert openssh(file) == key.public


def test_what_a_node_is_told_is_the_same_for_every_try(login):
    key = login.host_key("a")
    told = user_data("fleetform", login.public, key)
    assert told == user_data("fleetform", login.public, Login(login.path).host_key("a"))
    assert len(told) < MOST
    head, _, body = told.partition("\n")
    assert head == "#cloud-config"
    found = json.loads(body)
    assert found["users"][1]["ssh_authorized_keys"] == [login.public]
    assert found["ssh_keys"]["ed25519_public"] == key.public
    assert "disable_root" not in found
    # What mounts volumes is root's, and all that the user may do as root.
    assert found["users"][1]["sudo"] == "ALL=(root) NOPASSWD: /usr/local/sbin/fleetform-disk"
    (file,) = found["write_files"]
    assert (file["path"], file["owner"], file["permissions"]) == (PROGRAM, "root:root", "0755")
    subprocess.run(["sh", "-n"], input=file["content"], text=True, check=True)
    root = json.loads(user_data("root", login.public, key).partition("\n")[2])
    assert root["disable_root"] is False
    assert "write_files" not in root
    assert "sudo" not in root["users"][1]


@pytest.mark.parametrize("words", ["not a private key", "has a passphrase", "cannot be read"])
def test_what_is_no_key_is_said(tmp_path, words):
    file = tmp_path / "key"
    if words == "not a private key":
        file.write_text("hello\n")
    elif words == "has a passphrase":
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", file], check=True)
    with pytest.raises(PermanentError, match=words) as caught:
        Login(file)
    assert (caught.value.kind, caught.value.about) == (PermanentKind.AUTH, "identity_file")


# --------------------------------------------------------------------------------------------- EC2


def tags_of(asked):
    """The tags that something was to be made with."""
    return {
        asked[f"TagSpecification.1.Tag.{i}.Key"]: asked[f"TagSpecification.1.Tag.{i}.Value"]
        for i in range(1, 12)
        if f"TagSpecification.1.Tag.{i}.Key" in asked
    }


def asked_for(asked, **more):
    """EC2 without anything: an instance runs at once, with the tags that were asked for."""
    action = asked["Action"]
    if action in more:
        found = more[action]
        return found(asked) if callable(found) else found
    if action in EMPTY:
        return EMPTY[action]
    item = instance("i-00000001", tags_of(asked))
    if action == "RunInstances":
        return answer(action, f"<instancesSet>{item}</instancesSet>")
    if action == "DescribeInstances":
        named = "InstanceId.1" in asked
        return refusal("InvalidInstanceID.NotFound") if named else answer(action, reservations())
    return answer(action, "<return>true</return>")


def create(folder, more=None, **settings):
    """What EC2 was asked to make one node, by action."""
    with Scripted(lambda asked: asked_for(asked, **(more or {}))) as server:
        there = provider(server.port, folder, "ours", **settings)
        try:
            login = there._keys.ensure(there._account.region(REGION))
            mark = there._account.mark(NODE, TOKEN, INPUTS)
            at, calls = there._account.at(REGION), there._nodes
            calls._launch(at, mark.node, calls._wanted(at, mark, mark.node))
        finally:
            server.shutdown()
        return login, {a["Action"]: a for a in server.asked}


def test_the_key_is_brought_once_and_the_node_is_told(tmp_path):
    login, asked = create(tmp_path)
    assert login.path == tmp_path / ".fleetform" / "keys" / "ours"
    assert login.public in base64.b64decode(asked["ImportKeyPair"]["PublicKeyMaterial"]).decode()
    run = asked["RunInstances"]
    assert run["KeyName"] == asked["ImportKeyPair"]["KeyName"] == "fleetform-ours"
    told = base64.b64decode(run["UserData"]).decode()
    assert login.public in told
    _, again = create(tmp_path)
    assert again["RunInstances"] == run


def test_another_machines_key_is_not_replaced(tmp_path):
    """Its nodes would not let us in, and ours not those who work there."""
    tags = tag_set({"fleetform:owner": "ours", "fleetform:fingerprint": "SHA256:other"})
    pair = answer(
        "DescribeKeyPairs", f"<keySet><item><keyName>fleetform-ours</keyName>{tags}</item></keySet>"
    )
    there = {"DescribeKeyPairs": pair, "ImportKeyPair": refusal("InvalidKeyPair.Duplicate")}
    file = tmp_path / ".fleetform" / "keys" / "ours"
    for _ in range(2):
        with pytest.raises(PermanentError, match=r"is not here.*us-east-1 is SHA256:other") as caught:
            create(tmp_path, there)
        assert caught.value.kind is PermanentKind.AUTH
        assert not file.exists()  # one that nodes do not let in would be taken for theirs
    make(file)
    with pytest.raises(PermanentError, match="have another key than") as caught:
        create(tmp_path, there)
    assert caught.value.kind is PermanentKind.CONFLICT
    assert file.exists()


def test_a_key_is_not_made_where_another_region_has_nodes_with_one(tmp_path):
    """They were made on another machine. One that cannot be asked has none."""
    ours = tag_set({"fleetform:owner": "ours"})
    pair = answer(
        "DescribeKeyPairs", f"<keySet><item><keyName>fleetform-ours</keyName>{ours}</item></keySet>"
    )
    two = (REGION, "us-west-2")
    with pytest.raises(PermanentError, match=r"is not here.*nodes in us-west-2 were made with one"):
        create(tmp_path, {"DescribeKeyPairs": pair}, regions=two)
    assert not (tmp_path / ".fleetform" / "keys" / "ours").exists()
    assert create(tmp_path, {"DescribeKeyPairs": refusal("OptInRequired")}, regions=two)


def test_no_key_is_left_while_another_region_does_not_answer(tmp_path):
    """The next create, perhaps of another process, would take it for the one that all nodes have."""
    busy = {"DescribeKeyPairs": refusal("InternalError", status=500)}
    with Scripted(lambda asked: asked_for(asked, **busy)) as server:
        there = provider(server.port, tmp_path, "ours", regions=(REGION, "us-west-2"))
        with pytest.raises(TransientError):
            there.create(NODE, TOKEN, INPUTS, {})
        assert "ImportKeyPair" not in {a["Action"] for a in server.asked}
    assert not (tmp_path / ".fleetform" / "keys" / "ours").exists()


def test_a_pair_that_is_not_listed_yet_is_waited_for(tmp_path):
    """It was brought by a try whose answer was lost."""
    with pytest.raises(TransientError, match="Duplicate") as caught:
        create(tmp_path, {"ImportKeyPair": refusal("InvalidKeyPair.Duplicate")})
    assert caught.value.kind is TransientKind.BUSY


def test_a_key_that_was_made_just_now_is_brought_at_once(tmp_path):
    """Whether EC2 has it need not be asked; of one that was here before it has to be."""
    assert "DescribeKeyPairs" not in create(tmp_path)[1]
    assert "DescribeKeyPairs" in create(tmp_path)[1]


def test_a_pair_that_was_taken_away_meanwhile_is_brought_again(tmp_path):
    gone = refusal("InvalidKeyPair.NotFound")
    with pytest.raises(TransientError) as caught:
        create(tmp_path, {"RunInstances": gone})
    assert caught.value.kind is TransientKind.BUSY


def test_the_pair_goes_with_the_last_of_many(tmp_path):
    """Not with each: that would be a listing a node, and the pair would go while others need it."""
    together = threading.Barrier(6)
    pair: list[dict[str, str]] = []

    def pairs(asked):
        items = [f"<item><keyName>{p['KeyName']}</keyName>{tag_set(tags_of(p))}</item>" for p in pair]
        return answer("DescribeKeyPairs", f"<keySet>{''.join(items)}</keySet>")

    def bring(asked):
        pair.append(asked)
        return answer("ImportKeyPair", "")

    def full(_):
        together.wait(60)
        return refusal("VcpuLimitExceeded")

    more = {"DescribeKeyPairs": pairs, "ImportKeyPair": bring, "RunInstances": full}
    with Scripted(lambda asked: asked_for(asked, **more)) as server:
        there = provider(server.port, tmp_path, "ours")

        def refused(i):
            with pytest.raises(PermanentError, match="VcpuLimitExceeded"):
                there.create(Address("node", f"gpu-{i}"), f"{i:032x}", INPUTS, {})

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(refused, range(6)))
        asked = Counter(a["Action"] for a in server.asked)
        assert (asked["ImportKeyPair"], asked["DeleteKeyPair"], asked["DescribeInstances"]) == (1, 1, 1)
        (look,) = (a for a in server.asked if a["Action"] == "DescribeInstances")
        assert look["MaxResults"] == "5"


def test_the_pair_goes_though_its_last_node_is_gone_already(tmp_path):
    """An interrupted delete ended the node; the next one finds the rest to do."""
    ours = tag_set({"fleetform:owner": "ours"})
    pair = answer(
        "DescribeKeyPairs", f"<keySet><item><keyName>fleetform-ours</keyName>{ours}</item></keySet>"
    )
    with Scripted(lambda asked: asked_for(asked, DescribeKeyPairs=pair)) as server:
        provider(server.port, tmp_path, "ours").delete(record())
        assert "DeleteKeyPair" in {a["Action"] for a in server.asked}


def test_a_key_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / ".fleetform").write_text("a file")
    with pytest.raises(PermanentError, match="cannot be made") as caught:
        create(tmp_path)
    assert caught.value.about == "identity_file"


def test_a_shared_state_makes_no_key_of_its_own(tmp_path):
    """Who works on it elsewhere would not have it. A key that is there, or named, is used."""
    with pytest.raises(PermanentError, match="kept outside of this project's folder") as caught:
        create(tmp_path, shared=True)
    assert (caught.value.kind, caught.value.about) == (PermanentKind.AUTH, "identity_file")
    assert not (tmp_path / ".fleetform").exists()
    make(tmp_path / "key")
    assert create(tmp_path, shared=True, options={"identity_file": "key"})[0].path == tmp_path / "key"
    make(tmp_path / ".fleetform" / "keys" / "ours")
    assert create(tmp_path, shared=True)


@pytest.mark.parametrize("form", ["text", "without its last line break", "file"])
def test_the_key_comes_from_the_environment(tmp_path, monkeypatch, form):
    """As CI systems hand out secrets. A program that reads it finds a file that nobody else may read, and
    nothing is written to a disk.
    """
    make(tmp_path / "key")
    text = (tmp_path / "key").read_text()
    given = {"text": text, "file": str(tmp_path / "key")}.get(form, text.strip().replace("\n", "\r\n"))
    monkeypatch.setenv("FLEETFORM_IDENTITY", given)
    login, asked = create(tmp_path, shared=True, options={"identity_file": "another"})
    assert login.public == Login(tmp_path / "key").public
    assert login.public in base64.b64decode(asked["RunInstances"]["UserData"]).decode()
    assert openssh(login.path) == login.public
    assert login.path.stat().st_mode & 0o777 == 0o600
    assert login.path.is_relative_to("/proc" if form != "file" else tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["key"]


def test_an_odd_key_in_the_environment_is_not_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("FLEETFORM_IDENTITY", "-----BEGIN OPENSSH PRIVATE KEY-----\nhello\n")
    with pytest.raises(PermanentError, match="FLEETFORM_IDENTITY is not a private key") as caught:
        create(tmp_path)
    assert "hello" not in f"{caught.value.summary}{caught.value.hint}"
    monkeypatch.setenv("FLEETFORM_IDENTITY", str(tmp_path / "none"))
    with pytest.raises(PermanentError, match="FLEETFORM_IDENTITY names no file"):
        create(tmp_path)


def test_a_key_is_looked_for_once(tmp_path, monkeypatch):
    """And not written to the disk for each node."""
    make(tmp_path / ".fleetform" / "keys" / "ours")
    monkeypatch.setattr(key_pairs, "make", None)
    with Scripted(asked_for) as server:
        there = provider(server.port, tmp_path, "ours")
        there._keys.login()
        there._keys.ensure(there._account.region(REGION))


def test_where_nodes_are_in_the_network(tmp_path):
    plain = Network(subnets={ZONE: "subnet-1"}, security_groups=("sg-1", "sg-2"))
    run = create(tmp_path, network=plain)[1]["RunInstances"]
    assert (run["SubnetId"], run["SecurityGroupId.2"]) == ("subnet-1", "sg-2")
    hidden = Network(subnets={ZONE: "subnet-1"}, security_groups=("sg-1",), public_ip=False)
    run = create(tmp_path, network=hidden)[1]["RunInstances"]
    card = {k.removeprefix("NetworkInterface.1."): v for k, v in run.items() if k.startswith("NetworkI")}
    assert card["AssociatePublicIpAddress"] == "false"
    assert (card["SubnetId"], card["SecurityGroupId.1"]) == ("subnet-1", "sg-1")
    assert "SubnetId" not in run


def test_who_logs_in_is_written_on_the_node(tmp_path):
    run = create(tmp_path, ssh_user="ubuntu")[1]["RunInstances"]
    assert '"name": "ubuntu"' in base64.b64decode(run["UserData"]).decode()
    assert "ubuntu" in run.values()


# ------------------------------------------------------------------------------------------- hosts


def record(**outputs):
    made = {"id": "i-00000001", "address": "10.0.0.9", "user": "fleetform", "host_key": "ssh-ed25519 AAAA"}
    return Record(address=NODE, backend="aws", inputs=INPUTS, outputs={**made, **outputs})


@pytest.mark.parametrize(
    ("reach", "public", "way"),
    [
        (None, "", "10.0.0.9"),
        (None, "192.0.2.9", "192.0.2.9"),
        (Reach.PRIVATE, "192.0.2.9", "10.0.0.9"),
        (Reach.PUBLIC, "192.0.2.9", "192.0.2.9"),
    ],
)
def test_by_which_address_a_node_is_reached(tmp_path, reach, public, way):
    make(tmp_path / ".fleetform" / "keys" / "ours")
    there = provider(1, tmp_path, "ours", network=Network(reach=reach))
    host = there._hosts.host(record(public_address=public)).inputs["host"]
    assert (host["hostname"], host["internal_ip"]) == (way, "10.0.0.9")
    assert (host["user"], host["host_keys"]) == ("fleetform", ["ssh-ed25519 AAAA"])


def test_why_a_node_cannot_be_reached(tmp_path):
    """Each in words: it has no public address, its host key is unknown, the private key is elsewhere."""
    with pytest.raises(PermanentError, match="the private key of this state's nodes is not here"):
        provider(1, tmp_path, "ours")._hosts.host(record())
    make(tmp_path / ".fleetform" / "keys" / "ours")
    with pytest.raises(PermanentError, match="no public address"):
        provider(1, tmp_path, "ours", network=Network(reach=Reach.PUBLIC))._hosts.host(record())
    with pytest.raises(PermanentError, match="no recorded host key"):
        provider(1, tmp_path, "ours")._hosts.host(record(host_key=None))


def test_until_it_was_ready_once_a_node_is_starting(tmp_path):
    """Whatever it says: sshd is up before its keys are. Later the same is a fault."""
    make(tmp_path / ".fleetform" / "keys" / "ours")
    there = provider(1, tmp_path, "ours")
    node = record(address="127.1.0.1")  # nothing answers there
    taken: list[Record] = []
    seen = [there._hosts.readiness([node], {"gpu-0": once}, taken.append)["gpu-0"] for once in (False, True)]
    assert seen[0].state is NodeState.PROVISIONING
    assert seen[0].reason.startswith("it is starting: ")
    assert seen[1].state in (NodeState.UNREACHABLE, NodeState.NOT_READY)
    assert taken == []


# -------------------------------------------------------------------------------------- any cloud's


class Places(Pairs):
    """Key pairs of a cloud that says what it is asked."""

    def __init__(self, folder):
        super().__init__(Account(Config(backend="lab", project_dir=folder, lineage="us"), {}))
        self.asked = []

    def _send(self, region, login):
        self.asked.append(f"import {region.name}")

    def _find(self, region):
        raise AssertionError(region)  # the key was made just now

    def _is_of(self, there, login):
        raise AssertionError(there)

    def _another(self, region, login, there):
        raise AssertionError(there)

    def _remove(self, region):
        self.asked.append(f"remove {region.name}")


def test_the_last_to_leave_takes_the_pair_away(tmp_path):
    """Once for all that go at once, and not while one comes; who comes later brings it again."""
    pairs, here = Places(tmp_path), SimpleNamespace(name="here")
    looks = []

    def living():
        looks.append("look")
        return False

    with pairs.changing(here, living, ending=True):
        pairs.ensure(here)
        for _ in range(3):
            with pairs.changing(here, living, ending=True):
                pairs.left(here)
        assert not looks
    with pairs.changing(here, living, ending=False):
        pairs.ensure(here)
    assert (looks, pairs.asked) == (["look"], ["import here", "remove here", "import here"])


def test_a_look_that_failed_stays_due(tmp_path):
    """Who ends a node hears of it if it may pass; who makes one does not. The next to leave looks again."""
    pairs, here = Places(tmp_path), SimpleNamespace(name="here")

    def broken():
        raise TransientError(TransientKind.THROTTLED, "slow down")

    with pytest.raises(TransientError), pairs.changing(here, broken, ending=True):
        pairs.left(here)
    with pairs.changing(here, broken, ending=False):
        pass
    assert not pairs.asked
    with pairs.changing(here, lambda: False, ending=False):
        pass
    assert pairs.asked == ["remove here"]
