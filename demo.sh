#!/usr/bin/env bash
# Chat with the small model that comes with the source: installs what is missing, builds, starts.
#
#   ./demo.sh                     a conversation
#   ./demo.sh -p "Say hello."     one reply; every argument is passed on to moonshine-chat
#
# Works from any folder; relative paths in the arguments mean the folder it was called from.
set -euo pipefail
root="$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")" # also when called through a link

# Standard output belongs to the reply alone.
"$root/tools/install_deps.sh" >&2
make -C "$root" --no-print-directory -j"$(nproc)" BUILD=build all >&2
exec "$root/build/moonshine-chat" "$root/models/k3-nano" "$@"
