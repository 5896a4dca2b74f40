package main

import (
	_ "embed"
	"net/http"
)

//go:embed page.html
var pageHTML []byte

// page is GET /: one page to drop a document on and to ask. It has no parts elsewhere.
func (s *service) page(w http.ResponseWriter, r *http.Request) error {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy",
		"default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; frame-ancestors 'none'")
	w.Write(pageHTML)
	return nil
}
