#!/bin/sh
# Runs one rank of a task on this host, so that nothing is lost: neither the caller's death nor a cut connection ends
# a run, and its exit code and log stay until somebody asks for them. Every attempt has an id of its own and is
# launched at most once, ever; to run a task again, take a new id. Needs flock and setsid (util-linux), coreutils,
# grep and sed. The folder of all attempts is $FLEETFORM_RUNNER_DIR, on a local disk.
#
#   start ID BYTES [--cpus LIST] [--memory BYTES] [--hard 1] [--limit SECONDS] [--grace SECONDS] [--gate SECONDS]
#          [--alone SECONDS [--near ADDRESS,ADDRESS...]] [--unused PERCENT:SECONDS [--gpus LIST]] [MOUNT]...
#          <script of BYTES bytes; MOUNT: --mount SRC DST or --bind-if-any SRC DST, which may fail, or
#          --bind SRC DST, which may not; --gate: the script waits at most so long at a gate (gate.sh)
#   release ID...              opens the gates; the limit counts from here. <peers of all: ADDRESS PORT USER TYPE KEY, and
#          a last line `.`; or nothing
#   peers ID...                "FLEETFORM-PEERS", lines ID PORT USER TYPE KEY of those that siblings can reach, FLEETFORM-END
#   poll [ID]...               all attempts without an ID
#   tail ID OFFSET [MAX]       "FLEETFORM-LOG COUNT", then that many bytes of the log from byte OFFSET on
#   stop ID GRACE              TERM to the group, KILL to all processes GRACE seconds later; returns when all are dead
#   limit ID SECONDS|off       the longest time a running attempt may take, counted from its start
#   adjust ID GRACE SECONDS|off [ADDRESS,ADDRESS...]   its --grace, --alone and --near from now on
#   forget ID                  removes an ended attempt
#
# start, release, poll, stop, limit and adjust answer with these lines; other lines before and after them are noise:
#   FLEETFORM-HOST 1
#   ID STATE PID EXIT_CODE REASON LOG_BYTES STARTED ENDED MOUNTS CONFINED USED   `-` for a missing value
#   FLEETFORM-END
# STATE: preparing (what it needs before its gate) gated (it waits there) running exited orphan (supervisor dead, task
# alive) lost (both dead) rebooted missing claimed (never launched). REASON: stopped, limit, unused (a GPU of it), alone (the host was cut off
# for as long as --alone says), memory (the kernel killed a process of it for lack of memory), gate (nobody opened it:
# none of its commands ran), or absent or unmounted if a --bind failed: MOUNTS is its SRC then. Times are epoch seconds
# of this host. MOUNTS: DSTs, commas between them, with %25 %20 %2C for percent, space, comma. CONFINED:
# LEVEL:MEANS:MEMORY, how it is limited to --cpus and --memory: hard (by the kernel; --hard demands it), soft, none. USED:
# NUMBER:UUID=PERCENT of each GPU (no `:UUID` if unknown), commas between them, as --unused sampled them last. A refusal is a line `FLEETFORM-ERR CODE TEXT` with an exit status of its own.
#
# An attempt's files: started (claims the id), pid, exit, log, mounts, confined (see above, and its control groups),
# ctl (why and when it ends), lock (held to change these), run (locked by the supervisor as long as the run lasts),
# gate (a pipe, removed when it opens), gated (how long it waits, its limit), ready (it waits), open (since when it no
# longer waits), used (see above), grace and alone (what `adjust` changed). pid, exit and ctl get their bytes when the attempt starts and are overwritten in place: a full disk
# must neither lose an exit code nor prevent a stop.
# The state's lock decides who may write; each of its holders has a higher number. If $FLEETFORM_EPOCH is the caller's
# number, .epoch keeps the highest one that came, and a caller with a lower one has lost that lock: it is refused with
# the code stale. After a poll with a number, no earlier caller starts anything.
#
# Its parts are the files beside it; on hosts they precede this text in one file. They share their variables: each function
# says above or beside itself which it sets. These are set here:
#   runner_dir   the folder of all attempts          self      the path of this script
#   boot_id      of this boot, `-` if unknown        SWEEP     1/100 s between TERM and KILL for what a task leaves behind
#   payload      a script that comes, until it is the task's
set -u
case ${1-} in
_*) ;; # one of the stages below: these two were set by the call that led to it
*) FLEETFORM_UMASK=$(umask) FLEETFORM_LC=${LC_ALL-} ;; # the task gets them back
esac
umask 077
LC_ALL=C
export LC_ALL FLEETFORM_UMASK FLEETFORM_LC
SWEEP=300
# shellcheck disable=SC2016  # the reading shell's $0
SCRIPT_HEAD='rm -f -- "$0"; ' # put before the script: it may hold secrets, and the shell that reads it has it open

