# shellcheck shell=sh disable=SC2034  # what its functions set is for the scripts that follow
# The environment of running processes, for `exec.sh` and `inside.sh`. Functions only. They also run in images without
# GNU's tools: busybox is enough.
age() { # PID: sets born, its start time; empty if there is no such process
  born=''
  { read -r line </proc/"$1"/stat; } 2>/dev/null || return 0
  # shellcheck disable=SC2086  # fields; the name before them may hold spaces and brackets
  set -- ${line##*") "}
  case $1 in Z | X) ;; *) born=${20-} ;; esac
}
variables() { # PID: one a line, with \001 for the newlines in them
  tr '\n\000' '\001\n' 2>/dev/null </proc/"$1"/environ
}
# PID...: sets given, the oldest of them that has the variables of a rank. A shell that set them by `export` does not
# have them in its own environment, but its children do.
given() {
  given='' oldest=''
  for process; do
    { variables "$process" | grep -q '^FLEETFORM_NODE_RANK='; } 2>/dev/null || continue
    age "$process"
    [ -n "$born" ] || continue
    if [ -z "$oldest" ] || [ "$born" -lt "$oldest" ]; then given=$process oldest=$born; fi
  done
  [ -n "$given" ]
}
assigned() { # PID: its environment as assignments for a shell, without variables that no shell accepts
  variables "$1" | LC_ALL=C sed -e '/^[A-Za-z_][A-Za-z0-9_]*=/!d' \
    -e '/^\(UID\|EUID\|PPID\|SHELLOPTS\|BASHOPTS\|BASH_VERSINFO\|PWD\|OLDPWD\|SHLVL\|_\)=/d' \
    -e "s/'/'\\\\''/g" -e "s/^\([^=]*\)=\(.*\)$/export \1='\2'/" | tr '\001' '\n'
}
# COMMAND [ARGUMENT]...: sets found and where, the variables and the folder of the oldest rank process among those that
# the command names. A shell that waits in a loop has a child most of the time, but one that ends soon: what is read of
# it counts only if it was still there when the last of it was read.
sought() {
  tries=20 found='' where=''
  until [ -n "$found" ] || [ "$tries" -eq 0 ]; do
    tries=$((tries - 1))
    # shellcheck disable=SC2046  # numbers
    if given $("$@"); then found=$(assigned "$given") && where=$(readlink "/proc/$given/cwd") || found=''; fi
    [ -n "$found" ] || sleep 0.05
  done 2>/dev/null
  [ -n "$found" ] ||
    echo "fleetform: the rank runs nothing but its own shell now: its variables cannot be read" >&2
}
