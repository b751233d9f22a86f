#!/bin/sh
# Runs a command beside a running rank: in its folder, with its environment, on its CPUs, among its mounts.
# Nothing of that is written down anywhere: it is read from the rank's own processes.
#
#   exec.sh NODE ATTEMPT [COMMAND [ARGUMENT]...]       without a command, the user's shell
#
# NODE is the node's folder on this host. Exit status: the command's; 125 if it was not run, with the reason on stderr.
set -u
no() {
  printf 'fleetform: %s\n' "$1" >&2
  exit 125
}
age() { # PID: sets born, its start time; empty if there is no such process
  born=''
  { read -r line </proc/"$1"/stat; } 2>/dev/null || return 0
  # shellcheck disable=SC2086  # fields; the name before them may hold spaces and brackets
  set -- ${line##*") "}
  case $1 in Z | X) ;; *) born=${20-} ;; esac
}
running() { # sets pid, the rank's first process
  pid='' since=''
  { read -r pid since _ <"$d/pid"; } 2>/dev/null || :
  [ -n "$pid" ] && age "$pid" && [ -n "$born" ] && [ "$born" = "$since" ]
}
# Sets given: the oldest process that has the variables of the rank. A shell that was told them by `export` has them
# not in its own environment, but its children do.
given() {
  given='' oldest=''
  for p in $(grep -lszxF "FLEETFORM_RUN=$d" /proc/[0-9]*/environ | cut -d/ -f3); do
    grep -qszx 'FLEETFORM_NODE_RANK=.*' /proc/"$p"/environ || continue
    age "$p"
    [ -n "$born" ] || continue
    if [ -z "$oldest" ] || [ "$born" -lt "$oldest" ]; then given=$p oldest=$born; fi
  done
  [ -n "$given" ]
}
assigned() { # PID: its environment as assignments for a shell, but for what no shell lets itself be told
  LC_ALL=C sed -z -e '/^[A-Za-z_][A-Za-z0-9_]*=/!d' \
    -e '/^\(UID\|EUID\|PPID\|SHELLOPTS\|BASHOPTS\|BASH_VERSINFO\|PWD\|OLDPWD\|SHLVL\|_\)=/d' \
    -e "s/'/'\\\\''/g" -e "s/^\([^=]*\)=\(.*\)$/export \1='\2'/" </proc/"$1"/environ | tr '\0' '\n'
}

[ $# -gt 2 ] || set -- "$1" "$2" "${SHELL:-sh}"
# What the login has, the rank has not. At first, lest one of them is called as a variable below.
for name in $(env | sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p'); do
  case $name in PATH | PWD | TERM) ;; *) unset "$name" 2>/dev/null ;; esac
done
d=$1/ranks/$2 folder=$1/work/$2
shift 2
running || no "the rank does not run any more"
tries=20 found='' # a shell that waits in a loop has a child most of the time, but one that ends soon
until [ -n "$found" ] || [ "$tries" -eq 0 ]; do
  tries=$((tries - 1))
  if given; then found=$(assigned "$given" 2>/dev/null); fi
  [ -n "$found" ] || sleep 0.05
done
if [ -z "$found" ]; then
  echo "fleetform: the rank runs nothing but its own shell now: its variables cannot be read" >&2
  found=$(assigned "$pid" 2>/dev/null)
fi
[ -n "$found" ] || no "the environment of the rank cannot be read (process $pid)"

cpus=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/"$pid"/status)
[ -z "$cpus" ] || taskset -c -p "$cpus" $$ >/dev/null 2>&1
group=$(sed -n 's/^0:://p' /proc/"$pid"/cgroup 2>/dev/null)
case $group in
'' | /) ;;
*) { echo $$ >"/sys/fs/cgroup$group/cgroup.procs"; } 2>/dev/null ;; # the limits of its memory, where we may
esac
umask "$(sed -n 's/^Umask:[[:space:]]*//p' /proc/"$pid"/status)" 2>/dev/null
where=$(readlink /proc/"$pid"/cwd) space=$(readlink /proc/"$pid"/ns/mnt)
case ${TERM-} in
'' | *[!A-Za-z0-9._+-]*) ;;
*) found="$found
export TERM='$TERM'" ;;
esac
if [ "$space" != "$(readlink /proc/self/ns/mnt)" ] && enter=$(command -v nsenter); then
  how='--mount' # only there are its volumes at their places
  [ "$(id -u)" -eq 0 ] || how='--user --preserve-credentials --mount'
  # shellcheck disable=SC2086  # words
  if "$enter" -t "$pid" $how --wd true 2>/dev/null; then set -- "$enter" -t "$pid" $how --wd "$@"; fi
fi
cd "$where" 2>/dev/null || cd "$folder" 2>/dev/null || no "the rank's folder is gone"
running || no "the rank does not run any more"
eval "$found" # from here on every name may be the rank's
exec "$@"
