# All that is asked of a node's host, in one round trip: `probe.sh`, `enter.sh` and `volume.sh` stand before this as
# functions. After what each of them says comes a line with a mark and its exit code; one that refuses keeps no other
# from answering. What it says is sent at once: each line by itself would be a packet.
# Arguments: the mark; the state folder, or nothing for the usual one; the node's id; the runner's name; its SHA-256.
folder=${2:-/var/tmp/fleetform-$(id -u)}
said=$(probe "$folder" "$3")
printf '%s\n\n%s %s\n' "$said" "$1" $?
said=$(enter "$folder" "$4" "$5" "$3")
printf '%s\n\n%s %s\n' "$said" "$1" $?
said=$(volume show "$folder")
printf '%s\n\n%s %s\n' "$said" "$1" $?
