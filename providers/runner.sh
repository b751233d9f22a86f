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
set -u
case ${1-} in
_*) ;; # one of the stages below: these two were set by the call that led to it
*) FLEETFORM_UMASK=$(umask) FLEETFORM_LC=${LC_ALL-} ;; # the task gets them back
esac
umask 077
LC_ALL=C
export LC_ALL FLEETFORM_UMASK FLEETFORM_LC
SWEEP=300 # 1/100 s between TERM and KILL for what a task leaves behind
# shellcheck disable=SC2016  # the reading shell's $0
HEAD='rm -f -- "$0"; ' # put before the script: it may hold secrets, and the shell that reads it has it open

die() { # CODE TEXT
  printf 'FLEETFORM-ERR %s %s\n' "$1" "$2"
  case $1 in
  usage) exit 64 ;; missing) exit 66 ;; tools) exit 69 ;; nospace) exit 70 ;;
  unwritable) exit 73 ;; truncated) exit 74 ;; busy) exit 75 ;; *) exit 76 ;;
  esac
}
current() { # [hold]: refuses who has lost the lock. With hold nobody newer comes in between, until 7 is closed
  [ "${FLEETFORM_EPOCH-}" ] || return 0
  newest=0
  { read -r newest <"$B/.epoch"; } 2>/dev/null || :
  if [ $# -gt 0 ] || [ "${newest:-0}" -lt "$FLEETFORM_EPOCH" ]; then
    # A full disk hinders nobody who only looks or stops.
    { command exec 7>>"$B/.epoch"; } 2>/dev/null || { [ $# -eq 0 ] && return; } || die nospace "$B"
    flock -w 10 7 || die busy "$B/.epoch is locked"
    newest=0
    read -r newest <"$B/.epoch" || :
    if [ "${newest:-0}" -lt "$FLEETFORM_EPOCH" ]; then
      newest=$FLEETFORM_EPOCH
      { printf '%-63s\n' "$newest" 1<>"$B/.epoch"; } 2>/dev/null || [ $# -eq 0 ] || die nospace "$B"
    fi
    [ $# -gt 0 ] || exec 7>&-
  fi
  [ "${newest:-0}" -le "$FLEETFORM_EPOCH" ] || die stale "a later command was here ($newest, and this is $FLEETFORM_EPOCH)"
}
number() { # TEXT WHAT
  case $1 in '' | *[!0-9]* | 0?* | ????????????????*) die usage "$2 is no whole number: $1" ;; esac
}
attempt() { # ID: the attempt that all functions below are about
  case $1 in '' | [.-]* | *[!A-Za-z0-9._-]*) die usage "bad attempt id: $1" ;; esac
  [ ${#1} -le 200 ] || die usage "attempt id is too long: $1"
  id=$1 d=$B/$1
}

B=${FLEETFORM_RUNNER_DIR-}
[ "$B" ] || die usage 'FLEETFORM_RUNNER_DIR is not set'
case $B in /*) ;; *) B=$PWD/$B ;; esac
case $0 in /*) self=$0 ;; *) self=$PWD/$0 ;; esac
# shellcheck source=confine.sh
[ "${confines-}" ] || . "${self%/*}/confine.sh" # on hosts it stands before this text, in the same file
FLEETFORM_RUNNER_DIR=$B
export FLEETFORM_RUNNER_DIR
[ ! -e "$B" ] || [ -O "$B" ] || die unwritable "$B belongs to someone else"
{ read -r BOOT _ <"${FLEETFORM_BOOT_ID_FILE:-/proc/sys/kernel/random/boot_id}"; } 2>/dev/null || BOOT=-

# ------------------------------------------------------------------------------------- what is on record

uptime() { # sets now, in 1/100 s: not by the clock, which may be set while a task runs
  read -r now _ </proc/uptime
  now=${now%.*}${now#*.}
  now=${now#0}
  now=${now#0} # 007 would be octal
}
look() { # PID: sets born (start time; empty if there is no such process, or only its remains) and group
  born='' group=''
  { read -r line </proc/"$1"/stat; } 2>/dev/null || return 0
  # shellcheck disable=SC2086  # fields; the name before them may hold spaces and brackets
  set -- ${line##*") "}
  case $1 in Z | X) ;; *) group=${3-} born=${20-} ;; esac
}
alive() { # PID BORN: the number alone may be another process by now
  [ -n "$1" ] || return 1
  look "$1"
  [ -n "$born" ] && [ "$born" = "$2" ]
}
get() { { from=$1 && shift && read -r "$@" <"$d/$from"; } 2>/dev/null; } # FILE NAME...
put() { printf '%-63s\n' "$2" 1<>"$d/$1"; } # FILE TEXT
load() { # all of it without a fork: there may be hundreds of attempts
  boot='' up0='' t0='' grace='' sup='' supborn='' pid='' pidborn='' code='' why='' t1=''
  reason=- killat=- limitat=- watcher=0 confined='' groups=''
  get started boot up0 t0 grace sup supborn
  get grace grace
  get open up0 t0
  get pid pid pidborn
  get ctl reason killat limitat watcher
  get exit code why t1
  get confined confined groups
  :
}
state() { # load, and sets s
  load
  if [ -n "$code" ]; then s=exited
  elif [ -z "$boot" ]; then
    if [ -d "$d" ]; then s=claimed; else s=missing; fi
    # Files can vanish, as by a cleaner of old ones: what runs is not `missing`, and no start may launch it again.
    if marked && [ -n "$(members)" ]; then s=orphan; fi
  elif [ "$boot" != "$BOOT" ]; then s=rebooted && outside remove && part
  elif alive "$sup" "$supborn"; then s=running
  elif load && [ -n "$code" ]; then s=exited # it ended between the two looks
  elif alive "$pid" "$pidborn" || [ -n "$(members)" ] || outside alive; then s=orphan
  else s=lost && part; fi
}
marked() { # whether a process had its mark when this was first asked: there may be hundreds that nothing is known of
  [ "${marks-}" ] || marks="
$(grep -hsz ^FLEETFORM_RUN= /proc/[0-9]*/environ | tr '\0' '\n')
"
  case $marks in *"
FLEETFORM_RUN=$d
"*) ;; *) false ;; esac
}
part() { # an ended attempt has no keys, and nobody begins in its folder
  shared='' own=''
  if get peers/shared shared own; then
    [ "$(readlink "$shared")" != "$own" ] || rm -f "$shared"
    rmdir "${shared%/*}" 2>/dev/null
  fi
  rm -rf "$d/peers"
}
# COMMAND: term, alive or remove what runs elsewhere, in a container. The task leaves the script that does it.
outside() {
  if [ -e "$d/outside" ]; then
    timeout 90 sh "$d/outside" "$1" >/dev/null 2>&1 8>&- 9>&-
  else
    [ "$1" != alive ]
  fi
}
# Sets shown and why, what is told of s: as long as its gate is closed, none of its commands have run.
outward() {
  shown=$s
  [ "$s" = exited ] || why=$reason
  [ "$why" != gate ] || t0=''
  [ -p "$d/gate" ] || return 0
  t0=''
  case $s$why in
  running* | orphan*) if [ -e "$d/ready" ]; then shown=gated; else shown=preparing; fi ;;
  lost- | rebooted-) why=gate ;;
  exited-) [ ! -e "$d/ready" ] || why=gate ;; # somebody killed it while it waited
  esac
}
live() { # state, and whether there is something to end
  state
  case $s in running | orphan) return 0 ;; *) return 1 ;; esac
}
# The attempt's processes: those in its control groups, if it has any; those of its session; and those elsewhere that
# carry its mark in their environment. Not those that we may not signal: they are beyond us.
members() {
  {
    # shellcheck disable=SC2086  # folders without spaces
    inside $groups
    if [ -n "$pid" ]; then
      look "$pid"
      if [ -z "$born" ] || [ "$born" = "$pidborn" ]; then # else the number is someone else's by now
        cat /proc/[0-9]*/stat 2>/dev/null | sed -n "s/^\([0-9]*\) (.*) [^ZX] [0-9]* [0-9]* $pid .*/\1/p"
      fi
    fi
    grep -lszxF "FLEETFORM_RUN=$d" /proc/[0-9]*/environ | cut -d/ -f3
  } | sort -u | while read -r p; do
    look "$p"
    [ -z "$born" ] || ! kill -s 0 "$p" 2>/dev/null || echo "$p"
  done
}
report() { # ID...
  echo FLEETFORM-HOST 1
  [ $# -gt 0 ] || { echo FLEETFORM-END && return; }
  lines=$(
    for i; do
      attempt "$i"
      state
      mounts=''
      get mounts mounts
      outward
      used=''
      [ "$shown" != running ] || get used used
      echo "$i" "$shown" "${pid:--}" "${code:--}" "$why" "${t0:--}" "${t1:--}" "${mounts:--}" "${confined:--}" "${used:--}"
    done
  )
  # Sizes are taken after the states: whoever reads `exited` reads the size of the whole log.
  # shellcheck disable=SC2046  # ids have neither spaces nor wildcards
  set -- $(
    for i; do shift && set -- "$@" "$i/log"; done
    cd "$B" 2>/dev/null && stat -c '%n %s' -- "$@" 2>/dev/null
  )
  [ -z "$lines" ] || printf '%s\n' "$lines" | while read -r i a b c e rest; do
    size=0
    if [ "${1-}" = "$i/log" ]; then size=$2 && shift 2; fi # in the same order; some have none
    echo "$i" "$a" "$b" "$c" "$e" "$size" "$rest"
  done
  echo FLEETFORM-END
}

# ------------------------------------------------------------------------------------------- how it ends

lock() { # others' changes wait; only ever held for moments, and never by the task
  { command exec 9>>"$d/lock"; } 2>/dev/null || die unwritable "$d"
  flock -w 10 9 || die busy "$d is locked"
}
unlock() { exec 9>&-; }
rest() { # HUNDREDTHS: wait so long for the end of the run
  if [ "$s" = running ]; then
    flock -s -w "$(($1 / 100)).$(($1 % 100 / 10))1" "$d/run" true && sleep 0.02
  elif [ "$1" -gt 100 ]; then
    sleep 1
  else
    sleep 0.1
  fi
}
finish() { # KILL to everything
  for folder in $groups; do # at once, whatever they start meanwhile; not every kernel can
    if [ -e "$folder/cgroup.kill" ]; then echo 1 >"$folder/cgroup.kill"; fi
  done
  if alive "$pid" "$pidborn"; then kill -s KILL -- "-$pid"; fi
  for p in $(members); do kill -s KILL "$p"; done
  outside remove
} 2>/dev/null
# end REASON GRACE: TERM once, however often we are called, then wait, then KILL. A later call may only shorten the
# wait. Runs in a session of its own, for the caller may vanish in between.
end() {
  live || return 0
  mkdir -p "$d" # it may have vanished
  lock
  live || return 0
  [ "$boot" ] || echo "$BOOT 0 - $2 0 0" >"$d/started" # once it is dead, it is `lost`
  uptime
  at=$((now + 100 * $2))
  if [ "$reason" = - ]; then
    put ctl "$1 $at $limitat $watcher"
    if alive "$pid" "$pidborn"; then
      kill -s TERM -- "-$pid"
    elif [ "$s" = orphan ]; then
      for p in $(members); do kill -s TERM "$p"; done
      outside term
    fi
  elif [ "$at" -lt "$killat" ]; then
    put ctl "$reason $at $limitat $watcher"
  fi
  unlock
  while live; do
    uptime
    left=$((killat - now))
    if [ "$left" -gt 0 ]; then
      [ "$left" -lt 100 ] || left=100 # the wait may be shortened
      rest "$left"
    else
      finish
      [ "$left" -gt -1000 ] || return 0 # stuck in the kernel: it stays `running`, for it is
      rest 10
    fi
  done
  vacate # where there is no supervisor to do it
}
vacate() { # its groups have done their work. Those just killed may take a moment to leave
  # shellcheck disable=SC2086  # folders without spaces
  for wait in 0 0.02 0.1 0.5 1; do
    [ "$wait" = 0 ] || sleep "$wait"
    emptied $groups
    for folder in $groups; do [ ! -d "$folder" ] || continue 2; done
    break
  done
}
# alone SECONDS ADDRESSES: ends a run once its host was cut off for so long: then it may be run again elsewhere.
# It is cut off while no command comes, and neither its gateway nor one of the addresses answers that answered before.
# Where none ever did, the link has to be down. That no command comes is no reason by itself.
alone() {
  longest=$((100 * $1)) every=$((10 * $1)) proven='' route=''
  addresses=$(printf %s "$2" | tr , ' ')
  [ "$every" -ge 100 ] || every=100
  [ "$every" -le 3000 ] || every=3000
  while read -r link to by _; do
    [ "$to" != 00000000 ] || { route=$link && gateway "$by"; }
  done </proc/net/route
  uptime
  heard=$now
  while live; do
    if get alone other others && [ "$other $others" != "$1 $2" ]; then return; fi # another one watches
    uptime
    before=$now
    if reaching; then
      heard=$before
    else
      came=0
      { read -r came <"$B/.contact"; } 2>/dev/null || :
      uptime
      if [ "${came:-0}" -gt "$heard" ] && [ "$came" -le "$now" ]; then heard=$came; fi
      if [ $((now - heard)) -ge "$longest" ]; then
        [ "$grace" -le $(($1 / 3)) ] || grace=$(($1 / 3)) # it has to be over before it begins elsewhere
        end alone "$grace" && return
      fi
    fi
    rest "$every"
  done
}
gateway() { # HEX, as /proc/net/route has it
  [ "$1" != 00000000 ] || return 0
  set -- "${1%??????}" "${1#??}" "${1#????}" "${1#??????}"
  addresses="$((0x$4)).$((0x${3%??})).$((0x${2%????})).$((0x$1)) $addresses"
}
reaching() {
  for address in $addresses; do
    if answers "$address"; then proven=1 && return 0; fi
  done
  [ -z "$proven" ] || return 1
  carrier=1
  { read -r carrier <"/sys/class/net/$route/carrier" || carrier=0; } 2>/dev/null
  [ -z "$route" ] || [ "$carrier" = 1 ]
}
answers() { # ADDRESS: by ping, or by a port that is open or refused
  if command -v ping >/dev/null && ping -n -c 1 -W 2 "$1" >/dev/null 2>&1; then return 0; fi
  command -v bash >/dev/null || return 1
  # shellcheck disable=SC2016  # the shell's own
  said=$(timeout 2 bash -c 'true >"/dev/tcp/$0/22"' "$1" 2>&1) && return 0
  case $said in *refused*) ;; *) return 1 ;; esac
}
# unused PERCENT SECONDS GPUS: ends a run once one of its GPUs was used by less than PERCENT for so long, by each
# of twenty samples or more. What cannot be read counts as used, and so does the time before a gate opens. GPUS are
# UUIDs, or numbers where none are known, commas between them.
unused() {
  longest=$((100 * $2)) every=$((5 * $2))
  [ "$every" -ge 20 ] || every=20
  [ "$every" -le 3000 ] || every=3000
  gpus=$(printf %s "$3" | tr , ' ') told=''
  uptime
  i=0
  for gpu in $gpus; do i=$((i + 1)) && eval "used_$i=$now"; done
  while live; do
    rest "$every"
    used='' i=0
    said=$(usage) || said=''
    uptime
    for gpu in $gpus; do
      i=$((i + 1))
      sampled=$(printf '%s\n' "$said" | while read -r number uuid percent; do
        case $gpu in "$number" | "$uuid") echo "$number $uuid $percent" && break ;; esac
      done)
      percent=${sampled##* }
      case $percent in *[!0-9]*) percent='' ;; esac
      if [ -p "$d/gate" ] || [ -z "$percent" ] || [ "$percent" -ge "$1" ]; then eval "used_$i=$now"; fi
      since=''
      eval "since=\$used_$i"
      if [ $((now - since)) -ge "$longest" ]; then end unused "$grace" && return; fi
      [ -z "$percent" ] || used=$used${used:+,}$(printf %s "${sampled% *}" | sed 's/ -$//' | tr ' ' :)=$percent
    done
    { [ "$used" = "$told" ] || put used "$used"; } 2>/dev/null
    told=$used
  done
}
usage() { # a line NUMBER UUID PERCENT for each GPU; `-` for no UUID
  if command -v nvidia-smi >/dev/null; then
    timeout -k 1 10 nvidia-smi --query-gpu=index,uuid,utilization.gpu --format=csv,noheader,nounits |
      tr -d ' %' | tr , ' '
  else
    ids=$(timeout -k 1 10 rocm-smi --showuniqueid --csv | sed -n 's/^card\([0-9]*\),\(0x[0-9A-Fa-f]*\).*/\1 \2/p')
    timeout -k 1 10 rocm-smi --showuse --csv | sed -n 's/^card\([0-9]*\),\([0-9]*\).*/\1 \2/p' |
      while read -r number percent; do
        uuid=$(printf '%s\n' "$ids" | sed -n "s/^$number //p")
        echo "$number ${uuid:--} $percent"
      done
  fi
} 2>/dev/null
watch() { # NUMBER: enforces the limit; there is a new watcher for each new limit, and the old ones give up
  while live && [ "$watcher" = "$1" ] && [ "$limitat" != - ]; do
    uptime
    left=$((limitat - now))
    if [ "$left" -le 0 ]; then end limit "$grace" && return; fi
    [ "$left" -lt 6000 ] || left=6000
    rest "$left"
  done
}
# What the task left behind must not go on: its blocks are given to others. Returns when all are dead.
sweep() {
  left=$(members)
  uptime
  last=$((now + SWEEP))
  [ "$reason" = - ] || last=$killat
  for p in $left; do
    look "$p"
    # The group had its TERM when the stop began; a second one makes many programs give up what they save.
    if [ "$reason" = - ] || [ "$group" != "$pid" ]; then kill -s TERM "$p"; fi
  done
  while [ -n "$left" ]; do
    sleep 0.1
    uptime
    [ "$now" -lt "$last" ] || finish
    left=$(members)
  done
  until outside remove; do sleep 1; done
} 2>/dev/null

