#!/usr/bin/env bash
# What `make test-gpu` runs beside the test programs: golden vectors and the reply quality of the nano model on a GPU.
#
#   BUILD=build tests/gpu/test_device.sh cuda|hip|emu
#
# Ends with "test-gpu: PASS", or with the output of the first step that fails and its status.
set -euo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/../.."

backend="${1:?backend: cuda, hip or emu}"
build="${BUILD:-build}"
log="$(mktemp)"
trap 'rm -f -- "$log"' EXIT

step() {
    local start=$SECONDS status=0
    timeout -k 10 "${TEST_SECONDS:-600}" "$@" >"$log" 2>&1 </dev/null || status=$?
    if [ "$status" -ne 0 ]; then
        cat -- "$log"
        echo "test-gpu: FAIL: $* (status $status)"
        exit "$status"
    fi
    printf 'ok    %s, %d s: %s\n' "$*" "$((SECONDS - start))" "$(tail -n 1 -- "$log")"
}

step "$build/golden" tests/golden/k3 "$backend"
step "$build/golden" tests/golden/mimo26 "$backend"
step "$build/moonshine" bench quality models/k3-nano --set tests/qualification/nano.jsonl --backend "$backend"
echo "test-gpu: PASS"
