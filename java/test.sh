#!/usr/bin/env bash
# Tests the Java binding against a build of the library: java/test.sh BUILD [TARGET], a CMake build folder. Installs
# what is missing, builds and downloads under TARGET, which is BUILD/java unless given, checks format and
# documentation, runs all tests and the samples. With the JDK of JAVA_HOME, if that is set.
set -euo pipefail
[ $# = 1 ] || [ $# = 2 ] || { echo "usage: java/test.sh BUILD [TARGET]" >&2; exit 1; }
build=$(cd "$1" && pwd)
java=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(dirname "$java")
. "$top/samples/setup.sh"
. "$top/tests/support/packages.sh"
. "$top/tests/support/help.sh"
. "$top/tests/support/long_document.sh"

target=${2:-$build/java}
mkdir -p "$target"
target=$(cd "$target" && pwd)
formatter=com.google.googlejavaformat:google-java-format:1.17.0:jar:all-deps
export LC_ALL=C.UTF-8 CMAKE_GENERATOR=Ninja

main() {
  set_up openjdk-17-jdk-headless maven swig gcc libc6-dev cmake ninja-build pkg-config clang-format-14 xz-utils \
    "${packaging_packages[@]}"
  check_format # with the system's JDK: this formatter knows none that is much newer
  [ -z "${JAVA_HOME:-}" ] || PATH=$JAVA_HOME/bin:$PATH
  echo "== Java: build, tests and documentation"
  maven package || exit 1
  no_jni_rule_is_broken
  the_samples_print_what_those_in_c_print
  the_benches_measure_the_same_answer
  the_jar_has_what_it_needs
  a_jar_of_an_installed_library_is_used_elsewhere
  echo "Java: $tests tests passed"
}

# What -Xcheck:jni says lands in the log or, as it is not Surefire's own, in files beside the reports.
no_jni_rule_is_broken() {
  local found
  found=$(grep -hE 'WARNING in native method|WARNING: JNI|FATAL ERROR in native' "$target/maven.log" \
    $(find "$target/surefire-reports" -name '*.dump*')) || return 0
  echo "$found" >&2
  return 1
}

# maven ARGUMENT...: says only what went wrong, and counts tests. What it downloads stays in the build folder.
maven() {
  local log=$target/maven.log
  if ! mvn -B -Dstyle.color=never -f "$java/pom.xml" -Dmaven.repo.local="$target/m2" -Dwaveinfer.build="$build" \
    -Dwaveinfer.target="$target" "$@" >"$log" 2>&1; then
    grep -E '^\[(ERROR|WARNING)\]' "$log" | head -n 60 >&2
    echo "the whole log is $log" >&2
    return 1
  fi
  tests=$(sed -n 's/^\[\(INFO\|WARNING\)\] Tests run: \([0-9]*\), Failures: 0, Errors: 0, Skipped: 0$/\2/p' "$log")
}

check_format() {
  echo "== Java: format"
  local jar=$target/google-java-format-1.17.0-all-deps.jar
  [ -e "$jar" ] || maven dependency:copy -Dartifact="$formatter" -DoutputDirectory="$target"
  find "$java" -name target -prune -o -name '*.java' -print0 |
    xargs -0 java -jar "$jar" --dry-run --set-exit-if-changed
  clang-format-14 --dry-run --Werror "$top"/swig/*.[ch] "$java"/bench/*.c
}

the_samples_print_what_those_in_c_print() {
  local model=$top/samples/model/needle-f16.gguf work=$target/samples
  local first="What is the secret ingredient of the river harbor?" second="Who was Adam, and naïve?" sample
  mkdir -p "$work"
  for sample in Chat Errors LongDocument SaveLoad; do
    tells_how_it_is_used $sample java -cp "$target/waveinfer-0.2.0.jar" "$java/examples/$sample.java"
    tests=$((tests + 1))
  done
  xz -dc "$top/samples/text/kjv.txt.xz" >"$work/text.txt"
  head -c 60000 "$work/text.txt" >"$work/document.txt"
  printf 'Hello there, naïve\nWhat is the secret?\n\nAnd then?' >"$work/turns.txt"
  compare Errors errors "$model"
  fails_with=1 compare Errors errors "$work/missing"
  compare SaveLoad save_load "$model" "In the beginning" "$work/session.wi"
  compare Chat chat "$model" <"$work/turns.txt"
  compare LongDocument long_document "$model" "$work/document.txt" "$first" "$second"
  tells_progress_and_statistics "$work/LongDocument.err"
  ctrl_c_ends_reading_and_answering "$model" "$work/text.txt" "$work" \
    java -cp "$target/waveinfer-0.2.0.jar" "$java/examples/LongDocument.java"
  tests=$((tests + 1))
  # A document and turns that are no UTF-8.
  printf 'The \xff secret ingredient\xc3 of the river.\n' >"$work/bytes.txt"
  compare LongDocument long_document "$model" "$work/bytes.txt" "$first" "$second"
  printf 'Gr\xfc\xdfe\r\n\xff' >"$work/bytes.txt"
  compare Chat chat "$model" <"$work/bytes.txt"
  fails_with=1 compare LongDocument long_document "$model" "$work/missing" "$first"
}

# compare JAVA C ARGUMENT...: the two get the same standard input; both succeed, or end with fails_with, and Java
# without a stack trace.
compare() {
  local sample=$1 program=sample_$2 work=$target/samples status=${fails_with:-0} of_c=0 of_java=0
  shift 2
  cat >"$work/input"
  echo "== Java: $sample.java prints what $program prints"
  [ -x "$build/bin/$program" ] || { echo "$build/bin/$program is missing" >&2; return 1; }
  # With the jar's own library: the other one's products round otherwise.
  LD_LIBRARY_PATH=$build/bundled/lib "$build/bin/$program" "$@" \
    <"$work/input" >"$work/$sample.c.txt" 2>"$work/$sample.err" || of_c=$?
  java -cp "$target/waveinfer-0.2.0.jar" "$java/examples/$sample.java" "$@" \
    <"$work/input" >"$work/$sample.txt" 2>"$work/$sample.err" || of_java=$?
  if [ "$of_c $of_java" != "$status $status" ] || grep -qE '^(Exception in|\sat )' "$work/$sample.err"; then
    echo "$sample: status $of_c, in Java $of_java" >&2
    cat "$work/$sample.err" >&2
    return 1
  fi
  cmp "$work/$sample.c.txt" "$work/$sample.txt"
  tests=$((tests + 1))
}

the_benches_measure_the_same_answer() {
  echo "== Java: a few rounds of the benches"
  "$java/bench/run.sh" "$build" "$target" 1 3 >"$target/bench.txt" || return 1
  tests=$((tests + 1))
}

# Where there is a bundled library, the jar is to run where nothing but the C library is.
the_jar_has_what_it_needs() {
  local folder=$target/unpacked needed
  echo "== Java: what is in the jar"
  rm -rf "$folder"
  mkdir "$folder"
  (cd "$folder" && jar -xf "$target/waveinfer-0.2.0.jar")
  [ -s "$folder/META-INF/LICENSE" ] || { echo "the jar has no licence" >&2; return 1; }
  if [ -e "$build/bundled/lib" ]; then
    needed=$(readelf -d "$folder"/waveinfer/native/linux-*/*.so* | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
      grep -vE '^(libc|libm|libpthread|libdl|libwaveinfer)\.so|^ld-linux' || true)
    [ -z "$needed" ] || { echo "the jar's libraries need" $needed >&2; return 1; }
    cmp "$build/bundled/lib/LICENSES" "$folder/META-INF/LICENSES"
  fi
  tests=$((tests + 1))
}

