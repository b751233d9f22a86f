# shellcheck shell=sh
# A visit of a node's host in one round trip: `root.sh`, and `probe.sh`, `enter.sh` and `volume.sh` as functions, precede this. A line
# with the mark and the exit code follows the output of each; if one refuses, the others still answer. The output of
# each is sent at once: each line by itself would be a packet.
# Arguments: the mark; the state folder, or nothing for the usual one; the node's id; the runner's name; its SHA-256.
find_root "$2"
said=$(probe "$2" "$3")
printf '%s\n\n%s %s\n' "$said" "$1" $?
said=$(enter "$2" "$4" "$5" "$3")
printf '%s\n\n%s %s\n' "$said" "$1" $?
said=$(volume show "$2")
printf '%s\n\n%s %s\n' "$said" "$1" $?
