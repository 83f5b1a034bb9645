#!/usr/bin/env bash
# Is a step right on the shapes on which mistakes show? Needs neither Criterion nor Python.
#
#   tests/check.sh build/sim/step03 [OPTION...]         (`make check STEP=03` builds it first)
#
# Runs the step's program on each shape of the list below, with these options besides, such as --kernel fused. Prints
# a line for each, and at the end "9 of 10 ok". Exit status: 0 all are ok; 1 some are not; 2 nothing could be checked.
set -u

[ $# -ge 1 ] && [ -f "$1" ] && [ -x "$1" ] || { echo "usage: tests/check.sh PROGRAM [OPTION...], PROGRAM as in build/sim/step03" >&2; exit 2; }
program=$1
shift
most=100 # seconds for one shape: a loop without end is a mistake as well

# For which programs, and the shape. No length is a multiple of a tile; heads that share keys (GQA) tell heads apart;
# with more keys than queries, or fewer, the mask is shifted, and the first queries may see nothing. 2 x 72 heads are
# more tiles than there are multiprocessors, so a block of step06 that stays takes a second one.
shapes() {
    cat <<'END'
*          -H 1 -n 1
*          -b 2 -H 2 --kv-heads 1 -n 33 -d 8 --causal
*          -b 2 -H 2 --kv-heads 1 --seqlen-q 33 --seqlen-k 130 --causal
*          -H 2 -n 130 --causal --data rising
*          -H 4 --kv-heads 2 --seqlen-q 300 --seqlen-k 130 --causal --data outliers
*          -b 2 -H 2 --kv-heads 1 --seqlen-q 130 --seqlen-k 300 --data large
*          -H 1 --seqlen-q 70 --seqlen-k 300 -d 128 --causal
*          -H 1 -n 70 --data one-hot
*          -H 2 -n 130 -d 40 --data constant
*          -H 1 -n 257 -d 40 --causal --scale 0.3
step0[34]  -H 2 -n 130 --sram 24K --causal
step05     -H 2 --kv-heads 1 -n 130 --sram 99K --causal
step05     -H 3 --kv-heads 1 -n 300 -d 128 --dtype bf16 --causal --scale 1
step06     -b 2 -H 72 -n 130 --causal
step06     -b 2 -H 72 -n 130
step06     -H 1 --seqlen-q 300 --seqlen-k 70 --causal
step06     -H 3 -n 300 --dtype fp8 --fp8-scale block --rotate --data outliers
step06     -b 2 -H 3 -n 130 --dtype fp8 --fp8-scale head --causal
step0[56]  -H 2 --kv-heads 1 --seqlen-q 130 --seqlen-k 200 --dtype bf16 --causal --data outliers
step0[56]  -b 2 -H 1 -n 33 --dtype bf16 --data rising
END
}

# Reads the rows that the program printed as CSV. Says ok, none (no kernel takes the shape) or WRONG; a tab; how many
# kernels are right; and in a line each, what is wrong.
read_rows() {
    awk '
        # The fields of a line of CSV; one in quotes may hold commas, and two quotes for one.
        function split_csv(line, field,    n, quoted, i, c) {
            n = 1; quoted = 0; split("", field)
            for (i = 1; i <= length(line); i++) {
                c = substr(line, i, 1)
                if (c == "\"" && quoted && substr(line, i + 1, 1) == "\"") { field[n] = field[n] c; i++ }
                else if (c == "\"") quoted = !quoted
                else if (c == "," && !quoted) n++
                else field[n] = field[n] c
            }
            return n
        }
        NR == 1 { n = split_csv($0, name); for (i = 1; i <= n; i++) column[name[i]] = i; next }
        { split_csv($0, field); result = field[column["result"]]; kernel = field[column["kernel"]] }
        result == "ok" { right[field[column["pass"]]]++ }
        result == "wrong" || result == "bytes" {
            wrong = wrong sprintf("\n        %s, %s: %s: %s", kernel, field[column["pass"]], result, field[column["why"]])
        }
        END {
            f = right["forward"] + 0; b = right["backward"] + 0
            print (wrong ? "WRONG" : f + b ? "ok" : "none") "\t" f " forward" (b ? ", " b " backward" : "") (wrong ? " ok" wrong : "")
        }'
}

step=$(basename "$program")
out=$(mktemp) && err=$(mktemp) || exit 2
trap 'rm -f "$out" "$err"' EXIT
ok=0 wrong=0 none=0 first=
while read -r for_program options; do
    [[ $step == $for_program ]] || continue
    # shellcheck disable=SC2086
    timeout $most "$program" --format csv --pass both $options "$@" >"$out" 2>"$err" </dev/null
    status=$?
    verdict=$(read_rows <"$out")
    what=${verdict#*$'\t'} verdict=${verdict%%$'\t'*}
    case $status in
    0 | 1 | 3) ;;
    2) # What a kernel does not take is no mistake. Anything else shows at the first shape: an option is wrong.
        if [ $((ok + wrong + none)) = 0 ] && ! grep -e '--kernel [^ ]*: ' -e 'no kernel could run' "$err" |
            grep -qv 'no such kernel'; then
            tail -n 1 "$err" >&2
            exit 2
        fi ;;
    124) verdict=WRONG what="still running after $most s, so no other shape is tried" ;;
    125 | 126 | 127) echo "$program: cannot be run: $(tail -n 1 "$err")" >&2; exit 2 ;;
    *) verdict=WRONG what="the program was ended by signal $((status - 128))" ;;
    esac
    case $verdict in
    ok) ok=$((ok + 1)) ;;
    WRONG)
        wrong=$((wrong + 1))
        case $what in *", backward: "*) options="$options --pass both" ;; esac
        first=${first:-$options}
        ;;
    none) none=$((none + 1)) what=$(sed 's/^[^:]*: //' "$err") ;;
    esac
    printf '%-6s  %s: %s\n' "$verdict" "$options" "$what"
    [ $status != 124 ] || break
done < <(shapes)

[ $((ok + wrong)) -gt 0 ] || { echo "$step: nothing could be checked" >&2; exit 2; }
[ $wrong = 0 ] || echo "To see it:  $program $first${*:+ $*}"
echo "$step: $ok of $((ok + wrong)) ok$([ $none = 0 ] || echo ", $none not for this kernel")"
[ $wrong = 0 ]
