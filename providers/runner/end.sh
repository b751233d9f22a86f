# shellcheck shell=sh disable=SC2034,SC2154  # the parts of the runner share their variables: see runner.sh
# How a run is ended, and what is left of it is cleared away. Functions only, a part of the runner.

wait_for_end() { # HUNDREDTHS: waits so long for the end of the run
  if [ "$attempt_state" = running ]; then
    flock -s -w "$(($1 / 100)).$(($1 % 100 / 10))1" "$attempt_dir/run" true && sleep 0.02
  elif [ "$1" -gt 100 ]; then
    sleep 1
  else
    sleep 0.1
  fi
}
kill_all() {
  for folder in $groups; do # at once, whatever they start meanwhile; not every kernel can
    if [ -e "$folder/cgroup.kill" ]; then echo 1 >"$folder/cgroup.kill"; fi
  done
  if is_alive "$task_pid" "$task_born"; then kill -s KILL -- "-$task_pid"; fi
  for process in $(list_processes); do kill -s KILL "$process"; done
  outside remove
} 2>/dev/null
# end_attempt REASON GRACE: TERM once, however often we are called, then wait, then KILL. A later call may only shorten
# the wait. Runs in a session of its own, for the caller may vanish in between.
end_attempt() {
  is_live || return 0
  mkdir -p "$attempt_dir" # it may have vanished
  lock
  is_live || return 0
  [ "$started_boot" ] || echo "$boot_id 0 - $2 0 0" >"$attempt_dir/started" # once it is dead, it is `lost`
  read_uptime
  kill_then=$((now + 100 * $2))
  if [ "$stop_reason" = - ]; then
    write_record ctl "$1 $kill_then $limit_at $watcher"
    if is_alive "$task_pid" "$task_born"; then
      kill -s TERM -- "-$task_pid"
    elif [ "$attempt_state" = orphan ]; then
      for process in $(list_processes); do kill -s TERM "$process"; done
      outside term
    fi
  elif [ "$kill_then" -lt "$kill_at" ]; then
    write_record ctl "$stop_reason $kill_then $limit_at $watcher"
  fi
  unlock
  while is_live; do
    read_uptime
    remaining=$((kill_at - now))
    if [ "$remaining" -gt 0 ]; then
      [ "$remaining" -lt 100 ] || remaining=100 # the wait may be shortened
      wait_for_end "$remaining"
    else
      kill_all
      [ "$remaining" -gt -1000 ] || return 0 # stuck in the kernel: it stays `running`, for it is
      wait_for_end 10
    fi
  done
  remove_groups # where there is no supervisor to do it
}
remove_groups() { # they have done their work. Those just killed may take a moment to leave
  # shellcheck disable=SC2086  # folders without spaces
  for pause in 0 0.02 0.1 0.5 1; do
    [ "$pause" = 0 ] || sleep "$pause"
    emptied $groups
    for folder in $groups; do [ ! -d "$folder" ] || continue 2; done
    break
  done
}
# What the task left behind must not go on: its blocks are given to others. Returns when all are dead.
sweep() {
  processes=$(list_processes)
  read_uptime
  kill_then=$((now + SWEEP))
  [ "$stop_reason" = - ] || kill_then=$kill_at
  for process in $processes; do
    read_process "$process"
    # The group had its TERM when the stop began; a second one makes many programs give up what they save.
    if [ "$stop_reason" = - ] || [ "$process_group" != "$task_pid" ]; then kill -s TERM "$process"; fi
  done
  while [ -n "$processes" ]; do
    sleep 0.1
    read_uptime
    [ "$now" -lt "$kill_then" ] || kill_all
    processes=$(list_processes)
  done
  until outside remove; do sleep 1; done
} 2>/dev/null
