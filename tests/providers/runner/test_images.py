"""The `image` of a task: valid names, and the commands for container runtimes."""

from __future__ import annotations

import pytest

from declarative.model.schema import BadValueError
from declarative.model.spec.values import Image
from providers import containers
from providers.containers import Container, Mount


@pytest.mark.parametrize(
    "name",
    [
        "python:3.12",
        "nvcr.io/nvidia/pytorch:25.01-py3",
        "localhost:5000/a/b",
        "a@sha256:" + "0" * 64,
        "a__b/c",
    ],
)
def test_images_that_can_be_named(name):
    assert Image.parse(name) == name


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("docker://Python:3.12", "write `python:3.12`"),
        (" python", "write `python`"),
        ("python\n", "write `python`"),
        ("ghcr.io/Me/x:Tag", "write `ghcr.io/me/x:Tag`"),
        *(
            (name, "write `name:tag`, or with")
            for name in ("", "-v/:/x", "a b", "a\0", "x:", "a" * 600, 7, "a\tb")
        ),
    ],
)
def test_images_that_cannot(name, hint):
    """Nothing gets through that a runtime could read as an option, or as two words."""
    with pytest.raises(BadValueError) as caught:
        Image.parse(name)
    assert caught.value.code == "bad-image"
    assert caught.value.hint
    assert caught.value.hint.startswith(hint)


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("python:3.12", "docker.io/library/python:3.12"),
        ("me/x", "docker.io/me/x"),
        ("nvcr.io/x", "nvcr.io/x"),
        ("localhost/x", "localhost/x"),
        ("box:5000/x", "box:5000/x"),
    ],
)
def test_what_no_registry_is_named_for_is_docker_hubs(name, whole):
    """For podman too, which has no registry of its own accord."""
    assert containers.qualified(name) == whole


def test_a_rank_without_gpus_gets_none():
    """Whatever its image asks for: NVIDIA's own have `NVIDIA_VISIBLE_DEVICES=all`."""
    assert "NVIDIA_VISIBLE_DEVICES=void" in containers.flags(Container(image="a", name="n"))
    assert "NVIDIA_VISIBLE_DEVICES=void" not in containers.flags(Container(image="a", name="n", gpus=("0",)))


@pytest.mark.parametrize(
    ("source", "target", "flags"),
    [
        ("/a:b c", "/d", ("--mount", "type=bind,source=/a:b c,target=/d")),
        ("/a,b", "/d", ("--volume", "/a,b:/d")),
        ('/a"b', "/d", ("--volume", '/a"b:/d')),
    ],
)
def test_mounts_of_any_path(source, target, flags):
    assert containers.mount_flags(Mount(source=source, target=target)) == flags
    end = ",readonly" if flags[0] == "--mount" else ":ro"
    only = (flags[0], flags[1] + end)
    assert containers.mount_flags(Mount(source=source, target=target, read_only=True)) == only


@pytest.mark.parametrize("path", ["/a,b:c", "/a\nb"])
def test_paths_that_no_container_can_have(path):
    with pytest.raises(ValueError, match="no container can have"):
        containers.mount_flags(Mount(source=path, target="/x"))


def test_limits_are_the_blocks():
    held = Container(image="a", name="n", cpus=(4, 5), memory_mib=2048)
    assert containers.cpu_flags(held) == ("--cpuset-cpus", "4,5")
    assert containers.memory_flags(held) == ("--memory", "2048m")
    free = Container(image="a", name="n")
    assert containers.cpu_flags(free) == containers.memory_flags(free) == ()
