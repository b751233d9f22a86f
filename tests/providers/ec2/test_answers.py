"""The driver `ec2` with answers that a test gives and moto never gives."""

import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from declarative.model.state import Address, Record
from declarative.model.status import NodeState, Readiness
from declarative.provider import PermanentError, PermanentKind, TransientError, TransientKind
from providers.cloud import account, marks
from providers.cloud.ec2.answers import CODES, kind_of
from providers.cloud.marks import TAKEN
from tests.providers.ec2.run import REGION, SECRETS, ZONE, provider
from tests.providers.ec2.scripted import Scripted, answer, instance, refusal, reservations, volume
from tests.support.model import of_attachment, of_node

LINEAGE = "lineage-1"
TOKEN = "1" * 32
NODE, DISK, HELD = Address("node", "gpu-0"), Address("volume", "data-0"), Address("attachment", "t-0.data-0")
INPUTS = of_node(region=REGION, zone=ZONE, instance_type="t3.micro")
HELD_INPUTS = of_attachment("t-0", "gpu-0", "data-0")
OURS = marks.written(marks.Mark(owner=LINEAGE, address=NODE, token=TOKEN, inputs=INPUTS))
MOST_ASKED = 200
"""Requests to one server: the tests make fewer than a hundred."""
NO_VOLUMES = answer("DescribeVolumes", "<volumeSet/>")


@pytest.fixture(autouse=True)
def secrets(monkeypatch):
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(account, "PATIENCE", 12.0)
    monkeypatch.setattr(account, "FIRST_PAUSE", 0.0)
    monkeypatch.setattr(account, "time", SimpleNamespace(monotonic=ticking(), sleep=lambda _: None))


def ticking():
    """A clock that goes on by a second with each look at it: nothing waits."""
    seconds = iter(range(10**9))
    return lambda: float(next(seconds))


@pytest.fixture
def ec2(tmp_path):
    """`ec2(…)`: a provider, and the server that gives it these answers by action, the last one for ever."""
    servers = []
    pair = {
        "DescribeKeyPairs": answer("DescribeKeyPairs", "<keySet/>"),
        "ImportKeyPair": answer("ImportKeyPair", ""),
        "DeleteKeyPair": answer("DeleteKeyPair", "<return>true</return>"),
    }

    def serve(**answers):
        left = {
            action: list(found) if isinstance(found, list) else [found]
            for action, found in {**pair, **answers}.items()
        }

        def take(asked):
            mine = left[asked["Action"]]
            if asked["Action"] in pair:
                server.asked.remove(asked)  # the tests are about what comes after them
            if len(server.asked) > MOST_ASKED:
                return refusal("AskedForEver")  # else a test of what goes on for ever would, too
            found = mine.pop(0) if len(mine) > 1 else mine[0]
            return found(asked) if callable(found) else found

        server = Scripted(take)
        servers.append(server)
        return provider(server.port, tmp_path, LINEAGE), server

    yield serve
    for server in servers:
        server.__exit__()


def node_record(made="i-00000001"):
    return Record(address=NODE, backend="aws", inputs=INPUTS, outputs={"id": made})


def disk_record():
    return Record(address=DISK, backend="aws", inputs=INPUTS, outputs={"id": "vol-00000001"})


def marked(i):
    address = Address("node", f"gpu-{i}")
    token = f"{i:032x}"
    return marks.written(marks.Mark(owner=LINEAGE, address=address, token=token, inputs=INPUTS))


# ---------------------------------------------------------------------------------------- requests


def test_nothing_of_a_request_is_in_its_url(ec2):
    """URLs are written into logs; the key and the region are in the signature, as version 4 has it."""
    there, server = ec2(
        DescribeInstances=answer("DescribeInstances", reservations()), DescribeVolumes=NO_VOLUMES
    )
    assert there.inventory() == ()
    signed = server.headers[0]["Authorization"]
    assert re.match(rf"AWS4-HMAC-SHA256 Credential=AKIDTESTINGKEY/\d{{8}}/{REGION}/ec2/aws4_request", signed)
    assert "very+secret" not in str(server.headers)


def test_what_netrc_says_is_not_sent(ec2, tmp_path, monkeypatch):
    """It would take the signature's place."""
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password mine\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    there, server = ec2(
        DescribeInstances=answer("DescribeInstances", reservations()), DescribeVolumes=NO_VOLUMES
    )
    there.inventory()
    assert server.headers[0]["Authorization"].startswith("AWS4-HMAC-SHA256")


def test_a_proxy_of_the_environment_is_used(ec2, monkeypatch):
    """And an exception from it as well."""
    there, server = ec2(
        DescribeInstances=answer("DescribeInstances", reservations()), DescribeVolumes=NO_VOLUMES
    )
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(TransientError) as caught:
        there.inventory()
    assert caught.value.kind is TransientKind.NOT_SENT or caught.value.kind is TransientKind.AMBIGUOUS
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    direct = provider(server.port, there._account.config.project_dir, LINEAGE)
    assert direct.inventory() == ()


