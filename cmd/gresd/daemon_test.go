// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
)

// hanging is a server that stops working.
type hanging struct{ mu sync.Mutex }

func (h *hanging) CheckLiveness() {
	h.mu.Lock()
	defer h.mu.Unlock()
}

func TestWatchdogStopsWhenTheServerHangs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer systemd.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	t.Setenv("WATCHDOG_USEC", "60000")
	t.Setenv("WATCHDOG_PID", strconv.Itoa(os.Getpid()))
	ctx, cancel := context.WithCancel(t.Context())
	srv, done := &hanging{}, make(chan struct{})
	go func() { watchdog(ctx, srv); close(done) }()

	heard := func(wait time.Duration) string {
		buf := make([]byte, 64)
		_ = systemd.SetReadDeadline(time.Now().Add(wait))
		n, _ := systemd.Read(buf)
		return string(buf[:n])
	}
	if got := heard(5 * time.Second); got != "WATCHDOG=1" {
		t.Errorf("systemd heard %q, want WATCHDOG=1", got)
	}
	srv.mu.Lock()
	for heard(100*time.Millisecond) != "" { // what was under way
	}
	if got := heard(200 * time.Millisecond); got != "" {
		t.Errorf("systemd heard %q from a server that hangs", got)
	}
	srv.mu.Unlock()
	cancel()
	<-done
}

func TestOpenLedger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "ledger.json")
	log := slog.New(slog.DiscardHandler)
	open := func(wantLost bool) {
		t.Helper()
		records, lost, err := openLedger(path, log)
		if err != nil || lost != wantLost {
			t.Fatalf("lost %v, %v; want %v", lost, err, wantLost)
		}
		if err := records.Commit(ledger.Record{JobID: 7, State: ledger.Refused, Reason: "x", Created: time.Now()}); err != nil {
			t.Fatal(err)
		}
		if err := records.Close(); err != nil {
			t.Fatal(err)
		}
	}
	open(true) // a first start
	open(false)
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	open(true)
}
