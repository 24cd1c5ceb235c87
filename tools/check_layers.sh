#!/usr/bin/env bash
# Checks the dependency order of the source folders over their #include lines (docs/architecture.md), and that nothing
# below main ends the process.
#
#   tools/check_layers.sh [ROOT]      exit status 1 when something is found, one line each
#
#   base < io, quant < store < cache < backend < nn < lane < session < server < apps
#   text needs base only; lane and what is above may use text
#   a lane never includes another lane, lane/*.h includes none; server includes nothing of lane
#   include/moonshine includes nothing of the tree; inside src every include is a path from src/
set -euo pipefail
root="${1:-$(dirname -- "${BASH_SOURCE[0]}")/..}"
cd "$root"

folders=()
for f in include src apps; do
    if [ -d "$f" ]; then folders+=("$f"); fi
done
if [ ! -d src ] || [ ! -d include ]; then
    echo "check_layers: no src and include folders in $(pwd)" >&2
    exit 1
fi

find "${folders[@]}" -type f \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cpp' -o -name '*.hip' \) -print0 |
    LC_ALL=C sort -z | LC_ALL=C xargs -0 awk '
BEGIN {
    rank["base"] = 0; rank["io"] = 1; rank["quant"] = 1; rank["store"] = 2; rank["cache"] = 3; rank["backend"] = 4
    rank["nn"] = 5; rank["lane"] = 6; rank["session"] = 7; rank["server"] = 8; rank["apps"] = 9
}
function found(text) {
    printf "%s:%d: %s\n", FILENAME, FNR, text
    faults++
}
# The source folder of a path below src/, "apps", or "moonshine" for the public header.
function folder_of(path,    part) {
    split(path, part, "/")
    return part[1]
}
# The lane of a path like lane/NAME/file; empty for files of lane/ itself.
function lane_of(path,    part, n) {
    n = split(path, part, "/")
    return part[1] == "lane" && n > 2 ? part[2] : ""
}
FNR == 1 {
    files++
    comment = 0
    path = FILENAME
    sub(/^src\//, "", path)
    sub(/^include\//, "", path)
    here = folder_of(path)
    if (here != "moonshine" && here != "text" && !(here in rank)) found("folder " here " has no place in the order")
}
# The line without comments and literals.
function code_of(line,    out, c, two, quote) {
    out = ""
    while (line != "") {
        c = substr(line, 1, 1)
        two = substr(line, 1, 2)
        if (comment) {
            if (two == "*/") { comment = 0; line = substr(line, 3) } else line = substr(line, 2)
        } else if (quote != "") {
            if (c == "\\") line = substr(line, 3)
            else { if (c == quote) quote = ""; line = substr(line, 2) }
        } else if (two == "/*") { comment = 1; out = out " "; line = substr(line, 3)
        } else if (two == "//") { line = ""
        } else {
            if (c == "\"" || c == "\047") { quote = c; out = out " " } else out = out c
            line = substr(line, 2)
        }
    }
    return out
}
function check_include(target,    there) {
    if (here == "moonshine") { found("the public header includes " target); return }
    there = folder_of(target)
    if (here == "apps" && target !~ /\//) return
    if (target !~ /\// || target ~ /(^|\/)\.\.?\//) { found("\"" target "\" is not a path from src/"); return }
    if (there == "moonshine" || there == here) {
        if (lane_of(target) != "" && lane_of(path) != lane_of(target) && (lane_of(path) != "" || path ~ /\.h$/))
            found((lane_of(path) == "" ? "lane.h" : "lane " lane_of(path)) " includes lane " lane_of(target))
        return
    }
    if (there == "text") {
        if (here != "apps" && rank[here] < rank["lane"]) found(here " includes text: " target)
        return
    }
    if (!(there in rank)) { found("\"" target "\" is in no known folder"); return }
    if (here == "text") { if (there != "base") found("text includes " there ": " target); return }
    if (rank[there] >= rank[here]) found(here " includes " there ": " target)
    else if (here == "server" && there == "lane") found("server includes a lane: " target)
}
{
    was_comment = comment
    line = code_of($0)
}
!was_comment && match($0, /^[ \t]*#[ \t]*include[ \t]*"[^"]*"/) {
    target = substr($0, RSTART, RLENGTH)
    sub(/^[^"]*"/, "", target)
    sub(/"$/, "", target)
    includes++
    check_include(target)
    next
}
here != "apps" && match(line, /(^|[^A-Za-z0-9_.>])(exit|_exit|_Exit|quick_exit|abort|assert)[ \t]*\(/) {
    found("ends the process: " substr($0, 1, 100))
}
END {
    if (faults) { printf "dependency order: %d faults\n", faults; exit 1 }
    if (!files || !includes) { print "dependency order: nothing was checked"; exit 1 }
    printf "dependency order: %d files, %d includes, no fault\n", files, includes
}' || exit 1
