# How the programs of a gang's rank reach its other ranks: by an sshd of the rank's own, on a port of its own, that lets
# in its siblings alone. It is a process of the rank: it has its limits and its mounts, and ends with it. Nobody's
# `authorized_keys`, host keys or sshd are touched. Functions only. This is a part of what the runner launches; before
# it stand these:
#   joins, launches     functions that print what sshd runs for a sibling, and what `mpirun` calls
#
# The folder `peers` of the attempt: key (no other host ever has it), me (port, user and public key, which the others
# are told), all, allowed, known (theirs, written when the gate opens), join, fleetform-rsh, sshd_config, log.
# OWN SHARED FIRST: the rank's folder, a path that leads to it, the same on all hosts; not empty for rank 0
meet() (
  own=$1 shared=$2 first=$3
  p=$FLEETFORM_RUN/peers
  PATH=$PATH:/usr/sbin:/usr/local/sbin:/sbin
  sshd=$(command -v sshd) && command -v ssh-keygen >/dev/null && umask 077 && mkdir "$p" || return 0
  exec </dev/null >>"$p/log" 2>&1 7>&- 8>&- 9>&-
  ssh-keygen -q -t ecdsa -N '' -C '' -f "$p/key" && joins >"$p/join" && launches >"$p/fleetform-rsh" && chmod 700 "$p/fleetform-rsh" || return 0
  : >"$p/allowed"
  # Of ranks on one host, the first has it; it is taken from one that ended.
  mkdir -p "${shared%/*}" "$own"
  link=$(readlink "$shared") || link=
  if [ "$first" ] || [ ! -d "${link%/work/*}/ranks/${link##*/}/peers" ]; then
    echo "$shared $own" >"$p/shared" && ln -sfn "$own" "$shared"
  fi
  # Of root's, sshd wants this folder; some systems remove it when their own stops.
  [ "$(id -u)" -ne 0 ] || [ -d /run/sshd ] || mkdir -m 755 /run/sshd
  read -r type key _ <"$p/key.pub"
  for _ in 1 2 3 4 5 6 7 8 9 10; do
    # Below those that outgoing connections get.
    port=$((20000 + $(od -An -N2 -tu2 /dev/urandom) % 12000))
    cat >"$p/sshd_config" <<END
Port $port
PidFile $p/sshd.pid
HostKey $p/key
AuthorizedKeysFile $p/allowed
ForceCommand exec sh '$p/join'
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
    # Not as a child of this shell: a `wait` of the task's would wait for it. With job control it heeds SIGINT.
    (
      set -m
      "$sshd" -D -f "$p/sshd_config" -E "$p/log" &
      echo $! >"$p/pid"
    )
    read -r pid <"$p/pid"
    until [ -s "$p/sshd.pid" ]; do
      kill -s 0 "$pid" || continue 2 # somebody has that port
      sleep 0.02
    done
    echo "$port $(id -un) $type $key" >"$p/me.new" && mv "$p/me.new" "$p/me"
    return 0
  done
)
