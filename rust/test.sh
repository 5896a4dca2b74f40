#!/usr/bin/env bash
# Everything that holds the Rust binding to its word, against a built library: `rust/test.sh BUILD [--all]` with a
# CMake build folder of the project. Formatting, lints, documentation, tests, the samples beside those in C, and a program
# outside the checkout that finds an installed library. Takes the system's Rust where there is none that is new enough.
#   --all   also: that the bindings are what bindgen makes of the header, for which it is compiled into BUILD, and
#               that the crate builds the library where nobody says where one is
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
[ $# -ge 1 ] && [ "${2---all}" = --all ] || { echo "usage: rust/test.sh BUILD [--all]" >&2; exit 1; }
build=$(cd "$1" && pwd)
. "$top/samples/setup.sh"
. "$top/tests/support/packages.sh"
. "$top/tests/support/help.sh"
. "$top/tests/support/long_document.sh"

work=$build/rust
model=$top/samples/model/needle-f16.gguf
passed=0
export WAVEINFER_BUILD_DIR=$build CARGO_TARGET_DIR=$work/target CARGO_TERM_COLOR=never LC_ALL=C

main() {
  local sample
  set_up g++ cmake pkg-config xz-utils ca-certificates "${packaging_packages[@]}"
  mkdir -p "$work"
  cd "$top/rust"
  find_rust
  load_into "$work/cargo"

  cargo fmt --check
  cargo clippy --locked --workspace --features stream --all-targets -- -D warnings
  cargo clippy --locked --workspace -- -D warnings
  RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --features stream --no-deps

  cargo test --locked --workspace --features stream 2>&1 | tee "$work/tests.log"
  passed=$(awk '/^test result: ok/ { passed += $4 } END { print passed + 0 }' "$work/tests.log")

  "$top/rust/bench.sh" "$build" --no-run
  cargo build --locked --examples
  xz -dc "$top/samples/text/kjv.txt.xz" >"$work/text.txt"
  head -c 30000 "$work/text.txt" >"$work/document.txt"
  {
    printf 'Hello there\nWho was Adam?\n\n'
    head -c 15000 "$work/document.txt" | tr '\n' '\0' # a line of any length and bytes is one turn
    printf '\nno newline'
  } >"$work/turns.txt"
  for sample in chat errors long_document save_load; do
    tells_how_it_is_used $sample "$CARGO_TARGET_DIR/debug/examples/$sample"
    passed=$((passed + 1))
  done
  compare chat "$model" <"$work/turns.txt"
  compare long_document "$model" "$work/document.txt" "Who was Noah?" "What did God make?" $'Who was Adam\xe9?'
  tells_progress_and_statistics "$work/long_document.log"
  ctrl_c_ends_reading_and_answering "$model" "$work/text.txt" "$work" "$CARGO_TARGET_DIR/debug/examples/long_document"
  passed=$((passed + 1))
  compare save_load "$model" $'In the beginning, caf\xe9' "$work/session"$'\xe9' # arguments are bytes, not all are UTF-8
  wanted=1 compare chat "$work"/absent$'\xe9'
  wanted=1 compare errors "$work"/absent$'\xe9' # the message is one more of what it shows
  compare errors "$model"
  use_from_outside
  if [ -e "$build/lib/libwaveinfer.a" ] || [ -e "$build/bundled/lib/libwaveinfer.a" ]; then
    use_as_a_part
  fi
  if [ $# = 2 ]; then
    bindings_are_what_bindgen_makes
    build_from_checkout
  fi
  echo "Rust: $passed tests passed"
}

# What is there, if it is new enough and has its tools; else what the system's packages have.
find_rust() {
  local missing packages folder=/usr/bin
  missing=$(missing_of_rust)
  [ -n "$missing" ] || return 0
  case $(. /etc/os-release && echo "${VERSION_CODENAME-}") in
    bookworm) packages=(rustc-web cargo-web rust-web-clippy rustfmt-web) ;;
    noble) packages=(rustc-1.80 cargo-1.80 rust-1.80-clippy rustfmt-1.80) folder=/usr/lib/rust-1.80/bin ;;
    *) packages=(rustc cargo rust-clippy rustfmt) ;;
  esac
  set_up "${packages[@]}"
  PATH=$folder:$PATH
  missing=$(missing_of_rust)
  [ -z "$missing" ] || { echo "rust: $missing is needed, and ${packages[*]} did not bring it" >&2; exit 1; }
}

