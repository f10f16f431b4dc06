// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

const grantLine = `{"op":"grant","job_id":7,"uid":33,"gid":33,"user":"www-data","account":"","partition":"main",` +
	`"gpus":[0],"options":{"mem":"8G"},"conf":"/etc/slurm/slurm.conf","node":"n1","restart":0}`

func TestDecodeRequest(t *testing.T) {
	want := Request{
		Op: OpGrant, JobID: 7, UID: 33, GID: 33, User: "www-data", Partition: "main",
		GPUs: []int{0}, Options: Options{Mem: "8G"}, Conf: "/etc/slurm/slurm.conf", Node: "n1",
	}
	got, err := DecodeRequest([]byte(grantLine + "\n"))
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v, %v; want %+v", got, err, want)
	}
}

func TestDecodeRefuses(t *testing.T) {
	for name, c := range map[string]struct{ line, say string }{
		"empty line":         {"", "one JSON object"},
		"array":              {`[{"op":"ping"}]`, "one JSON object"},
		"two objects":        {`{"op":"ping"}{"op":"ping"}`, "text after"},
		"unknown field":      {`{"op":"ping","force":true}`, "force"},
		"unknown option":     {`{"op":"grant","job_id":1,"options":{"memory":"8G"}}`, "memory"},
		"unknown op":         {`{"op":"drop"}`, "want grant, release"},
		"no op":              {`{}`, "want grant, release"},
		"no job":             {`{"op":"grant"}`, "wants a job id"},
		"negative job":       {`{"op":"release","job_id":-1}`, "job_id"},
		"huge job":           {`{"op":"release","job_id":4294967296}`, "job_id"},
		"fraction":           {`{"op":"release","job_id":1.5}`, "job_id"},
		"negative card":      {`{"op":"grant","job_id":1,"gpus":[-1]}`, "index from 0"},
		"card twice":         {`{"op":"grant","job_id":1,"gpus":[1,1]}`, "named twice"},
		"relative conf":      {`{"op":"grant","job_id":1,"conf":"slurm.conf"}`, "absolute path"},
		"newline in a name":  {`{"op":"grant","job_id":1,"user":"a\nb"}`, "control character"},
		"too long a name":    {`{"op":"grant","job_id":1,"user":"` + strings.Repeat("a", 5000) + `"}`, "want at most 1024"},
		"text after the end": {`{"op":"ping"} x`, "text after"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := DecodeRequest([]byte(c.line))
			if err == nil || !strings.Contains(err.Error(), c.say) {
				t.Fatalf("got %v, want an error with %q", err, c.say)
			}
		})
	}
}

func TestReadRequestLimits(t *testing.T) {
	long := `{"op":"ping","user":"` + strings.Repeat("a", MaxRequest) + "\"}\n"
	if _, err := ReadRequest(bufio.NewReader(strings.NewReader(long))); !errors.Is(err, ErrTooLong) {
		t.Errorf("long line: got %v, want ErrTooLong", err)
	}
	if _, err := ReadRequest(bufio.NewReader(strings.NewReader(`{"op":"ping"}`))); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("cut line: got %v, want unexpected EOF", err)
	}
	if _, err := ReadRequest(bufio.NewReader(strings.NewReader(""))); !errors.Is(err, io.EOF) {
		t.Errorf("no line: got %v, want EOF", err)
	}
}

func TestReadRequestTakesOneLineAtATime(t *testing.T) {
	r := bufio.NewReader(strings.NewReader("{\"op\":\"ping\"}\n" + grantLine + "\n"))
	first, err := ReadRequest(r)
	if err != nil || first.Op != OpPing {
		t.Fatalf("first: %+v, %v", first, err)
	}
	second, err := ReadRequest(r)
	if err != nil || second.JobID != 7 {
		t.Fatalf("second: %+v, %v", second, err)
	}
}

// serve answers each connection with answer; an empty answer keeps the client waiting.
func serve(t *testing.T, answer string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { close(done); l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			if _, err := ReadRequest(bufio.NewReader(conn)); err == nil && answer != "" {
				_, _ = io.WriteString(conn, answer)
				conn.Close()
				continue
			}
			<-done
			conn.Close()
		}
	}()
	return path
}

func TestClient(t *testing.T) {
	ping := Request{Op: OpPing}
	c := Client{Socket: serve(t, `{"ok":true,"result":"granted","message":"m","new_field":1}`+"\n")}
	rep, err := c.Do(context.Background(), ping)
	if err != nil || rep.Result != Granted || rep.Message != "m" {
		t.Errorf("answer: got %+v, %v", rep, err)
	}

	c = Client{Socket: serve(t, `{"ok":false,"kind":"node","message":"card lost"}`+"\n")}
	var refused *Error
	if _, err = c.Do(context.Background(), ping); !errors.As(err, &refused) || refused.Kind != KindNode {
		t.Errorf("error reply: got %v, want *Error of kind node", err)
	}

	c = Client{Socket: serve(t, ""), Timeout: 50 * time.Millisecond}
	start := time.Now()
	if _, err = c.Do(context.Background(), ping); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("silent server: got %v, want deadline exceeded", err)
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("silent server: waited %v", d)
	}

	c = Client{Socket: filepath.Join(t.TempDir(), "none")}
	if _, err = c.Do(context.Background(), ping); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no server: got %v, want not exist", err)
	}
}

func TestPeerCred(t *testing.T) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	got, err := PeerCred(conn.(*net.UnixConn))
	want := Cred{PID: int32(os.Getpid()), UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}
	if err != nil || got != want {
		t.Fatalf("got %+v, %v; want %+v", got, err, want)
	}
}

func FuzzDecodeRequest(f *testing.F) {
	for _, s := range []string{grantLine, `{"op":"ping"}`, `{"op":"release","job_id":9}`, `{"op":"grant","job_id":1,"gpus":[0,1]}`, "{", "{}{}", `{"OP":"ping"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		req, err := DecodeRequest(line)
		if err != nil {
			return
		}
		// What is accepted must survive a round trip, and never be two lines.
		var buf bytes.Buffer
		if err := WriteRequest(&buf, req); err != nil {
			t.Fatalf("accepted %q but cannot write it: %v", line, err)
		}
		if n := bytes.Count(buf.Bytes(), []byte("\n")); n != 1 {
			t.Fatalf("%d newlines in %q", n, buf.Bytes())
		}
		again, err := ReadRequest(bufio.NewReader(&buf))
		if err != nil {
			t.Fatalf("round trip of %q: %v", line, err)
		}
		// An empty list and no list mean the same.
		if len(req.GPUs) == 0 {
			req.GPUs, again.GPUs = nil, nil
		}
		if !reflect.DeepEqual(req, again) {
			t.Fatalf("round trip: %+v became %+v", req, again)
		}
	})
}
