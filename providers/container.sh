# Runs a rank's script in a container of podman or docker. This is the host's side, a part of what the runner
# launches; before it stand `gate.sh` and these, and after it a call of each function in turn:
#   image, pulled, name   what is run, under which name it is pulled, and how its container is called
#   gpus, cpus, memory    numbers of its GPUs and CPUs, and MiB; empty: none, all, and no limit
#   mounted               the paths of its volumes, as the runner writes them
#   needed                the limits without which it must not run: of the words cpuset and memory
#   sent                  a function that prints what the shell in the container is to do
# It is no session of the rank's that a container runs in, so `outside` is left for the runner: it ends it.
d=$FLEETFORM_RUN stopped='' client='' faults=''
: >"$d/container" # it is to run in one: whoever wants to join it waits

say() { echo "fleetform: $*" >&2; }
# REASON TEXT: why its commands never ran
never() {
  [ -z "$stopped" ] || exit 143
  say "$2"
  echo "$1" >"$d/why"
  exit 125
}
# PATH ESCAPED: it has to be mounted, and is not there
lacking() {
  echo "$2" >"$d/mounts"
  never absent "this host has no $1, which is to be mounted"
}
# There is one TERM only, and all that runs in the container gets it, as all of a session does. The runtime's own
# way would tell none but the container's first process.
stopping() {
  [ -z "$stopped" ] || return 0
  stopped=1
  while [ -n "$client" ] && runs; do
    if sh "$d/outside" term >/dev/null 2>&1; then return 0; fi # else it is only being made
    sleep 0.2
  done
}
trap stopping TERM
runs() { # whether the client does
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
    # Podman knows NVIDIA's by these files only.
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
  case " $(echo "$limits" | tr -c a-z ' ') " in *" $1 "*) return 0 ;; *) return 1 ;; esac
}
# Sets `found`, the name under which the image is there.
fetch() {
  for found in "$image" "$pulled"; do
    if "$runtime" image inspect "$found" >/dev/null 2>&1 </dev/null; then return 0; fi
  done
  say "pulling $found with $runtime"
  code=0
  if [ -n "${login-}" ]; then
    # A file of the attempt's, so that nobody's own logins change. Without the user's own folder docker would not
    # know where its daemon listens.
    mkdir -m 700 "$d/login" && (umask 077 && login >"$d/login/config.json") || never no-image "$d cannot be written"
    case $runtime in
    podman) podman pull --authfile "$d/login/config.json" "$found" </dev/null ;;
    docker)
      listens=$(docker context inspect --format '{{.Endpoints.docker.Host}}' 2>/dev/null </dev/null)
      DOCKER_HOST=${DOCKER_HOST:-$listens} docker --config "$d/login" pull "$found" </dev/null
      ;;
    esac || code=$?
    rm -rf "$d/login"
  else
    "$runtime" pull "$found" </dev/null || code=$?
  fi
  [ "$code" -eq 0 ] || never no-image "the image $image could not be pulled by $runtime: see above"
}
# Sets `own`, what the image is made for, as words of the shell. They come as hexadecimal digits, a word a line:
# nothing else can stand between words of any text.
made_for() {
  own=''
  words=$("$runtime" image inspect --format '{{range .Config.Entrypoint}}{{printf "x%x" .}}
{{end}}{{range .Config.Cmd}}{{printf "x%x" .}}
{{end}}' "$found" </dev/null) || never no-start "$found cannot be looked into: see above"
  for word in $words; do
    text=$(printf "$(echo "${word#x}" | sed 's/../ 0x&/g' | xargs -r printf '\\%03o')_")
    own="$own '$(printf %s "${text%_}" | sed "s/'/'\\\\''/g")'"
  done
  [ -n "$own" ] || never no-start "the image $image is made for no command: write \`commands\`"
}
# What holds it to its blocks, told in the runner's way. The control groups there are those of the rank's session.
confined() {
  [ -n "$cpus$memory" ] || return 0
  level=hard bytes=- groups=''
  [ -z "$cpus" ] || limited cpuset || level=soft
  if [ -z "$memory" ]; then :
  elif limited memory; then bytes=$((memory * 1048576))
  else level=soft; fi
  { read -r _ groups <"$d/confined"; } 2>/dev/null
  echo "$level:$runtime:$bytes $groups" >"$d/confined.new" && mv "$d/confined.new" "$d/confined"
}
# ARGUMENT...: of `create`. Made first and started then, so that a stop in between starts nothing. Clients are in
# sessions of their own, for on TERM some leave their container alone.
run() {
  confined
  # What would not be known, nobody could remove.
  echo "$runtime $name" >"$d/container" && : >"$d/making" && printf %s "$outside" >"$d/outside.new" && mv "$d/outside.new" "$d/outside" || never no-start "$d cannot be written"
  setsid "$runtime" create "$@" </dev/null >/dev/null
  code=$?
  rm -f "$d/making"
  [ -z "$stopped" ] || exit 143
  [ "$code" -eq 0 ] || never no-start "$runtime could not make a container of $image: see above"
  echo "${mounted:--}" >"$d/mounts"
  behind || exit 75
  [ -z "$stopped" ] || exit 143
  # Its environment goes the same way as its commands: other users see arguments, and the runtime keeps them.
  sent | setsid "$runtime" start --attach --interactive "$name" &
  client=$!
  if [ -n "$stopped" ]; then # while there was no client yet, so that nothing got its TERM
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
    echo memory >"$d/why"
    ;;
  *' 0001-'*) never no-start "$runtime could not start a container of $image, in which there has to be a shell: see above" ;;
  *) # not every version can tell
    if [ "$code" -eq 137 ] && [ -n "$memory" ]; then say "killed: perhaps out of memory (limit $memory MiB)"; fi
    ;;
  esac
}
