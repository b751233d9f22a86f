"""`fleetform offers`: what can be launched, and its price."""

from __future__ import annotations

import json

import pytest

CATALOG = [
    {"instance_type": "hgx.big", "cpu": 96, "memory": "1TB", "gpu": "H100:80GB:8", "price": 20, "limit": 2},
    {
        "instance_type": "l4.small",
        "cpu": 8,
        "memory": "32GB",
        "gpu": "L4:24GB:1",
        "price": 1,
        "disk": "100GB",
    },
    {"instance_type": "cpu.odd", "cpu": 6, "memory": "16GB"},
    {"instance_type": "cpu.some", "cpu": 2, "memory": "4GB"},
]
STACK = {
    "type": "backend",
    "name": "stack",
    "driver": "openstack",
    "regions": ["north", "south"],
    "endpoint": "http://127.0.0.1:1",
    "credentials": {"username": "NO_NAME", "password": "NO_PASSWORD"},
    "image": "debian",
    "options": {"project": "lab"},
    "catalog": CATALOG,
}
GPU = {
    "type": "fleet",
    "name": "gpu",
    "nodes": "0..4",
    "backends": ["stack"],
    "regions": ["north"],
    "resources": {"gpu": "1.."},
    "blocks": "auto",
}
RACK = {
    "type": "fleet",
    "name": "rack",
    "ssh_config": {"user": "u", "identity_file": "~/.ssh/rack", "hosts": ["10.4.0.11"]},
}
TABLE = """\
  USD/h  type      CPUs  memory  GPUs         disk   backend  region  limit
   1.00  l4.small     8    32GB  L4:24GB:1    100GB  stack    north
   1.00  l4.small     8    32GB  L4:24GB:1    100GB  stack    south
  20.00  hgx.big     96     1TB  H100:80GB:8         stack    north   2
  20.00  hgx.big     96     1TB  H100:80GB:8         stack    south   2
      ?  cpu.some     2     4GB                      stack    north
      ?  cpu.some     2     4GB                      stack    south
      ?  cpu.odd      6    16GB                      stack    north
      ?  cpu.odd      6    16GB                      stack    south

`?` is an unknown price; declare prices of your own in `catalog`.
"""


@pytest.fixture
def shop(project):
    project.declare(STACK, GPU, RACK)
    return project


def types(done):
    return [(o["region"], o["instance_type"]) for o in done.json["offers"]]


def test_names_of_fleets_are_completed(shop):
    env = {
        "_FLEETFORM_COMPLETE": "bash_complete",
        "COMP_WORDS": "fleetform offers fleet/g",
        "COMP_CWORD": "2",
    }
    assert shop.run(env=env).out == "plain,fleet/gpu\n"


def test_the_cheapest_are_first_and_unknown_prices_last(shop):
    done = shop.run("offers", "--offline")
    assert done.code == 0, done.err
    assert done.out == TABLE


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--gpu", "H100:8"], ["hgx.big"]),
        (["--gpu", "1..", "--max-price", "5"], ["l4.small"]),
        (["--cpu", "8..", "--memory", "..64GB"], ["l4.small"]),
        (["--cpu", "6"], ["cpu.odd"]),
        (["--disk", "50GB..", "--gpu", "1"], ["l4.small"]),
        (["--instance-type", "cpu.odd", "--instance-type", "hgx.big"], ["hgx.big", "cpu.odd"]),
        (["--on-demand", "--gpu", "0"], ["cpu.some", "cpu.odd"]),
        (["gpu"], ["l4.small", "hgx.big"]),
        (["fleet/gpu", "--gpu", "8"], ["hgx.big"]),
    ],
)
def test_what_is_asked_for_narrows_it(shop, words, found):
    done = shop.run("offers", "--offline", "--json", "--region", "north", "--backend", "stack", *words)
    assert done.code == 0, done.err
    assert types(done) == [("north", name) for name in found]
    assert (done.json["total"], done.json["diagnostics"]) == (8, [])


def test_scripts_get_each_offer_by_itself(shop):
    done = shop.run("offers", "fleet/gpu", "--offline", "--json", "--gpu", "L4")
    (offer,) = done.json["offers"]
    assert list(done.json) == ["format_version", "total", "offers", "diagnostics"]
    assert offer == {
        "backend": "stack",
        "region": "north",
        "zone": None,
        "instance_type": "l4.small",
        "resources": {
            "cpu": 8,
            "memory_mib": 32768,
            "disk_mib": 102400,
            "gpus": 1,
            "gpu_name": "L4",
            "gpu_memory_mib": 24576,
        },
        "spot": False,
        "price": 1.0,
        "priced_on": None,
        "limit": None,
    }


@pytest.mark.parametrize(
    ("words", "summary", "hint"),
    [
        (["--gpu", "B200"], "there is no such offer: none has a GPU called B200", "there are H100, L4"),
        (["--gpu", "H100:16"], "the nearest, hgx.big, has gpu 8 where 16 is asked for", "ask for less"),
        (["--region", "noth"], "none is in that region", "did you mean `north`?"),
        (["--instance-type", "hgx.bog"], "none is of that type", "did you mean `hgx.big`?"),
        (["--spot", "--gpu", "8"], "none of those that fit is spot", "leave `--spot` out"),
        (["--gpu", "8", "--max-price", "3"], "hgx.big, costs 20 USD an hour", "write `--max-price 20`"),
        (
            ["--cpu", "6", "--max-price", "3"],
            "what those that fit cost is not known",
            "leave `--max-price` out",
        ),
        (["gpu", "--region", "south"], "none is in that region", "backend stack is used in north"),
    ],
)
def test_where_nothing_does_it_says_what_leaves_nothing(shop, words, summary, hint):
    done = shop.run("offers", "--offline", "--json", *words)
    assert (done.code, done.json["offers"]) == (0, [])
    (found,) = done.json["diagnostics"]
    assert (found["severity"], found["code"]) == ("warning", "no-offer")
    assert summary in found["summary"]
    assert hint in found["hint"]


