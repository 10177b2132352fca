# Does what its input says, word by word, with a function of that name, and answers each; at the end
# of the input, which comes also when the process dies that writes it, kills the server and removes
# the directory. What was put before this defines `dir`, `killed` and the functions.
trap '' INT TERM HUP
while read -r order; do
    if "$order" >>"$dir/keeper.log" 2>&1 </dev/null; then echo done; else echo failed; fi
done
killed >/dev/null 2>&1 </dev/null
rm -rf "$dir"
