#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test that needs no GPU and no large weights.
#
# The last line is "N passed, N failed"; the exit status is 0 only when nothing failed.  A build that fails and a
# violated dependency order count as one failure.
set -euo pipefail
cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")" # also when called through a link

step() {
    if ! "$@" 2>&1; then
        echo "test.sh: failed: $*"
        echo "0 passed, 1 failed"
        exit 1
    fi
}

step tools/install_deps.sh
step tools/install_clients.sh browser
step make -j"$(nproc)" BUILD=build all tests
step tools/check_layers.sh
step make -j"$(nproc)" BUILD=build gpu-check-quick

mapfile -t programs < <(make -s BUILD=build list-tests)
BUILD=build exec tests/run.sh "${programs[@]}" tests/server/{sdk,ui}/*.test.js