# ------------------------------------------------------------------------------------------- pages


def test_every_page_is_read(ec2):
    """1,100 nodes, of which EC2 gives no more than 1,000 at once."""
    items = [instance(f"i-{i:08x}", marked(i)) for i in range(1100)]
    pages = [reservations(*items[:1000], token="more"), reservations(*items[1000:])]
    there, server = ec2(
        DescribeInstances=[answer("DescribeInstances", page) for page in pages], DescribeVolumes=NO_VOLUMES
    )
    found = {thing.address.name for thing in there.inventory()}
    assert found == {f"gpu-{i}" for i in range(1100)}
    asked = [a for a in server.asked if a["Action"] == "DescribeInstances"]
    assert [a.get("NextToken") for a in asked] == [None, "more"]
    assert {a["MaxResults"] for a in asked} == {"1000"}


@pytest.mark.parametrize(
    "said",
    [
        answer("DescribeInstances", ""),
        answer("DescribeInstances", "<reservationSet>text</reservationSet>"),
        answer("DescribeInstances", "<reservationSet><item><other/></item></reservationSet>"),
        answer("DescribeInstances", reservations("<item><instanceId>i-1</instanceId></item>")),
        answer("DescribeInstances", reservations(token="same")),
        "<ListAllMyBucketsResult><Buckets/></ListAllMyBucketsResult>",
        "<html><body>hello</body></html>",
        "{}",
        "",
    ],
    ids=[
        "no list",
        "a text",
        "no instances",
        "half an instance",
        "in circles",
        "S3",
        "a page",
        "JSON",
        "empty",
    ],
)
def test_an_answer_without_the_list_says_nothing(ec2, said):
    """It is a fault, and no empty list."""
    there, _ = ec2(DescribeInstances=said, DescribeVolumes=NO_VOLUMES)
    for look in (there.inventory, lambda: there.find(NODE, TOKEN), lambda: there.readiness([node_record()])):
        with pytest.raises(TransientError) as caught:
            look()
        assert caught.value.kind is TransientKind.AMBIGUOUS


def test_two_instances_of_one_token_are_both_shown(ec2):
    """EC2 makes no second one while it knows the token. If there is one nevertheless, it costs money."""
    said = answer("DescribeInstances", reservations(*(instance(f"i-0000000{i}", OURS) for i in (1, 2))))
    there, _ = ec2(DescribeInstances=said, DescribeVolumes=NO_VOLUMES)
    assert [thing.outputs["id"] for thing in there.inventory()] == ["i-00000001", "i-00000002"]


def test_namespaces_do_not_matter(ec2):
    """Clouds that speak EC2's protocol have others."""
    said = answer("DescribeInstances", reservations(instance("i-00000001", OURS)), "urn:another")
    there, _ = ec2(DescribeInstances=said, DescribeVolumes=NO_VOLUMES)
    assert [thing.address for thing in there.inventory()] == [NODE]


def test_what_does_not_say_its_encoding_is_utf_8(ec2):
    """As the server of these tests does not. Nothing of it is guessed, and libcloud does not read it."""
    tags = {**OURS, "team": "grün"}
    said = answer("DescribeInstances", reservations(instance("i-00000001", tags)))
    there, _ = ec2(DescribeInstances=said)
    (found,) = there._account.region(REGION).instances({})
    assert found.tags["team"] == "grün"


@pytest.mark.parametrize("status", [200, 400])
def test_an_answer_that_grows_when_it_is_read_is_not_read(ec2, status):
    """By libcloud neither."""
    laughs = '<!DOCTYPE l [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;">]>' + seen().replace("><", ">&b;<", 1)
    there, _ = ec2(DescribeInstances=(status, laughs))
    with pytest.raises((TransientError, PermanentError)) as caught:
        there._account.region(REGION).instances({})
    assert "ha" not in caught.value.summary.replace("has", "")


# ----------------------------------------------------------------------------------------- creates


def ran(*items):
    return answer("RunInstances", f"<instancesSet>{''.join(items)}</instancesSet>")


def seen(*items):
    return answer("DescribeInstances", reservations(*items))


def test_a_create_ends_when_the_node_runs(ec2):
    """A listing that does not know it yet is no reason to make another."""
    there, server = ec2(
        RunInstances=ran(instance("i-00000001", OURS, "pending")),
        DescribeInstances=[
            seen(),
            seen(instance("i-00000001", OURS, "pending")),
            seen(instance("i-00000001", OURS)),
        ],
    )
    outputs = there.create(NODE, TOKEN, INPUTS, {})
    assert outputs == {"id": "i-00000001", "address": "10.0.0.9", "zone": ZONE}
    assert [a["Action"] for a in server.asked] == ["RunInstances", *["DescribeInstances"] * 3]
    first = server.asked[0]
    assert (first["ClientToken"], first["MinCount"], first["MaxCount"]) == (TOKEN, "1", "1")
    assert first["Placement.AvailabilityZone"] == ZONE
    tags = {first[f"TagSpecification.1.Tag.{i}.Key"] for i in range(1, 8)}
    assert tags == {"Name", "fleetform:host-key", "fleetform:user", *OURS}


