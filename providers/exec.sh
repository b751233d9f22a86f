#!/bin/sh
# Runs a command beside a running rank: in its folder, with its environment, limits and mounts; in its container, if it
# has an image. It reads all of that from the rank's own processes. `environ.sh` precedes it.
#
#   exec.sh INSIDE NODE ATTEMPT [COMMAND [ARGUMENT]...]       without a command, the user's shell
#
# INSIDE is the text of `inside.sh`, NODE the node's folder on this host. Exit status: the command's; 125 if it did not
# run, with the reason on stderr.
set -u
no() {
  printf 'fleetform: %s\n' "$1" >&2
  exit 125
}
running() { # sets pid, the rank's first process
  pid='' since=''
  { read -r pid since _ <"$attempt_dir/pid"; } 2>/dev/null || :
  [ -n "$pid" ] && age "$pid" && [ -n "$born" ] && [ "$born" = "$since" ]
}
marked() { grep -lszxF "FLEETFORM_RUN=$attempt_dir" /proc/[0-9]*/environ | cut -d/ -f3; }
# [COMMAND [ARGUMENT]...]: becomes a process in the rank's container. The client gets the environment of the one that
# started it. `inside.sh` reads the variables of the rank: others see arguments, and the runtime keeps them.
contained() {
  { read -r runtime name <"$attempt_dir/container"; } 2>/dev/null
  [ -n "${name-}" ] || no "the rank's container is not there yet: its image may still be on its way"
  set -- "$name" sh -c "$inside" sh "$folder" "$@"
  if [ -t 0 ] && [ -t 1 ]; then
    case ${TERM-} in '' | *[!A-Za-z0-9._+-]*) ;; *) set -- --env "TERM=$TERM" "$@" ;; esac
    set -- --tty "$@"
  fi
  set -- "$runtime" exec --interactive "$@"
  eval "$(assigned "$pid")"
  exec "$@"
}

# The rank has no variables of the login. This comes first: they may have the names of variables below.
for name in $(env | sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p'); do
  case $name in PATH | PWD | TERM | SHELL) ;; *) unset "$name" 2>/dev/null ;; esac
done
inside=$1 attempt_dir=$2/ranks/$3 folder=$2/work/$3
shift 3
running || no "the rank does not run any more"
[ ! -e "$attempt_dir/container" ] || contained "$@"
[ $# -gt 0 ] || set -- "${SHELL:-sh}"
unset SHELL
sought marked
[ -n "$found" ] || found=$(assigned "$pid" 2>/dev/null)
[ -n "$found" ] || no "the environment of the rank cannot be read (process $pid)"

groups=''
{ read -r _ groups <"$attempt_dir/confined"; } 2>/dev/null || :
for group in $groups; do # first, since this sets the CPUs
  { echo $$ >"$group/cgroup.procs"; } 2>/dev/null ||
    echo "fleetform: the rank's limits do not hold for this: $group cannot be entered" >&2
done
cpus=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/"$pid"/status)
[ -z "$cpus" ] || taskset -c -p "$cpus" $$ >/dev/null 2>&1
umask "$(sed -n 's/^Umask:[[:space:]]*//p' /proc/"$pid"/status)" 2>/dev/null
where=$(readlink /proc/"$pid"/cwd) space=$(readlink /proc/"$pid"/ns/mnt)
case ${TERM-} in
'' | *[!A-Za-z0-9._+-]*) ;;
*) found="$found
export TERM='$TERM'" ;;
esac
if [ "$space" != "$(readlink /proc/self/ns/mnt)" ] && enter=$(command -v nsenter); then
  how='--mount' # the volumes are at their paths only there
  [ "$(id -u)" -eq 0 ] || how='--user --preserve-credentials --mount'
  # shellcheck disable=SC2086  # words
  if "$enter" -t "$pid" $how --wd true 2>/dev/null; then set -- "$enter" -t "$pid" $how --wd "$@"; fi
fi
cd "$where" 2>/dev/null || cd "$folder" 2>/dev/null || no "the rank's folder is gone"
running || no "the rank does not run any more"
eval "$found" # from here on every name may be the rank's
exec "$@"
