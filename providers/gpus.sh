# The GPUs of a rank: which numbers they have on this host now. What is recorded of a GPU is its UUID, for numbers change
# with the cards in a machine; what programs get is a number, for many read integers. Functions only; a part of what
# the runner launches.
numbers() { # ID...: a line NUMBER UUID NAME for each GPU; NAME is what container runtimes call it
  if command -v nvidia-smi >/dev/null; then
    timeout -k 1 10 nvidia-smi --query-gpu=index,uuid --format=csv,noheader |
      sed -n 's/^ *\([0-9][0-9]*\), *\([^ ,]*\).*/\1 \2 \1/p'
    case $* in *MIG-*) timeout -k 1 10 nvidia-smi -L | instances ;; esac
  else
    timeout -k 1 10 rocm-smi --showuniqueid --csv | sed -n 's/^card\([0-9]*\),\(0x[0-9A-Fa-f]*\).*/\1 \2 \1/p'
  fi
} 2>/dev/null
instances() { # of MIG, from the output of `nvidia-smi -L`; CUDA knows them by UUID alone
  while read -r kind first _ number _ uuid _; do
    case $kind in
    GPU) card=${first%:} ;;
    MIG) echo "${uuid%)} ${uuid%)} $card:${number%:}" ;;
    esac
  done
}
of_amd() {
  if command -v nvidia-smi >/dev/null || [ -e /dev/nvidiactl ]; then return 1; fi
  command -v rocm-smi >/dev/null || [ -e /dev/kfd ]
}
# ID...: UUIDs, or numbers where none are recorded. Sets `visible` for programs and `named` for container runtimes; ends
# the rank if the host does not have one of them.
devices() {
  visible='' named='' counted='' known=''
  for id; do
    case $id in
    *[!0-9]*)
      [ -n "$known" ] || known=$(numbers "$@")
      number=$(printf '%s\n' "$known" | while read -r each uuid name; do
        [ "$uuid" != "$id" ] || echo "$each $name"
      done)
      if [ -z "$number" ]; then
        echo "fleetform: this host does not have GPU $id now, which is recorded of it" >&2
        echo gpus >"$FLEETFORM_RUN/why"
        exit 125
      fi
      ;;
    *) number="$id $id" ;;
    esac
    counted=$counted${counted:+,}$((${#counted} ? ${counted##*,} + 1 : 0))
    visible=$visible${visible:+,}${number% *} named=$named${named:+,}${number#* }
  done
}
exports() { # the variables of a rank, as shell
  echo 'export CUDA_DEVICE_ORDER=PCI_BUS_ID'
  if of_amd; then # HIP counts within what ROCm shows it
    echo "export ROCR_VISIBLE_DEVICES=$visible CUDA_VISIBLE_DEVICES=$counted"
  else
    echo "export CUDA_VISIBLE_DEVICES=$visible"
  fi
}
