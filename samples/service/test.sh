#!/usr/bin/env bash
# All tests of the service in one command: `samples/service/test.sh BUILD [--browser] [--load]` with a build folder of
# the project, which has lib/libwaveinfer.so. Installs what is missing; everything that it makes is in BUILD/service
# and BUILD/go-cache.
#   --browser   also: the page, in Chromium
#   --load      50 clients for five minutes instead of ten seconds, and memory must be flat then: docs/measured.md, "A
#               service under load"
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
top=$(dirname "$(dirname "$here")")
. "$top/samples/setup.sh"
. "$top/go/toolchain.sh"

openai_version=3.54.0
selenium_version=4.51.0
# Of the clients, and most MiB that memory may grow by. In seconds, pools are still growing to their size.
load=(--time 10s --growth 128)
browser=

main() {
  [ $# -ge 1 ] && [ -e "$1/lib/libwaveinfer.so" ] || usage
  build=$(cd "$1" && pwd)
  for option in "${@:2}"; do
    case $option in
      --browser) browser=yes ;;
      --load) load=(--time 5m --growth 16) ;;
      *) usage ;;
    esac
  done
  work=$build/service
  mkdir -p "$work/bin"
  set_up gcc libc6-dev pkg-config ca-certificates xz-utils python3-venv ${browser:+chromium chromium-driver}
  command -v go >/dev/null || set_up golang-go
  use_fixed_go
  use_build_folder
  trap stop_service EXIT
  cd "$here"

  echo "== Service: format, vet, tests with the race detector"
  [ -z "$(gofmt -l .)" ] || { gofmt -d . >&2; exit 1; }
  go vet ./...
  go test -race -count=1 -v . >"$work/test.log" 2>&1 || {
    grep -v '^ *--- PASS\|^=== ' "$work/test.log" >&2
    grep '^ *--- FAIL' "$work/test.log" >&2 # once more, below hundreds of lines
    exit 1
  }
  passed=$(grep -c '^ *--- PASS' "$work/test.log")
  go build -o "$work/bin/" . ./load

  echo "== Service: OpenAI's own client"
  make_environment ${browser:+selenium==$selenium_version}
  check openai_client_test.py ends_it

  if [ -n "$browser" ]; then
    echo "== Service: the page in a browser"
    check page_test.py
  fi

  echo "== Service: 50 clients at once"
  start_service --parallel 32 --queue 16
  "$work/bin/load" --at "$address" --clients 50 "${load[@]}"
  stop_service
  echo "service: $((passed + 1)) tests passed"
}

usage() {
  echo "usage: samples/service/test.sh BUILD [--browser] [--load], BUILD a folder with lib/libwaveinfer.so" >&2
  exit 1
}

# make_environment PACKAGE...: Python's, with these and openai.
make_environment() {
  export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CACHE_DIR=$work/pip
  [ -e "$work/environment/bin/python" ] || python3 -m venv "$work/environment"
  "$work/environment/bin/pip" install -q openai==$openai_version "$@"
}

# check SCRIPT [ends_it]: runs it against a service of its own, which it may end itself: a second signal would cut
# that short. Its last word is how many tests have passed.
check() {
  start_service
  "$work/environment/bin/python" "$1" "$address" "$service" >"$work/$1.log" 2>&1 || { cat "$work/$1.log" >&2; exit 1; }
  if [ "${2-}" = ends_it ]; then await_service; else stop_service; fi
  passed=$((passed + $(tail -n 1 "$work/$1.log")))
}

# start_service OPTION...: with the sample model and no documents, at a free port.
start_service() {
  rm -rf "$work/documents" "$work/service.log" # the log of one before would say where that one was
  touch "$work/service.log"
  "$work/bin/service" --model "$top/samples/model/needle-f16.gguf" --documents "$work/documents" \
    --listen 127.0.0.1:0 "$@" 2>"$work/service.log" &
  service=$! address=
  for _ in $(seq 100); do
    address=$(sed -n 's/.* at=\(http:[^ ]*\).*/\1/p' "$work/service.log")
    [ -z "$address" ] || return 0
    kill -0 "$service" 2>/dev/null || break
    sleep 0.1
  done
  cat "$work/service.log" >&2
  return 1
}

stop_service() {
  [ -n "${service-}" ] || return 0
  kill "$service" 2>/dev/null || true
  await_service
}

# It must end in good order.
await_service() {
  local ending=$service status=0
  service=
  wait "$ending" || status=$?
  [ $status = 0 ] || { cat "$work/service.log" >&2; echo "test.sh: the service ended with status $status" >&2; exit 1; }
}

main "$@"