# ---------------------------------------------------------------------------------------- how it begins

# Sets cpus, memory, hard, limit, grace, gate, alone, near, unused, gpus, mounts; what $mounting names is called for each mount.
options() { # OPTION...
  cpus='' memory='' hard='' limit=- grace=10 gate='' alone=- near='' mounts='' unused='' gpus=${CUDA_VISIBLE_DEVICES-}
  while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || die usage "$1 needs a value"
    case $1 in
    --cpus) cpus=$2 && case $2 in *[!0-9,-]*) die usage "bad list of cpus: $2" ;; esac ;;
    --memory) memory=$2 && number "$2" "$1" ;;
    --hard) hard=1 ;;
    --limit) limit=$2 && number "$2" "$1" && [ "$2" -gt 0 ] || die usage "--limit $2" ;;
    --grace) grace=$2 && number "$2" "$1" ;;
    --gate) gate=$2 && number "$2" "$1" ;;
    --alone) alone=$2 && number "$2" "$1" ;;
    --near) near=$2 && case $2 in *[!0-9A-Za-z.:,_-]*) die usage "bad list of addresses: $2" ;; esac ;;
    --unused) unused=$2 && number "${2%:*}" "$1" && number "${2#*:}" "$1" ;;
    --gpus) gpus=$2 ;;
    --mount | --bind | --bind-if-any)
      [ $# -ge 3 ] || die usage "$1 needs a source and a destination"
      mounts=1 && ${mounting:-:} "$2" "$3" "$1"
      shift
      ;;
    *) die usage "unknown option $1" ;;
    esac
    shift 2
  done
}
receive() { # BYTES: the payload, before any lock is taken: a cut connection may leave us waiting for hours
  trap 'rm -f "$payload"' EXIT
  trap 'exit 76' HUP INT TERM
  { printf %s "$HEAD" && head -c "$1"; } >"$payload" 2>/dev/null || die nospace "$payload"
  size=$(stat -c %s "$payload" 2>/dev/null || echo 0)
  state
  [ "$s" = claimed ] || return 1 # somebody was faster, and his supervisor has cleared away our payload
  [ "$size" -eq $(($1 + ${#HEAD})) ] || die truncated "$((size - ${#HEAD})) of $1 bytes came"
}
# What holds the task to its CPUs and its memory, before there is a task; without --hard as well as can be.
confine() {
  confined='' groups=''
  [ -n "$cpus$memory" ] || [ -n "$hard" ] || return 0
  group "fleetform.$id.$(printf %s "$d" | cksum | tr ' ' .)" "$cpus" "$memory" || :
  level=hard
  if [ -z "$whole" ]; then
    if [ -n "$hard" ]; then
      vacate
      return 1
    fi
    level=none
    [ -z "$means" ] || level=soft
    if [ -n "$cpus" ] && taskset -c "$cpus" true 2>/dev/null; then level=soft means=${means:+$means+}affinity; fi
  fi
  confined=$level:${means:--}:${memory:--}
}
# supervise OPTION...: the one place that launches anything. It decides only now, when it is independent of whoever
# asked, so that a caller's death leaves an id either unused or with a supervisor.
supervise() {
  lock
  trap 'rm -f "$payload"' EXIT
  current hold
  trap - EXIT
  state
  if [ "$s" != claimed ]; then
    rm -f "$payload"
    echo exists
    return
  fi
  options "$@" # after `state`, which has a grace of its own
  if ! confine 7>&-; then
    rm -f "$payload"
    die isolation "this host cannot hold a rank to its blocks by the kernel, which \`isolation: hard\` asks for"
  fi
  uptime
  look $$
  [ "$limit" = - ] || [ "$gate" ] || limitat=$((now + 100 * limit))
  {
    { [ -z "$gate" ] || { rm -f "$d/gate" && mkfifo "$d/gate" && echo "$gate $limit" >"$d/gated"; }; } &&
    { [ -z "$confined" ] || echo "$confined $groups" >"$d/confined"; } &&
      { [ "$alone" = - ] || echo "$alone $near" >"$d/alone"; } &&
      printf '' >"$d/log" && put pid.t '' && put exit.t '' && put ctl "- - $limitat 0" &&
      command exec 8>>"$d/run" && flock -w 10 8 && mv "$payload" "$d/task" &&
      echo "$BOOT $now $(date +%s) $grace $$ $born" >"$d/started.$$"
  } 2>/dev/null || {
    rm -f "$payload" "$d/task" "$d/started.$$"
    vacate
    die nospace "$d"
  }
  chmod +t "$d"/* # the sticky bit: systemd-tmpfiles leaves such files alone, however old they get
  # A link and not a rename: it cannot succeed twice, not even if `forget` took the lock away in between.
  ln "$d/started.$$" "$d/started" || die unwritable "$d cannot hold links"
  exec 7>&-
  rm -f "$d/started.$$" "$d"/payload.*
  sync "$d/started" "$d" "$B" # else a power cut could bring the id back to life after the task ran
  echo ok
  exec >/dev/null
  unlock
  [ "$limit" = - ] || [ "$gate" ] || setsid -f sh "$self" _watch "$id" 0 8>&-
  [ "$alone" = - ] || setsid -f sh "$self" _alone "$id" "$alone" "$near" 8>&-
  case $unused/$gpus in
  /* | */ | *[!0-9A-Za-z,:/._-]*) ;;
  *) setsid -f sh "$self" _unused "$id" "${unused%:*}" "${unused#*:}" "$gpus" 8>&- ;;
  esac
  # In the foreground: the shell would have `&` ignore SIGINT, and so the task.
  FLEETFORM_RUN=$d setsid sh "$self" _task "$id" "$@" </dev/null >>"$d/log" 2>&1 8>&-
  code=$? t1=$(date +%s)
  rm -f "$d/task"
  get pid pid pidborn
  get ctl reason killat limitat watcher
  # shellcheck disable=SC2086  # folders without spaces
  if [ "$reason" = - ] && [ "$code" -ne 0 ] && killed $groups; then reason=memory; fi
  sweep
  [ "$reason" != - ] || get why reason # it says so itself: its container did not come about
  [ -n "$reason" ] || reason=-         # the disk was full
  [ -d "$d" ] || mkdir "$d"            # it vanished meanwhile
  put exit.t "$code $reason $t1"
  part
  mv "$d/exit.t" "$d/exit"
  vacate
}
task() { # OPTION...: becomes the task's first process, and keeps its pid from here on
  lock
  look $$
  put pid.t "$$ $born" && mv "$d/pid.t" "$d/pid"
  load
  unlock
  [ "$reason" = - ] || exit 143 # stopped before there was a pid to stop
  options "$@"
  for folder in $groups; do
    if ! { echo $$ >"$folder/cgroup.procs"; } 2>/dev/null; then # it was made for us a moment ago
      [ -z "$hard" ] || { echo "fleetform: $folder is gone; this task has \`isolation: hard\`" && exit 126; }
      echo "soft:affinity:- $groups" >"$d/confined"
    fi
  done
  if [ -n "$cpus" ]; then taskset -c -p "$cpus" $$ >/dev/null 2>&1; fi
  # Root can mount in a namespace of its own; so can a user where the machine lets him be root in one.
  [ -z "$mounts" ] || for how in '' '--user --map-current-user --keep-caps'; do
    # shellcheck disable=SC2086  # words
    if unshare $how --mount --propagation slave mount --bind "$d" "$d" 2>/dev/null; then
      # What its host unmounts goes from there as well: else the disk of another's volume would be held by it.
      exec unshare $how --mount --propagation slave sh "$self" _mount "$id" "$@"
    fi
  done
  begin "$@"
}
escaped() { printf %s "$1" | sed 's/%/%25/g; s/ /%20/g; s/,/%2C/g'; }
bind() { # SRC DST: or else go without
  case $1$2 in *"
"*) return ;; esac
  case $1 in /*) ;; *) return ;; esac
  case $2 in /*) ;; *) return ;; esac
  real=$(realpath -m -- "$2") || return
  case $real/ in // | /proc/* | /sys/* | /dev/*) return ;; esac
  case $(realpath -m -- "$B")/ in "$real"/*) return ;; esac # would hide our own files
  (
    umask "$FLEETFORM_UMASK"
    if [ -d "$1" ]; then
      mkdir -p "$real"
    else
      [ -e "$1" ] && mkdir -p "${real%/*}" && { [ -e "$real" ] || true >"$real"; }
    fi
  ) && mount --rbind "$1" "$real" || return
  mounted=${mounted:+$mounted,}$(escaped "$2")
} 2>/dev/null
need() { # SRC DST OPTION: sets lacks and missed if a rank must not begin without it
  [ "$3" = --bind ] && [ -z "$missed" ] || return 0
  case ,${mounted-}, in *,$(escaped "$2"),*) return ;; esac
  if [ ! -e "$1" ]; then
    missed=absent && echo "fleetform: this host has no $1, which is to be mounted at $2"
  elif [ ! "$1" -ef "$2" ]; then
    missed=unmounted && echo "fleetform: this host does not let $1 be mounted at $2"
  fi
  [ -z "$missed" ] || lacks=$(escaped "$1")
}
begin() { # OPTION...: enter, if all is there that has to be
  missed='' lacks='' was=${mounting-} mounting=need
  [ -z "$mounts" ] || options "$@"
  mounting=$was
  [ "$missed" ] || enter
  echo "$lacks" >"$d/mounts"
  lock
  load
  uptime
  [ "$reason" != - ] || put ctl "$missed $now $limitat $watcher"
  exit 72
}
enter() { # becomes the user's shell, as if nothing had been there before
  drop='' # the rights that a user needed to mount
  if [ "${mounting-}" ] && [ "$(id -u)" -ne 0 ]; then
    drop='setpriv --inh-caps=-all --ambient-caps=-all'
    $drop true 2>/dev/null || drop=''
  fi
  umask "$FLEETFORM_UMASK"
  LC_ALL=$FLEETFORM_LC
  [ -n "$LC_ALL" ] || unset LC_ALL
  unset FLEETFORM_RUNNER_DIR FLEETFORM_BOOT_ID_FILE FLEETFORM_EPOCH FLEETFORM_UMASK FLEETFORM_LC
  cd 2>/dev/null || cd /
  if command -v bash >/dev/null 2>&1; then exec $drop bash "$d/task"; fi
  exec $drop sh "$d/task"
}

# LIMIT: what a running attempt may take, from its start on; off or - for none. Its lock is held
limited() {
  limitat=-
  case $1 in off | -) ;; *) limitat=$((up0 + 100 * $1)) ;; esac
  again
}
again() { # a new watcher in place of the last one. Its lock is held
  put ctl "$reason $killat $limitat $((watcher + 1))" || die nospace "$d"
  [ "$limitat" = - ] || setsid -f sh "$self" _watch "$id" $((watcher + 1)) </dev/null >/dev/null 2>&1 7>&- 9>&-
}
tell() { # who its siblings are; it lets in nobody else
  if [ -d "$d/peers" ]; then
    echo "$told" | while read -r address port user key; do
      case $address in .) continue ;; esac
      echo "$address $port $user" >&3
      echo "[$address]:$port $key" >&4
      echo "restrict $key" >&5
    done 3>"$d/peers/all" 4>"$d/peers/known" 5>"$d/peers/allowed"
  fi
} 2>/dev/null
release() { # opens the gate, once; the limit holds before anything runs
  [ -p "$d/gate" ] || return 0
  lock
  current hold
  if live && [ "$reason" = - ] && [ -p "$d/gate" ]; then
    uptime
    up0=$now
    read -r _ limit <"$d/gated"
    [ "$limit" = - ] || limited "$limit"
    [ -z "$told" ] || tell
    { echo "$now $(date +%s)" >"$d/open.t" && mv "$d/open.t" "$d/open"; } 2>/dev/null || : # a full disk stops nobody
    command exec 6<>"$d/gate" || die unwritable "$d/gate"
    rm -f "$d/gate"
    echo >&6
    exec 6>&-
  fi
  exec 7>&-
  unlock
}

# ------------------------------------------------------------------------------------------ the commands

[ $# -ge 1 ] || set -- help
command=$1
shift
case $command-$# in
poll-* | peers-[1-9]* | release-[1-9]*) for i; do attempt "$i"; done ;;
start-0 | start-1 | tail-[01] | stop-[01] | limit-[01] | adjust-[012] | forget-0) die usage "$command needs more arguments" ;;
start-* | tail-[23] | stop-2 | limit-2 | adjust-[34] | forget-1 | _*) attempt "$1" ;;
*) die usage "start | release | peers | poll | tail | stop | limit | adjust | forget" ;;
esac
# Whether there is any attempt.
holds() {
  for each in "$B"/*; do
    [ ! -e "$each" ] || return 0
  done
  return 1
}

case ${FLEETFORM_EPOCH-}/$command in
/* | */_* | */start | */tail) ;;
*)
  number "$FLEETFORM_EPOCH" FLEETFORM_EPOCH
  if mkdir "$B" 2>/dev/null || [ -d "$B" ]; then current; fi # a node without a folder has nothing to lose
  ;;
esac
case $command in
_*) ;;
*)
  if holds; then # a command came: see `alone`
    uptime
    { echo "$now" >"$B/.contact"; } 2>/dev/null || :
  fi
  ;;
