#!/usr/bin/env bash
# Measures again, on this machine's card, what notes/results/h200_NAME.csv holds:
#
#   make bench                      the ladder and its peers
#   make bench BENCH="fp32 step05"  other files
#
# The commands are those of the H200's file, from its column `command`; the results go to notes/results/CARD_NAME.csv,
# with a last column that says of which commit the programs are. What this card cannot run is left out, and said.
#
#   tests/bench.sh CARD COMMIT FOLDER NAME...    FOLDER is for files on the way
set -euo pipefail
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
    [ $status != 1 ] || { echo "a wrong result (above): stopped, and the file is left as it was" >&2; exit 1; }
    [ $status = 0 ] || echo "left out: exit status $status"
    [ ! -f "$rows" ] || cat "$rows" >>"$all"
}

for name; do
    from=notes/results/h200_$name.csv to=notes/results/${card}_$name.csv
    [ -f "$from" ] || { echo "BENCH=$name: no $from, whose commands would be run" >&2; exit 2; }
    : >"$all"
    while read -r command; do measure "$command"; done < <(commands_of "$from")
    awk -v commit="$commit" -f tests/measured.awk "$all" >"$to"
    echo "written: $to"
done