def test_a_node_that_does_not_start_in_time_is_asked_for_again(ec2):
    """The wait is limited; a retry uses the same token."""
    pending = instance("i-00000001", OURS, "pending")
    there, _ = ec2(RunInstances=ran(pending), DescribeInstances=seen(pending))
    with pytest.raises(TransientError) as caught:
        there.create(NODE, TOKEN, INPUTS, {})
    assert caught.value.kind is TransientKind.BUSY


@pytest.mark.slow
def test_one_asks_for_all_that_start(ec2, monkeypatch):
    """A cloud that is asked by each of a hundred nodes, time after time, refuses all of them."""
    monkeypatch.setattr(account, "PATIENCE", 1e6)
    monkeypatch.setattr(account, "FIRST_PAUSE", 0.2)
    monkeypatch.setattr(account, "LONGEST_PAUSE", 0.2)
    many, starts_at = range(8), 10
    looks: Counter[str] = Counter()

    def marked_as(made, state):
        return instance(made, marked(int(made.removeprefix("i-"), 16)), state)

    def run(asked):
        return ran(marked_as("i-" + asked["ClientToken"][-8:], "pending"))

    def look(asked):
        wanted = {v for k, v in asked.items() if ".Value." in k}
        looks.update(wanted)
        states = {made: "running" if looks[made] >= starts_at else "pending" for made in wanted}
        return seen(*[marked_as(made, states[made]) for made in sorted(wanted)])

    there, server = ec2(RunInstances=run, DescribeInstances=look)

    def create(i):
        return there.create(Address("node", f"gpu-{i}"), f"{i:032x}", INPUTS, {})["id"]

    with ThreadPoolExecutor(len(many)) as pool:
        assert list(pool.map(create, many)) == [f"i-{i:08x}" for i in many]
    asked = Counter(a["Action"] for a in server.asked)
    assert asked["RunInstances"] == len(many)
    assert asked["DescribeInstances"] < starts_at * len(many) / 2


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        ("Server.InsufficientInstanceCapacity", PermanentKind.NO_CAPACITY),
        ("Server.InternalError", PermanentKind.NO_CAPACITY),
        ("Client.VolumeLimitExceeded", PermanentKind.QUOTA),
        ("Client.InvalidSnapshot.NotFound", PermanentKind.NOT_FOUND),
        ("", PermanentKind.INVALID),
    ],
)
def test_a_node_that_ends_while_it_starts_says_why(ec2, reason, kind):
    """And the zone that it was in, so that another one may be tried."""
    there, _ = ec2(
        RunInstances=ran(instance("i-00000001", OURS, "pending")),
        DescribeInstances=seen(instance("i-00000001", OURS, "terminated", reason)),
    )
    with pytest.raises(PermanentError, match=f"ended while it started.*{reason}") as caught:
        there.create(NODE, TOKEN, INPUTS, {})
    assert (caught.value.kind, caught.value.about) == (kind, ZONE)


@pytest.mark.parametrize(
    "said",
    [
        ran(),
        ran(instance("i-00000001", marked(5))),
        ran(instance("i-00000001", {})),
        seen(instance("i-1", OURS)),
    ],
    ids=["none", "another's", "without tags", "to another action"],
)
def test_the_answer_to_a_create_has_to_carry_its_token(ec2, said):
    """Else it is not known what was made."""
    there, _ = ec2(RunInstances=said, DescribeInstances=seen(instance("i-00000001", {})))
    with pytest.raises(TransientError) as caught:
        there.create(NODE, TOKEN, INPUTS, {})
    assert caught.value.kind is TransientKind.AMBIGUOUS


def test_what_may_still_come_of_a_token_is_waited_for(ec2):
    """Asked for otherwise, and not to be seen yet: nothing is known."""
    there, _ = ec2(RunInstances=refusal("IdempotentParameterMismatch"), DescribeInstances=seen())
    with pytest.raises(TransientError) as caught:
        there.create(NODE, TOKEN, INPUTS, {})
    assert caught.value.kind is TransientKind.AMBIGUOUS


DENIED = refusal("UnauthorizedOperation", "you may not look", 403)


def test_that_it_cannot_be_looked_at_does_not_undo_it(ec2):
    """Who may make and not look: a permanent fault would say that nothing was made."""
    pending = ran(instance("i-00000001", OURS, "pending"))
    there, _ = ec2(RunInstances=pending, DescribeInstances=DENIED)
    with pytest.raises(TransientError, match="you may not look") as caught:
        there.create(NODE, TOKEN, INPUTS, {})
    assert caught.value.kind is TransientKind.AMBIGUOUS


BAD = "<html>bad gateway</html>"