esac
case $command in
start)
  bytes=$2
  shift 2
  number "$bytes" BYTES
  options "$@"
  command -v flock >/dev/null && command -v setsid >/dev/null || die tools "flock and setsid are needed"
  mkdir -p "$d" 2>/dev/null && [ -w "$d" ] || die unwritable "$d"
  current
  payload=$d/payload.$$
  state
  if [ "$s" = claimed ] && receive "$bytes"; then
    # shellcheck disable=SC2046  # words
    answer=$(setsid -f $(apart "fleetform.$id.$$") sh "$self" _run "$id" "$payload" "$@" </dev/null 2>/dev/null)
    # It may refuse: then without.
    [ -n "$answer" ] || answer=$(setsid -f sh "$self" _run "$id" "$payload" "$@" </dev/null 2>/dev/null)
    case $answer in
    ok | exists) ;;
    FLEETFORM-ERR*) answer=${answer#* } && die "${answer%% *}" "${answer#* }" ;;
    *) die tools "no supervisor came up by setsid -f" ;;
    esac
  fi
  # It is there within moments, but for an image that is to be pulled: so nobody has to ask once more.
  tries=100
  while [ "$gate" ] && [ "$tries" -gt 0 ] && [ ! -e "$d/ready" ] && live; do
    sleep 0.02
    tries=$((tries - 1))
  done
  report "$id"
  ;;
