#!/bin/sh
# Debian packages for the real test host and the browser tests. Does nothing when they are there; without root or apt it
# says what is skipped.
set -eu

missing=""
need() { # need COMMAND PACKAGE
    command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
PATH="$PATH:/usr/sbin:/sbin"
need mmdebstrap mmdebstrap
need systemd-nspawn systemd-container
need ip iproute2
need ssh openssh-client
need mount mount
need chromium chromium
[ -e /usr/share/keyrings/debian-archive-keyring.gpg ] || missing="$missing debian-archive-keyring"
[ -z "$missing" ] && exit 0

skip() {
    echo "system-deps: the tests of the real Debian host or of the browser will be skipped: $1 (missing:$missing)"
    exit 0
}
[ "$(id -u)" = 0 ] || skip "not root"
command -v apt-get >/dev/null 2>&1 || skip "no apt-get here"

install() {
    # shellcheck disable=SC2086 # a list of words
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet=2 --no-install-recommends $missing >/dev/null 2>&1
}
echo "system-deps: installing$missing"
install || { apt-get update --quiet=2 >/dev/null 2>&1 && install; } || skip "apt-get could not install them"
