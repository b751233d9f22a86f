# All that is asked of a node's host, in one round trip: `probe.sh`, `enter.sh` and `volume.sh` stand before this as
# functions. After what each of them says comes a line with a mark and its exit code; one that refuses keeps no other
# from answering.
# Arguments: the mark; the state folder, or nothing for the usual one; the node's id; the runner's name; its SHA-256.
folder=${2:-/var/tmp/fleetform-$(id -u)}
probe "$folder" "$3"
printf '\n%s %s\n' "$1" $?
enter "$folder" "$4" "$5" "$3"
printf '\n%s %s\n' "$1" $?
volume show "$folder"
printf '\n%s %s\n' "$1" $?
