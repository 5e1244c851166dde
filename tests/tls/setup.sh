#!/bin/sh
# Installs what tests/tls needs and is not there yet. By package name, safe to run again.
set -eu
missing=
for command in tcpdump tshark editcap openssl curl; do
    command -v "$command" >/dev/null 2>&1 && continue
    case $command in tshark | editcap) package=tshark ;; *) package=$command ;; esac
    case " $missing " in *" $package "*) ;; *) missing="$missing $package" ;; esac
done
[ -n "$missing" ] || exit 0
if ! command -v apt-get >/dev/null 2>&1; then
    echo "please install the equivalents of:$missing" >&2
    exit 1
fi
sudo=
[ "$(id -u)" = 0 ] || sudo=sudo
echo "installing$missing" >&2
$sudo apt-get update -qq
# shellcheck disable=SC2086 # a list of packages
DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing >/dev/null
