# shellcheck shell=sh
# Lets the programs of a gang's ranks reach each other: by an sshd of each rank's own, on a port of its own, for its
# siblings only. It is a process of the rank: it has its limits and mounts, and ends with it. It changes nobody's
# `authorized_keys`, host keys or sshd. Functions only; a part of what the runner launches. These precede it:
#   joins, launches     functions that print what sshd runs for a sibling, and what `mpirun` calls
#
# The folder `peers` of the attempt: key (which never leaves this host), me (port, user and public key, for the
# siblings), all, allowed, known (theirs, written when the gate opens), join, fleetform-rsh, sshd_config, log.
# OWN SHARED FIRST: the rank's folder, a path that leads to it, the same on all hosts; not empty for rank 0
meet() (
  own=$1 shared=$2 first=$3
  peers_dir=$FLEETFORM_RUN/peers
  PATH=$PATH:/usr/sbin:/usr/local/sbin:/sbin
  sshd=$(command -v sshd) && command -v ssh-keygen >/dev/null && umask 077 && mkdir "$peers_dir" || return 0
  command exec </dev/null >>"$peers_dir/log" 2>&1 7>&- 8>&- 9>&- || return 0
  ssh-keygen -q -t ecdsa -N '' -C '' -f "$peers_dir/key" && joins >"$peers_dir/join" && launches >"$peers_dir/fleetform-rsh" && chmod 700 "$peers_dir/fleetform-rsh" || return 0
  true >"$peers_dir/allowed"
  # The first rank on a host has the path; a later one takes it from a rank that ended.
  mkdir -p "${shared%/*}" "$own"
  link=$(readlink "$shared") || link=
  if [ "$first" ] || [ ! -d "${link%/work/*}/ranks/${link##*/}/peers" ]; then
    echo "$shared $own" >"$peers_dir/shared" && ln -sfn "$own" "$shared"
  fi
  # sshd of root needs this folder; some systems remove it when their own sshd stops.
  [ "$(id -u)" -ne 0 ] || [ -d /run/sshd ] || mkdir -m 755 /run/sshd
  read -r type key _ <"$peers_dir/key.pub"
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    # Below the ports of outgoing connections.
    port=$((20000 + $(od -An -N2 -tu2 /dev/urandom) % 12000))
    cat >"$peers_dir/sshd_config" <<END
Port $port
PidFile $peers_dir/sshd.pid
HostKey $peers_dir/key
AuthorizedKeysFile $peers_dir/allowed
ForceCommand exec sh '$peers_dir/join'
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AllowTcpForwarding no
AllowAgentForwarding no
X11Forwarding no
PermitTunnel no
PermitUserRC no
MaxStartups 1000
UseDNS no
END
    # Not a child of this shell: a `wait` of the task would wait for it. With job control it gets SIGINT.
    (
      set -m
      "$sshd" -D -f "$peers_dir/sshd_config" -E "$peers_dir/log" &
      echo $! >"$peers_dir/pid"
    )
    read -r pid <"$peers_dir/pid"
    until [ -s "$peers_dir/sshd.pid" ]; do
      kill -s 0 "$pid" || continue 2 # another process has that port
      sleep 0.02
    done
    echo "$port $(id -un) $type $key" >"$peers_dir/me.new" && mv "$peers_dir/me.new" "$peers_dir/me"
    return 0
  done
)
