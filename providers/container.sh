# shellcheck shell=sh disable=SC2154  # image, pulled, name, needed, outside: by what precedes it
# Runs a rank's script in a container of podman or docker. This is the host's side, a part of what the runner
# launches; `gpus.sh`, `gate.sh` and these precede it, and calls of its functions follow:
#   image, pulled, name   the image, its name for a pull, and the name of the container
#   gpus, cpus, memory    its GPUs (see `gpus.sh`), numbers of its CPUs, and MiB; empty: none, all, and no limit
#   mounted               the paths of its volumes, as the runner writes them
#   needed                the limits without which it must not run: of the words cpuset and memory
#   sent                  a function that prints the script for the shell in the container
# A container does not run in the rank's session. So the runner gets the script `outside`, which ends it.
attempt_dir=$FLEETFORM_RUN stopped='' client='' faults=''
true >"$attempt_dir/container" # the rank runs in a container: `exec.sh` waits for it

say() { echo "fleetform: $*" >&2; }
# REASON TEXT: why no command ran
never() {
  [ -z "$stopped" ] || exit 143
  say "$2"
  echo "$1" >"$attempt_dir/why"
  exit 125
}
# PATH ESCAPED: a path that must be mounted does not exist
lacking() {
  echo "$2" >"$attempt_dir/mounts"
  never absent "this host has no $1, which is to be mounted"
}
# There is one TERM, which all processes in the container get, as all of a session do. The runtime's own stop would
# only signal the first process of the container.
stopping() {
  [ -z "$stopped" ] || return 0
  stopped=1
  while [ -n "$client" ] && runs; do
    if sh "$attempt_dir/outside" term >/dev/null 2>&1; then return 0; fi # else it is not yet made
    sleep 0.2
  done
}
trap stopping TERM
runs() { # whether the client runs
  { read -r line </proc/"$client"/stat; } 2>/dev/null || return 1
  case $line in *") Z "*) return 1 ;; esac
}

