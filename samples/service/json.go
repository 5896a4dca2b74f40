package main

import (
	"bytes"
	"encoding/json"
	"iter"
	"strings"
)

// What a request sends may be many megabytes of little things, each of which would be some ten times as much as a
// value of Go's. So lists and objects are gone through where they lie, one element at a time, and whoever does that
// stops where there have been enough. The JSON must have been found valid.

// elementsOf are the elements of a list; of anything else, none.
func elementsOf(list []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		rest := inside(list, '[')
		for len(rest) > 0 {
			var element []byte
			if element, rest = cut(rest); !yield(element) {
				return
			}
		}
	}
}

// fieldsOf are the names and values of an object; of anything else, none.
func fieldsOf(object []byte) iter.Seq2[string, []byte] {
	return func(yield func(string, []byte) bool) {
		rest := inside(object, '{')
		for len(rest) > 0 {
			var key, value []byte
			key, rest = cut(rest)
			value, rest = cut(rest)
			var name string
			if json.Unmarshal(key, &name) != nil || !yield(name, value) {
				return
			}
		}
	}
}

const space = " \t\r\n"

func isList(data []byte) bool { return bytes.HasPrefix(bytes.TrimLeft(data, space), []byte("[")) }

// inside is what is within a list's or an object's brackets.
func inside(data []byte, bracket byte) []byte {
	data = bytes.Trim(data, space)
	if len(data) < 2 || data[0] != bracket {
		return nil
	}
	return bytes.Trim(data[1:len(data)-1], space)
}

// cut takes the first value, and what stands between it and the next.
func cut(data []byte) (value, rest []byte) {
	end := endOf(data)
	return data[:end], bytes.TrimLeft(data[end:], space+",:")
}

// endOf is where the value ends that data begins with.
func endOf(data []byte) int {
	depth, quoted := 0, false
	for i := 0; i < len(data); i++ {
		c := data[i]
		switch {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '[' || c == '{':
			depth++
		case c == ']' || c == '}':
			depth--
		case depth == 0 && strings.IndexByte(space+",:", c) >= 0: // behind a number or a word
			return i
		default:
			continue
		}
		if depth == 0 && !quoted {
			return i + 1
		}
	}
	return len(data)
}