peers)
  echo FLEETFORM-PEERS
  for i; do
    if [ -r "$B/$i/peers/me" ]; then echo "$i $(cat "$B/$i/peers/me")"; fi
  done
  echo FLEETFORM-END
  ;;
release)
  told=$(cat)
  case $told in '' | *'
.') ;; *) die truncated "the list of peers" ;; esac
  for i; do
    attempt "$i"
    release
  done
  report "$@"
  ;;
poll)
  if [ $# -eq 0 ]; then
    for i in "$B"/*; do # the folder may hold other things, such as lost+found
      case ${i##*/} in *[!A-Za-z0-9._-]*) ;; *) set -- "$@" "${i##*/}" ;; esac
    done
  fi
  report "$@"
  ;;
tail)
  number "$2" OFFSET
  number "${3-65536}" MAX
  [ -d "$d" ] || die missing "$id"
  count=$(($(stat -c %s "$d/log" 2>/dev/null || echo 0) - $2))
  [ "$count" -ge 0 ] || count=0
  [ "$count" -le "${3-65536}" ] || count=${3-65536}
  echo "FLEETFORM-LOG $count"
  [ "$count" -eq 0 ] || tail -c "+$(($2 + 1))" "$d/log" 2>/dev/null | head -c "$count"
  ;;
