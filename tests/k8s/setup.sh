#!/usr/bin/env bash
# Everything that tests/k8s/node.sh needs, into ${TOKENGAUGE_CACHE:-target/real}/k8s; nothing is installed system-wide. The
# Kubernetes daemons and etcd are one Go program: 5 to 11 minutes and 3 GB of Go cache when cold, a second when it is there.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${TOKENGAUGE_CACHE:-$here/../../target/real}
mkdir -p "$cache/k8s"
dir=$(cd "$cache/k8s" && pwd)
mkdir -p "$dir"/{debs,root,bin,images}
kubernetes=v1.34.4
for tool in go apt-get dpkg kubectl openssl ip unshare; do
    command -v $tool >/dev/null || { echo "k8s/setup: $tool is missing" >&2; exit 1; }
done
[ -x "$dir/root/usr/bin/containerd" ] || {
    # bridge and host-local of containernetworking-plugins need nothing else
    (cd "$dir/debs" && apt-get download -qq containerd runc containernetworking-plugins 2>/dev/null)
    for deb in "$dir"/debs/*.deb; do dpkg -x "$deb" "$dir/root"; done
}
stamp="$kubernetes $(cat "$here"/node-src/go.sum "$here"/node-src/hyper/main.go | sha256sum | cut -c1-16)"
[ "$(cat "$dir/bin/version" 2>/dev/null)" = "$stamp" ] || {
    p=k8s.io/component-base/version
    (cd "$here/node-src" && CGO_ENABLED=0 go build -buildvcs=false -trimpath -o "$dir/bin/hyper" \
        -ldflags "-s -w -X $p.gitVersion=$kubernetes -X $p.gitMajor=1 -X $p.gitMinor=34" ./hyper)
    for name in etcd kube-apiserver kube-controller-manager kube-scheduler kubelet; do ln -sf hyper "$dir/bin/$name"; done
    echo "$stamp" >"$dir/bin/version"
}
[ -s "$dir/images/pause.tar" ] || {
    (cd "$here/pause" && CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags "-w" -o "$dir/pause" .)
    "$here/mkimage.py" "$dir/images/pause.tar" localhost/pause:1 "$dir/pause"
}
echo "k8s/setup: ready in $dir, $SECONDS s"
