"""Webhooks: each gets its events at least once, in order and signed, independently of the others."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import random
import sqlite3
import threading
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pytest

from declarative.cli.events import targets
from declarative.model.diagnostic import Diagnostic
from declarative.model.spec import Name
from declarative.model.spec.policy import OperatorPolicy
from declarative.model.spec.project import HookFormat, Notify
from declarative.reconcile.loop import Round, Wait
from declarative.serve import webhooks
from declarative.serve.webhooks import Announcer, Deliveries, Webhook, deliver, message, pending
from declarative.store import open_store
from declarative.store.events import Event
from tests.render.test_reports import HOSTILE
from tests.support.cli import fleet, task
from tests.support.planned import plan_of

SECRET = "a secret that nobody prints"


class Receiver:
    """Takes requests as `script` says: a status, or `hang`; 204 once it is used up. One port for ever."""

    def __init__(self, *script):
        self.script = list(script)
        self.got: list = []
        self.hang = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                answer = receiver.script.pop(0) if receiver.script else 204
                receiver.got.append((answer, dict(self.headers), body, self.path))
                if answer == "hang":
                    receiver.hang.wait(60)
                    return
                if answer == "drop":
                    self.connection.close()
                    return
                self.send_response(answer)
                if answer == 302:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self._handler = Handler
        self.port = 0
        self.up()

    def up(self):
        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def down(self):
        self.hang.set()
        self.server.shutdown()
        self.server.server_close()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/hook/{SECRET.rsplit(maxsplit=1)[-1]}"

    def taken(self):
        """The bodies that it took."""
        return [json.loads(body) for answer, _, body, _ in self.got if answer == 204]


@pytest.fixture
def receiver():
    made = []

    def make(*script):
        made.append(Receiver(*script))
        return made[-1]

    yield make
    for one in made:
        with suppress(OSError):
            one.down()


@pytest.fixture
def store(new_state):
    with open_store(new_state()) as opened:
        yield opened


def hook(name="ops", **more):
    return Notify(**{"name": name, "url": "NOTIFY_URL", **more})


def target(receiver, name="ops", secret=SECRET, **more):
    return Webhook(hook(name, **more), receiver.url, secret)


def tell(store, *types):
    for name in types:
        store.events.write(name, "a/b", {"n": 1})


def clock():
    return 1_000_000.0


def start(store, *targets):
    """Hooks that have received all events so far."""
    for one in targets:
        assert deliver(store, one, clock) is None


# ---------------------------------------------------------------------------------------------- messages


def test_a_message_is_signed_as_standard_webhooks_does_it():
    """https://www.standardwebhooks.com: HMAC-SHA256 over id, time and body."""
    event = Event(id=7, at=1.5, type="rank.failed", address="rank/train-3", detail={"exit_code": 3})
    headers, body = message(Webhook(hook(), "u", SECRET), event, "3f1c", 1_000_000.9)
    assert json.loads(body) == {
        "format_version": 1,
        "id": "3f1c-7",
        "cursor": "7",
        "time": "1970-01-01T00:00:01.500Z",
        "type": "rank.failed",
        "address": "rank/train-3",
        "detail": {"exit_code": 3},
    }
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("3f1c-7", "1000000")
    signed = hmac.new(SECRET.encode(), b"3f1c-7.1000000." + body, hashlib.sha256).digest()
    assert headers["webhook-signature"] == f"v1,{base64.b64encode(signed).decode()}"
    coded = "whsec_" + base64.b64encode(SECRET.encode()).decode()
    assert message(Webhook(hook(), "u", coded), event, "3f1c", 1_000_000.9)[0] == headers
    assert "webhook-signature" not in message(Webhook(hook(), "u"), event, "3f1c", 1.0)[0]
    assert SECRET not in repr(Webhook(hook(), "u", SECRET))