stop)
  number "$2" GRACE
  if live; then
    setsid sh "$self" _end "$id" stopped "$2" </dev/null >/dev/null 2>&1 &
    wait $!
  fi
  report "$id"
  ;;
limit)
  [ "$2" = off ] || number "$2" SECONDS
  [ -d "$d" ] || die missing "$id"
  lock
  if live && [ -p "$d/gate" ]; then # it counts from there
    read -r gate _ <"$d/gated"
    [ "$2" != off ] || set -- "$1" -
    { echo "$gate $2" >"$d/gated.t" && mv "$d/gated.t" "$d/gated"; } 2>/dev/null || die nospace "$d"
  elif live; then
    limited "$2"
  fi
  unlock
  report "$id"
  ;;
adjust)
  number "$2" GRACE
  [ "$3" = off ] || number "$3" SECONDS
  case ${4-} in *[!0-9A-Za-z.:,_-]*) die usage "bad list of addresses: $4" ;; esac
  [ -d "$d" ] || die missing "$id"
  lock
  if live; then
    get alone other others || other=off others=''
    { echo "$2" >"$d/grace.t" && mv "$d/grace.t" "$d/grace"; } 2>/dev/null || die nospace "$d"
    # A watcher of an older runner knows only the old time, and gives up for a new one.
    [ "$limitat" = - ] || again
    if [ "$other $others" != "$3 ${4-}" ]; then
      { echo "$3 ${4-}" >"$d/alone.t" && mv "$d/alone.t" "$d/alone"; } 2>/dev/null || die nospace "$d"
      [ "$3" = off ] || setsid -f sh "$self" _alone "$id" "$3" "${4-}" </dev/null >/dev/null 2>&1 7>&- 9>&-
    fi
  fi
  unlock
  report "$id"
  ;;
forget)
  if [ -d "$d" ]; then
    lock
    if live; then die busy "$id is $s"; fi
    vacate # of one that was lost
    mv "$d" "$B/.gone.$id.$$" 2>/dev/null || die unwritable "$d" # at once: half of it would be another state
    rm -rf "$B"/.gone.*
  fi
  holds || rm -f "$B/.contact"
  ;;
_run)
  exec 3<&- 4<&- 5<&- 6<&- 7<&- 8<&- 9<&-
  cd /
  trap : HUP INT TERM PIPE # not '': the task would ignore them too
  payload=$2
  shift 2
  settle
  supervise "$@"
  ;;
_watch) watch "$2" ;;
_alone) alone "$2" "$3" ;;
_unused) unused "$2" "$3" "$4" ;;
_end) end "$2" "$3" ;;
_task) shift && task "$@" ;;
_mount)
  shift
  mounting=bind mounted=''
  options "$@"
  echo "${mounted:--}" >"$d/mounts"
  begin "$@"
  ;;
esac
