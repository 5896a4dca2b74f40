#!/usr/bin/env bash
# What this binding adds to a decode step in C: java/bench/run.sh BUILD [TARGET [TURNS ROUNDS]], after java/test.sh
# BUILD [TARGET]. With a JAVA_HOME of 22 or later also what the same API over the foreign function and memory API
# adds, and what becomes of a VM whose callback throws under it. All take turns; medians of rounds, then of turns.
set -euo pipefail
build=$(cd "$1" && pwd)
target=$(cd "${2:-$build/java}" && pwd)
turns=${3:-5} rounds=${4:-400}
bench=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(cd "$bench/../.." && pwd)
model=$top/samples/model/needle-f16.gguf
work=$target/bench
libraries=$target/native/lib # the jar's: all here call the same
bin=${JAVA_HOME:+$JAVA_HOME/bin/}
version=$("${bin}java" -version 2>&1 | sed -n '1s/[^"]*"\([0-9]*\).*/\1/p')

mkdir -p "$work"
cc -O2 -Wall -Wextra -Werror -I"$top/include" "$bench/decode_overhead.c" -o "$work/decode_overhead" \
  "$libraries/libwaveinfer.so.2" -Wl,-rpath,"$libraries"
sources=("$bench/DecodeOverhead.java")
[ "$version" -lt 22 ] || sources+=("$bench"/Ffm*.java)
"${bin}javac" -Xlint:all -Werror -cp "$target/waveinfer-0.2.0.jar" -d "$work" "${sources[@]}"

run_java() {
  "${bin}java" --enable-native-access=ALL-UNNAMED -Dwaveinfer.library.path="$libraries" \
    -cp "$target/waveinfer-0.2.0.jar:$work" "$@"
}
c() { "$work/decode_overhead" "$model" "$rounds"; }
java_() { run_java "waveinfer.$([ "$version" -lt 22 ] && echo DecodeOverhead || echo FfmDecode)" "$model" "$rounds"; }

rm -f "$work"/{c,jni,ffm}.txt
for ((turn = 0; turn < turns; turn++)); do
  c >>"$work/c.txt"
  java_ >"$work/java.txt"
  sed -n 1p "$work/java.txt" >>"$work/jni.txt"
  [ "$version" -lt 22 ] || sed -n 2p "$work/java.txt" >>"$work/ffm.txt"
done
[ "$(cut -d' ' -f5 "$work"/{c,jni}.txt | sort -u | wc -l)" = 1 ] || { echo "the answers differ" >&2; exit 1; }

median() { cut -d' ' -f"$1" "$work/$2.txt" | sort -n | sed -n "$((turns / 2 + 1))p"; }
echo "Java $version, ns: a decode step, a decode that computes nothing (medians of $turns)"
printf '%-4s %9s %9s\n' C "$(median 1 c)" "$(median 2 c)"
printf '%-4s %9s %9s   over C: %s\n' JNI "$(median 1 jni)" "$(median 2 jni)" "$(($(median 2 jni) - $(median 2 c)))"
[ "$version" -ge 22 ] || exit 0
printf '%-4s %9s %9s   over JNI, of rounds side by side: %s %s\n' FFM "$(median 1 ffm)" "$(median 2 ffm)" \
  "$(median 3 ffm)" "$(median 4 ffm)"
status=0
run_java waveinfer.FfmThrows "$model" 2>&1 || status=$?
echo "the VM ends with status $status"
