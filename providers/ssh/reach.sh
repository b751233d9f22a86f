# shellcheck shell=sh
# Tries an address from here: a connection to each port and a ping, side by side. A port that refuses shows that the
# address can be reached, as an open one.
# Arguments: the address; the seconds of a try; the ports.
LC_ALL=C
export LC_ALL
address=$1
limit=$2
shift 2
has() { command -v "$1" >/dev/null 2>&1; }

# By Python: a line for each port.
by_python() {
  python3 -c '
import errno, os, select, socket, sys, time
address, limit, ports = sys.argv[1], float(sys.argv[2]), sys.argv[3:]
waiting = {}
def say(port, code):
    if code in (0, errno.ECONNREFUSED): print("try=%s yes" % port)
    elif code == errno.ETIMEDOUT: print("try=%s silent" % port)
    elif code in (errno.EHOSTUNREACH, errno.ENETUNREACH): print("try=%s no %s" % (port, os.strerror(code)))
    else: print("try=%s unknown" % port)
for port in ports:
    try:
        family, kind, proto, _, to = socket.getaddrinfo(address, int(port), 0, socket.SOCK_STREAM)[0]
    except OSError as error:
        known = error.errno != socket.EAI_NONAME
        print("try=%s %s" % (port, "unknown" if known else "no its name is not known there"))
        continue
    s = socket.socket(family, kind, proto)
    s.setblocking(False)
    code = s.connect_ex(to)
    if code == errno.EINPROGRESS: waiting[s] = port
    else: say(port, code)
end = time.monotonic() + limit
while waiting and time.monotonic() < end:
    for s in select.select([], list(waiting), [], max(0, end - time.monotonic()))[1]:
        say(waiting.pop(s), s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR))
for port in waiting.values(): print("try=%s silent" % port)
' "$address" "$limit" "$@" 2>/dev/null
}

# By bash, one port.
by_bash() {
  # shellcheck disable=SC2016  # the inner shell's arguments
  said=$(timeout "$limit" bash -c 'true >"/dev/tcp/$0/$1"' "$address" "$1" 2>&1)
  code=$?
  case $code:$said in
    0:* | *refused*) echo "try=$1 yes" ;;
    *"No route to host"* | *"Host is unreachable"*) echo "try=$1 no No route to host" ;;
    *"Network is unreachable"*) echo "try=$1 no Network is unreachable" ;;
    *"Name or service not known"*) echo "try=$1 no its name is not known there" ;;
    124:* | *"timed out"*) echo "try=$1 silent" ;;
    *) echo "try=$1 unknown" ;;
  esac
}

# The messages of nc differ between versions: only a success counts.
by_nc() {
  answer=unknown
  ! nc -z -w "$limit" "$address" "$1" </dev/null >/dev/null 2>&1 || answer=yes
  echo "try=$1 $answer"
}

echo FLEETFORM-REACH
! has ping || { ping -c 1 -W "$limit" "$address" >/dev/null 2>&1 && echo 'try=ping yes'; } &
if ! has python3 || ! by_python "$@"; then
  for port in "$@"; do
    if has bash && has timeout; then
      by_bash "$port" &
    elif has nc; then
      by_nc "$port" &
    fi
  done
fi
wait
echo FLEETFORM-END
