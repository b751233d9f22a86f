# shellcheck shell=sh disable=SC2034,SC2154  # the parts of the runner share their variables: see runner.sh
# The answer of most commands: a line for each attempt. Functions only, a part of the runner.

# Sets shown, the state that callers see, and changes exit_reason and started_at to what they see: as long as its gate is
# closed, none of its commands have run.
find_shown_state() {
  shown=$attempt_state
  [ "$attempt_state" = exited ] || exit_reason=$stop_reason
  [ "$exit_reason" != gate ] || started_at=''
  [ -p "$attempt_dir/gate" ] || return 0
  started_at=''
  case $attempt_state$exit_reason in
  running* | orphan*) if [ -e "$attempt_dir/ready" ]; then shown=gated; else shown=preparing; fi ;;
  lost- | rebooted-) exit_reason=gate ;;
  exited-) [ ! -e "$attempt_dir/ready" ] || exit_reason=gate ;; # somebody killed it while it waited
  esac
}
report() { # ID...
  echo FLEETFORM-HOST 1
  [ $# -gt 0 ] || { echo FLEETFORM-END && return; }
  lines=$(
    for id; do
      select_attempt "$id"
      find_state
      mounts=''
      read_record mounts mounts
      find_shown_state
      used=''
      [ "$shown" != running ] || read_record used used
      echo "$id" "$shown" "${task_pid:--}" "${exit_code:--}" "$exit_reason" "${started_at:--}" "${ended_at:--}" \
        "${mounts:--}" "${confined:--}" "${used:--}"
    done
  )
  # Sizes are taken after the states: whoever reads `exited` reads the size of the whole log.
  # shellcheck disable=SC2046  # ids have neither spaces nor wildcards
  set -- $(
    for id; do shift && set -- "$@" "$id/log"; done
    cd "$runner_dir" 2>/dev/null && stat -c '%n %s' -- "$@" 2>/dev/null
  )
  [ -z "$lines" ] || printf '%s\n' "$lines" | while read -r id shown task_pid exit_code exit_reason others; do
    size=0
    if [ "${1-}" = "$id/log" ]; then size=$2 && shift 2; fi # in the same order; some have none
    echo "$id" "$shown" "$task_pid" "$exit_code" "$exit_reason" "$size" "$others"
  done
  echo FLEETFORM-END
}