def test_where_nothing_does_no_table_is_printed(shop):
    done = shop.run("offers", "--offline", "--gpu", "H10:8")
    assert (done.code, done.out) == (0, "")
    assert "none has a GPU called H10" in done.err


def test_the_limit_of_a_fleet_that_leaves_nothing_is_named(shop):
    shop.declare(STACK, {**GPU, "resources": {"gpu": "H100:16"}})
    done = shop.run("offers", "gpu", "--offline")
    assert "nothing fits its `resources`; the nearest, hgx.big, has gpu 8" in done.err
    shop.declare(STACK, {**GPU, "blocks": 7})
    assert "cannot be split into 7 blocks" in shop.run("offers", "gpu", "--offline", code=1).err


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (
            {"max_price": 0.5},
            "none of 8 offers keeps its limits (`max_price` rules out 2, `resources` 2, `regions` 4): the",
        ),
        (
            {"instance_types": ["hgx.bog"]},
            "(`instance_types` rules out 4, `regions` 4): none is in its `instance_types`; did you mean",
        ),
        (
            {"resources": {"gpu": "H100:16"}},
            "(`resources` rules out 4, `regions` 4): nothing fits its `resources`; the nearest, hgx.big",
        ),
    ],
)
def test_a_refusal_names_the_limits_of_a_fleet_that_may_launch_nothing(shop, limits, said):
    """How many offers each rules out, those that are nearest first, and what to write."""
    train = {"type": "task", "name": "train", "resources": {"gpu": 1}, "commands": ["true"]}
    shop.declare(STACK, {**GPU, **limits}, train)
    for command in (["plan", "--offline"], ["explain", "task/train", "--offline"]):
        assert said in " ".join(shop.run(*command, code=3).out.split())
    found = shop.plan("--offline", code=3)["unplaced"][0]["ranks"][0]["rejections"]
    assert [(r["target"], r["code"]) for r in found] == [("fleet/gpu", "no-offer")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["fleet/gup"], "did you mean `fleet/gpu`?"),
        (["task/train"], "the project has no fleet `task/train`"),
        (["rack"], "fleet/rack launches nothing"),
        (["--backend", "stak"], "did you mean `stack`?"),
        (["gpu", "--backend", "local"], "fleet/gpu does not use that backend"),
        (["--cpu", "9" * 5000], "--cpu"),
        (["--gpu", "8xH100"], "write `H100:8`"),
        (["--memory", "64PB"], "--memory"),
        (["--max-price", "0"], "--max-price"),
    ],
)
def test_what_cannot_be_asked_is_an_error(shop, words, said):
    done = shop.run("offers", "--offline", *words, code=1)
    assert done.out == ""
    assert said in done.err


def test_a_backend_that_cannot_be_read_is_said(shop):
    shop.declare({**STACK, "catalog": []})
    done = shop.run("offers", "--json")
    assert done.json["offers"] == []
    unread, none = done.json["diagnostics"]
    assert (unread["code"], unread["address"]) == ("backend-unreadable", "backend/stack")
    assert "NO_NAME" in unread["summary"] + unread["hint"]
    assert "what backend stack offers could not be read" in none["summary"]


def test_ec2_needs_no_account_and_zones_share_a_row(project):
    aws = {"type": "backend", "name": "aws", "driver": "ec2", "regions": ["us-east-1"], "image": "ami-1"}
    project.declare({**aws, "credentials": {"key": "AWS_NO_KEY", "secret": "AWS_NO_SECRET"}})
    done = project.run("offers", "--gpu", "H100:8", "--on-demand")
    assert done.code == 0, done.err
    (head, row, *_) = done.out.splitlines()
    assert head.split() == ["USD/h", "type", "CPUs", "memory", "GPUs", "disk", "backend", "region", "zones"]
    assert "p5.48xlarge   192     2TB  H100:80GB:8  100GB  aws      us-east-1  a, b, c, d, e, f" in row
    assert "Prices of aws as of 2025-03-02 (" in done.out
    every = project.run("offers", "--json").json
    assert every["total"] == len(every["offers"]) > 1000
    short = project.run("offers").out
    assert short.count("\n  ") == 30
    assert "more: `--all` shows them" in short
    assert project.run("offers", "--all").out.count("\n  ") > 300


def test_without_a_backend_it_is_this_machine(project):
    project.declare(
        {"type": "fleet", "name": "pair", "nodes": 2, "resources": {"cpu": "2..", "memory": "1GB.."}}
    )
    (offer,) = project.run("offers", "pair", "--json").json["offers"]
    assert (offer["backend"], offer["price"], offer["resources"]["cpu"]) == ("local", 0.0, 2)
    assert not (project.path / ".fleetform").exists()


def test_a_name_from_outside_cannot_reach_the_terminal_raw(project):
    odd = [{**CATALOG[1], "instance_type": "evil\u001b[2J"}]
    project.write("main.yaml", json.dumps({**STACK, "catalog": odd}))
    done = project.run("offers", "--offline")
    assert "\x1b" not in done.out + done.err