# RUNTIME: whether it works for this user; sets `limits`, or adds to `faults` why not
usable() {
  command -v "$1" >/dev/null 2>&1 || return 1
  case $1 in
  podman) shown='{{.Host.CgroupControllers}}' ;;
  docker) shown='{{if .CPUSet}}cpuset{{end}} {{if .MemoryLimit}}memory{{end}}' ;;
  esac
  if limits=$(timeout 60 "$1" info --format "$shown" 2>&1 </dev/null); then return 0; fi
  faults="$faults; $1: $limits"
  return 1
}
# Sets `runtime`, and `vendor`, whose GPUs the host has.
choose() {
  vendor=none order='podman docker'
  if [ -n "$gpus" ]; then
    if [ -e /dev/nvidiactl ] || [ -e /dev/dxg ]; then vendor=nvidia
    elif [ -e /dev/kfd ]; then vendor=amd
    else never no-gpus "GPUs $gpus are asked for, and the host has no device of NVIDIA or AMD"; fi
    # Podman finds GPUs of NVIDIA by these files only.
    [ $vendor = amd ] || ls /etc/cdi/*nvidia* /run/cdi/*nvidia* >/dev/null 2>&1 || order='docker podman'
  fi
  for runtime in $order; do
    if usable "$runtime"; then
      for word in $needed; do
        limited "$word" || never no-limits "$runtime cannot set the limits here that the task asks for: no $word"
      done
      return 0
    fi
  done
  never no-runtime "the host has neither podman nor docker that $(id -un) can use$faults"
}
limited() { # WORD: whether the runtime can set such limits
  case " $(echo "$limits" | tr -c '[:lower:]' ' ') " in *" $1 "*) return 0 ;; *) return 1 ;; esac
}
# Sets `found`, the name of the image on this host.
fetch() {
  for found in "$image" "$pulled"; do
    if "$runtime" image inspect "$found" >/dev/null 2>&1 </dev/null; then return 0; fi
  done
  say "pulling $found with $runtime"
  code=0
  if [ -n "${login-}" ]; then
    # A file of the attempt: the user's logins stay as they are. Docker needs the user's own folder to know where
    # its daemon listens.
    mkdir -m 700 "$attempt_dir/login" && (umask 077 && login >"$attempt_dir/login/config.json") || never no-image "$attempt_dir cannot be written"
    case $runtime in
    podman) podman pull --authfile "$attempt_dir/login/config.json" "$found" </dev/null ;;
    docker)
      listens=$(docker context inspect --format '{{.Endpoints.docker.Host}}' 2>/dev/null </dev/null)
      DOCKER_HOST=${DOCKER_HOST:-$listens} docker --config "$attempt_dir/login" pull "$found" </dev/null
      ;;
    esac || code=$?
    rm -rf "$attempt_dir/login"
  else
    "$runtime" pull "$found" </dev/null || code=$?
  fi
  [ "$code" -eq 0 ] || never no-image "the image $image could not be pulled by $runtime: see above"
}
# Sets `own`, the image's own command, as words of the shell. The runtime prints hexadecimal digits, one word a line:
# words may hold any other separator.
made_for() {
  own=''
  words=$("$runtime" image inspect --format '{{range .Config.Entrypoint}}{{printf "x%x" .}}
{{end}}{{range .Config.Cmd}}{{printf "x%x" .}}
{{end}}' "$found" </dev/null) || never no-start "$found cannot be looked into: see above"
  for word in $words; do
    # shellcheck disable=SC2059  # the format is the octal numbers of one word's bytes
    text=$(printf "$(echo "${word#x}" | sed 's/../ 0x&/g' | xargs -r printf '\\%03o')_")
    own="$own '$(printf %s "${text%_}" | sed "s/'/'\\\\''/g")'"
  done
  [ -n "$own" ] || never no-start "the image $image is made for no command: write \`commands\`"
}
# The limits of the container, as the runner writes them. The control groups here are those of the rank's session.
confined() {
  [ -n "$cpus$memory" ] || return 0
  level=hard bytes=- groups=''
  [ -z "$cpus" ] || limited cpuset || level=soft
  if [ -z "$memory" ]; then :
  elif limited memory; then bytes=$((memory * 1048576))
  else level=soft; fi
  { read -r _ groups <"$attempt_dir/confined"; } 2>/dev/null
  echo "$level:$runtime:$bytes $groups" >"$attempt_dir/confined.new" && mv "$attempt_dir/confined.new" "$attempt_dir/confined"
}
# ARGUMENT...: of `create`. A stop between `create` and `start` starts nothing. Clients have sessions of their own,
# since some leave their container on TERM.
run() {
  confined
  # Nobody could remove an unknown container.
  echo "$runtime $name" >"$attempt_dir/container" && true >"$attempt_dir/making" && printf %s "$outside" >"$attempt_dir/outside.new" && mv "$attempt_dir/outside.new" "$attempt_dir/outside" || never no-start "$attempt_dir cannot be written"
  setsid "$runtime" create "$@" </dev/null >/dev/null
  code=$?
  rm -f "$attempt_dir/making"
  [ -z "$stopped" ] || exit 143
  [ "$code" -eq 0 ] || never no-start "$runtime could not make a container of $image: see above"
  echo "${mounted:--}" >"$attempt_dir/mounts"
  behind || exit 75
  [ -z "$stopped" ] || exit 143
  # Its environment comes by stdin, as its commands: other users see arguments, and the runtime keeps them.
  sent | setsid "$runtime" start --attach --interactive "$name" &
  client=$!
  if [ -n "$stopped" ]; then # before there was a client, so that no process got the TERM
    stopped=''
    stopping
  fi
  wait "$client"
  code=$?
  while runs; do # a signal ends the wait, not the client
    wait "$client"
    code=$?
  done
  if [ -n "$stopped" ]; then # it may have ended between signal and wait
    wait "$client"
    again=$?
    [ "$again" -eq 127 ] || code=$again
  fi
  [ "$code" -eq 0 ] || [ -n "$stopped" ] || ended
  exit "$code"
}
ended() {
  state=$(timeout 60 "$runtime" inspect --format '{{.State.OOMKilled}} {{.State.StartedAt}}' "$name" 2>/dev/null </dev/null)
  case $state in
  'true '*)
    say "killed: out of memory${memory:+ (limit $memory MiB)}"
    echo memory >"$attempt_dir/why"
    ;;
  *' 0001-'*) never no-start "$runtime could not start a container of $image, in which there has to be a shell: see above" ;;
  *) # not every version tells
    if [ "$code" -eq 137 ] && [ -n "$memory" ]; then say "killed: perhaps out of memory (limit $memory MiB)"; fi
    ;;
  esac
}
