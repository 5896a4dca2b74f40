#!/usr/bin/env bash
# All tests of the Go binding in one command: `go/test.sh BUILD` with a build folder of the project, which has
# lib/libwaveinfer.so, bin/sample_chat and the other samples in C. Installs what is missing; everything that
# it makes is in BUILD/go and BUILD/go-cache.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(dirname "$here")
. "$top/samples/setup.sh"
. "$top/tests/support/packages.sh"
. "$top/tests/support/help.sh"
. "$top/tests/support/long_document.sh"
. "$here/toolchain.sh"

# The staticcheck that knows the Go of toolchain.sh.
staticcheck_version=v0.6.1

main() {
  [ $# = 1 ] && [ -e "$1/lib/libwaveinfer.so" ] || { echo "usage: go/test.sh BUILD, a folder with lib/libwaveinfer.so" >&2; exit 1; }
  build=$(cd "$1" && pwd)
  work=$build/go
  mkdir -p "$work/bin"

  set_up gcc libc6-dev cmake pkg-config ca-certificates xz-utils "${packaging_packages[@]}"
  command -v go >/dev/null || set_up golang-go
  use_fixed_go
  use_build_folder
  cd "$here"

  echo "== Go: format, vet, staticcheck"
  [ -z "$(gofmt -l .)" ] || { gofmt -d . >&2; exit 1; }
  GOBIN=$work/bin go install "honnef.co/go/tools/cmd/staticcheck@$staticcheck_version"
  go vet ./...
  "$work/bin/staticcheck" -checks all ./...

  echo "== Go: tests, with the race detector and checks of cgo's pointers"
  GOEXPERIMENT=cgocheck2 go test -race -count=1 -v . >"$work/test.log" 2>&1 || { grep -v '^ *--- PASS\|^=== ' "$work/test.log" >&2; exit 1; }
  local passed sample
  passed=$(grep -c '^ *--- PASS' "$work/test.log")

  echo "== Go: the benchmark compiles"
  go test -c -o "$work/bin/bench" ./bench
  echo "== Go: samples say how they are used, and print what those in C print"
  go build -o "$work/bin/" ./examples/...
  for sample in chat errors long_document save_load; do tells_how_it_is_used $sample "$work/bin/$sample"; done
  samples_print_what_those_in_c_print
  echo "== Go: the program in README.md builds as it is printed, and writes what the one in C writes"
  the_program_in_the_readme_builds_as_it_is_printed
  echo "== Go: a module elsewhere uses an installed library"
  a_module_elsewhere_uses_an_installed_library

  echo "Go: $((passed + 15)) tests passed"
}

samples_print_what_those_in_c_print() {
  local model=$top/samples/model/needle-f16.gguf document=$work/document.txt
  local facts=("The password of Boaz the potter is copper meadow." "The magic word of the tower of Ruth is silver thistle.")
  local questions=("What is the password of Boaz the potter?" "What is the magic word of the tower of Ruth?")
  xz -dc "$top/samples/text/kjv.txt.xz" >"$work/text.txt"
  { head -c 12000 "$work/text.txt"; printf '\n%s\n' "${facts[@]}"; tail -c 12000 "$work/text.txt"; } >"$document"
  same chat "$model" < <(
    printf '%s\n' "${facts[0]}" "${questions[0]}" "" # an empty line is a turn too
    head -c 15000 "$work/text.txt" | tr '\n' '\0'      # and so is a long one, with any bytes
    printf '\nlast, without a line end'
  )
  same long_document "$model" "$document" "${questions[@]}"
  tells_progress_and_statistics "$work/long_document.go.err"
  ctrl_c_ends_reading_and_answering "$model" "$work/text.txt" "$work" "$work/bin/long_document"
  same save_load "$model" "In the beginning" "$work/saved.wis"
  same errors "$model"
  wanted=1 same errors "$work/absent.gguf" # the message is one more of what it shows
}

# same SAMPLE ARGUMENT...: in Go and in C, with the same input; their status is to be $wanted, else 0.
same() {
  local sample=$1 c_status=0 status=0
  shift
  cat >"$work/$sample.in"
  "$build/bin/sample_$sample" "$@" <"$work/$sample.in" >"$work/$sample.c.out" 2>"$work/$sample.c.err" || c_status=$?
  "$work/bin/$sample" "$@" <"$work/$sample.in" >"$work/$sample.go.out" 2>"$work/$sample.go.err" || status=$?
  [ "$c_status $status" = "${wanted:-0} ${wanted:-0}" ] ||
    { cat "$work/$sample".{c,go}.err >&2; echo "$sample: ended with $c_status in C, $status in Go" >&2; exit 1; }
  cmp "$work/$sample.c.out" "$work/$sample.go.out"
}

the_program_in_the_readme_builds_as_it_is_printed() (
  local readme=$work/readme
  rm -rf "$readme"
  mkdir "$readme"
  cd "$readme"
  sed -n '/^```go$/,/^```$/p' "$top/README.md" | sed '1d;$d' >main.go
  make_module readme
  [ -z "$(gofmt -l .)" ] || { gofmt -d . >&2; exit 1; }
  go vet .
  go build -o program .
  ln -s "$top/samples/model/needle-f16.gguf" model.gguf # as it is called there
  ./program >go.out
  "$build/bin/embed" model.gguf "Once upon a time" >c.out
  [ -s c.out ] && cmp c.out go.out
)

# make_module NAME: in this folder, by the command that the package's documentation gives.
make_module() {
  go mod init "example.com/$1" 2>/dev/null
  go mod edit -require=waveinfer@v0.2.0 -replace=waveinfer="$here"
}

# With the library from each of its packages: the program finds it when it is built and when it runs.
a_module_elsewhere_uses_an_installed_library() {
  local elsewhere=$work/elsewhere config said loads
  rm -rf "$elsewhere"
  mkdir "$elsewhere"
  cd "$elsewhere"
  install_packages "$build" "$elsewhere/installed"
  cat >main.go <<'END'
package main

import (
	"fmt"
	"log"

	"waveinfer"
)

func main() {
	runtime, err := waveinfer.NewRuntime(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer runtime.Close()
	stats, err := runtime.Stats()
	fmt.Println(waveinfer.Version(), stats.Sessions, err)
}
END
  make_module elsewhere
  for config in "${configs[@]}"; do
    find_library_in "$config"
    go build -o elsewhere .
    said=$(env -u LD_LIBRARY_PATH ./elsewhere)
    [ "$said" = "0.2.0 0 <nil>" ] || { echo "a module elsewhere said: $said" >&2; exit 1; }
    loads=$(env -u LD_LIBRARY_PATH ldd elsewhere)
    grep -q "=> $(root_of "$config")/.*libwaveinfer" <<<"$loads" ||
      { echo "it does not load the library of $config: $loads" >&2; exit 1; }
  done
}

main "$@"