@pytest.mark.parametrize("first", [(502, BAD), (200, BAD), ran()], ids=["lost", "no answer", "empty"])
@pytest.mark.parametrize(
    ("then", "seen_then", "wanted"),
    [
        (refusal("RequestExpired"), seen(instance("i-00000001", OURS)), None),
        (refusal("RequestExpired"), seen(), PermanentKind.AUTH),
        (refusal("RequestExpired"), DENIED, TransientKind.AMBIGUOUS),
        (refusal("VcpuLimitExceeded"), seen(instance("i-00000001", OURS)), None),
    ],
    ids=["found", "not there", "not to be asked", "a quota that it used up"],
)
def test_a_refusal_after_a_lost_answer_is_looked_into(ec2, first, then, seen_then, wanted):
    """What the first try made may be there. Without a first try the refusal counts."""
    there, server = ec2(RunInstances=[first, then], DescribeInstances=seen_then)
    with pytest.raises(TransientError):
        there.create(NODE, TOKEN, INPUTS, {})
    if wanted is None:
        assert there.create(NODE, TOKEN, INPUTS, {})["id"] == "i-00000001"
    else:
        with pytest.raises((TransientError, PermanentError)) as caught:
            there.create(NODE, TOKEN, INPUTS, {})
        assert getattr(caught.value, "kind", None) is wanted
    looks = server.asked[2:]
    assert looks[0]["Action"] == "DescribeInstances"
    assert TOKEN in looks[0].values()
    fresh, alone = ec2(RunInstances=then, DescribeInstances=seen_then)
    with pytest.raises(PermanentError):
        fresh.create(NODE, TOKEN, INPUTS, {})
    assert [a["Action"] for a in alone.asked if TOKEN in a.values()] == ["RunInstances"]


# ------------------------------------------------------------------------------------- attachments

DISK_MARK = marks.written(marks.Mark(owner=LINEAGE, address=DISK, token=TOKEN, inputs=INPUTS))


def claimed(token=TOKEN, address=HELD):
    claim = f'{{"address":"{address}","inputs":{{}},"token":"{token}"}}'
    return {**DISK_MARK, **marks.pack("fleetform:on:i-00000001", claim, HELD)}


def disks(*items):
    return answer("DescribeVolumes", f"<volumeSet>{''.join(items)}</volumeSet>")


def disk(state="available", held="", tags=DISK_MARK):
    return disks(volume("vol-00000001", tags, state, held))


@pytest.mark.parametrize(("kind", "actual"), [("gp3", {}), ("io2", {"volume_type": "io2"}), ("", {})])
def test_a_volume_that_names_no_type_is_of_the_usual_one(ec2, kind, actual):
    """One that somebody changed to another type is reported; one of which EC2 says nothing is not."""
    item = volume("vol-00000001", DISK_MARK).replace("</item>", f"<volumeType>{kind}</volumeType></item>")
    there, _ = ec2(DescribeInstances=answer("DescribeInstances", reservations()), DescribeVolumes=disks(item))
    (thing,) = there.inventory()
    assert thing.actual == actual


ON = "i-00000001 /dev/sdf"
DONE = {"CreateTags": answer("CreateTags", "<return>true</return>"), "DeleteTags": answer("DeleteTags", "")}


def attach(there):
    return there.create(HELD, TOKEN, HELD_INPUTS, {NODE: node_record(), DISK: disk_record()})


def test_attaching_waits_until_the_node_has_the_disk(ec2):
    """Made yet? Attached yet? And where a look between them fails, all is asked for again."""
    there, server = ec2(
        DescribeVolumes=[
            disk("creating"),
            disk(),  # now it is attached
            disks(volume("vol-00000002", {}, "in-use", "i-00000001 /dev/sdf attached")),  # what the node has
            disk("in-use", "i-00000001 /dev/sdg attaching", claimed()),
            disk("in-use", "i-00000001 /dev/sdg attached", claimed()),
        ],
        AttachVolume=answer("AttachVolume", "<status>attaching</status>"),
        **DONE,
    )
    outputs = attach(there)
    assert outputs["device"] == "/dev/sdg"
    asked = [a["Action"] for a in server.asked]
    assert asked.index("CreateTags") < asked.index("AttachVolume")
    (request,) = (a for a in server.asked if a["Action"] == "AttachVolume")
    assert request["Device"] == "/dev/sdg"


LOST = (502, "<html>bad gateway</html>")
EXPIRED = refusal("RequestExpired")


