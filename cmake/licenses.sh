#!/bin/sh
# licenses.sh OUT SYSROOT COMPILER FILE...: the licences of the packages that the files came from and of the compiler's
# own libraries, as the system's packages state them, in one file. SYSROOT: where packages of another architecture are
# unpacked, with the list of them in a folder dpkg beside it, or empty.
set -eu
out=$1 sysroot=$2 compiler=$3
shift 3
trap 'rm -f "$out.part"' EXIT
refuse() {
  echo "$*" >&2
  exit 1
}
mkdir -p "${out%/*}"
{
  echo "libwaveinfer is under the Apache License 2.0 (LICENSE). What follows are the licences of the libraries"
  echo "whose code a bundled libwaveinfer contains, one after the other, as Debian's packages state them."
  seen=
  for file in "$@" "$("$compiler" -print-file-name=libstdc++.a)" "$("$compiler" -print-libgcc-file-name)"; do
    file=$(realpath "$file") root= list=
    [ -z "$sysroot" ] || [ "${file#"$sysroot"/}" = "$file" ] || root=$sysroot list=--admindir=$sysroot/../dpkg
    package=$(dpkg-query ${list:+"$list"} -S "${file#"$root"}" 2>/dev/null | sed 's/:.*//;q')
    [ -n "$package" ] || refuse "no Debian package has $file"
    copyright=$(realpath "$root/usr/share/doc/$package/copyright")
    [ -f "$copyright" ] || refuse "there is no $copyright"
    case "$seen" in *" $copyright "*) continue ;; esac
    seen="$seen $copyright "
    printf '\n\n==== %s, from %s (%s)\n\n' "$(basename "$file")" "$package" \
      "$(dpkg-query ${list:+"$list"} -W -f='${Version}' "$package" | sed 's/ .*//')"
    cat "$copyright"
  done
  # What these refer to instead of saying it; documentation is not inside.
  # shellcheck disable=SC2086  # words
  for text in $(cat $seen | grep -o '/usr/share/common-licenses/[A-Za-z0-9.-]*[A-Za-z0-9]' | grep -v GFDL |
    xargs -n 1 realpath | sort -u); do
    printf '\n\n==== %s\n\n' "$text"
    cat "$text"
  done
} >"$out.part"
mv "$out.part" "$out"