def test_slack_and_github_get_what_they_take():
    event = Event(id=7, at=1.5, type="rank.failed", address="rank/train-3", detail={"cause": "exit code 3"})
    headers, body = message(Webhook(hook(format=HookFormat.SLACK), "u"), event, "3f1c", 1.0)
    assert json.loads(body) == {"text": "rank/train-3: failed (exit code 3)".replace(":", ":\u200b")}
    assert "webhook-signature" not in headers
    github = Webhook(hook(format=HookFormat.GITHUB, secret="NOTIFY_TOKEN"), "u", "ghp_x")
    headers, body = message(github, event, "3f1c", 1.0)
    assert headers["Authorization"] == "Bearer ghp_x"
    sent = json.loads(body)
    assert sent["event_type"] == "fleetform.rank.failed"
    assert sent["client_payload"]["address"] == "rank/train-3"


def test_nothing_hostile_is_a_link_or_a_mention_in_slack():
    for text in (*HOSTILE, "<!channel>", "<@U1>", "<http://evil.example|ok>"):
        event = Event(id=1, at=0.0, type="rank.failed", address=f"rank/{text}", detail={"cause": text})
        _, body = message(Webhook(hook(format=HookFormat.SLACK), "u"), event, None, 0.0)
        said = json.loads(body.decode())["text"]
        assert not {"<", ">"} & set(said)
        assert "@everyone" not in said
        assert "https://" not in said


# -------------------------------------------------------------------------------------------- delivering


def test_a_new_hook_is_told_of_what_comes_and_of_each_event_once(store, receiver):
    there = receiver()
    ops = target(there, events=("rank.*", "node.unreachable"))
    tell(store, "rank.failed")
    start(store, ops)
    tell(store, "rank.failed", "node.ready", "node.unreachable", "volume.created")
    for _ in range(2):
        assert deliver(store, ops, clock) is None
    assert [event["type"] for event in there.taken()] == ["rank.failed", "node.unreachable"]
    assert pending(store, [ops]) == []
    (kept,) = store.hooks.all()
    assert (kept.cursor, kept.failures, kept.error) == (5, 0, None)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (500, "HTTP 500"),
        (404, "HTTP 404"),
        (302, "HTTP 302"),
        ("drop", "it cannot be reached: RemoteDisconnected"),
        ("hang", "it did not answer in time"),
    ],
)
def test_a_receiver_that_fails_is_asked_again_and_misses_nothing(store, receiver, monkeypatch, answer, why):
    monkeypatch.setattr(webhooks, "TIMEOUT", 0.3)
    there = receiver(204, answer, answer)
    ops = target(there)
    start(store, ops)
    tell(store, "node.ready", "node.unreachable", "node.created")
    told = str(deliver(store, ops, clock))
    assert why in told
    assert ops.url not in told
    assert there.url.rsplit("/", 1)[1] not in told
    (kept,) = store.hooks.all()
    assert (kept.failures, kept.error) == (1, told)
    assert deliver(store, ops, clock) is None, "it rests"
    assert len(there.got) == 2
    assert why in str(deliver(store, ops, clock, at_once=True))
    assert deliver(store, ops, clock, at_once=True) is None
    assert [event["type"] for event in there.taken()] == ["node.ready", "node.unreachable", "node.created"]
    assert len({event["id"] for event in there.taken()}) == 3
    assert [path for _, _, _, path in there.got if "elsewhere" in path] == []


def test_it_is_asked_ever_more_seldom():
    waits = [webhooks._wait(failures) for failures in range(40)]
    assert waits[0] < 2
    assert 100 < waits[8] < 400
    assert max(waits) <= webhooks.SELDOM * 1.2


def test_answers_that_drip_end_too(store, receiver, monkeypatch):
    monkeypatch.setattr(webhooks, "LONGEST", 0.5)
    there = receiver("hang")
    ops = target(there)
    start(store, ops)
    tell(store, "node.ready")
    assert deliver(store, ops, clock) is not None


def test_one_process_tells_a_hook_and_a_dead_ones_claim_lapses(store, receiver):
    there = receiver()
    ops = target(there)
    start(store, ops)
    tell(store, "node.ready")
    assert store.hooks.claim("ops", 60.0) is not None
    assert deliver(store, ops, clock, at_once=True) is None, "it is another one's"
    assert there.got == []
    store.hooks.advance("ops", 0, more=-1.0)
    assert deliver(store, ops, clock) is None
    assert len(there.taken()) == 1


