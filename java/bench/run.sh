#!/usr/bin/env bash
# What this binding adds to a decode step in C: java/bench/run.sh BUILD, after java/test.sh BUILD. With a JAVA_HOME of
# 22 or later also what the foreign function and memory API would add. Turns of all, medians of five.
set -euo pipefail
build=$(cd "$1" && pwd)
bench=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(cd "$bench/../.." && pwd)
model=$top/samples/model/needle-f16.gguf
work=$build/java/bench
bin=${JAVA_HOME:+$JAVA_HOME/bin/}
version=$("${bin}java" -version 2>&1 | sed -n '1s/[^"]*"\([0-9]*\).*/\1/p')

mkdir -p "$work"
cc -O2 -I"$top/include" "$bench/decode_overhead.c" -o "$work/decode_overhead" -L"$build/lib" -lwaveinfer \
  -Wl,-rpath,"$build/lib"
classes=$build/java/waveinfer-0.2.0.jar:$work
"${bin}javac" -cp "$classes" -d "$work" "$bench/DecodeOverhead.java"
[ "$version" -lt 22 ] || "${bin}javac" -d "$work" "$bench/FfmDecode.java"

c() { "$work/decode_overhead" "$model"; }
java_() { "${bin}java" -cp "$classes" DecodeOverhead "$model"; }
ffm() { "${bin}java" --enable-native-access=ALL-UNNAMED -cp "$work" FfmDecode "$model" "$build/lib/libwaveinfer.so"; }

names=(c java_)
[ "$version" -lt 22 ] || names+=(ffm)
for name in "${names[@]}"; do rm -f "$work/$name.txt"; done
for turn in 1 2 3 4 5; do
  for name in "${names[@]}"; do "$name" 2>/dev/null >>"$work/$name.txt"; done
done

median() { cut -d' ' -f"$1" "$work/$2.txt" | sort -n | sed -n 3p; }
echo "Java $version: ns of a decode step, and of a decode that computes nothing (medians of five)"
for name in "${names[@]}"; do
  printf '%-6s %9s %9s   over C: %s\n' "${name%_}" "$(median 1 "$name")" "$(median 2 "$name")" \
    "$(($(median 2 "$name") - $(median 2 c)))"
done
