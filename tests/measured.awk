# Of the output of several runs with --format csv: one title, the rows of what has run, and a last column `commit`.
#     awk -v commit=e70289c -f tests/measured.awk all.csv
/,unsupported,/ { next }
/^date,/ { if (!titled++) print $0 ",commit"; next }
{ print $0 "," commit }
