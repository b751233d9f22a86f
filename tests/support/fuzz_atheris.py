"""The loader and the planner under atheris, which looks for inputs by the code that they reach.

    pip install --require-hashes -r locks/fuzz.txt
    python tests/support/fuzz_atheris.py [-atheris_runs=N] [-max_total_time=SECONDS] [OPTIONS] [CORPUS]

Without `-atheris_runs` or `-max_total_time` it runs until it is stopped. What it finds it writes to the
current folder, as `crash-…`; `python tests/support/fuzz_atheris.py crash-…` tries that alone.
"""

from __future__ import annotations

import atexit
import signal
import sys
import tempfile
from pathlib import Path

import atheris  # type: ignore[import-untyped]

with atheris.instrument_imports(include=["declarative"]):
    from tests.support.fuzz import BASE, applied, as_file, try_project

SEEDS = Path(__file__).parents[1] / "golden" / "error"
LONGEST = 4_096


def main() -> None:
    """Hand over to libFuzzer, with the golden tests' files to begin with."""
    world, base = applied(), as_file(BASE)

    def one(data: bytes) -> None:
        """The bytes as a project of their own, then as one more file of a good one."""
        if try_project({"a.yaml": data}, world) == "refused":
            try_project({"a.yaml": base, "b.yaml": data}, world)

    with tempfile.TemporaryDirectory(prefix="fuzz-seeds-") as seeds:
        for i, path in enumerate([*sorted(SEEDS.glob("*/*.yaml"))]):
            (Path(seeds) / f"{i}.yaml").write_bytes(path.read_bytes()[:LONGEST])
        files = [argument for argument in sys.argv[1:] if not argument.startswith("-")]
        alone = len(files) == 1 and Path(files[0]).is_file()
        options = [f"-max_len={LONGEST}", "-rss_limit_mb=2048"]
        # libFuzzer's timer goes on while Python ends, and nothing handles its signal then.
        atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)
        atheris.Setup([sys.argv[0], *options, *sys.argv[1:], *([] if alone else [seeds])], one)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
