#!/usr/bin/env bash
# Makes sure that the clients are there that the server is tested with.
#
#   tools/install_clients.sh [browser]
#
# Needs Node.js 20 or newer with npm, which is not installed here.  The client libraries go into
# tests/server/node_modules, exactly as tests/server/package-lock.json says.  With `browser` also Chromium, from
# $CHROMIUM or /usr/bin/chromium, installed with apt where it is missing (root or sudo).
# Exit status 2 with a message when something cannot be had.  Prints to standard error.
set -euo pipefail
cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/../tests/server"
exec >&2

give_up() {
    echo "$1"
    exit 2
}

version="$(node --version 2>/dev/null || true)"
case "$version" in
    v2[0-9].* | v[3-9][0-9].*) ;;
    *) give_up "The client tests need Node.js 20 or newer, found ${version:-none}." ;;
esac
command -v npm >/dev/null || give_up "The client tests need npm."

# npm leaves this file when everything is in place.
if [ ! -e node_modules/.package-lock.json ] || [ package-lock.json -nt node_modules/.package-lock.json ]; then
    echo "Installing the client libraries with npm ..."
    log="$(mktemp)"
    trap 'rm -f -- "$log"' EXIT
    npm ci >"$log" 2>&1 || { cat "$log"; give_up "npm could not install them."; }
    touch node_modules/.package-lock.json
fi

if [ "${1:-}" != browser ] || [ -x "${CHROMIUM:-/usr/bin/chromium}" ]; then exit 0; fi
command -v apt-get >/dev/null || give_up "The tests of the chat page need Chromium: install it or set CHROMIUM=."
as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || give_up "Not root, and there is no sudo. As root, run: apt-get install chromium"
    as_root=(sudo)
fi
echo "Installing Chromium with apt ..."
options=(-qq -o DPkg::Lock::Timeout=300)
"${as_root[@]}" apt-get "${options[@]}" update >/dev/null
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "${options[@]}" install -y --no-install-recommends \
    chromium >/dev/null
[ -x /usr/bin/chromium ] || give_up "apt could not install Chromium."
