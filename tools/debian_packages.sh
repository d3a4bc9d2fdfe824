#!/bin/sh
# Install the Debian packages that are missing. Each argument is PACKAGE, or PROOF:PACKAGE, where
# PROOF is a command or an absolute path whose presence means that the package is not needed.
set -eu

is_there() {
    case $1 in
    /*) test -e "$1" ;;
    *) command -v "$1" >/dev/null ;;
    esac
}

missing=
for want in "$@"; do
    case $want in
    *:*) is_there "${want%%:*}" || missing="$missing ${want#*:}" ;;
    *) missing="$missing $want" ;;
    esac
done
test -n "$missing" || exit 0

if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    echo "cannot install$missing: not root on a Debian system; please install them" >&2
    exit 1
fi
apt-get update -qq >&2
# shellcheck disable=SC2086 # one word per package
# RUNLEVEL: a package that brings a service must not start it.
RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends $missing >&2
