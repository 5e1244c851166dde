#!/usr/bin/env bash
# Builds the image without any base image: target/image/tokengauge-VERSION-ARCH.tar (`docker load`, `ctr images import`, `skopeo copy`).
#
#   helm/image/build.sh [amd64] [arm64]      this machine's architecture without a word
#
# The agent of this machine's architecture is TOKENGAUGE (target/release/tokengauge, `make build`); the other one is cross-built (cross.sh).
# TOKENGAUGE_IMAGE_DIR says where (target/image). buildah comes from Debian, when it is not there.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
dir=${TOKENGAUGE_IMAGE_DIR:-$root/target/image}
mkdir -p "$dir"
dir=$(cd "$dir" && pwd)
own=$(dpkg --print-architecture)
host=${TOKENGAUGE:-$root/target/release/tokengauge}
limit=${TOKENGAUGE_IMAGE_LIMIT:-40000000} # bytes of all files, what a node unpacks; of a debug build there are more

if ! command -v buildah >/dev/null; then
    sudo=
    [ "$(id -u)" = 0 ] || sudo=sudo
    $sudo apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends buildah >&2
fi
version=$("$host" --version | awk '{ print $2 }')
revision=$(git -C "$root" rev-parse HEAD 2>/dev/null || echo unknown)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git -C "$root" log -1 --format=%ct 2>/dev/null || echo 0)}
echo '{"default": [{"type": "insecureAcceptAnything"}]}' >"$dir/policy.json"
# Chroot: nothing runs in this image while it is built. Its own storage, so that the user's is left alone.
buildah() { command buildah --root "$dir/storage" --runroot "$dir/run" --storage-driver vfs "$@"; }

[ $# -gt 0 ] || set -- "$own"
for arch in "$@"; do
    if [ "$arch" = "$own" ]; then agent=$host; else agent=$("$here/cross.sh"); fi
    TOKENGAUGE=$agent TOKENGAUGE_HOST=$host "$here/rootfs.sh" "$arch" "$dir/$arch-rootfs"
    size=$(find "$dir/$arch-rootfs" -type f -printf '%s\n' | awk '{ s += $1 } END { print s }')
    if [ "$size" -gt "$limit" ]; then
        echo "image: $arch has $size bytes of files, more than $limit" >&2
        exit 1
    fi
    name=localhost/tokengauge:$version-$arch
    out=$dir/tokengauge-$version-$arch.tar
    buildah bud --quiet --signature-policy "$dir/policy.json" --isolation chroot --arch "$arch" --os linux --timestamp "$SOURCE_DATE_EPOCH" \
        --squash --target bare --build-arg VERSION="$version" --build-arg REVISION="$revision" \
        --build-arg CREATED="$(date -u -d "@$SOURCE_DATE_EPOCH" +%Y-%m-%dT%H:%M:%SZ)" \
        --tag "$name" --file "$here/Containerfile" "$dir/$arch-rootfs" >/dev/null
    rm -f "$out"
    buildah push --quiet --signature-policy "$dir/policy.json" "$name" "docker-archive:$out:tokengauge:$version"
    echo "image: $out, $((size / 1000000)) MB of files"
done