missing_of_rust() {
  local version
  version=$(cargo --version 2>/dev/null | cut -d' ' -f2) || true
  if [ "$(printf '%s\n' 1.78 "$version" | sort -V | head -n 1)" != 1.78 ]; then
    echo "cargo 1.78 or newer"
  elif ! cargo fmt --version >/dev/null 2>&1; then
    echo "cargo fmt"
  elif ! cargo clippy --version >/dev/null 2>&1; then
    echo "cargo clippy"
  fi
}

# load_into FOLDER: what cargo loads is kept there; the registry that it is loaded from remains the user's.
load_into() {
  local own=${CARGO_HOME:-$HOME/.cargo} name
  mkdir -p "$1"
  for name in config config.toml; do
    rm -f "$1/$name"
    [ ! -e "$own/$name" ] || ln -s "$(realpath "$own/$name")" "$1/$name"
  done
  export CARGO_HOME=$1
}

# compare SAMPLE ARGUMENT...: its standard output is that of the sample in C; the status of both is $wanted, else 0.
compare() {
  local sample=$1 input=$work/input.txt c_status=0 status=0
  shift
  [ -t 0 ] && : >"$input" || cat >"$input"
  "$build/bin/sample_$sample" "$@" <"$input" >"$work/$sample.c.txt" 2>"$work/$sample.c.log" || c_status=$?
  "$CARGO_TARGET_DIR/debug/examples/$sample" "$@" <"$input" >"$work/$sample.txt" 2>"$work/$sample.log" || status=$?
  [ "$c_status $status" = "${wanted:-0} ${wanted:-0}" ] ||
    { cat "$work/$sample".{c.,}log >&2; echo "$sample: ended with $c_status in C, $status in Rust" >&2; exit 1; }
  cmp "$work/$sample.c.txt" "$work/$sample.txt" || exit 1
  [ -s "$work/$sample.txt" ] || [ -s "$work/$sample.log" ] || { echo "$sample: printed nothing" >&2; exit 1; }
  echo "sample $sample ... ok"
  passed=$((passed + 1))
}

# A crate of a user's, in a folder of its own, with the library from each of its packages, which pkg-config knows. The
# program is started as it lies there; with a library that is only shared, as from a bare `cmake --install`, by the run
# path that its documentation shows.
use_from_outside() {
  local outside=$work/outside config said
  local shared=("$outside"/installed/{shared,with_device}/lib/pkgconfig)
  rm -rf "$outside"
  mkdir -p "$outside/src"
  install_packages "$build" "$outside/installed"
  write_outside
  for config in "${configs[@]}"; do
    if [ ! -e "$config/../libwaveinfer.a" ]; then
      shared+=("$config")
      continue
    fi
    start_from_outside "$config"
    ! ldd "$outside/target/debug/outside" | grep waveinfer || exit 1
    echo "the library of ${config#"$outside/"} is found by pkg-config, and the program starts by itself ... ok"
    passed=$((passed + 1))
  done

  cp -a "$outside/installed/prefix" "$outside/installed/shared"
  rm -f "$outside/installed/shared/lib/libwaveinfer.a"
  cp -a "$outside/installed/prefix" "$outside/installed/with_device"
  touch "$outside/installed/with_device/lib/libwaveinfer_cuda.so" # which the library looks for beside itself
  echo 'waveinfer-sys = { path = "'"$top/rust/waveinfer-sys"'" }' >"$outside/direct"
  sed -i "/^waveinfer = /r $outside/direct" "$outside/Cargo.toml"
  { echo 'fn main() {' && sed -n 's,^//! \(println!.*\),\1,p' "$top/rust/waveinfer-sys/src/lib.rs" && echo '}'; } >"$outside/build.rs"
  for config in "${shared[@]}"; do
    start_from_outside "$config"
    ldd "$outside/target/debug/outside" | grep "libwaveinfer.so.2 => $(root_of "$config")/lib" >/dev/null ||
      { ldd "$outside/target/debug/outside" >&2; echo "rust: not the library of $config" >&2; exit 1; }
    echo "the library of ${config#"$outside/"} is loaded by the run path of the crate's documentation ... ok"
    passed=$((passed + 1))
  done
}

