#!/bin/sh
# Runs a compiler; what ptxas says of its kernels goes to a file beside the object, all else to standard error.
object=
previous=
for argument; do
  [ "$previous" != -o ] || object=$argument
  previous=$argument
done
said=${object:-/dev/null}.said
"$@" 2>"$said"
status=$?
[ -z "$object" ] || grep -A 3 '^ptxas info *: Compiling entry' "$said" >"$object.resources"
awk '/^ptxas info/ { skip = 1; next } skip && /^ +[0-9]+ bytes/ { next } { skip = 0; print }' "$said" >&2
rm -f "$said"
exit $status