def test_a_hook_that_hangs_holds_up_no_other(store, receiver, monkeypatch):
    """And the receiver that restarts gets all, each event once, in order."""
    monkeypatch.setattr(webhooks, "FIRST", 0.01)
    bad, good = receiver("hang"), receiver()
    hooks = [target(bad, "bad"), target(good, "good")]
    start(store, *hooks)
    said: list[str] = []
    url = store.url
    deliveries = Deliveries(lambda: open_store(url), clock, said.append)
    tell(store, "node.ready")
    names = {"bad", "good"}

    def until(done):
        for _ in range(600):
            deliveries.tick(hooks, names)
            if done():
                return
            threading.Event().wait(0.05)
        pytest.fail(f"it did not happen: {said}, {store.hooks.all()}")

    until(lambda: good.taken() and bad.got)
    assert bad.taken() == []
    good.down()
    tell(store, "node.unreachable", "node.created")
    until(lambda: any("good does not get events" in line for line in said))
    good.up()
    until(lambda: len(good.taken()) == 3)
    bad.hang.set()
    until(lambda: len(bad.taken()) == 3)
    deliveries.close()
    for one in (good, bad):
        assert [event["type"] for event in one.taken()] == ["node.ready", "node.unreachable", "node.created"]
    assert "notify good gets events again" in said
    assert not [line for line in said if "http" in line.lower().replace("http 5", "")]


def test_hooks_that_are_not_declared_any_more_are_forgotten(store, receiver):
    start(store, target(receiver(), "one"), target(receiver(), "two"))
    store.hooks.keep(["two"])
    assert [kept.name for kept in store.hooks.all()] == ["two"]


# ------------------------------------------------------------------------------------ what a loop tells


def test_a_loop_tells_changes_and_not_rounds():
    told = []
    announcer = Announcer(lambda *event: told.append((*event[:2], dict(event[2]))))
    wait = Wait(address="task/train", action="create", why="has no place", until=5.0)
    error = Diagnostic(code="backend-unreadable", summary="aws does not answer")
    commits = {"revision": "c0ffee", "in_force": "f00d"}

    def done(**more):
        plan = plan_of(lineage=None, serial=0)
        given = {"number": 1, "at": 0.0, "duration": 0.0, "held": True, "epoch": 7, "plan": plan, **commits}
        announcer.observe(Round(**{**given, **more}))

    done()
    done(waits=(wait,))
    done(waits=(Wait(address="task/train", action="create", why="has no place", until=9.0),))
    done(errors=(error,), waits=(wait,))
    done(errors=(error,), plan=None)
    done()
    done(held=False, errors=(error,))
    assert told == [
        ("reconcile.leads", "reconcile/loop", {"epoch": 7}),
        (
            "task.waiting",
            "task/train",
            {"action": "create", "why": "has no place", "digest": None},
        ),
        (
            "reconcile.failed",
            "reconcile/loop",
            {
                "code": "backend-unreadable",
                "summary": "aws does not answer",
                "file": None,
                "line": None,
                "commit": "c0ffee",
                "commit_in_force": "f00d",
            },
        ),
        ("reconcile.recovered", "reconcile/loop", {"commit": "c0ffee"}),
    ]


def test_a_message_for_people_says_where_the_fault_is():
    detail = {"code": "yaml-syntax", "summary": "a value is missing here", "file": "p.yaml", "line": 5}
    event = Event(
        id=1,
        at=1.0,
        type="reconcile.failed",
        address="reconcile/loop",
        detail={**detail, "commit": "c0ffee" * 6},
    )
    _, body = message(Webhook(hook(format=HookFormat.SLACK), "u"), event, None, 1.0)
    text = json.loads(body)["text"].replace("\u200b", "")
    assert text == "reconcile/loop: failed (a value is missing here, p.yaml:5, commit c0ffeec0ffee)"


# ------------------------------------------------------------------------------------------ the commands


def declared(project, *hooks, interval="1s"):
    document = {"type": "project", "name": "lab", "reconcile": {"interval": interval}, "notify": list(hooks)}
    project.declare(document, fleet(nodes=1), task("hello", "exit 3"))


OPS = {"name": "ops", "url": "NOTIFY_URL", "secret": "NOTIFY_SECRET", "events": ["task.*", "node.created"]}


