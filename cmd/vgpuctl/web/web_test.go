// SPDX-License-Identifier: Apache-2.0

package web

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/cmd/vgpuctl/top"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

func ptr[T any](v T) *T { return &v }

// ask is one request, and what was answered.
func ask(s *Server, method, path string, head map[string]string) *http.Response {
	r := httptest.NewRequest(method, "http://localhost:8899"+path, nil)
	for name, value := range head {
		if name == "Host" {
			r.Host = value
		} else {
			r.Header.Set(name, value)
		}
	}
	w := httptest.NewRecorder()
	s.Handler().ServeHTTP(w, r)
	return w.Result()
}

func newServer() *Server {
	return &Server{Token: "secret", Feed: &Feed{Every: time.Millisecond, Ask: func(context.Context) (Sample, error) { return Sample{}, nil }}}
}

func TestWhoIsLetIn(t *testing.T) {
	s := newServer()
	entered := ask(s, "GET", "/?token=secret", nil)
	cookie := entered.Header.Get("Set-Cookie")
	for _, want := range []string{"Path=" + s.Base() + ";", "HttpOnly", "SameSite=Strict"} {
		if !strings.Contains(cookie, want) {
			t.Errorf("cookie %q: want %s", cookie, want)
		}
	}
	if entered.StatusCode != http.StatusSeeOther || entered.Header.Get("Location") != s.Base() || strings.Contains(s.Base()+cookie, "secret") {
		t.Fatalf("%d to %s with %s: want the page, and the token no more", entered.StatusCode, entered.Header.Get("Location"), cookie)
	}
	with := strings.SplitN(cookie, ";", 2)[0]
	own := map[string]string{"Sec-Fetch-Site": "same-origin"}
	for name, c := range map[string]struct {
		method, path string
		head         map[string]string
		want         int
	}{
		"the page":                             {"GET", s.Base(), own, 200},
		"its parts":                            {"GET", s.Base() + "page.js", own, 200},
		"another port, as ssh forwards it":     {"GET", s.Base(), map[string]string{"Host": "127.0.0.1:1234", "Origin": "http://127.0.0.1:1234"}, 200},
		"IPv6":                                 {"GET", s.Base(), map[string]string{"Host": "[::1]:1234"}, 200},
		"a link on another site":               {"GET", s.Base(), map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 200},
		"no such file":                         {"GET", s.Base() + "other", own, 404},
		"a name that is bound to this machine": {"GET", s.Base(), map[string]string{"Host": "evil.example"}, 421},
		"a name that begins like one":          {"GET", s.Base(), map[string]string{"Host": "localhost.evil.example:8899"}, 421},
		"no name":                              {"GET", s.Base(), map[string]string{"Host": ""}, 421},
		"an address of the network":            {"GET", s.Base(), map[string]string{"Host": "10.0.0.7:8899"}, 421},
		"a script of another site":             {"GET", s.Base() + "events", map[string]string{"Origin": "http://evil.example"}, 403},
		"a script of another port":             {"GET", s.Base() + "events", map[string]string{"Sec-Fetch-Site": "same-site"}, 403},
		"a frame on another site":              {"GET", s.Base(), map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, 403},
		"another method":                       {"POST", s.Base(), own, 405},
		"another method, from elsewhere":       {"DELETE", "/", nil, 405},
		"the path without its end":             {"GET", "/other", nil, 404},
	} {
		t.Run(name, func(t *testing.T) {
			head := map[string]string{"Cookie": with}
			for k, v := range c.head {
				head[k] = v
			}
			got := ask(s, c.method, c.path, head)
			if got.StatusCode != c.want {
				t.Errorf("%d, want %d", got.StatusCode, c.want)
			}
			if p := got.Header.Get("Content-Security-Policy"); p != policy {
				t.Errorf("the policy is %q", p)
			}
		})
	}
	for _, path := range []string{"/", "/?token=", "/?token=secre", "/?token=secrett", "/?token=SECRET", s.Base(), s.Base() + "events", s.Base() + "page.js"} {
		for _, wrong := range []string{"", "vgpuctl=", "vgpuctl=secret", with + "0"} {
			if got := ask(s, "GET", path, map[string]string{"Cookie": wrong}); got.StatusCode != http.StatusForbidden {
				t.Errorf("%s with the cookie %q: %d, want 403", path, wrong, got.StatusCode)
			}
		}
	}
	if other := (&Server{Token: "another"}); other.Base() == s.Base() {
		t.Error("another token has the same path")
	}
	if a, b := NewToken(), NewToken(); a == b || len(a) < 32 {
		t.Errorf("tokens %s and %s", a, b)
	}
}