# A user's program in a folder of its own, with a jar that was made of the library from each of its packages.
a_jar_of_an_installed_library_is_used_elsewhere() {
  local elsewhere=$target/elsewhere config passed=$tests said made
  echo "== Java: a program elsewhere uses an installed library"
  rm -rf "$elsewhere"
  mkdir "$elsewhere"
  install_packages "$build" "$elsewhere/installed"
  cat >"$elsewhere/Elsewhere.java" <<'END'
import waveinfer.WaveRuntime;

public class Elsewhere {
  public static void main(String[] arguments) {
    try (WaveRuntime runtime = WaveRuntime.create()) {
      System.out.println(WaveRuntime.libraryVersion() + " " + runtime.stats().sessions());
    }
  }
}
END
  for config in "${configs[@]}"; do
    made=$elsewhere/target
    rm -rf "$made" "$elsewhere/waveinfer"
    PKG_CONFIG_PATH=$config maven -Dwaveinfer.build= -Dwaveinfer.target="$made" -DskipTests \
      -Dmaven.javadoc.skip=true package
    grep -q "^bound_library:FILEPATH=$(root_of "$config")/" "$made/native/CMakeCache.txt" ||
      { echo "the jar was made of another library than that of $config" >&2; return 1; }
    # With the flag that package-info.java names, no VM warns.
    said=$(cd "$elsewhere" &&
      java --enable-native-access=ALL-UNNAMED -cp target/waveinfer-0.2.0.jar Elsewhere.java 2>&1) || true
    [ "$said" = "0.2.0 0" ] || { echo "a program elsewhere said: $said" >&2; return 1; }
    (cd "$elsewhere" && jar -xf target/waveinfer-0.2.0.jar waveinfer/native)
    cmp "$elsewhere"/waveinfer/native/linux-*/libwaveinfer.so.2 "$config/../libwaveinfer.so.2"
    passed=$((passed + 1))
  done
  tests=$passed
}

main </dev/null
