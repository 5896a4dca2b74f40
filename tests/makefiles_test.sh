#!/bin/sh
# With make, CMake's default, an object that a target takes from another is made before it: make knows the files of a
# target only in that target's own makefile, and would say that there is no rule to make them. Ninja knows them all.
# usage: makefiles_test.sh CMAKE SOURCE_DIR WORK_DIR OPTION...
set -eu
cmake=$1 source=$2 work=$3
shift 3
rm -rf "$work"
mkdir -p "$work"
"$cmake" -S "$source" -B "$work" -G "Unix Makefiles" "$@" >"$work/log.txt" 2>&1 || { cat "$work/log.txt" >&2; exit 1; }
cd "$work"

# In build.make: "FILE: CMakeFiles/OTHER.dir/some.o"; in Makefile2: "CMakeFiles/TARGET.dir/all: CMakeFiles/OTHER.dir/all".
taken=$(find . -name build.make -exec grep -EH '^[^#	][^:]*: [^ ]*CMakeFiles/[^ ]*\.o$' {} + |
  sed -E 's,^\./([^:]*\.dir)/build\.make:[^:]*: ([^ ]*CMakeFiles/[^/]*\.dir)/.*,\1 \2,' | sort -u | awk '$1 != $2')
echo "$taken" | awk '
  FNR == NR { if (match($0, /^[^ ]*\.dir\/all: [^ ]*\.dir\/all$/)) { sub(/\/all: /, " "); sub(/\/all$/, ""); first[$0] = 1 } next }
  function reaches(from, to, edge, ends) {
    if ((from " " to) in first) return 1
    if (from in been) return 0
    been[from] = 1
    for (edge in first) { split(edge, ends, " "); if (ends[1] == from && reaches(ends[2], to)) return 1 }
    return 0
  }
  { ++count; delete been; if (!reaches($1, $2)) { print $1 " takes objects of " $2 ", which may not be made yet"; wrong = 1 } }
  END { if (wrong || !count) exit 1; print "makefiles: " count " times objects of other targets, each made before" }
' CMakeFiles/Makefile2 -