die() { # CODE TEXT
  printf 'FLEETFORM-ERR %s %s\n' "$1" "$2"
  case $1 in
  usage) exit 64 ;; missing) exit 66 ;; tools) exit 69 ;; nospace) exit 70 ;;
  unwritable) exit 73 ;; truncated) exit 74 ;; busy) exit 75 ;; *) exit 76 ;;
  esac
}
check_writer() { # [hold]: refuses who has lost the lock. With hold nobody newer comes in between, until 7 is closed
  [ "${FLEETFORM_EPOCH-}" ] || return 0
  newest=0
  { read -r newest <"$runner_dir/.epoch"; } 2>/dev/null || :
  if [ $# -gt 0 ] || [ "${newest:-0}" -lt "$FLEETFORM_EPOCH" ]; then
    # A full disk hinders nobody who only looks or stops.
    { command exec 7>>"$runner_dir/.epoch"; } 2>/dev/null || { [ $# -eq 0 ] && return; } || die nospace "$runner_dir"
    flock -w 10 7 || die busy "$runner_dir/.epoch is locked"
    newest=0
    read -r newest <"$runner_dir/.epoch" || :
    if [ "${newest:-0}" -lt "$FLEETFORM_EPOCH" ]; then
      newest=$FLEETFORM_EPOCH
      { printf '%-63s\n' "$newest" 1<>"$runner_dir/.epoch"; } 2>/dev/null || [ $# -eq 0 ] || die nospace "$runner_dir"
    fi
    [ $# -gt 0 ] || exec 7>&-
  fi
  [ "${newest:-0}" -le "$FLEETFORM_EPOCH" ] || die stale "a later command was here ($newest, and this is $FLEETFORM_EPOCH)"
}

runner_dir=${FLEETFORM_RUNNER_DIR-}
[ "$runner_dir" ] || die usage 'FLEETFORM_RUNNER_DIR is not set'
case $runner_dir in /*) ;; *) runner_dir=$PWD/$runner_dir ;; esac
case $0 in /*) self=$0 ;; *) self=$PWD/$0 ;; esac
if ! command -v select_attempt >/dev/null; then # as on hosts
  # shellcheck source=confine.sh
  . "${self%/*}/confine.sh"
  # shellcheck source=attempt.sh
  . "${self%/*}/attempt.sh"
  # shellcheck source=report.sh
  . "${self%/*}/report.sh"
  # shellcheck source=end.sh
  . "${self%/*}/end.sh"
  # shellcheck source=watch.sh
  . "${self%/*}/watch.sh"
  # shellcheck source=start.sh
  . "${self%/*}/start.sh"
  # shellcheck source=task.sh
  . "${self%/*}/task.sh"
  # shellcheck source=change.sh
  . "${self%/*}/change.sh"
fi
FLEETFORM_RUNNER_DIR=$runner_dir
export FLEETFORM_RUNNER_DIR
[ ! -e "$runner_dir" ] || [ -O "$runner_dir" ] || die unwritable "$runner_dir belongs to someone else"
{ read -r boot_id _ <"${FLEETFORM_BOOT_ID_FILE:-/proc/sys/kernel/random/boot_id}"; } 2>/dev/null || boot_id=-

# ------------------------------------------------------------------------------------------ the commands

has_attempts() { # whether there is any
  for each in "$runner_dir"/*; do
    [ ! -e "$each" ] || return 0
  done
  return 1
}
start() { # BYTES OPTION...
  bytes=$1
  shift
  check_number "$bytes" BYTES
  parse_options "$@"
  command -v flock >/dev/null && command -v setsid >/dev/null || die tools "flock and setsid are needed"
  mkdir -p "$attempt_dir" 2>/dev/null && [ -w "$attempt_dir" ] || die unwritable "$attempt_dir"
  check_writer
  payload=$attempt_dir/payload.$$
  find_state
  if [ "$attempt_state" = claimed ] && receive_script "$bytes"; then
    # shellcheck disable=SC2046  # words
    answer=$(setsid -f $(apart "fleetform.$attempt.$$") sh "$self" _run "$attempt" "$payload" "$@" </dev/null 2>/dev/null)
    # It may refuse: then without.
    [ -n "$answer" ] || answer=$(setsid -f sh "$self" _run "$attempt" "$payload" "$@" </dev/null 2>/dev/null)
    case $answer in
    ok | exists) ;;
    FLEETFORM-ERR*) answer=${answer#* } && die "${answer%% *}" "${answer#* }" ;;
    *) die tools "no supervisor came up by setsid -f" ;;
    esac
  fi
  # It is there within moments, but for an image that is to be pulled: so nobody has to ask once more.
  tries=100
  while [ "$gate_seconds" ] && [ "$tries" -gt 0 ] && [ ! -e "$attempt_dir/ready" ] && is_live; do
    sleep 0.02
    tries=$((tries - 1))
  done
  report "$attempt"
}
release() { # ID...
  siblings=$(cat)
  case $siblings in '' | *'
.') ;; *) die truncated "the list of peers" ;; esac
  for id; do
    select_attempt "$id"
    open_gate "$siblings"
  done
  report "$@"
}
print_peers() { # ID...
  echo FLEETFORM-PEERS
  for id; do
    if [ -r "$runner_dir/$id/peers/me" ]; then echo "$id $(cat "$runner_dir/$id/peers/me")"; fi
  done
  echo FLEETFORM-END
}
poll() { # [ID]...
  if [ $# -eq 0 ]; then
    for each in "$runner_dir"/*; do # the folder may hold other things, such as lost+found
      case ${each##*/} in *[!A-Za-z0-9._-]*) ;; *) set -- "$@" "${each##*/}" ;; esac
    done
  fi
  report "$@"
}
print_log() { # OFFSET MAX
  check_number "$1" OFFSET
  check_number "$2" MAX
  [ -d "$attempt_dir" ] || die missing "$attempt"
  count=$(($(stat -c %s "$attempt_dir/log" 2>/dev/null || echo 0) - $1))
  [ "$count" -ge 0 ] || count=0
  [ "$count" -le "$2" ] || count=$2
  echo "FLEETFORM-LOG $count"
  [ "$count" -eq 0 ] || tail -c "+$(($1 + 1))" "$attempt_dir/log" 2>/dev/null | head -c "$count"
}
forget() {
  if [ -d "$attempt_dir" ]; then
    lock
    if is_live; then die busy "$attempt is $attempt_state"; fi
    remove_groups # of one that was lost
    mv "$attempt_dir" "$runner_dir/.gone.$attempt.$$" 2>/dev/null || die unwritable "$attempt_dir" # at once: half of it would be another state
    rm -rf "$runner_dir"/.gone.*
  fi
  has_attempts || rm -f "$runner_dir/.contact"
}

[ $# -ge 1 ] || set -- help
command=$1
shift
case $command-$# in
poll-* | peers-[1-9]* | release-[1-9]*) for id; do select_attempt "$id"; done ;;
start-0 | start-1 | tail-[01] | stop-[01] | limit-[01] | adjust-[012] | forget-0) die usage "$command needs more arguments" ;;
start-* | tail-[23] | stop-2 | limit-2 | adjust-[34] | forget-1 | _*)
  select_attempt "$1"
  shift
  ;;
