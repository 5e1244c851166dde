#!/bin/sh
# Builds the kernel programs and puts the object, with the hash of its sources, beside them. Safe to run again.
#
#   ebpf/build.sh           build (installing what is missing) and replace ebpf/tokengauge.bpf.o
#   ebpf/build.sh --check   build and compare: fails when the committed object does not come from these sources
#
# BPF_TOOLS   where bpf-linker is kept (default: target/bpf-tools)
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
tools=${BPF_TOOLS:-$root/target/bpf-tools}
llvm=/usr/lib/llvm-22
arch=${BPF_TARGET_ARCH:-x86_64}

packages=
[ -x /usr/bin/rustc ] && [ -d "$(/usr/bin/rustc --print sysroot 2>/dev/null)/lib/rustlib/bpfel-unknown-none" ] || packages="rustc-web libstd-rust-web-dev-bpf"
[ -d "$llvm/lib" ] && [ -e "$llvm/bin/llvm-config" ] || packages="$packages llvm-22-dev libpolly-22-dev"
if [ -n "$packages" ]; then
    echo "installing $packages" >&2
    sudo=
    [ "$(id -u)" = 0 ] || sudo=sudo
    $sudo apt-get update -qq
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends $packages >&2
fi
if [ ! -x "$tools/bin/bpf-linker" ]; then
    mkdir -p "$tools"
    LLVM_PREFIX=$llvm CARGO_TARGET_DIR="$tools/build" cargo install bpf-linker --version 0.13.0 --locked \
        --no-default-features --features llvm-22 --root "$tools" >&2
fi

cd "$here"
# Debian's rustc has `core` for the BPF target where rustup's stable one has not; RUSTC_BOOTSTRAP because aya-ebpf is no_std + no_main
# with unstable link attributes. Paths are remapped so that the object does not depend on where it was built.
RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 CARGO_CFG_BPF_TARGET_ARCH=$arch \
    RUSTFLAGS="-C linker=$tools/bin/bpf-linker -C link-arg=--btf --cfg bpf_target_arch=\"$arch\" --remap-path-prefix=$root=/tokengauge --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo" \
    CARGO_TARGET_DIR="${BPF_TARGET_DIR:-$root/target/bpf}" cargo build --release --target bpfel-unknown-none >&2
built=${BPF_TARGET_DIR:-$root/target/bpf}/bpfel-unknown-none/release/tokengauge

# The same list and order as the test in agent/src/tap/tls/kernel.rs.
hash=$(cat Cargo.toml src/*.rs common/src/lib.rs | sha256sum | cut -d' ' -f1)
if [ "${1-}" = --check ]; then
    [ "$(cat tokengauge.bpf.o.sources)" = "$hash" ] || { echo "ebpf/tokengauge.bpf.o is stale: run ebpf/build.sh" >&2; exit 1; }
    exit 0
fi
cp "$built" tokengauge.bpf.o
echo "$hash" >tokengauge.bpf.o.sources
