#!/bin/sh
# The release archive: binary, manual pages, completions, the configuration's schema, licence and README; the same bytes from the same binary.
#
#   agent/dist.sh [BINARY]        target/release/tokengauge by default
#
# Writes target/dist/tokengauge-VERSION-ARCHITECTURE-linux.tar.gz and its .sha256; the tree that is packed stays beside it (the image copies pages from it).
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"
binary=${1:-${CARGO_TARGET_DIR:-target}/release/tokengauge}
out=${DIST:-target/dist}
version=$("$binary" --version | cut -d' ' -f2)
architecture=$(uname -m)
name=tokengauge-$version-$architecture-linux
epoch=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || echo 0)}
umask 022
rm -rf "${out:?}/$name"
tree=$out/$name
mkdir -p "$tree/bin" "$tree/share/man/man1" "$tree/share/bash-completion/completions" "$tree/share/zsh/site-functions" \
    "$tree/share/fish/vendor_completions.d" "$tree/share/tokengauge"
# Names of functions stay, for profiles and backtraces; line tables go.
strip --strip-debug -o "$tree/bin/tokengauge" "$binary"
"$binary" man --out "$tree/share/man/man1"
gzip -9n "$tree"/share/man/man1/*.1
"$binary" completions bash > "$tree/share/bash-completion/completions/tokengauge"
"$binary" completions zsh > "$tree/share/zsh/site-functions/_tokengauge"
"$binary" completions fish > "$tree/share/fish/vendor_completions.d/tokengauge.fish"
"$binary" config schema > "$tree/share/tokengauge/config.schema.json"
"$binary" slo schema > "$tree/share/tokengauge/slo.schema.json"
cp LICENSE README.md "$tree/"
tar --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner --format=ustar -C "$out" -cf - "$name" | gzip -9n > "$out/$name.tar.gz"
(cd "$out" && sha256sum "$name.tar.gz" > "$name.tar.gz.sha256" && cat "$name.tar.gz.sha256")