@pytest.mark.parametrize(
    ("then", "wanted"),
    [
        ({"DescribeVolumes": [disk(), disks(), disk("in-use", f"{ON} attached", claimed())]}, None),
        ({"DescribeVolumes": [disk(), disks(), disk()]}, PermanentKind.AUTH),
        ({"DescribeVolumes": EXPIRED}, TransientKind.AMBIGUOUS),
    ],
    ids=["it came", "it did not come", "not to be asked"],
)
def test_a_refusal_after_a_lost_attachment_is_looked_into(ec2, then, wanted):
    """A key that expires between two tries says nothing of the first. A permanent fault would."""
    looks = [
        disk(),
        disks(),
        *(then["DescribeVolumes"] if wanted is not TransientKind.AMBIGUOUS else [EXPIRED]),
    ]
    there, _ = ec2(DescribeVolumes=looks, AttachVolume=[LOST, EXPIRED], **DONE)
    with pytest.raises(TransientError):
        attach(there)
    if wanted is None:
        assert attach(there)["device"] == "/dev/sdf"
        return
    with pytest.raises((TransientError, PermanentError)) as caught:
        attach(there)
    assert getattr(caught.value, "kind", None) is wanted


def test_a_volume_is_made_when_it_is_listed(ec2):
    """EC2 answers before it lists it, and what is not listed cannot be attached."""
    made = answer("CreateVolume", volume("vol-00000001", DISK_MARK, "creating").removeprefix("<item>")[:-7])
    there, server = ec2(CreateVolume=made, DescribeVolumes=[disks(), disks(), disk("creating")])
    inputs = {**INPUTS, "size": "1GB"}
    assert there.create(DISK, TOKEN, inputs, {}) == {"id": "vol-00000001", "zone": ZONE}
    assert [a["Action"] for a in server.asked] == ["CreateVolume", *["DescribeVolumes"] * 3]
    there, _ = ec2(CreateVolume=made, DescribeVolumes=disk("deleted"))
    with pytest.raises(PermanentError, match="ended while it was made"):
        there.create(DISK, TOKEN, inputs, {})


@pytest.mark.parametrize(
    ("made", "seconds", "fault"),
    [
        ("2020-01-01T00:00:00.000Z", 1e6, PermanentKind.USED_UP),
        ("", 1e6, TransientKind.BUSY),
        ("", 5.0, PermanentKind.USED_UP),
        ("2999-01-01T00:00:00.000Z", 1e6, TransientKind.BUSY),
    ],
    ids=["made long ago", "made at an unknown time", "missed for long", "made just now"],
)
def test_a_volume_that_was_removed_uses_its_token_up(ec2, monkeypatch, made, seconds, fault):
    """EC2 answers with what the token made, for as long as it knows the token. What it may just have made is
    not made twice.
    """
    monkeypatch.setattr(account, "LIST_LAG", seconds)
    item = volume("vol-00000001", DISK_MARK, "creating").removeprefix("<item>")[:-7]
    there, _ = ec2(
        CreateVolume=answer("CreateVolume", f"{item}<createTime>{made}</createTime>"), DescribeVolumes=disks()
    )
    with pytest.raises((TransientError, PermanentError)) as caught:
        there.create(DISK, TOKEN, {**INPUTS, "size": "1GB"}, {})
    assert getattr(caught.value, "kind", None) is fault


@pytest.mark.parametrize(
    ("state", "made", "kind", "words", "ends"),
    [
        ("error", "", PermanentKind.NO_CAPACITY, "failed while it was made: EC2 says `error`", 1),
        ("deleting", "", PermanentKind.INVALID, "check the right to use its encryption key", 0),
        ("deleting", "2020-01-01T00:00:00.000Z", PermanentKind.USED_UP, "what was made is gone", 0),
    ],
    ids=["failed", "its key", "deleted long after"],
)
def test_a_volume_that_fails_while_it_is_made_is_not_left(ec2, state, made, kind, words, ends):
    """Its create says why; nothing is attached to what can never be used."""
    item = volume("vol-00000001", DISK_MARK, "creating").removeprefix("<item>")[:-7]
    there, server = ec2(
        CreateVolume=answer("CreateVolume", f"{item}<createTime>{made}</createTime>"),
        DescribeVolumes=disks(volume("vol-00000001", DISK_MARK, state)),
        DeleteVolume=answer("DeleteVolume", "<return>true</return>"),
    )
    with pytest.raises(PermanentError, match=words) as caught:
        there.create(DISK, TOKEN, {**INPUTS, "size": "1GB"}, {})
    assert caught.value.kind is kind
    assert [a["Action"] for a in server.asked].count("DeleteVolume") == ends


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "then"),
    [
        (refusal("IdempotentParameterMismatch"), TransientKind.AMBIGUOUS),
        (ran(instance("i-00000001", OURS, "pending")), TransientKind.BUSY),
    ],
    ids=["asked for otherwise", "not listed"],
)
def test_a_node_that_is_missed_for_long_uses_its_token_up(ec2, monkeypatch, first, then):
    """Not before: its instance may come to be listed."""
    monkeypatch.setattr(account, "LIST_LAG", 30.0)
    there, _ = ec2(RunInstances=first, DescribeInstances=seen())
    kinds: list[object] = []
    while then in (kinds or [then])[-1:]:
        with pytest.raises((TransientError, PermanentError)) as caught:
            there.create(NODE, TOKEN, INPUTS, {})
        kinds.append(getattr(caught.value, "kind", None))
    assert kinds[0] is then
    assert kinds[-1] is PermanentKind.USED_UP


