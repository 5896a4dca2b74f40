#!/usr/bin/env bash
# Makes src/bindings.rs from include/waveinfer.h. Run it when the header changes; builds don't need it. With --check it
# tells whether the file is what it would make.
#   cargo install bindgen-cli --version 0.73.2   # and libclang, Debian's libclang1-14 or newer
#   rust/waveinfer-sys/bindgen.sh
# The header's enumerations are written down with the types of the fields that hold them, int32_t, and
# uint32_t for the flags that are passed as such, so that constants need no casts.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
header=$here/../../include/waveinfer.h
to=$here/src/bindings.rs
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ "${1-}" = --check ]; then to=$work/bindings.rs; fi

sed -E -e 's/^enum (wi_(tokenize|detokenize|chat)_flag) \{/enum \1 : uint32_t {/' \
  -e 's/^enum (wi_[a-z_]+) \{/enum \1 : int32_t {/' "$header" >"$work/waveinfer.h"
bindgen "$work/waveinfer.h" --output "$to" --rustfmt-configuration-file "$(realpath "$here/../rustfmt.toml")" \
  --rust-target 1.78 --rust-edition 2021 --use-core --no-doc-comments \
  --allowlist-item '(wi|WI)_.*' --blocklist-item WI_VERSION \
  --default-enum-style consts --no-prepend-enum-name \
  --with-derive-default --raw-line '// Made from include/waveinfer.h by bindgen.sh, without its comments: that header is the manual of all that is here.' \
  -- -x c -Wno-microsoft-fixed-enum
diff -u "$here/src/bindings.rs" "$to"