@pytest.mark.slow
def test_a_one_shot_for_cron(project, receiver):
    there = receiver()
    declared(project, OPS)
    env = {"NOTIFY_URL": there.url, "NOTIFY_SECRET": SECRET}
    missing = project.run("events", "--deliver", code=1).err
    assert "webhook ops needs `NOTIFY_URL`" in missing
    project.run("events", "--deliver", env=env)
    project.apply("--wait", code=4)
    assert there.got == []
    project.run("events", "--deliver", env=env)
    project.run("events", "--deliver", env=env)
    assert [event["type"] for event in there.taken()] == ["node.created", "task.failed"]
    there.down()
    project.run("drain", "gpu-0", "--reason", "x")
    declared(project, {**OPS, "events": []})
    failed = project.run("events", "--deliver", env=env, code=1).err
    assert "it cannot be reached" in failed
    assert there.url not in failed
    for text in (project.run("state", "pull").out, project.run("events", "--since", "0").out):
        assert SECRET not in text


def claim_lapses(project):
    """As if the minute had passed in which a hook is that of a process which was killed."""
    with closing(sqlite3.connect(project.path / ".fleetform" / "state.db")) as state, state:
        state.execute("UPDATE hooks SET busy_until = 1 WHERE busy_until IS NOT NULL")


@pytest.mark.slow
def test_a_loop_that_is_killed_again_and_again_loses_nothing(project, receiver):
    """Each event of the state reaches the receiver, in order, though it fails at times as well."""
    rng = random.Random(5)
    there = receiver(*[rng.choice([204, 204, 503, "drop"]) for _ in range(30)])
    declared(project, {**OPS, "events": []})
    env = {"NOTIFY_URL": there.url, "NOTIFY_SECRET": SECRET}
    project.run("events", "--deliver", env=env)
    for _ in range(5):
        before = len(there.got)
        loop = project.start("reconcile", env=env)
        project.run("events", "--type", "state.pushed")
        for _ in range(400):
            if len(there.got) > before + rng.randrange(3):
                break
            threading.Event().wait(0.02)
        loop.kill()
        loop.wait()
        claim_lapses(project)
        project.run("drain", "gpu-0", "--reason", "x", "--lock-timeout", "60")
        project.run("undrain", "gpu-0", "--lock-timeout", "60")
    loop = project.start("reconcile", env=env)
    wanted = [
        json.loads(line)["id"] for line in project.run("events", "--since", "0", "--json").out.splitlines()
    ]
    for _ in range(1500):
        if {event["id"] for event in there.taken()} >= set(wanted):
            break
        threading.Event().wait(0.05)
    got = list(dict.fromkeys(event["id"] for event in there.taken()))
    assert got[: len(wanted)] == wanted
    loop.terminate()
    loop.wait()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"url": "https://hooks.slack.com/services/T0/B0/xyz"}, "bad-credential"),
        ({"secret": "hunter2 is mine"}, "bad-credential"),
        ({"format": "github", "secret": None}, "missing-field"),
        ({"format": "slack"}, "bad-value"),
        ({"events": ["Rank Failed"]}, "bad-value"),
        ({"events": ["task.*", "task.fail"]}, "bad-value"),
    ],
)
def test_what_is_declared_wrong(project, change, said):
    given = {key: value for key, value in {**OPS, **change}.items() if value is not None}
    declared(project, given)
    found = project.run("validate", code=1)
    assert f"error[{said}]" in found.err
    for secret in ("xyz", "hunter2"):
        assert secret not in found.err + found.out


def test_two_hooks_have_two_names_and_variables_are_the_hooks_own(project, receiver):
    declared(project, OPS, OPS)
    assert "error[duplicate-name]" in project.run("validate", code=1).err
    declared(project, {"name": "ops", "url": "AWS_SECRET_ACCESS_KEY"})
    env = {"AWS_SECRET_ACCESS_KEY": receiver().url}
    refused = project.run("events", "--deliver", env=env, code=1).err
    assert "may not have the variable" in refused
    declared(project, OPS)
    clear = {"NOTIFY_URL": "http://example.com/x", "NOTIFY_SECRET": SECRET}
    refused = project.run("events", "--deliver", env=clear, code=1).err
    assert "is not allowed" in refused
    assert "example.com" not in refused


