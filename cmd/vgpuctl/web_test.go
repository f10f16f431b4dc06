// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/cookiejar"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/cmd/vgpuctl/web"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// web prints its address, serves what status and jobs tell, and ends with its context.
func TestWebServesWhatGresdTells(t *testing.T) {
	socket := serve(t, exampleReply)
	listen := filepath.Join(t.TempDir(), "web.sock")
	// One that nobody listens at any more is no obstacle.
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: listen, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	left.Close()

	ctx, cancel := context.WithCancel(t.Context())
	reader, writer := io.Pipe()
	ended := make(chan int, 1)
	go func() {
		ended <- execute(ctx, []string{"--socket", socket, "--json", "web", "--no-queue", "--listen", listen}, writer, io.Discard)
	}()
	var told struct{ URL, Listen string }
	if err := json.NewDecoder(reader).Decode(&told); err != nil || told.Listen != listen || !strings.Contains(told.URL, "http://localhost:8899/?token=") {
		t.Fatalf("%v: %+v", err, told)
	}
	if info, err := os.Stat(listen); err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v: the socket has the mode %v: others may open it", err, info.Mode())
	}
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Jar: jar, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "unix", listen)
	}}}
	page, err := browser.Get(told.URL)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(page.Body)
	if err != nil || page.StatusCode != 200 || !strings.Contains(string(text), "<title>GPU shares</title>") {
		t.Fatalf("%v: %d: %s", err, page.StatusCode, text)
	}
	events, err := browser.Get(page.Request.URL.String() + "events")
	if err != nil {
		t.Fatal(err)
	}
	defer events.Body.Close()
	lines := bufio.NewScanner(events.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, is := strings.CutPrefix(lines.Text(), "data: ")
		if !is || !strings.Contains(data, "nodes") {
			continue
		}
		var sample struct {
			Nodes []struct {
				Status wire.Status
				Jobs   []wire.Job
			}
			Queue *[]web.Waiting
		}
		if err := json.Unmarshal([]byte(data), &sample); err != nil || len(sample.Nodes) != 1 || sample.Nodes[0].Status.Node != "n1" || len(sample.Nodes[0].Jobs) != 2 || sample.Queue != nil {
			t.Errorf("%v: %s", err, data)
		}
		break
	}
	if other, errs, code := run(t, "--socket", socket, "web", "--listen", listen); code != 1 || !strings.Contains(errs, "address already in use") {
		t.Errorf("a second one on the same socket: exit %d: %s%s", code, other, errs)
	}
	cancel()
	if code := <-ended; code != 0 {
		t.Errorf("exit %d", code)
	}
	if _, err := os.Stat(listen); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
}

func TestWebRefuses(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	socket := serve(t, exampleReply)
	for name, c := range map[string]struct {
		args []string
		say  string
		code int
	}{
		"the network":    {[]string{"--socket", socket, "web", "--listen", "0.0.0.0:8899"}, "want a loopback address", 2},
		"all of IPv6":    {[]string{"--socket", socket, "web", "--listen", "[::]:8899"}, "want a loopback address", 2},
		"a name":         {[]string{"--socket", socket, "web", "--listen", "node17:8899"}, "want a loopback address", 2},
		"no port":        {[]string{"--socket", socket, "web", "--listen", "127.0.0.1"}, "want a loopback address", 2},
		"a file":         {[]string{"--socket", socket, "web", "--listen", file}, "want a path where no file is", 1},
		"much too often": {[]string{"--socket", socket, "web", "--interval", "1ms"}, "want at least 500ms", 2},
		"no gresd":       {[]string{"--socket", "/nonexistent/gresd.sock", "web"}, "connect to gresd", 1},
	} {
		if out, errs, code := run(t, c.args...); code != c.code || !strings.Contains(errs, c.say) || out != "" {
			t.Errorf("%s: exit %d: %s%s, want %q", name, code, out, errs, c.say)
		}
	}
	if _, err := os.Stat(file); err != nil {
		t.Error("a file that is no socket was removed")
	}
}
