# shellcheck shell=sh disable=SC2154  # root: by find_root (root.sh)
# Prints this user's state folder, the usable CPUs, and whether the runner is there, whole. For a node, whose CPUs
# are known, it runs the runner instead, which lists all attempts on the node.
# Arguments: the folder, or nothing for the usual one; the script's name; its SHA-256; the node's id, or nothing.
# It follows `root.sh`.
find_root "${1-}"
[ -z "$wrong" ] || { echo "FLEETFORM-ERR root $wrong" && exit 76; }
echo FLEETFORM-ENTER
echo "root=$root"
[ ! -e "$root" ] && [ ! -L "$root" ] || echo there=1
[ -n "${4-}" ] || echo "cpus=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)"
{ sum=$(sha256sum <"$root/bin/$2"); } 2>/dev/null && [ "${sum%% *}" = "$3" ] && [ -O "$root" ] && have=1 && echo have=1
echo FLEETFORM-END
if [ -n "${4-}" ] && [ "${have-}" ]; then
  FLEETFORM_RUNNER_DIR=$root/$4/ranks
  export FLEETFORM_RUNNER_DIR
  exec sh "$root/bin/$2" poll
fi