# start_from_outside CONFIG: with the library of that pkg-config folder.
start_from_outside() {
  (cd "$outside" && env -u WAVEINFER_BUILD_DIR PKG_CONFIG_PATH="$1" CARGO_TARGET_DIR="$outside/target" cargo build --quiet)
  said=$(env -u LD_LIBRARY_PATH "$outside/target/debug/outside")
  [ "$said" = "0.2.0 0" ] || { echo "a program outside the checkout said: $said" >&2; exit 1; }
  grep -rqs "libdir=$(root_of "$1")/" "$outside/target"/debug/build/waveinfer-sys-*/output ||
    { echo "the library of $1 was not found" >&2; exit 1; }
}

write_outside() {
  cat >"$outside/Cargo.toml" <<EOF
[package]
name = "outside"
edition = "2021"
[dependencies]
waveinfer = { path = "$top/rust/waveinfer" }
[workspace]
EOF
  cat >"$outside/src/main.rs" <<'EOF'
fn main() -> waveinfer::Result<()> {
    println!("{} {}", waveinfer::version(), waveinfer::Runtime::new()?.stats()?.sessions);
    Ok(())
}
EOF
}

# The feature `static`: a program that needs no libwaveinfer.so.
use_as_a_part() {
  local program
  CARGO_TARGET_DIR=$work/static cargo build --locked --features static --example errors
  program=$work/static/debug/examples/errors
  "$program" "$model" >"$work/errors.static.txt"
  cmp "$work/errors.c.txt" "$work/errors.static.txt" || exit 1
  ! ldd "$program" | grep waveinfer || exit 1
  echo "the library is a part of the program ... ok"
  passed=$((passed + 1))
}

bindings_are_what_bindgen_makes() {
  set_up libclang1-14
  local version
  version=$(sed -n 's/.*bindgen-cli --version \([0-9.]*\).*/\1/p' waveinfer-sys/bindgen.sh)
  [ "$("$work/bindgen/bin/bindgen" --version 2>/dev/null)" = "bindgen $version" ] ||
    CARGO_TARGET_DIR=$work/bindgen/target cargo install --quiet --locked --root "$work/bindgen" bindgen-cli --version "$version"
  PATH=$work/bindgen/bin:$PATH waveinfer-sys/bindgen.sh --check
  echo "the bindings are what bindgen makes of the header ... ok"
  passed=$((passed + 1))
}

# Where nothing is installed and no build folder is named: the crate's own way to a library.
build_from_checkout() {
  set_up "${build_packages[@]}"
  (unset WAVEINFER_BUILD_DIR && PKG_CONFIG_LIBDIR=$(without_waveinfer) CARGO_TARGET_DIR=$work/from_checkout \
    cargo build --locked --example errors)
  env -u LD_LIBRARY_PATH "$work/from_checkout/debug/examples/errors" "$model" | cmp - "$work/errors.c.txt" || exit 1
  echo "the crate builds the library from the checkout, and the program starts by itself ... ok"
  passed=$((passed + 1))
}

# pkg-config's folders, but those that have an installed waveinfer.pc.
without_waveinfer() {
  local folder kept=
  for folder in $(pkg-config --variable pc_path pkg-config | tr : ' '); do
    [ -e "$folder/waveinfer.pc" ] || kept=$kept:$folder
  done
  echo "${kept#:}"
}

main "$@"
