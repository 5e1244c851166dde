#!/bin/sh
# Builds the kernel programs and puts the objects, with the hash of their sources, beside them. Safe to run again.
# One object for each architecture: the programs read the registers that the kernel saved, and those differ.
#
#   ebpf/build.sh          build, installing what is missing, and replace ebpf/tokengauge.bpf.o and tokengauge.bpf.aarch64.o
#   ebpf/build.sh --hash   print the hash of the sources (a test compares it with ebpf/tokengauge.bpf.o.sources)
#
# BPF_TOOLS        where bpf-linker is kept (default: target/bpf-tools)
# BPF_TARGET_DIR   where cargo builds (default: target/bpf)
# BPF_TARGET_ARCHS whose registers the programs read (default: "x86_64 aarch64")
set -eu
here=$(cd "$(dirname "$0")" && pwd)
root=$(dirname "$here")
cd "$here"
# Path lists in a fixed order, whatever the locale.
hash=$(LC_ALL=C; cat Cargo.toml Cargo.lock src/*.rs common/Cargo.toml common/src/lib.rs | sha256sum | cut -d' ' -f1)
if [ "${1-}" = --hash ]; then
    echo "$hash"
    exit 0
fi
tools=${BPF_TOOLS:-$root/target/bpf-tools}
llvm=/usr/lib/llvm-22
target=${BPF_TARGET_DIR:-$root/target/bpf}

packages=
# Debian's rustc, because it has `core` for the BPF target; LLVM 22, because bpf-linker must have the same as rustc.
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
    LLVM_PREFIX=$llvm CARGO_TARGET_DIR="$tools/build" cargo install bpf-linker --version 0.13.0 \
        --no-default-features --features llvm-22 --root "$tools" >&2
fi

# Debian's rustc has `core` for the BPF target where rustup's stable one has not; RUSTC_BOOTSTRAP because aya-ebpf is no_std + no_main
# with unstable link attributes. Paths are remapped so that the object does not depend on where it was built.
for arch in ${BPF_TARGET_ARCHS:-x86_64 aarch64}; do
    case $arch in x86_64) out=tokengauge.bpf.o dir=$target ;; *) out=tokengauge.bpf.$arch.o dir=$target/$arch ;; esac
    RUSTC=/usr/bin/rustc RUSTC_BOOTSTRAP=1 CARGO_CFG_BPF_TARGET_ARCH=$arch \
        RUSTFLAGS="-C linker=$tools/bin/bpf-linker -C link-arg=--btf --cfg bpf_target_arch=\"$arch\" --remap-path-prefix=$root=/tokengauge --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/cargo" \
        CARGO_TARGET_DIR="$dir" cargo build --release --locked --target bpfel-unknown-none >&2
    cp "$dir/bpfel-unknown-none/release/tokengauge" "$out"
    "$llvm/bin/llvm-strip" -g "$out" # DWARF goes, BTF stays
done
echo "$hash" >tokengauge.bpf.o.sources
