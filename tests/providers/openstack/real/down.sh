#!/bin/bash
# Ends what up.sh started, by the process ids that it wrote: each is the leader of a session of its own.
. "$(dirname "$0")/common.sh"

alive() { for f in "$RUN"/pids/*.pid; do [ -f "$f" ] && kill -0 -- "-$(cat "$f")" 2>/dev/null && return 0; done; return 1; }
signal() { for f in "$RUN"/pids/*.pid; do [ -f "$f" ] && kill "-$1" -- "-$(cat "$f")" 2>/dev/null; done; }

signal TERM
for _ in $(seq 1 80); do alive || break; sleep 0.25; done
signal KILL
rm -f "$RUN"/pids/*.pid
exit 0
