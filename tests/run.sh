#!/usr/bin/env bash
# Runs test programs one after the other and sums up their cases: cmocka programs, and *.test.js with Node.js.
#
#   BUILD=build tests/run.sh PROGRAM...
#
# Each program runs from the repository root with MOONSHINE_BIN=$BUILD in its environment, no standard input and
# TEST_SECONDS (600) to finish.  One line a program; the output of a failing one follows its line.  The last line is
# "N passed, N failed".  A crash, a time-out, a failing exit status, a skipped case and a program without a single
# case are failures.
set -uo pipefail
cd "$(dirname -- "${BASH_SOURCE[0]}")/.." || exit 1

export MOONSHINE_BIN="${BUILD:-build}"
export LC_ALL=C
unset CMOCKA_MESSAGE_OUTPUT CMOCKA_XML_FILE CMOCKA_TEST_ABORT
limit_s="${TEST_SECONDS:-600}"
shown_lines=400

logs="$(mktemp -d)" || exit 1
child=
trap 'rm -rf -- "$logs"' EXIT
# timeout runs its program in a process group of its own, which a ^C at the terminal does not reach.
trap '[ -z "$child" ] || kill -TERM "$child" 2>/dev/null; exit 130' INT TERM

passed=0
failed=0
bad_programs=()

# What became of a program with exit status $1.
outcome() {
    if [ "$1" -eq 124 ] || [ "$1" -eq 137 ]; then
        echo "no end within $limit_s s"
    elif [ "$1" -gt 128 ]; then
        echo "killed by signal $(($1 - 128))"
    else
        echo "exit status $1"
    fi
}

# Sum of the counts in cmocka's lines "MARK ... N test(s)" of log $2.
sum_of() {
    awk -v mark="$1" '
        (at = index($0, mark)) && match(rest = substr($0, at + length(mark)), /[0-9]+ test\(s\)/) {
            # "[==========] N test(s) run." repeats what "Running N test(s)." announced.
            if (rest !~ /test\(s\) run/) sum += substr(rest, RSTART)
        }
        END { print sum + 0 }' "$2"
}

for program in "$@"; do
    log="$logs/log"
    start=$SECONDS
    status=0
    command=("$program")
    if [[ $program == *.test.js ]]; then
        command=(node --test --test-concurrency=1 --test-reporter=./tests/server/reporter.js "$program")
    fi
    if [ -x "$(command -v "${command[0]}")" ]; then
        timeout -k 10 "$limit_s" "${command[@]}" >"$log" 2>&1 </dev/null &
        child=$!
        wait "$child" 2>/dev/null || status=$?
        child=
    else
        echo "$program is missing or not a program" >"$log"
        status=127
    fi

    announced=$(sum_of '[==========]' "$log")
    ok=$(grep -acF '[       OK ]' "$log")
    bad=$(sum_of '[  FAILED  ]' "$log")
    skipped=$(sum_of '[  SKIPPED ]' "$log")
    silent=$((announced - ok - bad - skipped))
    why=
    if [ "$bad" -gt 0 ]; then why="$bad failed"; fi
    if [ "$skipped" -gt 0 ]; then why="${why:+$why, }$skipped skipped"; fi
    # A program that ended early, with whatever status, has cases without a result.
    if [ "$silent" -gt 0 ]; then why="${why:+$why, }$silent without a result"; fi
    if [ "$announced" -eq 0 ]; then why="ran no test"; fi
    # cmocka's own exit status is the number of failed cases.
    if [ "$status" -ge 124 ] || { [ "$status" -ne 0 ] && [ "$bad" -eq 0 ]; }; then
        why="${why:+$why, }$(outcome "$status")"
    fi
    bad=$((bad + skipped + (silent > 0 ? silent : 0)))
    if [ -n "$why" ] && [ "$bad" -eq 0 ]; then bad=1; fi

    passed=$((passed + ok))
    failed=$((failed + bad))
    if [ -z "$why" ]; then
        printf 'ok    %-52s %4d cases %4d s\n' "$program" "$ok" "$((SECONDS - start))"
    else
        printf 'FAIL  %-52s %4d cases %4d s  (%s)\n' "$program" "$ok" "$((SECONDS - start))" "$why"
        bad_programs+=("$program")
        lines=$(wc -l <"$log")
        if [ "$lines" -gt "$shown_lines" ]; then echo "      (the last $shown_lines of $lines lines)"; fi
        tail -n "$shown_lines" "$log" | sed 's/^/      /'
    fi
done

if [ "$#" -eq 0 ]; then echo "tests/run.sh: no test program was given"; fi
if [ "${#bad_programs[@]}" -gt 0 ]; then printf 'failing: %s\n' "${bad_programs[@]}"; fi
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
