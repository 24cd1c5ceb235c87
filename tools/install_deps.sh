#!/usr/bin/env bash
# Makes sure that everything the build needs is there: compiler, make, the headers of six libraries, and Python for the
# tools that the tests run.
#
# Looks first and installs only what is missing, with apt (Debian 12, Ubuntu 24.04); needs root or sudo only then.
# Exit status 2 with a message naming the packages when it cannot install them.  Prints to standard error.
set -euo pipefail

all_packages=(build-essential libmicrohttpd-dev liburing-dev libedit-dev liblzma-dev libssl-dev libcmocka-dev python3)
compiler="${CC:-cc}"

have_header() {
    printf '#if !__has_include(<%s>)\n#error none\n#endif\n' "$1" | "$compiler" -E -x c - >/dev/null 2>&1
}

look() {
    missing=()
    if ! command -v make >/dev/null || ! have_header stdio.h; then
        missing=("${all_packages[@]}") # without a compiler nothing can be looked for; apt keeps what is there
        return
    fi
    have_header microhttpd.h || missing+=(libmicrohttpd-dev)
    have_header liburing.h || missing+=(liburing-dev)
    have_header histedit.h || missing+=(libedit-dev)
    have_header lzma.h || missing+=(liblzma-dev)
    have_header openssl/evp.h || missing+=(libssl-dev)
    have_header cmocka.h || missing+=(libcmocka-dev)
    command -v python3 >/dev/null || missing+=(python3)
}

look
if [ "${#missing[@]}" -eq 0 ]; then exit 0; fi

{
    echo "Missing: ${missing[*]}"
    if ! command -v apt-get >/dev/null; then
        echo "This script knows apt only. Install what corresponds to these Debian packages, then run it again."
        exit 2
    fi
    as_root=()
    if [ "$(id -u)" -ne 0 ]; then
        if ! command -v sudo >/dev/null; then
            echo "Not root, and there is no sudo. As root, run:"
            echo "    apt-get update && apt-get install -y ${missing[*]}"
            exit 2
        fi
        as_root=(sudo)
    fi
    options=(-qq -o DPkg::Lock::Timeout=120)
    log="$(mktemp)"
    trap 'rm -f -- "$log"' EXIT
    echo "Installing them with apt ..."
    if ! "${as_root[@]}" apt-get "${options[@]}" update >"$log" 2>&1 ||
        ! "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get "${options[@]}" install -y \
            --no-install-recommends "${missing[@]}" >"$log" 2>&1; then
        cat "$log"
        echo "apt could not install them. As root, run:  apt-get update && apt-get install -y ${missing[*]}"
        exit 2
    fi
    look
    if [ "${#missing[@]}" -ne 0 ]; then
        echo "Still missing after the installation: ${missing[*]}"
        exit 2
    fi
} >&2