def test_a_node_that_was_terminated_uses_its_token_up(ec2):
    """It ended because somebody terminated it, not for lack of capacity."""
    there, _ = ec2(
        RunInstances=ran(instance("i-00000001", OURS, "pending")),
        DescribeInstances=seen(instance("i-00000001", OURS, "terminated", "Client.UserInitiatedShutdown")),
    )
    with pytest.raises(PermanentError) as caught:
        there.create(NODE, TOKEN, INPUTS, {})
    assert caught.value.kind is PermanentKind.USED_UP


def test_a_node_that_lets_go_of_a_disk_is_waited_for(ec2):
    """Detaching, or ending with its node: both pass."""
    there, _ = ec2(
        DescribeVolumes=[
            disk("in-use", "i-0000000a /dev/sdf attached"),
            disk("in-use", "i-0000000a /dev/sdf detaching"),
            disk(),
            disks(),
            disk("in-use", f"{ON} attached", claimed()),
        ],
        DescribeInstances=seen(instance("i-0000000a", {}, "shutting-down")),
        AttachVolume=answer("AttachVolume", "<status>attaching</status>"),
        **DONE,
    )
    assert attach(there)["device"] == "/dev/sdf"


def test_a_device_that_somebody_else_got_is_not_taken(ec2):
    """The next look sees it, and another one is asked for."""
    taken = refusal("InvalidParameterValue", "Attachment point /dev/sdf is already in use")
    there, server = ec2(
        DescribeVolumes=[
            disk(),
            disks(),
            disk(),
            disks(volume("vol-00000002", {}, "in-use", "i-00000001 /dev/sdf attaching")),
            disk("in-use", "i-00000001 /dev/sdg attached", claimed()),
        ],
        AttachVolume=[taken, answer("AttachVolume", "<status>attaching</status>")],
        **DONE,
    )
    assert attach(there)["device"] == "/dev/sdg"
    assert [a["Device"] for a in server.asked if "Device" in a] == ["/dev/sdf", "/dev/sdg"]


@pytest.mark.parametrize(
    ("found", "kind", "words"),
    [
        (
            disk("in-use", f"{ON} attached", claimed("2" * 32)),
            PermanentKind.CONFLICT,
            "held by attachment/t-0.data-0",
        ),
        (disk("in-use", f"{ON} attached"), PermanentKind.CONFLICT, "attached by somebody else"),
        (disk("in-use", "i-0000000a /dev/sdf attached"), PermanentKind.CONFLICT, "on i-0000000a"),
        (disk("error"), PermanentKind.INVALID, "EC2 says `error`"),
        (disk("deleting"), PermanentKind.NOT_FOUND, "not there any more"),
        (disks(), PermanentKind.NOT_FOUND, "not there any more"),
    ],
    ids=["another rank's", "by hand", "another node's", "damaged", "deleting", "gone"],
)
def test_a_disk_that_does_not_come_free_is_refused(ec2, found, kind, words):
    """At once, and the message names the holder."""
    living = seen(instance("i-00000001", OURS), instance("i-0000000a", {}))
    there, server = ec2(DescribeVolumes=found, DescribeInstances=living)
    with pytest.raises(PermanentError, match=re.escape(words)) as caught:
        attach(there)
    assert caught.value.kind is kind
    assert "AttachVolume" not in {a["Action"] for a in server.asked}


def test_a_disk_that_stays_on_its_way_is_asked_for_again(ec2):
    there, _ = ec2(DescribeVolumes=disk("creating"))
    with pytest.raises(TransientError) as caught:
        attach(there)
    assert caught.value.kind is TransientKind.BUSY


@pytest.mark.parametrize("size", [2, 1])
def test_a_volume_that_grew_already_is_grown(ec2, size):
    """EC2 changes a volume once in six hours: a try whose answer was lost has used that up."""
    inputs = {**INPUTS, "size": "1GB"}
    tags = marks.written(marks.Mark(owner=LINEAGE, address=DISK, token=TOKEN, inputs=inputs))
    there, _ = ec2(
        DescribeVolumes=[disks(volume("vol-00000001", tags, size=n)) for n in (1, size)],
        ModifyVolume=refusal("VolumeModificationRateExceeded"),
        **DONE,
    )
    wanted = {**inputs, "size": "2GB"}
    if size == 2:
        assert there.update(disk_record(), TOKEN, wanted)["id"] == "vol-00000001"
        return
    with pytest.raises(PermanentError) as caught:
        there.update(disk_record(), TOKEN, wanted)
    assert caught.value.kind is PermanentKind.QUOTA
    assert "six hours" in str(caught.value.hint)


