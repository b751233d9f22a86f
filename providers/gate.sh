# shellcheck shell=sh
# The gate behind which a rank of a gang waits until all ranks can begin. It is a pipe in the attempt's folder, made
# before there is a task. The process that removes it, with the attempt's lock held, decides. Functions only; a part
# of what the runner launches.
behind() { # returns once the gate is open; fails if nobody opens it in time
  [ -p "$FLEETFORM_RUN/gate" ] || return 0
  read -r patience _ <"$FLEETFORM_RUN/gated"
  # Opened before `ready` tells of it, and for reading and writing: no message is lost, and no writer waits.
  command exec 7<>"$FLEETFORM_RUN/gate" || return 1
  true >"$FLEETFORM_RUN/ready"
  timeout --foreground "$patience" head -c 1 <&7 >/dev/null
  command exec 7>>"$FLEETFORM_RUN/lock" || return 1
  flock 7
  waited=''
  if [ -p "$FLEETFORM_RUN/gate" ]; then
    rm -f "$FLEETFORM_RUN/gate"
    echo gate >"$FLEETFORM_RUN/why"
    waited=1
  fi
  exec 7>&-
  [ -z "$waited" ]
}
