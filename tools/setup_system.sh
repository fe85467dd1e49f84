#!/usr/bin/env bash
# Installs the Debian/Ubuntu packages that the testbed, the demo and the tests need; with arguments, those instead.
# Does nothing where they are there.
set -euo pipefail
needed=(
    gcc libc6-dev    # p4switch compiles P4 programs to native code
    python3-venv     # the virtual environment
    iproute2         # namespaces, veth, tc
    ethtool          # offloads of the testbed's links
    mininet          # topology of the testbed
    redis-server     # a peer of `kvcast bench incast`
    libibverbs1 libnuma1 # of Mooncake's wheel, which is a cold store and another peer
    iputils-ping     # pages that tests follow use ping
    curl             # and curl
    nftables         # a test puts a firewall between hosts
    cpio             # a test unpacks with it what guests boot from
)
[ $# -eq 0 ] || needed=("$@")
if ! command -v dpkg-query >/dev/null; then
    echo "not a Debian or Ubuntu system: install the equivalents of ${needed[*]} yourself" >&2
    exit 0
fi
missing=()
for package in "${needed[@]}"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0
sudo=()
if [ "$(id -u)" -ne 0 ]; then
    if ! command -v sudo >/dev/null || ! sudo -n true 2>/dev/null; then
        echo "missing packages: ${missing[*]}" >&2
        echo "going on without them (no root); 'sudo tools/setup_system.sh' installs them" >&2
        exit 0
    fi
    sudo=(sudo -n)
fi
echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
# Packages may start services when they are installed (redis, Open vSwitch); the testbed wants none of them running.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee "$policy" >/dev/null
    "${sudo[@]}" chmod 755 "$policy"
    trap '"${sudo[@]}" rm -f "$policy"' EXIT
fi
"${sudo[@]}" apt-get update -qq
"${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
