# A visit of a node's host in one round trip: `probe.sh`, `enter.sh` and `volume.sh` precede this as functions. A line
# with the mark and the exit code follows the output of each; if one refuses, the others still answer. The output of
# each is sent at once: each line by itself would be a packet.
# Arguments: the mark; the state folder, or nothing for the usual one; the node's id; the runner's name; its SHA-256.
folder=${2:-/var/tmp/fleetform-$(id -u)}
said=$(probe "$folder" "$3")
printf '%s\n\n%s %s\n' "$said" "$1" $?
said=$(enter "$folder" "$4" "$5" "$3")
printf '%s\n\n%s %s\n' "$said" "$1" $?
said=$(volume show "$folder")
printf '%s\n\n%s %s\n' "$said" "$1" $?
