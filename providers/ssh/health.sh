# shellcheck shell=sh
# What a machine tells of its health, for `probe.sh`: lines `NAME=text`, which `health.py` reads. Functions only. Each
# query has two seconds and may print 256 kB. What hangs, prints more or dies tells nothing, and harms nothing.
bounded() { # NAME TOOL ARGUMENT...: the output of a query, as far as it matters, and its exit code, unless it is cut
  kind=$1
  shift
  {
    timeout -k 1 2 "$@" 2>/dev/null </dev/null
    echo "exit code $?"
  } | head -c 262144 | matters "$kind" | sed "s/^/$kind=/"
}
matters() { # NAME: passes on the lines of an answer that are read. Names of processes and the like stay on the host
  case $1 in
  query)
    grep -E -e '^exit code |^GPU |infoROM|^ +[A-Za-z ]+$' \
      -e '^ +(Product Name|Persistence Mode|Performance State|GPU UUID|Reset Required|GPU Recovery Action) +:' \
      -e '^ +(Current|Pending|Max|Idle|State|Status|Total|((Current|Default) )?Power Limit) +:' \
      -e '^ +(.* Slowdown|.*Uncorrectable.*|.* Threshold Exceeded|Remapping Failure Occurred) +:' \
      -e '^ +((Single|Double) Bit ECC|Pending Page Blacklist|Pending Page Retirement) +:' | cut -c 1-120
    ;;
  kernel)
    grep -E -e 'NVRM: (Xid|GPU |The NVIDIA GPU )' -e 'fallen off the bus' \
      -e 'amdgpu.*(GPU reset|uncorrectable hardware error|Fatal error during GPU init)' | tail -n 300 | cut -c 1-300
    ;;
  *) cut -c 1-300 | head -n 2000 ;;
  esac
}
gpu_health() { # what a driver of NVIDIA tells of its GPUs; it answered a moment ago
  bounded query nvidia-smi -q
  bounded nvlink nvidia-smi nvlink -s
  kernel_log
}
kernel_log() { # since the boot; a user may be allowed to read one of them, or none
  { timeout -k 1 2 dmesg || timeout -k 1 2 journalctl -k -b -q -o cat --no-pager; } 2>/dev/null </dev/null |
    head -c 16777216 | matters kernel | sed 's/^/kernel=/'
}
rdma_health() { # FOLDER: each port of an RDMA card, as `/sys/class/infiniband` shows it
  [ -d "$1" ] || return 0
  bounded rdma grep -sH . "$1"/*/hca_type "$1"/*/ports/*/state "$1"/*/ports/*/phys_state "$1"/*/ports/*/rate \
    "$1"/*/ports/*/link_layer "$1"/*/ports/*/counters/link_downed
}
