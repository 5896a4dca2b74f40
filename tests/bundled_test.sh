#!/bin/sh
# What the bundled libraries need, hold, export and weigh, and that they compute what the other one does.
# usage: bundled_test.sh LIBRARIES BIN SOURCE C_COMPILER
set -eu
libraries=$1 bin=$2 source=$3 compiler=$4
library=$libraries/libwaveinfer.so archive=$libraries/libwaveinfer.a
model=$source/samples/model/needle-f16.gguf

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
fail() {
  echo "bundled_test: $*" >&2
  exit 1
}
names() { nm "$@" --defined-only | awk '$2 ~ /^[BDRTVWGuiI]$/ && $3 !~ /^WAVEINFER_/ { sub(/@.*/, "", $3); print $3 }' | sort; }

# What it needs.
needed=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p')
others=$(printf '%s\n' "$needed" | grep -vE '^(libc|libm|libpthread|libdl)\.so|^ld-linux' || true)
[ -z "$others" ] || fail "the library needs" $others
if readelf -d "$library" | grep -E 'R(UN)?PATH|TEXTREL'; then fail "the library has a run path or text relocations"; fi
glibc=$(nm -D --undefined-only "$library" | grep -o '@GLIBC_[0-9.]*' | sort -Vu | tail -n 1)

# What it exports, and what the archive does.
sed -n 's/^ *\(wi_[a-z_]*\);$/\1/p' "$source/src/waveinfer.map" | sort >"$folder/header"
names -D "$library" >"$folder/exported"
diff "$folder/header" "$folder/exported" || fail "the library exports other names than the header's"
names "$archive" | grep -v '^wi_private_' >"$folder/global"
diff "$folder/header" "$folder/global" || fail "the archive has other global names than the header's"

# What it weighs: as packages have it, and as README.md says.
most=$(sed -n 's/.*nothing but the C library (under \([0-9]*\) MB.*/\1/p' "$source/README.md")
[ -n "$most" ] || fail "README.md does not say how large the library is"
strip -o "$folder/stripped" "$library"
bytes=$(wc -c <"$folder/stripped")
[ "$bytes" -lt "${most}000000" ] || fail "$bytes bytes stripped, README.md says under $most MB"

# Whose code it holds.
for owner in libpcre2 libutf8proc libxxhash liburing libhwy nlohmann libstdc++; do
  [ "$owner" = liburing ] && ! [ -e "$(find /usr/lib* -name liburing.a -print -quit)" ] && continue
  grep -q "^==== .* from $owner" "$libraries/LICENSES" || fail "LICENSES says nothing of $owner"
done
grep -q 'GCC RUNTIME LIBRARY EXCEPTION' "$libraries/LICENSES" || fail "LICENSES lacks a text"

# That a C program runs with it, and with the archive, and that nothing else comes along.
cat >"$folder/program.c" <<'END'
#include <stdio.h>
#include <string.h>
#include <waveinfer.h>
int main(int argc, char** argv) {
  wi_error error = {.struct_size = sizeof error};
  wi_event event = {.struct_size = sizeof event};
  wi_runtime* runtime = NULL;
  wi_model* model = NULL;
  wi_session* session = NULL;
  char line[4096];
  if (argc < 2 || wi_runtime_create(NULL, &runtime, &error) ||
      wi_model_open(runtime, argv[1], NULL, NULL, &model, &error) ||
      wi_session_create(model, NULL, &session, &error) ||
      wi_session_append_text(session, "In the beginning", 16, WI_TOKENIZE_ADD_BOS, NULL, NULL, &error))
    return fprintf(stderr, "%s\n", error.message), 1;
  for (int i = 0; i < 16 && event.kind == WI_EVENT_TOKEN; i++)
    if (wi_session_decode(session, NULL, &event, &error)) return fprintf(stderr, "%s\n", error.message), 1;
  /* an error is thrown and caught inside */
  if (wi_model_open(runtime, "/nowhere.gguf", NULL, NULL, &model, &error) != WI_E_IO) return 2;
  FILE* maps = fopen("/proc/self/maps", "r");
  while (fgets(line, sizeof line, maps))
    if (strchr(line, '/')) fputs(strchr(line, '/'), stdout);
  wi_session_release(session);
  wi_runtime_release(runtime);
  return fclose(maps);
}
END
"$compiler" -I"$source/include" "$folder/program.c" -o "$folder/shared" "$library"
"$compiler" -I"$source/include" "$folder/program.c" -o "$folder/static" "$archive" -lstdc++ -lm -pthread -ldl
for kind in shared static; do
  LD_LIBRARY_PATH=$libraries "$folder/$kind" "$model" >"$folder/maps" || fail "the program with the $kind library"
  # mimalloc is opened where it is installed, and a program with the archive brings its own libstdc++.
  loaded=$(grep -o '[^/]*\.so[.0-9]*$' "$folder/maps" | sort -u |
    grep -vE '^(libc|libm|libpthread|libdl|libmimalloc)\.so|^ld-linux|^libwaveinfer' || true)
  [ $kind = shared ] || loaded=$(printf '%s\n' "$loaded" | grep -vE '^lib(stdc\+\+|gcc_s)\.so' || true)
  [ -z "$loaded" ] || fail "the program with the $kind library loads" $loaded
done

# That it computes the same, to the bit where sums are in f32.
if [ -x "$bin/wi_logits" ]; then
  text='In the beginning God created the heaven and the earth.'
  for which in "$libraries" "$bin/../lib"; do
    LD_LIBRARY_PATH=$which "$bin/wi_logits" --model "$model" --text "$text" --precision f32
    LD_LIBRARY_PATH=$which ldd "$bin/wi_logits" | grep "=> $which/libwaveinfer" >/dev/null || fail "it ran with another library"
  done >"$folder/logits"
  half=$(($(wc -c <"$folder/logits") / 2))
  [ "$half" -gt 0 ] && head -c $half "$folder/logits" >"$folder/first"
  tail -c $half "$folder/logits" | cmp - "$folder/first" || fail "the logits are not those of the other library"
fi

echo "bundled: $bytes bytes stripped, needs" $needed "(up to ${glibc#@})"
