"""The message for one missing setting of a backend names all missing ones, and how to write them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from declarative.provider import PermanentError
from providers.cloud import WIRED, account, cloud, settings
from providers.cloud.any import libcloud_site, nebius
from providers.cloud.azure import account as azure
from providers.cloud.ec2 import account as ec2
from providers.cloud.gce import account as gce
from providers.cloud.openstack import account as openstack
from tests.providers.ec2.run import config
from tests.support.cli import fleet

AWS = {"key": "AWS_ACCESS_KEY_ID", "secret": "AWS_SECRET_ACCESS_KEY"}


def test_every_driver_of_ours_has_examples() -> None:
    assert settings.NEEDED.keys() == WIRED.keys()


@pytest.mark.parametrize(
    ("driver", "first", "words"),
    [
        ("gce", "regions", ("{key: GOOGLE_APPLICATION_CREDENTIALS}", "`image: ubuntu-os-cloud/")),
        ("azure", "options", ("`regions: [eastus]`", "tenant_id: AZURE_TENANT_ID", "`network: {subnets:")),
        ("openstack", "regions", ("`endpoint: https://", "username: OS_USERNAME", "`options: {project:")),
        ("digitalocean", "regions", ("{key: DIGITALOCEAN_TOKEN}", "`image: ")),
        ("vultr", "regions", ("{key: VULTR_API_KEY}", "`image: ")),
        ("hyperstack", "regions", ("`image: Ubuntu Server",)),
        ("lambda", "regions", ("`image: lambda-stack-24-04`",)),
        ("crusoe", "regions", ("`image: ubuntu22.04-",)),
        ("nebius", "regions", ("`image: ubuntu24.04-cuda12`", "`options: {project: ")),
    ],
)
def test_a_backend_that_says_nothing(tmp_path: Any, driver: str, first: str, words: tuple[str, ...]) -> None:
    bare: dict[str, Any] = {"endpoint": None, "image": {}, "credentials": {}, "options": {}, "regions": ()}
    with pytest.raises(PermanentError) as caught:
        cloud(config(9, tmp_path, **bare, driver=driver)).offers()
    hint = caught.value.hint or ""
    assert hint.startswith(f"write `{first}: ")
    for word in words:
        assert word in hint


@pytest.mark.parametrize("driver", ["nebius", "lambda", "crusoe", "hyperstack", "gce"])
def test_a_plan_that_asks_nobody_says_how_types_become_known(project: Any, driver: str) -> None:
    backend = {"type": "backend", "name": "cloud", "driver": driver, "regions": ["r-1"], "image": "i"}
    project.declare(backend, fleet("gpu", 2, backends=["cloud"], resources={"gpu": "H100:8"}))
    done = project.run("plan", "--offline", code=1)
    assert "offline, the cloud of backend cloud is not asked, and its `catalog` has no type" in done.err
    assert "plan without `--offline`, or write in the backend which types it has: `catalog: [" in done.err


@pytest.mark.parametrize(
    ("driver", "module"),
    [
        ("ec2", ec2),
        ("openstack", openstack),
        ("gce", gce),
        ("azure", azure),
        ("nebius", nebius),
        ("others", libcloud_site),
    ],
)
def test_every_option_is_told_of(driver: str, module: Any) -> None:
    """In the table at the end of docs/clouds.md, and none that there is not."""
    text = (Path(__file__).parents[3] / "docs" / "clouds.md").read_text(encoding="utf-8")
    shared, _, table = text.partition("\n## Options\n")[2].partition("\n|")
    line = next(line for line in table.splitlines() if line.startswith((f"| `{driver}`", f"| {driver} ")))
    told = set(re.findall(r"`(\w+)`", line.split("|")[2])) - {"x86_64", "arm64", *openstack.INTERFACES}
    built = getattr(getattr(module, "Account", None), "ARCHITECTURES", ())
    assert told == {*module.OPTIONS, *(("architecture",) if built else ())}
    assert {*re.findall(r"`(\w+)`", shared)} == account.OPTIONS.keys()


def test_what_is_there_is_not_asked_for_again(tmp_path: Any) -> None:
    application = {"id": "OS_ID", "secret": "OS_SECRET"}
    more: dict[str, Any] = {"driver": "openstack", "image": {}, "options": {}, "credentials": application}
    hint = settings.write(config(9, tmp_path, **more), "regions")
    assert hint == "write `regions: [RegionOne]`; missing as well: `image: debian-12`"
    assert settings.write(config(9, tmp_path, driver="linode"), "regions") is None


def test_a_backend_without_an_image(tmp_path: Any) -> None:
    found = cloud(config(9, tmp_path, image={}))._account  # type: ignore[attr-defined]
    with pytest.raises(PermanentError) as caught:
        found.image("us-east-1")
    assert caught.value.hint == "write `image: ami-…`"


def test_all_variables_that_are_not_set_are_named_at_once(monkeypatch: Any, tmp_path: Any) -> None:
    for name in AWS.values():
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(PermanentError) as caught:
        settings.secrets(config(9, tmp_path, credentials=AWS), ("key", "secret"))
    told = "the environment variables AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set"
    assert caught.value.summary == told
    assert "`key` and `secret`" in (caught.value.hint or "")


def test_credentials_are_asked_for_by_their_usual_names(project: Any) -> None:
    """By the first plan of somebody who knows no more than the driver's name."""
    aws = {"type": "backend", "name": "aws", "driver": "ec2", "regions": ["us-east-1"]}
    project.declare(aws, fleet("gpu", backends=["aws"], resources={"cpu": 2}))
    done = project.run("plan", code=1)
    assert "write `credentials: {key: AWS_ACCESS_KEY_ID, secret: AWS_SECRET_ACCESS_KEY}`" in done.err
    assert "missing as well: `image: ami-…`" in done.err