def test_detaching_waits_until_the_disk_is_free(ec2):
    """And then takes the claim away."""
    there, server = ec2(
        DescribeVolumes=[
            disk("in-use", f"{ON} attached", claimed()),  # is it on a node, to be unmounted there?
            disk("in-use", f"{ON} attached", claimed()),
            disk("in-use", f"{ON} detaching", claimed()),
            disk(tags=claimed()),
        ],
        DescribeInstances=seen(instance("i-00000001", OURS)),
        DetachVolume=answer("DetachVolume", "<status>detaching</status>"),
        **DONE,
    )
    outputs = {"id": f"vol-00000001:i-00000001:{TOKEN[:12]}", "region": REGION}
    outputs |= {"volume": "vol-00000001", "instance": "i-00000001"}
    there.delete(Record(address=HELD, backend="aws", inputs=HELD_INPUTS, outputs=outputs))
    assert [a["Action"] for a in server.asked] == [
        "DescribeVolumes",
        "DescribeInstances",
        "DescribeVolumes",
        "DescribeInstances",
        "DetachVolume",
        "DescribeVolumes",
        "DescribeVolumes",
        "DeleteTags",
    ]


# --------------------------------------------------------------------------------------- readiness


def check(made, system="ok", own="ok"):
    both = {"systemStatus": system, "instanceStatus": own}
    said = "".join(f"<{name}><status>{status}</status></{name}>" for name, status in both.items())
    return f"<item><instanceId>{made}</instanceId>{said}</item>"


@pytest.mark.parametrize(
    ("state", "checks", "wanted", "words"),
    [
        ("running", check("i-00000001"), NodeState.READY, None),
        ("running", check("i-00000001", own="initializing"), NodeState.PROVISIONING, "initializing"),
        ("running", check("i-00000001", "impaired", "initializing"), NodeState.NOT_READY, "impaired"),
        ("running", "", NodeState.PROVISIONING, "not known yet"),
        ("pending", "", NodeState.PROVISIONING, "starting"),
        ("stopped", "", NodeState.NOT_READY, "stopped"),
        ("shutting-down", "", NodeState.TERMINATING, "shuts down"),
        ("terminated", "", NodeState.FAILED, "terminated"),
    ],
)
def test_ready_is_what_runs_and_passed_its_checks(ec2, state, checks, wanted, words):
    there, _ = ec2(
        DescribeInstances=seen(instance("i-00000001", OURS, state)),
        DescribeInstanceStatus=answer(
            "DescribeInstanceStatus", f"<instanceStatusSet>{checks}</instanceStatusSet>"
        ),
    )
    found = there._nodes.readiness([node_record()])["gpu-0"].readiness
    assert found.state is wanted
    assert (words or "") in (found.reason or "")
    assert (found.reason is None) == (wanted is NodeState.READY)


@pytest.mark.parametrize(
    ("tags", "answers", "wanted"),
    [
        ({}, None, NodeState.PROVISIONING),
        ({TAKEN: "1"}, NodeState.READY, NodeState.NOT_READY),
        ({TAKEN: "1"}, NodeState.UNREACHABLE, NodeState.UNREACHABLE),
    ],
    ids=["new", "answers", "silent"],
)
@pytest.mark.parametrize("state", ["pending", "running", "stopped"])
def test_a_node_that_was_ready_once_is_not_one_that_never_came_up(
    ec2, monkeypatch, state, tags, answers, wanted
):
    """The next plan would make it anew if nothing runs on it: it is there for longer than they take. One that
    is down by its cloud and does not answer is silent, and no fault of the line from here.
    """
    if state == "stopped" and not tags:
        wanted = NodeState.NOT_READY
    checks = check("i-00000001", own="insufficient-data")
    there, _ = ec2(
        DescribeInstances=seen(instance("i-00000001", {**OURS, **tags}, state)),
        DescribeInstanceStatus=answer(
            "DescribeInstanceStatus", f"<instanceStatusSet>{checks}</instanceStatusSet>"
        ),
    )
    asked = {"gpu-0": Readiness(state=answers)} if answers else {}
    monkeypatch.setattr(there._hosts, "readiness", lambda nodes, *_: asked if nodes else {})
    found = there.readiness([node_record()])["gpu-0"]
    assert (found.state, found.down) == (wanted, wanted is NodeState.UNREACHABLE)


# ------------------------------------------------------------------------------------------ faults

