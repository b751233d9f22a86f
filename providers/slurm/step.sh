# shellcheck shell=sh
# What Slurm runs on the nodes. In the file in the shared folder, `confine.sh` precedes this part, and `runner.sh`
# follows it.
#
#   @job JOB              the batch script: each rank of JOB/ranks is a step of its own on its planned node
#   @step FOLDER ATTEMPT  one rank: it waits for its gate, and then runs like a rank of a host, within the step
#
# Slurm confines and ends a step's processes. A rank starts at most once, whatever is submitted or requeued:
# the file `step` in its folder can be made once.
step_of() { # FOLDER ATTEMPT
  attempt_dir=$1/ranks/$2 attempt=$2
  (set -C && echo "$SLURM_JOB_ID.$SLURM_STEP_ID ${SLURMD_NODENAME:--} ${CUDA_VISIBLE_DEVICES:--}" >"$attempt_dir/step") 2>/dev/null ||
    exit 0
  FLEETFORM_RUNNER_DIR=$1/ranks
  export FLEETFORM_RUNNER_DIR
  read -r _ _ grace <"$attempt_dir/prepared"
  asked='' ends=''
  trap 'ends=1' TERM
  read -r since _ </proc/uptime
  while [ ! -e "$attempt_dir/opened" ]; do
    [ ! -e "$attempt_dir/stop" ] || leave 143 stopped
    [ -z "$ends" ] || leave 75 gate # its job ends before its gang was complete
    read -r now _ </proc/uptime
    [ $((${now%.*} - ${since%.*})) -lt 600 ] || leave 75 gate
    sleep 0.1
  done
  [ ! -e "$attempt_dir/stop" ] || leave 143 stopped
  bytes=$(stat -c %s "$attempt_dir/sent")
  set --
  while IFS= read -r option; do [ -z "$option" ] || set -- "$@" "$option"; done <"$attempt_dir/options"
  said=$(sh "$0" start "$attempt" "$bytes" "$@" <"$attempt_dir/sent" 2>&1)
  rm -f "$attempt_dir/sent"
  if [ ! -e "$attempt_dir/started" ]; then
    printf '%s\n' "$said" | tail -n 1 >"$attempt_dir/refused"
    leave 70 refused
  fi
  while ! flock -s -w 0.5 "$attempt_dir/run" true; do
    if [ "$ends" ] && [ -z "$asked" ]; then
      asked=1
      [ ! -e "$attempt_dir/grace" ] || read -r grace <"$attempt_dir/grace"
      setsid -f sh "$0" stop "$attempt" "$grace" >/dev/null 2>&1
    elif [ -e "$attempt_dir/stop" ] && [ "$asked" != 2 ]; then
      asked=2
      read -r grace <"$attempt_dir/stop"
      setsid -f sh "$0" stop "$attempt" "$grace" >/dev/null 2>&1
    fi
    if [ -e "$attempt_dir/limit" ]; then
      read -r limit <"$attempt_dir/limit"
      sh "$0" limit "$attempt" "$limit" >/dev/null 2>&1
      rm -f "$attempt_dir/limit"
    fi
  done
  for _ in 1 2 3 4 5 6 7 8 9 10; do [ -e "$attempt_dir/exit" ] || sleep 0.1; done
  read -r code _ <"$attempt_dir/exit" || code=70
  exit "$code"
}
leave() { # CODE REASON: none of its commands ran
  echo "$1 $2 $(date +%s)" >"$attempt_dir/exit.t" && mv "$attempt_dir/exit.t" "$attempt_dir/exit"
  rm -f "$attempt_dir/sent"
  exit "$1"
}
case ${1-} in
@job)
  trap : TERM # the ranks get it, and end first
  owner=${2%/jobs/*}
  # Those of the command that submitted it: later ones may have come when a rank starts, or is stopped.
  unset FLEETFORM_EPOCH FLEETFORM_OWNER
  unset SLURM_MEM_PER_NODE SLURM_MEM_PER_CPU SLURM_CPUS_PER_TASK SLURM_NTASKS_PER_NODE SLURM_GRES SLURM_EXCLUSIVE
  while read -r node rank; do
    folder=$owner/$node/$node
    read -r host cpus memory gpus _ <"$folder/ranks/$rank/needs"
    [ "$gpus" = - ] && gpus=none || gpus=gpu:$gpus
    {
      srun --exact --nodes=1 --ntasks=1 --nodelist="$host" --cpus-per-task="$cpus" --mem="$memory" --gres="$gpus" \
        --kill-on-bad-exit=0 --mpi=none --export=ALL --input=none --output=none --error="$2/errors" --open-mode=append \
        sh "$0" @step "$folder" "$rank" ||
        # A step that never started: its siblings would wait for it. One whose rank is gone was removed after its end.
        [ -e "$folder/ranks/$rank/exit" ] || [ ! -e "$folder/ranks/$rank" ] || scancel "$SLURM_JOB_ID"
    } &
  done <"$2/ranks"
  for _ in 1 2 3; do wait; done # a signal ends a `wait`
  # Requeued, it would wait for its nodes, to run nothing.
  case $(squeue -h -t all -j "$SLURM_JOB_ID" -o %T 2>/dev/null) in RUNNING | '') ;; *) scancel "$SLURM_JOB_ID" ;; esac
  exit 0
  ;;
@step) step_of "$2" "$3" ;;
esac
