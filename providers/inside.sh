# shellcheck shell=sh disable=SC2154  # found: by sought (environ.sh)
# `exec.sh` runs this in the container of a rank, as one more process with its limits and mounts. `environ.sh` precedes
# it.
#
#   FOLDER [COMMAND [ARGUMENT]...]       without a command, a shell. FOLDER is the rank's own, if no other is known
folder=$1
shift
if [ $# -eq 0 ]; then
  if command -v bash >/dev/null 2>&1; then set -- bash; else set -- sh; fi
fi
all() { for process in /proc/[0-9]*; do [ "${process#/proc/}" = $$ ] || echo "${process#/proc/}"; done; }
sought all
cd "${where:-$folder}" 2>/dev/null || cd "$folder" || :
eval "$found" # from here on every name may be the rank's
exec "$@"
