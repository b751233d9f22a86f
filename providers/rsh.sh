#!/bin/sh
# `mpirun` calls this to start a command at another rank of its gang: [OPTION]... ADDRESS COMMAND... The address is one
# of the host file, where one of IPv6 has dashes for its colons. `peers.sh` makes all that it needs.
peers_dir=${0%/*}
while [ $# -gt 0 ]; do
  case $1 in
  -l | -p | -o) shift 2 ;; # user and port are known here
  -*) shift ;;
  *) break ;;
  esac
done
host=${1-}
[ $# -lt 2 ] || shift
command -v ssh >/dev/null || { echo "fleetform: no ssh is here, by which other ranks are reached" >&2 && exit 255; }
while read -r address port user _; do
  [ "$address" = "$host" ] || [ "$(echo "$address" | tr : -)" = "$host" ] || continue
  # shellcheck disable=SC2093  # the loop ends here
  exec ssh -F /dev/null -i "$peers_dir/key" -o IdentitiesOnly=yes -o IdentityAgent=none -o BatchMode=yes \
    -o StrictHostKeyChecking=yes -o UserKnownHostsFile="$peers_dir/known" -o GlobalKnownHostsFile=/dev/null \
    -o ConnectTimeout=30 -o ServerAliveInterval=30 -o LogLevel=ERROR -p "$port" -l "$user" "$address" -- "$@" </dev/null
done <"$peers_dir/all"
echo "fleetform: $host is no address of the host file, or has no sshd (openssh-server)" >&2
exit 255
