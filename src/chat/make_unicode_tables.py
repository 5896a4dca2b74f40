#!/usr/bin/env python3
"""Writes unicode_tables.h beside this file: what Python's str methods know of characters, from Python itself."""
import pathlib
import unicodedata

CODES = [code for code in range(128, 0x110000) if not 0xD800 <= code < 0xE000]


def ranges(name, holds):
    found = []
    for code in CODES:
        if holds(chr(code)):
            if found and found[-1][1] == code - 1:
                found[-1][1] = code
            else:
                found.append([code, code])
    lines = [f"inline constexpr CodeRange {name}[] = {{"]
    line = "   "
    for first, last in found:
        entry = f" {{{first:#x}, {last:#x}}},"
        if len(line) + len(entry) > 108:
            lines.append(line)
            line = "   "
        line += entry
    return lines + [line, "};"]


def mapping(name, method):
    """Characters that become one other: ranges of a constant difference, of every or every second character."""
    simple, full = {}, {}
    for code in CODES:
        to = method(chr(code))
        if len(to) == 1 and to != chr(code):
            simple[code] = ord(to) - code
        elif len(to) > 1:
            full[code] = [ord(c) for c in to]
    found = []
    for code, delta in simple.items():
        if found:
            last = found[-1]
            if last[2] == delta and code - last[1] in ((1, 2) if last[0] == last[1] else (last[3],)):
                last[3] = code - last[1]
                last[1] = code
                continue
        found.append([code, code, delta, 1])
    lines, line = [f"inline constexpr CaseRange k{name}[] = {{"], "   "
    for first, last, delta, stride in found:
        entry = f" {{{first:#x}, {last:#x}, {delta}, {stride}}},"
        if len(line) + len(entry) > 108:
            lines.append(line)
            line = "   "
        line += entry
    lines += [line, "};", f"inline constexpr FullCase k{name}Full[] = {{"]
    line = "   "
    for code, to in full.items():
        entry = f" {{{code:#x}, {{{', '.join(hex(c) for c in to)}}}}},"
        if len(line) + len(entry) > 108:
            lines.append(line)
            line = "   "
        line += entry
    return lines + [line, "};"]


def is_cased(c):
    # Python's own answer: a cased character ends the title-case of the one that follows.
    return (c + "A").title()[-1] == "a"


def is_ignorable(c):
    # Between a letter and a final sigma, ignorable characters do not count.
    return not is_cased(c) and ("A" + c + "\u03a3").lower()[-1] == "\u03c2"


def main():
    text = ["// Made by make_unicode_tables.py, not by hand: characters above ASCII as str methods of Python see them",
            f"// (Unicode {unicodedata.unidata_version}).",
            "// clang-format off", "#pragma once", "", "namespace wi::chat::tables {", "",
            "struct CodeRange { char32_t first, last; };",
            "struct CaseRange { char32_t first, last; int delta, stride; };",
            "struct FullCase { char32_t from, to[3]; };", ""]
    text += mapping("Upper", str.upper) + mapping("Lower", str.lower) + mapping("Title", str.title)
    text += ranges("kCased", is_cased) + ranges("kCaseIgnorable", is_ignorable)
    text += ranges("kUnprintable", lambda c: not c.isprintable())
    # Decimal digits come in tens: the zero of each.
    zeros = [code for code in CODES if unicodedata.decimal(chr(code), None) == 0]
    assert all(unicodedata.decimal(chr(zero + i)) == i for zero in zeros for i in range(10))
    assert sum(unicodedata.decimal(chr(code), None) is not None for code in CODES) == 10 * len(zeros)
    line, lines = "   ", ["inline constexpr char32_t kZeros[] = {"]
    for zero in zeros:
        if len(line) + len(f" {zero:#x},") > 108:
            lines.append(line)
            line = "   "
        line += f" {zero:#x},"
    text += lines + [line, "};"]
    text += ["", "}  // namespace wi::chat::tables", ""]
    (pathlib.Path(__file__).parent / "unicode_tables.h").write_text("\n".join(text))


if __name__ == "__main__":
    main()
