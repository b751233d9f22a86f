"""How good placement's plans are, and how fast it makes them, on public traces.

    python benchmarks/placement DATA_FOLDER            # --quick for a few cases only
    python benchmarks/placement DATA_FOLDER --only fill,cost
    python benchmarks/placement DATA_FOLDER --command  # the whole command with 8,000 task documents as well

blocks   openb's fleet split into blocks: GPUs that placed pods ask for, in per cent of all (P2)
fill     a fixed fleet: blocks that could run and do not, in per cent (P3)
cost     a fleet that may grow: the price of what is launched over the least that is possible (P4)
replan   5 % of the tasks change: ranks that move (P7)
speed    CPU seconds of the one call of `place`, its input built already; the process's peak memory, input too

Every plan goes through `check`, which shares no code with the planner; one that breaks a rule ends the run
with exit code 1. Targets stand beside the figures. The bounds of `fill` and `cost` need `pip install
highspy`; `blocks` has one without. The traces are not part of the repository: without them this says where
to find them. CPU time, as the machine may be shared; compare the figures of one run only.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

if not __package__:  # run as a folder, which then is first on the path instead of the repository
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from benchmarks.placement import traces
from benchmarks.placement.problem import WrongPlanError
from benchmarks.placement.tables import PARTS, Options, whole_command


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="DATA_FOLDER", help="with openb/ and philly_sia/")
    parser.add_argument("--quick", action="store_true", help="fewer and smaller cases")
    parser.add_argument("--only", default=",".join(PARTS), help="comma-separated (default: %(default)s)")
    parser.add_argument("--command", action="store_true", help="time the whole command too")
    parser.add_argument(
        "--limit", type=float, default=20, help="HiGHS's seconds a case (default: %(default)g)"
    )
    parser.add_argument("--seed", type=int, help="of openb's pods; drawn anew without it, and printed")
    args = parser.parse_args()
    parts = [part for part in args.only.split(",") if part]
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        parser.error(f"--only knows {', '.join(PARTS)}, not {', '.join(unknown)}")
    philly = args.command or any(part != "blocks" for part in parts)
    lost = traces.missing(args.folder, openb="blocks" in parts, philly=philly)
    if lost:
        listing = "\n".join(map(str, lost))
        raise SystemExit(f"{listing}\nput them there; the repository holds no traces")
    seed = random.SystemRandom().randrange(10**9) if args.seed is None else args.seed
    options = Options(args.folder, args.quick, args.limit, seed)
    try:
        for part in parts:
            PARTS[part](options)
        if args.command:
            whole_command(options)
    except WrongPlanError as wrong:
        raise SystemExit(str(wrong)) from None


if __name__ == "__main__":
    main()
