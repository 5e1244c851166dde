#!/bin/sh
# Installs what building, testing and the demo need and is not there yet. By package name, safe to run again.
set -eu
missing=
need() { # COMMAND-OR-FILE PACKAGE
    command -v "$1" >/dev/null 2>&1 || [ -e "$1" ] || missing="$missing $2"
}
need cc build-essential
need pkg-config pkg-config
need python3 python3
need openssl openssl
need curl curl
need /usr/include/pcap.h libpcap-dev
need /usr/include/openssl/ssl.h libssl-dev
if [ -n "$missing" ]; then
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
fi
if ! command -v cargo >/dev/null 2>&1; then
    echo "cargo is missing: install Rust 1.95 or later from your distribution or https://rustup.rs" >&2
    exit 1
fi