FAULTS = [
    ("RequestLimitExceeded", 503, TransientKind.THROTTLED),
    ("Unavailable", 503, TransientKind.AMBIGUOUS),
    ("InternalError", 500, TransientKind.AMBIGUOUS),
    ("NobodyKnows", 500, TransientKind.AMBIGUOUS),
    ("IncorrectState", 400, TransientKind.BUSY),
    ("InsufficientInstanceCapacity", 500, PermanentKind.NO_CAPACITY),
    ("Unsupported", 400, PermanentKind.NO_CAPACITY),
    ("VcpuLimitExceeded", 400, PermanentKind.QUOTA),
    ("InstanceLimitExceeded", 400, PermanentKind.INSTANCES),
    ("MaxSpotInstanceCountExceeded", 400, PermanentKind.INSTANCES),
    ("SomeNewLimitExceeded", 400, PermanentKind.QUOTA),
    ("AuthFailure", 401, PermanentKind.AUTH),
    ("UnauthorizedOperation", 403, PermanentKind.AUTH),
    ("RequestExpired", 400, PermanentKind.AUTH),
    ("InvalidAMIID.NotFound", 400, PermanentKind.NOT_FOUND),
    ("InvalidSubnetID.NotFound", 400, PermanentKind.NOT_FOUND),
    ("InvalidInstanceID.Malformed", 400, PermanentKind.INVALID),
    ("IdempotentInstanceTerminated", 400, PermanentKind.USED_UP),
    ("NobodyKnows", 400, PermanentKind.INVALID),
    ("NobodyKnows", 403, PermanentKind.AUTH),
]


@pytest.mark.parametrize(("code", "status", "kind"), FAULTS, ids=[f"{c}-{s}" for c, s, _ in FAULTS])
def test_faults_are_those_of_the_port(ec2, code, status, kind):
    """By their code; unknown codes by the status."""
    there, _ = ec2(RunInstances=refusal(code, "why", status))
    with pytest.raises(
        (TransientError, PermanentError), match=f"RunInstances in us-east-1: {code}: why"
    ) as caught:
        there.create(NODE, TOKEN, INPUTS, {})
    assert getattr(caught.value, "kind", None) is kind
    assert caught.value.about == ZONE


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (503, "<html><body>upstream <b>unavailable</b></body></html>", TransientKind.AMBIGUOUS),
        (502, "", TransientKind.AMBIGUOUS),
        (429, "slow down", TransientKind.THROTTLED),
        (404, "<html>not here</html>", PermanentKind.NOT_FOUND),
        (200, "<html>a portal</html>", TransientKind.AMBIGUOUS),
        (200, "{'cut", TransientKind.AMBIGUOUS),
    ],
)
def test_what_is_said_on_the_way_is_no_answer(ec2, status, text, kind):
    """Gateways and portals speak no XML."""
    there, _ = ec2(RunInstances=(status, text))
    with pytest.raises((TransientError, PermanentError)) as caught:
        there.create(NODE, TOKEN, INPUTS, {})
    assert getattr(caught.value, "kind", None) is kind
    assert "<" not in caught.value.summary


def test_no_secret_is_in_a_message(ec2):
    """A cloud that quotes what it was sent is cut and scrubbed, in everything that a traceback would show."""
    text = f"bad signature of {SECRETS['FLEETFORM_TEST_SECRET']} by {SECRETS['FLEETFORM_TEST_KEY']} " * 50
    there, _ = ec2(RunInstances=refusal("SignatureDoesNotMatch", text, 403))
    with pytest.raises(PermanentError) as caught:
        there.create(NODE, TOKEN, INPUTS, {})
    shown = [repr(caught.value), caught.value.summary, str(caught.value.hint), repr(caught.value.__cause__)]
    assert not [s for s in shown for secret in SECRETS.values() if secret in s]
    assert len(caught.value.summary) <= 300
    assert "***" in caught.value.summary
    assert "credentials.secret" in str(caught.value.hint)


def test_a_server_that_is_not_there_was_sent_nothing(tmp_path):
    with Scripted(lambda _: "") as server:
        port = server.port
    with pytest.raises(TransientError) as caught:
        provider(port, tmp_path).inventory()
    assert caught.value.kind is TransientKind.NOT_SENT
    assert " at 0x" not in caught.value.summary


def test_codes_have_one_kind_each():
    """Every code of the table is one word, and a pattern never says otherwise than the table."""
    assert all(kind_of(code) is kind for code, kind in CODES.items())
    assert kind_of("NobodyKnows") is None


@pytest.mark.parametrize("kind", ["node", "volume"])
def test_what_a_listing_leaves_out_is_not_forgotten(ec2, kind):
    """A delete ends it, or needs EC2's own word that it does not exist: else it would run on, and
    cost money.
    """
    action, none, gone = {
        "node": ("DescribeInstances", reservations(), "InvalidInstanceID.NotFound"),
        "volume": ("DescribeVolumes", "<volumeSet/>", "InvalidVolume.NotFound"),
    }[kind]
    made = {"node": "i-0123456789abcdef0", "volume": "vol-0123456789abcdef0"}[kind]
    have = Record(address=Address(kind, "a"), backend="aws", inputs=INPUTS, outputs={"id": made})
    empty = answer(action, none)
    there, server = ec2(**{action: [empty, empty, empty, refusal(gone, f"{made} does not exist")]})
    with pytest.raises(TransientError, match=f"does not list {made}, and does not say that there is none"):
        there.delete(have)
    there.delete(have)
    assert [a["Action"] for a in server.asked if a["Action"].startswith("Terminate")] == []
