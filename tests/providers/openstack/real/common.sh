# shellcheck shell=bash disable=SC2034  # for the scripts that read this in
# What install.sh, up.sh and down.sh have in common.
HERE=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# All that they make stands here (about 1 GB).
HOME_OF=${FLEETFORM_OPENSTACK_DIR:-/var/tmp/fleetform-openstack}
RUN=$HOME_OF/run          # of this start: configuration, databases, logs, process ids
TEMPLATE=$HOME_OF/template # databases of a new cloud, migrated and filled
BIN=$HOME_OF/venv/bin
say() { printf '[%4ds] %s\n' "$SECONDS" "$*"; }
