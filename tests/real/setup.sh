#!/usr/bin/env bash
# Installs what tests/real needs, by package name, into ${TOKENGAUGE_CACHE:-target/real}. Idempotent: a second run takes
# a second. System packages are installed only when missing and only where apt-get and root are at hand.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
cache=${TOKENGAUGE_CACHE:-$root/target/real}
mkdir -p "$cache"

# Versions are pinned: the rig compares figures, and llama.cpp has changed its own definitions between versions.
pip_packages="xllamacpp==2026.10.11549 gguf==0.19.0 numpy==2.4.6 openai==3.54.0 anthropic==2.12.0 google-genai==3.4.0
boto3==1.44.5 cohere==7.3.1 mistralai==3.7.0 ollama==0.6.3 h2==4.4.1 websockets==17.4 Hypercorn==0.18.0 grpcio==1.85.1"
npm_packages="openai@6.49.0 @anthropic-ai/sdk@1.12.0 @google/genai@2.32.0 ollama@0.6.4 cohere-ai@8.1.0 @mistralai/mistralai@2.7.0 undici@6.24.1"
litellm_packages="litellm[proxy]==1.106.2"

missing=()
have() { command -v "$1" >/dev/null 2>&1 || [ -x "/usr/sbin/$1" ]; }
have nginx || missing+=(nginx-light)
have curl || missing+=(curl)
have tcpdump || missing+=(tcpdump)
have openssl || missing+=(openssl)
have npm || missing+=(nodejs npm)
python3 -c 'import venv, ensurepip' 2>/dev/null || missing+=(python3-venv)
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" != 0 ] || ! have apt-get; then
        echo "setup: missing ${missing[*]}, and this is not root on a Debian: please install them" >&2
        exit 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
fi

stamp="$pip_packages"
if [ "$(cat "$cache/venv/stamp" 2>/dev/null)" != "$stamp" ]; then
    rm -rf "$cache/venv"
    python3 -m venv "$cache/venv"
    # shellcheck disable=SC2086 # a list of words on purpose
    "$cache/venv/bin/pip" install --quiet --disable-pip-version-check $pip_packages
    echo "$stamp" >"$cache/venv/stamp"
fi
if [ "$(cat "$cache/node_modules/stamp" 2>/dev/null)" != "$npm_packages" ]; then
    # shellcheck disable=SC2086
    npm install --prefix "$cache" --no-audit --no-fund --silent --no-save $npm_packages
    echo "$npm_packages" >"$cache/node_modules/stamp"
fi
# HAProxy from Debian's packages, unpacked: as a package it would start a service.
if ! have haproxy && [ ! -x "$cache/haproxy/usr/sbin/haproxy" ]; then
    if ! have apt-get; then
        echo "setup: haproxy is missing, and this is no Debian: please install it" >&2
        exit 1
    fi
    debs=$(mktemp -d)
    download="haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1"
    # shellcheck disable=SC2086
    (cd "$debs" && { apt-get download -qq $download || { apt-get update -qq && apt-get download -qq $download; }; }) 2>"$debs/log" ||
        { cat "$debs/log" >&2; exit 1; }
    for deb in "$debs"/*.deb; do dpkg -x "$deb" "$cache/haproxy.new"; done
    mv "$cache/haproxy.new" "$cache/haproxy"
    rm -rf "$debs"
fi
# LiteLLM is large, and its requirements are not those of the SDKs: an environment of its own.
if [ "$(cat "$cache/venv-litellm/stamp" 2>/dev/null)" != "$litellm_packages" ]; then
    rm -rf "$cache/venv-litellm"
    python3 -m venv "$cache/venv-litellm"
    "$cache/venv-litellm/bin/pip" install --quiet --disable-pip-version-check "$litellm_packages"
    echo "$litellm_packages" >"$cache/venv-litellm/stamp"
fi
[ -s "$cache/model.gguf" ] && [ "$cache/model.gguf" -nt "$root/tests/real/model.py" ] ||
    "$cache/venv/bin/python" "$root/tests/real/model.py" "$cache/model.gguf"
echo "setup: ready in $cache"
