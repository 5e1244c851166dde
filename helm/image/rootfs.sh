#!/usr/bin/env bash
# Puts the files of the image together, for one architecture.
#
#   helm/image/rootfs.sh amd64|arm64 FOLDER      TOKENGAUGE=the agent for it; TOKENGAUGE_HOST=one that runs here (its completions), else the same
#
# Libraries are those that the agent's file names, and what they name in turn, from Debian's packages (sysroot.sh). Times are fixed
# (SOURCE_DATE_EPOCH), so that the same sources give the same files.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
arch=${1:?amd64 or arm64} out=${2:?a folder}
agent=${TOKENGAUGE:-$root/target/release/tokengauge}
host=${TOKENGAUGE_HOST:-$agent}
sysroot=$("$here/sysroot.sh" "$arch")
case $arch in
    amd64) triple=x86_64-linux-gnu rust=x86_64-unknown-linux-gnu strip=strip ;;
    arm64) triple=aarch64-linux-gnu rust=aarch64-unknown-linux-gnu strip=aarch64-linux-gnu-strip ;;
    *) echo "rootfs: $arch is neither amd64 nor arm64" >&2; exit 2 ;;
esac
command -v "$strip" >/dev/null || strip=strip

rm -rf "$out"
mkdir -p "$out"/{usr/local/bin,etc/ssl/certs,tmp,proc,sys,dev,var/lib/tokengauge,usr/share/{doc/tokengauge,bash-completion/completions,zsh/site-functions,fish/vendor_completions.d}}
chmod 1777 "$out/tmp"
"$strip" -o "$out/usr/local/bin/tokengauge" "$agent"

# Names that a file says it needs, the dynamic linker included.
needs() { LC_ALL=C readelf -ld "$1" | sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p; s/.*program interpreter: (.*)\]/\1/p'; }
# Where a library of that name is in the packages.
find_library() {
    local folder
    for folder in "lib/$triple" "usr/lib/$triple" lib64 lib; do
        [ -e "$sysroot/$folder/$1" ] && { echo "$folder/$1"; return; }
    done
    echo "rootfs: no package has $1" >&2
    return 1
}
take() { # FILE: what it needs, and what that needs
    local name path
    for name in $(needs "$1"); do
        case $name in
            # The interpreter stands where the file says, whatever the packages' links.
            /*) path=${name#/} ;;
            *) path=$(find_library "$name") ;;
        esac
        [ -e "$out/$path" ] && continue
        mkdir -p "$out/$(dirname "$path")"
        cp -L "$sysroot/$( [ -e "$sysroot/$path" ] && echo "$path" || find_library "$(basename "$path")" )" "$out/$path"
        chmod 755 "$out/$path"
        take "$out/$path"
    done
}
take "$out/usr/local/bin/tokengauge"

# Authorities, as Debian's own bundle: the trusted ones, one behind the other.
cat "$sysroot"/usr/share/ca-certificates/mozilla/*.crt >"$out/etc/ssl/certs/ca-certificates.crt"
printf 'root:x:0:0:root:/:/none\nnonroot:x:65532:65532:nonroot:/:/none\n' >"$out/etc/passwd"
printf 'root:x:0:\nnonroot:x:65532:\n' >"$out/etc/group"
echo 'hosts: files dns' >"$out/etc/nsswitch.conf"
cp "$root/LICENSE" "$out/usr/share/doc/tokengauge/"
for package in $(awk '{ print $1 }' "$sysroot/../packages"); do
    mkdir -p "$out/usr/share/doc/$package"
    cp -L "$sysroot/usr/share/doc/$package/copyright" "$out/usr/share/doc/$package/"
done
if [ -x "$host" ] && "$host" --version >/dev/null 2>&1; then
    "$host" completions bash >"$out/usr/share/bash-completion/completions/tokengauge"
    "$host" completions zsh >"$out/usr/share/zsh/site-functions/_tokengauge"
    "$host" completions fish >"$out/usr/share/fish/vendor_completions.d/tokengauge.fish"
fi
python3 "$here/sbom.py" --target "$rust" --packages "$sysroot/../packages" --arch "$arch" >"$out/usr/share/doc/tokengauge/sbom.cdx.json"
find "$out" -exec touch -h -d "@${SOURCE_DATE_EPOCH:-0}" {} +
