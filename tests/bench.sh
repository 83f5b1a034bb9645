#!/usr/bin/env bash
# Measures again, on this machine's card, what notes/results/h200_NAME.csv holds:
#
#   make bench                      the ladder and its peers
#   make bench BENCH="fp32 step05"  other files
#
# The commands are those of the H200's file, from its column `command`; the results go to notes/results/CARD_NAME.csv,
# with a last column that says of which commit the programs are. What this card cannot run is left out, and said. A
# file is written only once all its commands have run, so nothing is lost when one of them breaks.
#
#   tests/bench.sh CARD COMMIT FOLDER NAME...    FOLDER is for files on the way
set -euo pipefail
[ $# -ge 4 ] || { echo "usage: tests/bench.sh CARD COMMIT FOLDER NAME..., as make bench calls it" >&2; exit 2; }
card=$1 commit=$2 rows=$3/bench_rows.csv all=$3/bench_all.csv
shift 3

commands_of() { # a CSV file; each of its commands once, without where the CSV went
    grep -oE '"(build/gpu/|tests/peers\.py )[^"]*"' "$1" | tr -d '"' | sed 's/ --csv [^ ]*//' | awk '!seen[$0]++'
}

measure() { # a command
    local status=0
    echo "$1"
    rm -f "$rows"
    case $1 in
    tests/peers.py*) python3 $1 --csv "$rows" || status=$? ;;
    *) $1 >"$rows" || status=$? ;;
    esac </dev/null
    case $status in
    0) ;;
    2 | 3) echo "left out, in whole or in part: exit status $status" ;; # not for this card, or no PyTorch
    *) echo "exit status $status (above): stopped, and $to is left as it was" >&2; exit 1 ;;
    esac
    [ ! -f "$rows" ] || cat "$rows" >>"$all"
}

for name; do
    from=notes/results/h200_$name.csv
    [ -f "$from" ] && [ -n "$(commands_of "$from" || true)" ] ||
        { echo "BENCH=$name: there is no $from with commands to run" >&2; exit 2; }
done
for name; do
    from=notes/results/h200_$name.csv to=notes/results/${card}_$name.csv
    : >"$all"
    while read -r command; do measure "$command"; done < <(commands_of "$from")
    awk -v commit="$commit" -f tests/measured.awk "$all" >"$rows"
    [ "$(wc -l <"$rows")" -gt 1 ] || { echo "nothing was measured: $to is left as it was" >&2; exit 3; }
    mv "$rows" "$to"
    echo "written: $to"
done
