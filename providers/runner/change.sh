# shellcheck shell=sh disable=SC2034,SC2154  # the parts of the runner share their variables: see runner.sh
# Changes of an attempt that runs: its limit, its terms, its gate. Functions only, a part of the runner.

# set_limit SECONDS: what a running attempt may take, from its start on; off or - for none. Its lock is held.
set_limit() {
  limit_at=-
  case $1 in off | -) ;; *) limit_at=$((started_uptime + 100 * $1)) ;; esac
  restart_watcher
}
restart_watcher() { # for limit_at, in place of the last one. The attempt's lock is held
  write_record ctl "$stop_reason $kill_at $limit_at $((watcher + 1))" || die nospace "$attempt_dir"
  [ "$limit_at" = - ] || setsid -f sh "$self" _watch "$attempt" $((watcher + 1)) </dev/null >/dev/null 2>&1 7>&- 9>&-
}
replace_file() { # NAME TEXT: at once, so that nobody reads half of it
  { echo "$2" >"$attempt_dir/$1.t" && mv "$attempt_dir/$1.t" "$attempt_dir/$1"; } 2>/dev/null
}
change_limit() { # SECONDS|off
  lock
  if is_live && [ -p "$attempt_dir/gate" ]; then # it counts from there
    read -r gate_seconds _ <"$attempt_dir/gated"
    [ "$1" != off ] || set -- -
    replace_file gated "$gate_seconds $1" || die nospace "$attempt_dir"
  elif is_live; then
    set_limit "$1"
  fi
  unlock
}
adjust() { # GRACE SECONDS|off ADDRESSES
  lock
  if is_live; then
    read_record alone alone_seconds near || alone_seconds=off near=''
    replace_file grace "$1" || die nospace "$attempt_dir"
    # A watcher of an older runner knows only the old time, and gives up for a new one.
    [ "$limit_at" = - ] || restart_watcher
    if [ "$alone_seconds $near" != "$2 $3" ]; then
      replace_file alone "$2 $3" || die nospace "$attempt_dir"
      [ "$2" = off ] || setsid -f sh "$self" _alone "$attempt" "$2" "$3" </dev/null >/dev/null 2>&1 7>&- 9>&-
    fi
  fi
  unlock
}
open_gate() { # PEERS, as `release` got them, or nothing: once; the limit holds before anything runs
  [ -p "$attempt_dir/gate" ] || return 0
  lock
  check_writer hold
  if is_live && [ "$stop_reason" = - ] && [ -p "$attempt_dir/gate" ]; then
    read_uptime
    started_uptime=$now
    read -r _ limit_seconds <"$attempt_dir/gated"
    [ "$limit_seconds" = - ] || set_limit "$limit_seconds"
    [ -z "$1" ] || tell_siblings "$1"
    replace_file open "$now $(date +%s)" || : # a full disk stops nobody
    command exec 6<>"$attempt_dir/gate" || die unwritable "$attempt_dir/gate"
    rm -f "$attempt_dir/gate"
    echo >&6
    exec 6>&-
  fi
  exec 7>&-
  unlock
}
tell_siblings() { # PEERS: who they are; it lets in nobody else
  if [ -d "$attempt_dir/peers" ]; then
    echo "$1" | while read -r address port user key; do
      case $address in .) continue ;; esac
      echo "$address $port $user" >&3
      echo "[$address]:$port $key" >&4
      echo "restrict $key" >&5
    done 3>"$attempt_dir/peers/all" 4>"$attempt_dir/peers/known" 5>"$attempt_dir/peers/allowed"
  fi
} 2>/dev/null
