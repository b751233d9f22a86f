# shellcheck shell=sh disable=SC2034,SC2154  # the parts of the runner share their variables: see runner.sh
# How an attempt begins: its options, its script, and its supervisor. Functions only, a part of the runner.

# parse_options OPTION...: sets cpus, memory, is_hard, limit_seconds, grace, gate_seconds, alone_seconds, near, unused_limit,
# gpus (see `start` in runner.sh; `-` or empty for none) and has_mounts. It calls what $each_mount names with SRC, DST and
# the option of each mount.
parse_options() {
  cpus='' memory='' is_hard='' limit_seconds=- grace=10 gate_seconds='' alone_seconds=- near='' has_mounts=''
  unused_limit='' gpus=${CUDA_VISIBLE_DEVICES-}
  while [ $# -gt 0 ]; do
    [ $# -ge 2 ] || die usage "$1 needs a value"
    case $1 in
    --cpus) cpus=$2 && case $2 in *[!0-9,-]*) die usage "bad list of cpus: $2" ;; esac ;;
    --memory) memory=$2 && check_number "$2" "$1" ;;
    --hard) is_hard=1 ;;
    --limit) limit_seconds=$2 && check_number "$2" "$1" && [ "$2" -gt 0 ] || die usage "--limit $2" ;;
    --grace) grace=$2 && check_number "$2" "$1" ;;
    --gate) gate_seconds=$2 && check_number "$2" "$1" ;;
    --alone) alone_seconds=$2 && check_number "$2" "$1" ;;
    --near) near=$2 && check_addresses "$2" ;;
    --unused) unused_limit=$2 && check_number "${2%:*}" "$1" && check_number "${2#*:}" "$1" ;;
    --gpus) gpus=$2 ;;
    --mount | --bind | --bind-if-any)
      [ $# -ge 3 ] || die usage "$1 needs a source and a destination"
      has_mounts=1 && ${each_mount:-:} "$2" "$3" "$1"
      shift
      ;;
    *) die usage "unknown option $1" ;;
    esac
    shift 2
  done
}
check_addresses() { # LIST, commas between its addresses
  case $1 in *[!0-9A-Za-z.:,_-]*) die usage "bad list of addresses: $1" ;; esac
}
# receive_script BYTES: from stdin into $payload, before any lock is taken: a cut connection may leave us waiting for hours.
# Sets attempt_state, and fails if somebody was faster.
receive_script() {
  trap 'rm -f "$payload"' EXIT
  trap 'exit 76' HUP INT TERM
  { printf %s "$SCRIPT_HEAD" && head -c "$1"; } >"$payload" 2>/dev/null || die nospace "$payload"
  size=$(stat -c %s "$payload" 2>/dev/null || echo 0)
  find_state
  [ "$attempt_state" = claimed ] || return 1 # somebody was faster, and his supervisor has cleared away our payload
  [ "$size" -eq $(($1 + ${#SCRIPT_HEAD})) ] || die truncated "$((size - ${#SCRIPT_HEAD})) of $1 bytes came"
}
# Sets confined and groups, which hold the task to its CPUs and its memory, before there is a task; without --hard as well
# as can be. Fails if --hard cannot be held.
confine_task() {
  confined='' groups=''
  [ -n "$cpus$memory" ] || [ -n "$is_hard" ] || return 0
  group "fleetform.$attempt.$(printf %s "$attempt_dir" | cksum | tr ' ' .)" "$cpus" "$memory" || :
  level=hard
  if [ -z "$whole" ]; then
    if [ -n "$is_hard" ]; then
      remove_groups
      return 1
    fi
    level=none
    [ -z "$means" ] || level=soft
    if [ -n "$cpus" ] && taskset -c "$cpus" true 2>/dev/null; then level=soft means=${means:+$means+}affinity; fi
  fi
  confined=$level:${means:--}:${memory:--}
}
# supervise OPTION...: the one place that launches anything. It decides only now, when it is independent of whoever
# asked, so that a caller's death leaves an id either unused or with a supervisor. Prints `ok` once it has decided,
# `exists` if the attempt was launched before, or a refusal; then it waits for the task, and records its end.
supervise() {
  lock
  trap 'rm -f "$payload"' EXIT
  check_writer hold
  trap - EXIT
  find_state
  if [ "$attempt_state" != claimed ]; then
    rm -f "$payload"
    echo exists
    return
  fi
  parse_options "$@" # after `find_state`, which has a grace of its own
  if ! confine_task 7>&-; then
    rm -f "$payload"
    die isolation "this host cannot hold a rank to its blocks by the kernel, which \`isolation: hard\` asks for"
  fi
  read_uptime
  read_process $$
  [ "$limit_seconds" = - ] || [ "$gate_seconds" ] || limit_at=$((now + 100 * limit_seconds))
  record_start 2>/dev/null || {
    rm -f "$payload" "$attempt_dir/task" "$attempt_dir/started.$$"
    remove_groups
    die nospace "$attempt_dir"
  }
  chmod +t "$attempt_dir"/* # the sticky bit: systemd-tmpfiles leaves such files alone, however old they get
  # A link and not a rename: it cannot succeed twice, not even if `forget` took the lock away in between.
  ln "$attempt_dir/started.$$" "$attempt_dir/started" || die unwritable "$attempt_dir cannot hold links"
  exec 7>&-
  rm -f "$attempt_dir/started.$$" "$attempt_dir"/payload.*
  # Else a power cut could bring the id back to life after the task ran.
  sync "$attempt_dir/started" "$attempt_dir" "$runner_dir"
  echo ok
  exec >/dev/null
  unlock
  [ "$limit_seconds" = - ] || [ "$gate_seconds" ] || setsid -f sh "$self" _watch "$attempt" 0 8>&-
  [ "$alone_seconds" = - ] || setsid -f sh "$self" _alone "$attempt" "$alone_seconds" "$near" 8>&-
  case $unused_limit/$gpus in
  /* | */ | *[!0-9A-Za-z,:/._-]*) ;;
  *) setsid -f sh "$self" _unused "$attempt" "${unused_limit%:*}" "${unused_limit#*:}" "$gpus" 8>&- ;;
  esac
  # In the foreground: the shell would have `&` ignore SIGINT, and so the task.
  FLEETFORM_RUN=$attempt_dir setsid sh "$self" _task "$attempt" "$@" </dev/null >>"$attempt_dir/log" 2>&1 8>&-
  exit_code=$? ended_at=$(date +%s)
  record_end
}
# Writes the files of an attempt that starts: `started` last, and under another name.
record_start() {
  if [ "$gate_seconds" ]; then
    rm -f "$attempt_dir/gate" && mkfifo "$attempt_dir/gate" && echo "$gate_seconds $limit_seconds" >"$attempt_dir/gated" ||
      return
  fi
  { [ -z "$confined" ] || echo "$confined $groups" >"$attempt_dir/confined"; } &&
    { [ "$alone_seconds" = - ] || echo "$alone_seconds $near" >"$attempt_dir/alone"; } &&
    printf '' >"$attempt_dir/log" && write_record pid.t '' && write_record exit.t '' &&
    write_record ctl "- - $limit_at 0" &&
    command exec 8>>"$attempt_dir/run" && flock -w 10 8 && mv "$payload" "$attempt_dir/task" &&
    echo "$boot_id $now $(date +%s) $grace $$ $process_born" >"$attempt_dir/started.$$"
}
# The task's own process has ended, with exit_code at ended_at: ends the rest, and records both.
record_end() {
  rm -f "$attempt_dir/task"
  read_record pid task_pid task_born
  read_record ctl stop_reason kill_at limit_at watcher
  # shellcheck disable=SC2086  # folders without spaces
  if [ "$stop_reason" = - ] && [ "$exit_code" -ne 0 ] && killed $groups; then stop_reason=memory; fi
  sweep
  [ "$stop_reason" != - ] || read_record why stop_reason # it says so itself: its container did not come about
  [ -n "$stop_reason" ] || stop_reason=-                 # the disk was full
  [ -d "$attempt_dir" ] || mkdir "$attempt_dir"          # it vanished meanwhile
  write_record exit.t "$exit_code $stop_reason $ended_at"
  close_peers
  mv "$attempt_dir/exit.t" "$attempt_dir/exit"
  remove_groups
}
