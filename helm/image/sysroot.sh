#!/usr/bin/env bash
# Unpacks the shared libraries that the agent needs, from Debian's packages, and prints the folder.
#
#   helm/image/sysroot.sh amd64|arm64      into target/image/ARCH (TOKENGAUGE_IMAGE_DIR/ARCH)
#
# By a package state of its own, so that neither architecture nor packages of this machine are changed. The packages'
# signatures are checked as always. Versions stand in ARCH/packages (name, version), for the bill of materials.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
arch=${1:?amd64 or arm64}
dir=${TOKENGAUGE_IMAGE_DIR:-$here/../../target/image}/$arch
# libpcap of Debian is linked with D-Bus (to capture its traffic), and that with systemd's library: all of them are needed.
packages="libc6 libgcc-s1 libpcap0.8 libdbus-1-3 libsystemd0 libcap2 libgcrypt20 liblzma5 libzstd1 liblz4-1 libgpg-error0 libpcap0.8-dev ca-certificates"
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
if [ "$(cat "$dir/done" 2>/dev/null)" != "$packages" ]; then
    rm -rf "$dir/apt" "$dir/root"
    mkdir -p "$dir"/apt/{lists/partial,cache/archives/partial,debs} "$dir/root"
    : >"$dir/apt/status"
    cat >"$dir/apt/apt.conf" <<C
APT::Architecture "$arch";
APT::Architectures { "$arch"; };
APT::Sandbox::User "root";
Dir::State "$dir/apt";
Dir::State::lists "$dir/apt/lists";
Dir::State::status "$dir/apt/status";
Dir::Cache "$dir/apt/cache";
C
    export APT_CONFIG=$dir/apt/apt.conf
    # From where this machine has its own packages; a source without this architecture is no reason to stop.
    apt-get update -qq >&2 || true
    # shellcheck disable=SC2086 # a list of packages
    (cd "$dir/apt/debs" && apt-get download -qq $packages >&2)
    for deb in "$dir"/apt/debs/*.deb; do dpkg -x "$deb" "$dir/root"; done
    # Its licence is in the compiler's package, whose name has a version in it.
    (cd "$dir/apt/debs" && apt-get download -qq "$(basename "$(readlink "$dir/root/usr/share/doc/libgcc-s1")")" >&2)
    for deb in "$dir"/apt/debs/gcc-*-base_*.deb; do dpkg -x "$deb" "$dir/root"; done
    for deb in "$dir"/apt/debs/*.deb; do dpkg-deb -f "$deb" Package Version | awk '{ printf "%s%s", $2, NR % 2 ? " " : "\n" }'; done |
        grep -v -- -dev >"$dir/packages"
    echo "$packages" >"$dir/done"
    rm -rf "$dir/apt"
fi
echo "$dir/root"
