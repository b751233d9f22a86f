# shellcheck shell=sh disable=SC2034  # what its functions set is for the scripts that follow
# Limits a rank to its CPUs and its memory by the kernel's control groups, if this user may make them. Every process in
# a rank's groups is known to be the rank's, whatever it does to its environment or session. Functions only; they
# precede the runner and the probe. Needs coreutils and sed, and systemd-run where systemd runs.

mounted() { # TYPE [CONTROLLER]: sets at to the folder of our group in that hierarchy, and top to the topmost folder
  top=$(while read -r _ where type options _; do
    [ "$type" = "$1" ] || continue
    case ,$options, in *",${2-},"*) echo "$where" && break ;; esac
    [ $# -gt 1 ] || { echo "$where" && break; }
  done 2>/dev/null </proc/mounts)
  case $top in /*) ;; *) return 1 ;; esac
  path=$(sed -n "s/^[0-9]*:\(.*,\)\{0,1\}${2-}\(,.*\)\{0,1\}:\//\//p" /proc/self/cgroup)
  at=${top%/}${path%/}
  [ -d "$at" ] || at=${top%/} # this container sees another part of the tree
  case $at in *[!A-Za-z0-9/._:@-]*) return 1 ;; esac
}
joins() { sh -c 'echo $$ >"$1/cgroup.procs"' sh "$1" 2>/dev/null; } # FOLDER: whether our processes may enter that group
emptied() { # FOLDER...: removes groups, and those that a task made in them; fails while they have processes
  for folder; do
    [ ! -d "$folder" ] || find "$folder" -depth -type d -exec rmdir {} + 2>/dev/null || :
  done
}
inside() { # FOLDER...: the processes in groups; 0 is a process that cannot be seen from here
  for folder; do
    [ ! -d "$folder" ] || find "$folder" -name cgroup.procs -exec cat {} + 2>/dev/null | sed '/^0$/d'
  done
}
killed() { # FOLDER...: whether the kernel killed a process there for lack of memory
  for folder; do
    for events in "$folder/memory.events" "$folder/memory.oom_control"; do
      if grep -qs '^oom_kill [1-9]' "$events"; then return 0; fi
    done
  done
  return 1
}

# apart NAME: the words before a command that let systemd start it in a scope of its own, where it may make groups. A
# scope outlives the login, and systemd, which owns all other groups, does not change its limits. No words without
# systemd, nor for a user who does not linger: the processes of his instance end with his last login.
apart() {
  booted && command -v systemd-run >/dev/null && mounted cgroup2 && grep -q . "$top/cgroup.controllers" || return 0
  user=$(id -u)
  if [ "$user" = 0 ]; then
    whose='systemd-run'
  else
    case $at/ in */"user@$user.service"/*) ;; *) lingers || return 0 ;; esac
    whose="env XDG_RUNTIME_DIR=${XDG_RUNTIME_DIR:-/run/user/$user} systemd-run --user"
  fi
  echo "$whose --scope --quiet --collect --property=Delegate=yes --unit=$1 --"
} 2>/dev/null
booted() { [ -d /run/systemd/system ]; }
lingers() { [ -e "/var/lib/systemd/linger/$(id -un)" ]; }
scoped() { # whether we run in such a scope; sets at to it
  mounted cgroup2 || return 1
  case $at in */fleetform*.scope) ;; */fleetform*.scope/own) at=${at%/own} ;; *) return 1 ;; esac
}
# Groups with limits must be siblings of ours: no group may have both processes and groups with limits.
settle() { ! scoped || { mkdir -p "$at/own" && echo $$ >"$at/own/cgroup.procs"; }; } 2>/dev/null

# group NAME CPUS MEMORY: makes groups of that name with these limits ('' for none, memory in bytes). Sets groups to
# their folders, means to what they are, and whole if every limit holds.
group() {
  groups='' means='' whole=''
  [ -n "$2$3" ] || return 1
  case $1 in *[!A-Za-z0-9._-]*) return 1 ;; esac
  if group2 "$@" || group1 "$@"; then return 0; fi
  # Users often have the memory controller, and not that of CPUs.
  [ -n "$2" ] && [ -n "$3" ] && group2 "$1" '' "$3" && whole=''
} 2>/dev/null
group2() {
  mounted cgroup2 || return 1
  # Not within the group of the login, which ends with it. The topmost group may have processes.
  scoped || ! booted || [ "$(id -u)" != 0 ] || at=${top%/}
  while :; do
    for controller in ${2:+cpuset} ${3:+memory}; do echo "+$controller" >"$at/cgroup.subtree_control"; done
    if mkdir -p "$at/$1"; then
      if limit2 "$at/$1" "$2" "$3" && joins "$at/$1"; then
        groups=$at/$1 means=cgroup-v2 whole=1
        case $at in */fleetform*.scope) means=systemd-run ;; esac
        return 0
      fi
      emptied "$at/$1"
    fi
    [ "$at" != "${top%/}" ] || return 1
    at=${at%/*}
  done
}
limit2() { # FOLDER CPUS MEMORY
  if [ -n "$2" ]; then [ -e "$1/cpuset.cpus" ] && echo "$2" >"$1/cpuset.cpus" || return 1; fi
  if [ -n "$3" ]; then
    [ -e "$1/memory.max" ] && echo "$3" >"$1/memory.max" || return 1
    [ ! -e "$1/memory.swap.max" ] || echo 0 >"$1/memory.swap.max" || :
  fi
}
group1() {
  whole=1
  if [ -n "$2" ]; then
    if mounted cgroup cpuset && mkdir -p "$at/$1" && cat "$at/cpuset.mems" >"$at/$1/cpuset.mems" &&
      echo "$2" >"$at/$1/cpuset.cpus" && joins "$at/$1"; then
      groups=$at/$1
    else
      whole='' && emptied "${at-}/$1"
    fi
  fi
  if [ -n "$3" ]; then
    if mounted cgroup memory && mkdir -p "$at/$1" && echo "$3" >"$at/$1/memory.limit_in_bytes" && joins "$at/$1"; then
      # Otherwise the rank uses swap space; some kernels lack this file.
      [ ! -e "$at/$1/memory.memsw.limit_in_bytes" ] || echo "$3" >"$at/$1/memory.memsw.limit_in_bytes" || :
      groups=${groups:+$groups }$at/$1
    else
      whole='' && emptied "${at-}/$1"
    fi
  fi
  [ -n "$groups" ] || return 1
  means=cgroup-v1
}
# able: whether hard limits can be set here. It tries, since rights and controllers differ in too many ways.
able() {
  # shellcheck disable=SC2046  # words
  set -- $(apart "fleetform-probe.$$")
  # shellcheck disable=SC2016  # another shell's variables
  if [ $# -gt 0 ] && mounted cgroup2 && "$@" sh -c '
    cd "$1$(sed -n s/^0:://p /proc/self/cgroup)" && mkdir own && echo $$ >own/cgroup.procs &&
      echo "+cpuset +memory" >cgroup.subtree_control
  ' sh "${top%/}"; then return 0; fi
  group "fleetform-probe.$$" "$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)" 67108864
  # shellcheck disable=SC2086  # folders without spaces
  emptied $groups
  [ -n "$whole" ]
} 2>/dev/null
