// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"time"
)

// NewToken returns what nobody can guess.
func NewToken() string {
	var b [24]byte
	_, _ = rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Server serves the page to who has Token.
type Server struct {
	Token string
	Feed  *Feed
}

// derived is a secret made of the token, one for each use.
func (s *Server) derived(use string) string {
	sum := sha256.Sum256([]byte(use + "\x00" + s.Token))
	return hex.EncodeToString(sum[:16])
}

// Base is the path below which the page is. Browsers send a cookie to all ports of a
// host, those of other users among them: the path, which these cannot know, keeps it
// from them.
func (s *Server) Base() string { return "/" + s.derived("path") + "/" }

const cookieName = "vgpuctl"

// policy lets the page load what it brings, run no text as a program, and be in no frame.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// Handler serves the page, its events and nothing else.
func (s *Server) Handler() http.Handler {
	files, err := fs.Sub(page, "page")
	if err != nil {
		panic(err) // it is embedded
	}
	base := s.Base()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", s.enter)
	mux.Handle("GET "+base, s.known(http.StripPrefix(base, http.FileServerFS(files))))
	mux.Handle("GET "+base+"events", s.known(http.HandlerFunc(s.events)))
	mux.HandleFunc("GET /", func(w http.ResponseWriter, _ *http.Request) { refuse(w, http.StatusNotFound, "there is no such page") })
	return guard(mux)
}

// guard refuses what no window on this page asks, before anything is looked at.
func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := w.Header()
		for name, value := range map[string]string{
			"Content-Security-Policy":      policy,
			"Cache-Control":                "no-store",
			"Cross-Origin-Opener-Policy":   "same-origin",
			"Cross-Origin-Resource-Policy": "same-origin",
			"Referrer-Policy":              "no-referrer",
			"X-Content-Type-Options":       "nosniff",
			"X-Frame-Options":              "DENY",
		} {
			head.Set(name, value)
		}
		origin, site := r.Header.Get("Origin"), r.Header.Get("Sec-Fetch-Site")
		opened := r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document"
		switch {
		case !isLoopback(r.Host):
			// A name of another site that points here would make the page that site's.
			refuse(w, http.StatusMisdirectedRequest, "want an address of this machine, such as localhost")
		case r.Method != http.MethodGet:
			head.Set("Allow", http.MethodGet)
			refuse(w, http.StatusMethodNotAllowed, "want GET")
		case origin != "" && origin != "http://"+r.Host,
			site != "" && site != "same-origin" && site != "none" && !opened:
			refuse(w, http.StatusForbidden, "another site may not ask")
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// isLoopback says whether a Host names this machine, whatever the port: ssh forwards
// any to here.
func isLoopback(hostport string) bool {
	host := hostport
	if h, _, err := net.SplitHostPort(hostport); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	ip := net.ParseIP(host)
	return strings.EqualFold(host, "localhost") || ip != nil && ip.IsLoopback()
}

// enter changes the token of the address for a cookie, so that the address of the page,
// which a history keeps, does not let anybody in.
func (s *Server) enter(w http.ResponseWriter, r *http.Request) {
	if !equal(r.URL.Query().Get("token"), s.Token) {
		refuse(w, http.StatusForbidden, "open the address that vgpuctl web printed, with its token")
		return
	}
	http.SetCookie(w, &http.Cookie{
		Name: cookieName, Value: s.derived("cookie"), Path: s.Base(), HttpOnly: true, SameSite: http.SameSiteStrictMode,
	})
	http.Redirect(w, r, s.Base(), http.StatusSeeOther)
}

// known lets in who has the cookie.
func (s *Server) known(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := r.Cookie(cookieName)
		if err != nil || !equal(c.Value, s.derived("cookie")) {
			refuse(w, http.StatusForbidden, "open the address that vgpuctl web printed, with its token")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// equal takes as long for a wrong guess as for a nearly right one.
func equal(a, b string) bool {
	x, y := sha256.Sum256([]byte(a)), sha256.Sum256([]byte(b))
	return subtle.ConstantTimeCompare(x[:], y[:]) == 1
}

func refuse(w http.ResponseWriter, status int, why string) {
	http.Error(w, "vgpuctl web: "+why, status)
}

// writeTime is how long a viewer may take for one sample.
const writeTime = 10 * time.Second

func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	first, next, leave, err := s.Feed.watch()
	if err != nil {
		refuse(w, http.StatusServiceUnavailable, err.Error())
		return
	}
	defer leave()
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	send := func(e event) error {
		if err := out.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
			return err
		}
		if _, err := fmt.Fprintf(w, "event: %s\ndata: %s\n\n", e.name, e.data); err != nil {
			return err
		}
		return out.Flush()
	}
	hello := struct {
		EveryMS int64 `json:"every_ms"`
		KeepMS  int64 `json:"keep_ms"`
	}{s.Feed.Every.Milliseconds(), keep.Milliseconds()}
	for _, e := range append([]event{encode("hello", hello)}, first...) {
		if send(e) != nil {
			return
		}
	}
	for {
		select {
		case <-r.Context().Done():
			return
		case e := <-next:
			if send(e) != nil {
				return
			}
		}
	}
}

// Serve answers on a listener until ctx is done.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler:           s.Handler(),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
	}
	stop := context.AfterFunc(ctx, func() { server.Close() })
	defer stop()
	if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the page: %w", err)
	}
	return nil
}
