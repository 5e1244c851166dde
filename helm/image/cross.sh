#!/usr/bin/env bash
# Builds the agent for arm64 on an amd64 machine with Debian's cross compiler: the last line says where the binary is.
#
#   helm/image/cross.sh            target/aarch64-unknown-linux-gnu/release/tokengauge (CARGO_TARGET_DIR is honoured)
#
# What it must link with (libpcap and what that needs) comes from Debian's arm64 packages of this machine's own release,
# unpacked into target/image/arm64: nothing of another architecture is installed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
sysroot=$("$here/sysroot.sh" arm64)

missing=
command -v aarch64-linux-gnu-gcc >/dev/null || missing="gcc-aarch64-linux-gnu libc6-dev-arm64-cross"
if [ -n "$missing" ]; then
    echo "cross: installing $missing" >&2
    sudo=
    [ "$(id -u)" = 0 ] || sudo=sudo
    $sudo apt-get update -qq >&2
    # shellcheck disable=SC2086 # a list of packages
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $missing >&2
fi
rustup target list --installed 2>/dev/null | grep -qx aarch64-unknown-linux-gnu || rustup target add aarch64-unknown-linux-gnu >&2

libraries=$sysroot/usr/lib/aarch64-linux-gnu
# Given the version, the crate `pcap` does not try to load the library, which this machine cannot.
export LIBPCAP_LIBDIR=$libraries LIBPCAP_VER=1.10.3
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS="-C link-arg=-Wl,-rpath-link,$libraries -C link-arg=-Wl,-rpath-link,$sysroot/lib/aarch64-linux-gnu"
export CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc AR_aarch64_unknown_linux_gnu=aarch64-linux-gnu-ar
cd "$root"
cargo "${@:-build}" --release --locked -p tokengauge --target aarch64-unknown-linux-gnu >&2
echo "${CARGO_TARGET_DIR:-$root/target}/aarch64-unknown-linux-gnu/release/tokengauge"
