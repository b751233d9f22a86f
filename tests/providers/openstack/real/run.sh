#!/bin/bash
# The driver against a real OpenStack, from nothing. What is given goes to pytest.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
"$here/install.sh"
trap '"$here/down.sh"' EXIT
"$here/up.sh"
FLEETFORM_OPENSTACK=1 "$here/../../../../dev" test "$here" -n 0 "$@" # one after the other: they share a cloud
