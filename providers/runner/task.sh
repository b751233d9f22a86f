# shellcheck shell=sh disable=SC2034,SC2154  # the parts of the runner share their variables: see runner.sh
# What the task's first process does until it is the user's shell. Functions only, a part of the runner.

become_task() { # OPTION...: becomes the task's first process, and keeps its pid from here on
  lock
  read_process $$
  write_record pid.t "$$ $process_born" && mv "$attempt_dir/pid.t" "$attempt_dir/pid"
  load_attempt
  unlock
  [ "$stop_reason" = - ] || exit 143 # stopped before there was a pid to stop
  parse_options "$@"
  for folder in $groups; do
    if ! { echo $$ >"$folder/cgroup.procs"; } 2>/dev/null; then # it was made for us a moment ago
      [ -z "$is_hard" ] || { echo "fleetform: $folder is gone; this task has \`isolation: hard\`" && exit 126; }
      echo "soft:affinity:- $groups" >"$attempt_dir/confined"
    fi
  done
  if [ -n "$cpus" ]; then taskset -c -p "$cpus" $$ >/dev/null 2>&1; fi
  # Root can mount in a namespace of its own; so can a user where the machine lets him be root in one.
  [ -z "$has_mounts" ] || for rights in '' '--user --map-current-user --keep-caps'; do
    # shellcheck disable=SC2086  # words
    if unshare $rights --mount --propagation slave mount --bind "$attempt_dir" "$attempt_dir" 2>/dev/null; then
      # What its host unmounts goes from there as well: else the disk of another's volume would be held by it.
      exec unshare $rights --mount --propagation slave sh "$self" _mount "$attempt" "$@"
    fi
  done
  begin "$@"
}
mount_all() { # OPTION...: binds what can be bound, records it, and begins
  each_mount=bind_mount mounted=''
  parse_options "$@"
  echo "${mounted:--}" >"$attempt_dir/mounts"
  begin "$@"
}
escaped() { printf %s "$1" | sed 's/%/%25/g; s/ /%20/g; s/,/%2C/g'; }
bind_mount() { # SRC DST: adds DST to mounted, or goes without
  case $1$2 in *"
"*) return ;; esac
  case $1 in /*) ;; *) return ;; esac
  case $2 in /*) ;; *) return ;; esac
  target=$(realpath -m -- "$2") || return
  case $target/ in // | /proc/* | /sys/* | /dev/*) return ;; esac
  case $(realpath -m -- "$runner_dir")/ in "$target"/*) return ;; esac # would hide our own files
  (
    umask "$FLEETFORM_UMASK"
    if [ -d "$1" ]; then
      mkdir -p "$target"
    else
      [ -e "$1" ] && mkdir -p "${target%/*}" && { [ -e "$target" ] || true >"$target"; }
    fi
  ) && mount --rbind "$1" "$target" || return
  mounted=${mounted:+$mounted,}$(escaped "$2")
} 2>/dev/null
check_mount() { # SRC DST OPTION: sets mount_fault and missing_source if a rank must not begin without it
  [ "$3" = --bind ] && [ -z "$mount_fault" ] || return 0
  case ,${mounted-}, in *,$(escaped "$2"),*) return ;; esac
  if [ ! -e "$1" ]; then
    mount_fault=absent && echo "fleetform: this host has no $1, which is to be mounted at $2"
  elif [ ! "$1" -ef "$2" ]; then
    mount_fault=unmounted && echo "fleetform: this host does not let $1 be mounted at $2"
  fi
  [ -z "$mount_fault" ] || missing_source=$(escaped "$1")
}
begin() { # OPTION...: runs the script, if all is there that has to be
  mount_fault='' missing_source='' can_mount=${each_mount-} each_mount=check_mount
  [ -z "$has_mounts" ] || parse_options "$@"
  [ "$mount_fault" ] || run_script
  echo "$missing_source" >"$attempt_dir/mounts"
  lock
  load_attempt
  read_uptime
  [ "$stop_reason" != - ] || write_record ctl "$mount_fault $now $limit_at $watcher"
  exit 72
}
run_script() { # becomes the user's shell, as if nothing had been there before
  drop_rights='' # those that a user needed to mount
  if [ "$can_mount" ] && [ "$(id -u)" -ne 0 ]; then
    drop_rights='setpriv --inh-caps=-all --ambient-caps=-all'
    $drop_rights true 2>/dev/null || drop_rights=''
  fi
  umask "$FLEETFORM_UMASK"
  LC_ALL=$FLEETFORM_LC
  [ -n "$LC_ALL" ] || unset LC_ALL
  unset FLEETFORM_RUNNER_DIR FLEETFORM_BOOT_ID_FILE FLEETFORM_EPOCH FLEETFORM_UMASK FLEETFORM_LC
  cd 2>/dev/null || cd / || :
  if command -v bash >/dev/null 2>&1; then exec $drop_rights bash "$attempt_dir/task"; fi
  exec $drop_rights sh "$attempt_dir/task"
}
