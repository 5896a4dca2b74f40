#!/bin/sh
# man_page.sh OUT VERSION COMMAND...: a man page out of what a program says to --help: its name and what it does;
# options, whose descriptions all begin in one column; an example; and whatever else.
set -eu
out=$1 version=$2
shift 2
name=${out##*/}
name=${name%.1}
mkdir -p "${out%/*}"
trap 'rm -f "$out.part"' EXIT
"$@" --help >"$out.part.help"
awk -v name="$name" -v version="$version" '
  function roff(text) {
    gsub(/\\/, "\\e", text)
    gsub(/-/, "\\-", text)
    return text ~ /^[.\047]/ ? "\\&" text : text
  }
  function section(title) { if (title != current) print ".SH " title; current = title }
  NR == 1 {
    printf ".TH %s 1 \"\" \"waveinfer %s\" \"waveinfer\"\n", toupper(name), version
    section("NAME")
    sub(/^[^:]*: */, "")
    sub(/\.$/, "")
    print roff(name " - " $0)
    section("SYNOPSIS")
    printf ".B %s\n[options]\n", name
    next
  }
  /^  --/ {
    if (!column) { match($0, /[^ ]  +[^ ]/); column = RSTART + RLENGTH - 1 }
    option = substr($0, 3, column - 3)
    sub(/ +$/, "", option)
    section("OPTIONS")
    print ".TP\n.B " roff(option) "\n" roff(substr($0, column))
    next
  }
  /^   / && current == "OPTIONS" { sub(/^ +/, ""); print roff($0); next }
  sub(/^Example: /, "") { section("EXAMPLE"); print ".nf\n" roff($0) "\n.fi"; next }
  { section("NOTES"); print roff($0) }
  END { section("SEE ALSO"); print "The other programs of waveinfer: wi_ask(1), wi_chat(1), wi_logits(1), wi_tokens(1)." }
' "$out.part.help" >"$out.part"
rm "$out.part.help"
mv "$out.part" "$out"
