# Sourced by the scripts that test the samples of a language: what all of them say of themselves.

# tells_how_it_is_used NAME COMMAND...: with -h and with --help a sample says what it wants, with an example, on standard
# output, and opens no model for that: of this name there is none.
tells_how_it_is_used() {
  local name=$1 said option
  shift
  for option in -h --help; do
    if ! said=$("$@" $option </dev/null) || ! grep -qE "^usage: .*\\b$name\\b.* MODEL" <<<"$said" ||
      ! grep -qE "^Example: .*\\b$name\\b.* m\\.gguf" <<<"$said"; then
      echo "$name $option says: $said" >&2
      return 1
    fi
  done
}
