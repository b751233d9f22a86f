# shellcheck shell=sh disable=SC2034,SC2154  # the parts of the runner share their variables: see runner.sh
# What is known of an attempt: its files and its processes. Functions only, a part of the runner.
#
# `select_attempt` sets attempt, its id, and attempt_dir, its folder; all other functions are about that attempt.
# `load_attempt` sets these from its files; what is unknown is empty:
#   started_boot                      the boot in which it started
#   started_uptime, started_at        when it started, or its gate opened: in 1/100 s of uptime, in epoch seconds
#   grace                             seconds between TERM and KILL
#   supervisor, supervisor_born       the process that waits for the task, and the start time of that process
#   task_pid, task_born               the task's first process
#   stop_reason, kill_at              why it is being ended (`-`: it is not), and when KILL follows
#   limit_at, watcher                 when its limit is over (`-`: never), and the number of this limit's watcher
#   exit_code, exit_reason, ended_at  how it ended
#   confined, groups                  how it is limited, and the folders of its control groups
# Times without a clock are in 1/100 s of uptime, as read_uptime has them.

check_number() { # TEXT WHAT
  case $1 in '' | *[!0-9]* | 0?* | ????????????????*) die usage "$2 is no whole number: $1" ;; esac
}
select_attempt() { # ID
  case $1 in '' | [.-]* | *[!A-Za-z0-9._-]*) die usage "bad attempt id: $1" ;; esac
  [ ${#1} -le 200 ] || die usage "attempt id is too long: $1"
  attempt=$1 attempt_dir=$runner_dir/$1
}
read_uptime() { # sets now: not by the clock, which may be set while a task runs
  read -r now _ </proc/uptime
  now=${now%.*}${now#*.}
  now=${now#0}
  now=${now#0} # 007 would be octal
}

# ------------------------------------------------------------------------------------------------ files

read_record() { { record=$1 && shift && read -r "$@" <"$attempt_dir/$record"; } 2>/dev/null; } # FILE NAME...: sets the names
write_record() { printf '%-63s\n' "$2" 1<>"$attempt_dir/$1"; } # FILE TEXT: in place
load_attempt() { # all of it without a fork: there may be hundreds of attempts
  started_boot='' started_uptime='' started_at='' grace='' supervisor='' supervisor_born='' task_pid='' task_born=''
  exit_code='' exit_reason='' ended_at='' stop_reason=- kill_at=- limit_at=- watcher=0 confined='' groups=''
  read_record started started_boot started_uptime started_at grace supervisor supervisor_born
  read_record grace grace
  read_record open started_uptime started_at
  read_record pid task_pid task_born
  read_record ctl stop_reason kill_at limit_at watcher
  read_record exit exit_code exit_reason ended_at
  read_record confined confined groups
  :
}
find_state() { # load_attempt, and sets attempt_state
  load_attempt
  if [ -n "$exit_code" ]; then attempt_state=exited
  elif [ -z "$started_boot" ]; then
    if [ -d "$attempt_dir" ]; then attempt_state=claimed; else attempt_state=missing; fi
    # Files can vanish, as by a cleaner of old ones: what runs is not `missing`, and no start may launch it again.
    if has_mark && [ -n "$(list_processes)" ]; then attempt_state=orphan
    elif has_supervisor; then attempt_state=running; fi
    load_attempt # it may have ended between these looks
    [ -z "$exit_code" ] || attempt_state=exited
  elif [ "$started_boot" != "$boot_id" ]; then attempt_state=rebooted && outside remove && close_peers
  elif is_alive "$supervisor" "$supervisor_born"; then attempt_state=running
  elif load_attempt && [ -n "$exit_code" ]; then attempt_state=exited # it ended between the two looks
  elif is_alive "$task_pid" "$task_born" || [ -n "$(list_processes)" ] || outside alive; then attempt_state=orphan
  else attempt_state=lost && close_peers; fi
}
is_live() { # find_state, and whether there is something to end
  find_state
  case $attempt_state in running | orphan) return 0 ;; *) return 1 ;; esac
}
close_peers() { # an ended attempt has no keys, and nobody begins in its folder
  shared='' own=''
  if read_record peers/shared shared own; then
    [ "$(readlink "$shared")" != "$own" ] || rm -f "$shared"
    rmdir "${shared%/*}" 2>/dev/null
  fi
  rm -rf "$attempt_dir/peers"
}
lock() { # others' changes wait; only ever held for moments, and never by the task
  { command exec 9>>"$attempt_dir/lock"; } 2>/dev/null || die unwritable "$attempt_dir"
  flock -w 10 9 || die busy "$attempt_dir is locked"
}
unlock() { exec 9>&-; }

# -------------------------------------------------------------------------------------------- processes

read_process() { # PID: sets process_born (start time; empty if there is no such process, or only its remains) and process_group
  process_born='' process_group=''
  { read -r line </proc/"$1"/stat; } 2>/dev/null || return 0
  # shellcheck disable=SC2086  # fields; the name before them may hold spaces and brackets
  set -- ${line##*") "}
  case $1 in Z | X) ;; *) process_group=${3-} process_born=${20-} ;; esac
}
is_alive() { # PID BORN: the number alone may be another process by now
  [ -n "$1" ] || return 1
  read_process "$1"
  [ -n "$process_born" ] && [ "$process_born" = "$2" ]
}
has_mark() { # whether a process had its mark when this was first asked: there may be hundreds that nothing is known of
  [ "${marks-}" ] || marks="
$(grep -hsz ^FLEETFORM_RUN= /proc/[0-9]*/environ | tr '\0' '\n')
"
  case $marks in *"
FLEETFORM_RUN=$attempt_dir
"*) ;; *) false ;; esac
}
# Whether a supervisor is there that began its attempt, so that the script has left its first place: it has yet to record
# the end, though its attempt's files vanished and the task is dead. Asked once, as the marks are.
has_supervisor() {
  [ "${supervisors-}" ] || supervisors="
$(grep -hsz '/payload\.[0-9]*$' /proc/[0-9]*/cmdline | tr '\0' '\n')
"
  case $supervisors in *"
$attempt_dir/payload."*) ;; *) return 1 ;; esac
  for each in "$attempt_dir"/payload.* "$attempt_dir"/started.* "$attempt_dir/task"; do
    [ ! -e "$each" ] || return 1
  done
}
# Prints the attempt's processes: those in its control groups, if it has any; those of its session; and those elsewhere
# that carry its mark in their environment. Not those that we may not signal: they are beyond us.
list_processes() {
  {
    # shellcheck disable=SC2086  # folders without spaces
    inside $groups
    if [ -n "$task_pid" ]; then
      read_process "$task_pid"
      if [ -z "$process_born" ] || [ "$process_born" = "$task_born" ]; then # else the number is someone else's by now
        cat /proc/[0-9]*/stat 2>/dev/null | sed -n "s/^\([0-9]*\) (.*) [^ZX] [0-9]* [0-9]* $task_pid .*/\1/p"
      fi
    fi
    grep -lszxF "FLEETFORM_RUN=$attempt_dir" /proc/[0-9]*/environ | cut -d/ -f3
  } | sort -u | while read -r process; do
    read_process "$process"
    [ -z "$process_born" ] || ! kill -s 0 "$process" 2>/dev/null || echo "$process"
  done
}
# COMMAND: term, alive or remove what runs elsewhere, in a container. The task leaves the script that does it.
outside() {
  if [ -e "$attempt_dir/outside" ]; then
    timeout 90 sh "$attempt_dir/outside" "$1" >/dev/null 2>&1 8>&- 9>&-
  else
    [ "$1" != alive ]
  fi
}
