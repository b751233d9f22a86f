"""The driver `nebius` where its packages are not, and what it reads before it needs them."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from declarative.provider import Config, PermanentError, PermanentKind
from providers.cloud import cloud
from providers.cloud.any.nebius_login import login


@pytest.mark.parametrize("package", ["grpc", "nebius"])
def test_without_its_packages_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    for name in [name for name in sys.modules if name.startswith(("providers.cloud.any.nebius_", "nebius"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "providers.cloud.rpc", raising=False)
    for name in ("grpc", "nebius") if package == "grpc" else ("nebius",):
        monkeypatch.setitem(sys.modules, name, None)
    config = Config(backend="neb", project_dir=tmp_path, lineage="l", driver="nebius", regions=("eu-north1",))
    with pytest.raises(PermanentError, match="needs the packages `nebius` and `grpcio`") as raised:
        cloud(config).offers()
    assert raised.value.kind is PermanentKind.INVALID
    assert ".[nebius]" in str(raised.value.hint)


@pytest.mark.parametrize("given", ["{", "{}", '{"subject-credentials": {}}', "/no/such", "a b", "./x.json"])
def test_a_key_that_is_none_is_named_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("MY_KEY", given)
    config = Config(backend="neb", project_dir=tmp_path, lineage="l", driver="nebius")
    with pytest.raises(PermanentError, match="MY_KEY") as raised:
        login(replace(config, credentials={"key": "MY_KEY"}))
    assert raised.value.kind is PermanentKind.AUTH
