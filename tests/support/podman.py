"""A podman for tests: its own storage, images without a registry, and no more rights than here.

On test machines, even root may not raise limits (CAP_SYS_RESOURCE), without which no container starts. So
runc gets no limits to raise.
"""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile
from pathlib import Path

from tests.support.cli import until

IMAGE = "localhost/fleetform-busybox:1"
SHELLLESS = "localhost/fleetform-empty:1"
RUNC = """\
#!/bin/sh
last=''
file=''
for word; do
  case $last in
  --bundle | -b) file=$word/config.json ;;
  --process | -p) file=$word ;;
  esac
  last=$word
done
[ -z "$file" ] || {python} - "$file" <<'P'
import json, sys

with open(sys.argv[1]) as read:
    data = json.load(read)
data.get("process", data).pop("rlimits", None)
with open(sys.argv[1], "w") as written:
    json.dump(data, written)
P
exec {runc} "$@"
"""


class Podman:
    """A folder with a command `podman` in `bin`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        python = shutil.which("python3", path="/usr/bin:/bin") or shutil.which("python3")
        runc = folder / "runc"
        self._install(
            runc, RUNC.replace("{python}", str(python)).replace("{runc}", str(shutil.which("runc")))
        )
        # vfs mounts nothing: no mount outlives a run that was killed
        storage = f"--root {folder}/root --runroot {folder}/run --storage-driver vfs"
        options = f"{storage} --cgroup-manager cgroupfs --runtime {runc}"
        self._install(self.bin / "podman", f'#!/bin/sh\nexec {shutil.which("podman")} {options} "$@"\n')

    def _install(self, file: Path, text: str) -> None:
        file.write_text(text)
        file.chmod(0o755)

    def __call__(self, *argv: str, given: bytes = b"") -> str:
        """What a command of it says; it has to succeed."""
        done = subprocess.run(
            [str(self.bin / "podman"), *argv], input=given, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return done.stdout.decode()

    def names(self) -> list[str]:
        """All containers, whether they run or not."""
        return self("ps", "--all", "--format", "{{.Names}}").split()

    def prepare(self) -> None:
        """Make the images, and see that one runs."""
        self("import", "-", IMAGE, given=root_filesystem())
        self("import", "-", SHELLLESS, given=_tar({}))
        self("run", "--rm", "--network", "host", "--log-driver", "none", IMAGE, "true")

    def clear(self) -> None:
        """Remove all of it, once nothing of it runs: what watched a container tidies up after its end."""
        command = [str(self.bin / "podman"), "rm", "--all", "--force", "--time", "0"]
        subprocess.run(command, capture_output=True, check=False)
        until(lambda: not any(f"{self.folder}/root" in _arguments(p) for p in Path("/proc").glob("[0-9]*")))
        for mount in reversed(Path("/proc/self/mountinfo").read_text().splitlines()):
            where = mount.split(" ")[4]
            if where.startswith(f"{self.folder}/"):
                subprocess.run(["umount", "--lazy", where], capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)


def _arguments(process: Path) -> str:
    try:
        return (process / "cmdline").read_text(errors="replace")
    except OSError:
        return ""


def impediment() -> str | None:
    """Why there can be none here; None if there may be one."""
    if os.geteuid() != 0:
        return "containers are tried as root only"
    missing = [tool for tool in ("podman", "runc", "busybox") if not shutil.which(tool)]
    return f"not installed: {', '.join(missing)} (podman, runc, busybox-static)" if missing else None


def root_filesystem() -> bytes:
    """Busybox and its programs, as `podman import` takes them."""
    found = shutil.which("busybox")
    assert found
    listed = subprocess.run([found, "--list"], capture_output=True, text=True, check=True).stdout.split()
    links: dict[str, bytes | None] = {f"bin/{name}": None for name in listed if name != "busybox"}
    return _tar({"bin/busybox": Path(found).read_bytes(), **links})


def _tar(files: dict[str, bytes | None]) -> bytes:
    """Programs by path; None stands for a busybox command of that name."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for folder in ("bin", "tmp", "etc"):
            info = tarfile.TarInfo(folder)
            info.type, info.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(info)
        for path, data in files.items():
            info = tarfile.TarInfo(path)
            info.mode = 0o755
            if data is None:
                info.type, info.linkname = tarfile.SYMTYPE, "busybox"
            else:
                info.size = len(data)
            tar.addfile(info, io.BytesIO(data or b""))
    return written.getvalue()