// Nothing of the page comes from elsewhere, or is text that runs. (tests/web sees what a browser loads.)
func TestPolicyIsStrict(t *testing.T) {
	for _, part := range strings.Split(policy, "; ") {
		name, value, _ := strings.Cut(part, " ")
		if value != "'self'" && value != "'none'" && value != "'script'" {
			t.Errorf("%s: %s", name, value)
		}
	}
	err := fs.WalkDir(page, "page", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || strings.Contains(path, "/vendor/") || !strings.HasSuffix(path, ".html") && !strings.HasSuffix(path, ".css") && !strings.HasSuffix(path, ".js") {
			return err
		}
		text, err := page.ReadFile(path)
		for _, wrong := range []string{"https://", "http://", "@import", "url(", "<style", " onclick=", " style="} {
			if strings.Contains(string(text), wrong) {
				t.Errorf("%s has %q", path, wrong)
			}
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// What others wrote is what tools/web-vendor took from npm.
func TestVendoredFilesAreUnchanged(t *testing.T) {
	sums, err := page.ReadFile("page/vendor/SHA256SUMS")
	if err != nil {
		t.Fatal(err)
	}
	named := 1 // itself
	for line := range strings.Lines(string(sums)) {
		want, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		text, err := page.ReadFile("page/vendor/" + name)
		if sum := sha256.Sum256(text); err != nil || hex.EncodeToString(sum[:]) != want {
			t.Errorf("%s: %v, or another sum: run tools/web-vendor", name, err)
		}
		named++
	}
	if files, _ := page.ReadDir("page/vendor"); len(files) != named {
		t.Errorf("%d files, %d of them in SHA256SUMS", len(files), named)
	}
}

// viewer reads events of a server.
type viewer struct {
	lines *bufio.Reader
	end   func()
}

func look(t *testing.T, address string, s *Server) *viewer {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", address+s.Base()+"events", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.AddCookie(&http.Cookie{Name: cookieName, Value: s.derived("cookie")})
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { answer.Body.Close() })
	if answer.StatusCode != 200 || answer.Header.Get("Content-Type") != "text/event-stream" {
		text, _ := io.ReadAll(answer.Body)
		t.Fatalf("%d %s: %s", answer.StatusCode, answer.Header.Get("Content-Type"), text)
	}
	return &viewer{bufio.NewReader(answer.Body), func() { answer.Body.Close() }}
}

// next returns the next event.
func (v *viewer) next(t *testing.T) (name string, data []byte) {
	t.Helper()
	for {
		line, err := v.lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch key {
		case "event":
			name = value
		case "data":
			data = []byte(value)
		case "":
			return name, data
		}
	}
}

// until reads events up to one of that name.
func (v *viewer) until(t *testing.T, want string) []byte {
	t.Helper()
	for {
		if name, data := v.next(t); name == want {
			return data
		}
	}
}

// All viewers see the same answers, which are asked for once each; nobody asks when
// the last has gone, and who comes later sees what was.
func TestOnePollForAllViewers(t *testing.T) {
	var asked, beside atomic.Int64
	beginning := time.Now()
	s := newServer()
	s.Feed.Ask = func(ctx context.Context) (Sample, error) {
		if beside.Add(1) > 1 {
			t.Error("asked while another question waits")
		}
		defer beside.Add(-1)
		n := asked.Add(1)
		if n == 3 {
			return Sample{}, errors.New("gresd is away")
		}
		return Sample{At: beginning.Add(time.Duration(n) * time.Second), Nodes: []top.Sample{{Jobs: []wire.Job{
			{JobID: 7, Cards: []wire.JobCard{{UUID: "GPU-a", GotPercent: ptr(float64(n) + 0.123)}, {UUID: "GPU-b"}}},
		}}}}, nil
	}
	if got := asked.Load(); got != 0 {
		t.Fatalf("asked %d times, and nobody looks", got)
	}
	server := httptest.NewServer(s.Handler())
	defer server.Close()
	first := look(t, server.URL, s)
	if name, data := first.next(t); name != "hello" || !strings.Contains(string(data), `"keep_ms":300000`) {
		t.Errorf("%s %s", name, data)
	}
	first.until(t, "sample")
	if data := first.until(t, "problem"); !strings.Contains(string(data), "gresd is away") {
		t.Errorf("problem %s", data)
	}
	first.until(t, "sample")

	var all struct {
		Past   past
		Sample Sample
	}
	second := look(t, server.URL, s)
	if err := json.Unmarshal(second.until(t, "all"), &all); err != nil {
		t.Fatal(err)
	}
	got := all.Past.Got["7/GPU-a"]
	if len(all.Past.Times) < 3 || len(got) != len(all.Past.Times) || *got[0] != 1.1 || *got[1] != 2.1 || len(all.Past.Got) != 2 {
		t.Errorf("the past is %+v", all.Past)
	}
	second.until(t, "sample")
	first.end()
	second.until(t, "sample") // it goes on for who is left
	second.until(t, "sample")
	second.end()
	for last := int64(-1); last != asked.Load(); time.Sleep(100 * time.Millisecond) {
		last = asked.Load()
	}
	third := look(t, server.URL, s)
	third.until(t, "all")
	third.until(t, "sample")
	third.end()
}

// The past has an end, and jobs that have ended none.
func TestPastIsBounded(t *testing.T) {
	var f Feed
	begin := time.Now()
	for i := range 1000 {
		job := wire.Job{JobID: uint32(1 + i/500), Cards: []wire.JobCard{{UUID: "GPU-a", GotPercent: ptr(1.0)}}}
		f.remember(Sample{At: begin.Add(time.Duration(i) * 2 * time.Second), Nodes: []top.Sample{{Jobs: []wire.Job{job}}}})
	}
	n := len(f.past.Times)
	if n != 151 || len(f.past.Got) != 1 || len(f.past.Got["2/GPU-a"]) != n {
		t.Errorf("%d times, columns %d", n, len(f.past.Got))
	}
	f.remember(Sample{At: begin.Add(2000 * time.Second), Nodes: []top.Sample{{Jobs: []wire.Job{{JobID: 3, Cards: []wire.JobCard{{UUID: "GPU-a"}}}}}}})
	text, err := json.Marshal(f.past)
	if err != nil || !strings.HasSuffix(string(text), `"3/GPU-a":[`+strings.Repeat("null,", 150)+`null]}}`) {
		t.Errorf("%v: %s", err, text)
	}
}

// A slow viewer misses samples, and keeps nobody waiting; too many are sent away.
func TestViewersAreBounded(t *testing.T) {
	s := newServer()
	for range mostViewers {
		_, next, leave, err := s.Feed.watch()
		if err != nil {
			t.Fatal(err)
		}
		defer leave()
		defer func() {
			if len(next) > 1 {
				t.Error("samples pile up")
			}
		}()
	}
	if got := ask(s, "GET", s.Base()+"events", map[string]string{"Cookie": cookieName + "=" + s.derived("cookie")}); got.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("one more viewer: %d", got.StatusCode)
	}
}
