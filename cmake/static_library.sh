#!/bin/sh
# static_library.sh ARCHIVE VERSION_SCRIPT COMPILER OBJCOPY AR OBJECT-OR-ARCHIVE...: links all into one object in
# which only the names of the version script are global, and makes an archive of it.
set -eu
archive=$1 map=$2 compiler=$3 objcopy=$4 ar=$5
shift 5
object=${archive%.a}.o
trap 'rm -f "$object" "$object.names" "$object.unique"' EXIT
mkdir -p "${archive%/*}"
sed -n 's/^ *\(wi_[a-z_]*\);$/\1/p' "$map" >"$object.names"
# Groups are what linkers keep one of by name, and here no name may meet another program's.
"$compiler" -r -nostdlib -Wl,--force-group-allocation -o "$object" "$@"
# Variables that are unique in a process by name are the one thing that objcopy cannot make local.
nm "$object" | awk '$2 == "u" { print $3, "wi_private_" $3 }' >"$object.unique"
"$objcopy" --strip-debug --keep-global-symbols="$object.names" --redefine-syms="$object.unique" "$object"
rm -f "$archive"
"$ar" rcs "$archive" "$object"
