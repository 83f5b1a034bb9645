# Of the output of several runs with --format csv: one title, the rows that hold a measurement, and a last column `commit`.
#     awk -v commit=e70289c -f tests/measured.awk all.csv
# A row of the harness has its result behind smem_limit; those of other programs have none.
/^date,/ { if (!titled++) print $0 ",commit"; next }
/,[0-9]+,(unsupported|impossible|refused|wrong|bytes),"/ { next }
{ print $0 "," commit }