WELL = {"NOTIFY_OPS_URL": "https://example.com/x", "NOTIFY_OPS_SECRET": SECRET}
ONE = {"url": "NOTIFY_OPS_URL", "secret": "NOTIFY_OPS_SECRET"}


def targets_of(monkeypatch, *hooks, policy=None, **environment):
    """The usable webhooks of these, as (name, URL, secret), and the codes and words of what others lack."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    project = SimpleNamespace(notify=[Notify(name=Name(f"h{i}"), **words) for i, words in enumerate(hooks)])
    session: Any = SimpleNamespace(
        policy=lambda: policy or OperatorPolicy(), current=SimpleNamespace(project=project)
    )
    found, faults = targets(session)
    return [(t.hook.name, t.url, t.secret) for t in found], [(f.code, f.summary) for f in faults]


def test_a_hook_has_its_url_and_its_secret(monkeypatch):
    """Whichever hooks beside it lack something."""
    alone = {"url": "NOTIFY_OPS_URL"}
    found, faults = targets_of(monkeypatch, ONE, {"url": "NOTIFY_NO_URL"}, alone, **WELL)
    assert found == [("h0", WELL["NOTIFY_OPS_URL"], SECRET), ("h2", WELL["NOTIFY_OPS_URL"], None)]
    assert faults == [("missing-env", "webhook h1 needs `NOTIFY_NO_URL`, and it is not set")]


@pytest.mark.parametrize(
    ("change", "environment", "said"),
    [
        ({"secret": "NOTIFY_OPS_KEY"}, {}, ("missing-env", "webhook h0 needs `NOTIFY_OPS_KEY`, and it is")),
        ({}, {"NOTIFY_OPS_SECRET": ""}, ("missing-env", "webhook h0 needs `NOTIFY_OPS_SECRET`, and it is")),
        (
            {"url": "OPS_URL", "secret": "OPS_SECRET"},
            {},
            ("bad-credential", "webhook h0 may not have the variable `OPS_SECRET`"),
        ),
        (
            {"url": "LAB_URL", "secret": None},
            {},
            ("bad-credential", "webhook h0 may not have the variable `LAB_URL`"),
        ),
        (
            {},
            {"NOTIFY_OPS_URL": "http://example.com"},
            ("bad-credential", "the URL of webhook h0, in `NOTIFY_"),
        ),
    ],
)
def test_what_a_hook_may_not_have_it_does_not_get(monkeypatch, change, environment, said):
    """The operator lets hooks have `OPS_URL`, besides those of their own."""
    more = {"OPS_SECRET": "y", "OPS_URL": "https://example.com", "LAB_URL": "https://example.com"}
    policy = OperatorPolicy(more_variables=("OPS_URL",))
    given = {**WELL, **more, **environment}
    found, ((code, summary),) = targets_of(monkeypatch, {**ONE, **change}, policy=policy, **given)
    assert (found, code, summary.startswith(said[1])) == ([], said[0], True)


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("NOTIFY_CHAT_URL", "NOTIFY_REPO_TOKEN"),
        ("NOTIFY_URL", "NOTIFY_REPO_TOKEN"),
        ("NOTIFY_REPO", "NOTIFY_REPO_TOKEN"),
        ("NOTIFY_CHAT", "NOTIFY_TOKEN"),
        ("NOTIFY_REPO_OLD_URL", "NOTIFY_REPO_TOKEN"),
    ],
)
def test_a_secret_goes_only_to_the_url_that_is_named_alike(project, receiver, url, secret):
    """The project names variables, and the operator sets them: so the operator says what belongs together."""
    there = receiver()
    hook = {"name": "ops", "url": url, "secret": secret, "events": ["*"], "format": "github"}
    project.declare({"type": "project", "name": "lab", "notify": [hook]}, fleet(nodes=1))
    env = {url: there.url, secret: SECRET}
    for command in (("validate",), ("plan",), ("reconcile", "--once"), ("events", "--deliver")):
        said = project.run(*command, code=None if "--once" in command else 1, env=env).err
        assert "error[bad-credential]: the variables of `url` and `secret` are not named alike" in said
        assert "main.yaml:" in said
        assert SECRET not in said
    assert there.got == []
