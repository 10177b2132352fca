# Calls the function that each line of its input names, and answers `done` or `failed`. At the end of
# the input, which is also reached when the test process dies, it kills the server and removes the
# directory. The script before this one defines `dir`, `killed` and the other functions.
trap '' INT TERM HUP
while read -r order; do
    if "$order" >>"$dir/keeper.log" 2>&1 </dev/null; then echo done; else echo failed; fi
done
killed >/dev/null 2>&1 </dev/null
rm -rf "$dir"