*) die usage "start | release | peers | poll | tail | stop | limit | adjust | forget" ;;
esac
case ${FLEETFORM_EPOCH-}/$command in
/* | */_* | */start | */tail) ;;
*)
  check_number "$FLEETFORM_EPOCH" FLEETFORM_EPOCH
  if mkdir "$runner_dir" 2>/dev/null || [ -d "$runner_dir" ]; then check_writer; fi # a node without a folder has nothing to lose
  ;;
esac
case $command in
_*) ;;
*)
  if has_attempts; then # a command came: see `watch_contact`
    read_uptime
    { echo "$now" >"$runner_dir/.contact"; } 2>/dev/null || :
  fi
  ;;
esac
case $command in
start) start "$@" ;;
peers) print_peers "$@" ;;
release) release "$@" ;;
poll) poll "$@" ;;
tail) print_log "$1" "${2-65536}" ;;
stop)
  check_number "$1" GRACE
  if is_live; then
    setsid sh "$self" _end "$attempt" stopped "$1" </dev/null >/dev/null 2>&1 &
    wait $!
  fi
  report "$attempt"
  ;;
limit)
  [ "$1" = off ] || check_number "$1" SECONDS
  [ -d "$attempt_dir" ] || die missing "$attempt"
  change_limit "$1"
  report "$attempt"
  ;;
adjust)
  check_number "$1" GRACE
  [ "$2" = off ] || check_number "$2" SECONDS
  check_addresses "${3-}"
  [ -d "$attempt_dir" ] || die missing "$attempt"
  adjust "$1" "$2" "${3-}"
  report "$attempt"
  ;;
forget) forget ;;
_run)
  exec 3<&- 4<&- 5<&- 6<&- 7<&- 8<&- 9<&-
  cd /
  trap : HUP INT TERM PIPE # not '': the task would ignore them too
  payload=$1
  shift
  settle
  supervise "$@"
  ;;
_watch) watch_limit "$1" ;;
_alone) watch_contact "$1" "$2" ;;
_unused) watch_gpus "$1" "$2" "$3" ;;
_end) end_attempt "$1" "$2" ;;
_task) become_task "$@" ;;
_mount) mount_all "$@" ;;
esac
