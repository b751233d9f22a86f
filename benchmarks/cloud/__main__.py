"""How long an apply of nodes on EC2 takes, beside the least that its requests take; and how many there are.

    python benchmarks/cloud                       # 200 nodes at parallelism 1, 8 and 32
    python benchmarks/cloud --nodes 50 --latency 0.05
    python benchmarks/cloud --boot 20 --parallelism 32   # how many requests it takes to wait for nodes

The server is one of our own in another process: it answers each request after `--latency` seconds, and what
it makes runs `--boot` seconds later: at once, unless that is given. "ideal" is requests times latency,
divided by the workers; with `--boot` the time that nodes take to start is more than that. "in rounds" is the
least that can be had of it: a node's requests come one after the other, so the last round of workers takes as
long as the others, and what is asked before the first node is waited for by all. The command is run as
installed.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
ENV = {
    "PYTHONPATH": str(ROOT),
    "AWS_ACCESS_KEY_ID": "AKIDBENCHMARK",
    "AWS_SECRET_ACCESS_KEY": "secret-of-the-benchmark",
}


def documents(port: int, nodes: int) -> str:
    """The project: one fleet."""
    backend = {
        "type": "backend",
        "name": "aws",
        "driver": "ec2",
        "regions": ["us-east-1"],
        "endpoint": f"http://127.0.0.1:{port}",
        "credentials": {"key": "AWS_ACCESS_KEY_ID", "secret": "AWS_SECRET_ACCESS_KEY"},
        "image": "ami-00000001",
    }
    fleet = {
        "type": "fleet",
        "name": "gpu",
        "nodes": nodes,
        "backends": ["aws"],
        "resources": {"gpu": "H100:8"},
    }
    return "---\n".join(json.dumps(d) + "\n" for d in (backend, fleet))


def counts(port: int) -> dict[str, float]:
    """What the server was asked for since the last time: requests, and seconds from the first to the last."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/counts") as answer:
        found: dict[str, float] = json.load(answer)
        return found


def measure(port: int, nodes: int, workers: int, latency: float) -> None:
    """One apply, in a project of its own."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "main.yaml").write_text(documents(port, nodes))
        counts(port)
        argv = [sys.executable, "-m", "declarative", "apply", "--auto-approve", "--parallelism", str(workers)]
        begun = time.monotonic()
        process = subprocess.Popen(
            argv, cwd=folder, env={**os.environ, **ENV}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        took = time.monotonic() - begun
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"apply ended with {process.returncode}")
    found = counts(port)
    ideal = found["requests"] * latency / workers
    # Two requests a node; before the first, what the plan asks (side by side), and the import of the key.
    rounds = (2 * math.ceil(nodes / workers) + 2) * latency
    sys.stdout.write(
        f"parallelism {workers:2}: {took:6.1f} s, of which {found['seconds']:6.1f} s of requests; "
        f"ideal {ideal:6.1f} s ({found['seconds'] / ideal - 1:+.0%}), "
        f"in rounds {rounds:6.1f} s ({found['seconds'] / rounds - 1:+.0%}); "
        f"{found['requests'] / nodes:.2f} requests a node; "
        f"CPU {usage.ru_utime + usage.ru_stime:.1f} s, {usage.ru_maxrss / 1024:.0f} MiB\n"
    )


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=200)
    parser.add_argument("--latency", type=float, default=0.1, help="seconds until an answer")
    parser.add_argument("--boot", type=float, default=0.0, help="seconds until an instance runs")
    parser.add_argument("--parallelism", default="1,8,32")
    given = parser.parse_args()
    for workers in map(int, given.parallelism.split(",")):
        argv = [sys.executable, str(HERE / "server.py"), str(given.latency), str(given.boot)]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout
            try:
                measure(int(server.stdout.readline()), given.nodes, workers, given.latency)
            finally:
                server.kill()


if __name__ == "__main__":
    main()
