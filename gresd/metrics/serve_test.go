// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// Whoever opens connections and says nothing takes at most so many, and they are
// there again for others when they end.
func TestSilentScrapersTakeFewConnections(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serveMetrics(ctx, listener, New("1", "").registry) }()
	defer func() { cancel(); <-served }()
	var silent []net.Conn
	closed := 0
	for range 3 * mostConns {
		conn, err := net.Dial("tcp", listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		silent = append(silent, conn)
	}
	for _, conn := range silent[mostConns:] { // they are taken in their order
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		if _, err := conn.Read(make([]byte, 1)); err != nil && !strings.Contains(err.Error(), "timeout") {
			closed++
		}
	}
	if closed != 2*mostConns {
		t.Errorf("%d connections were ended, want %d", closed, 2*mostConns)
	}
	for _, conn := range silent {
		conn.Close()
	}
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		resp, err := http.Get("http://" + listener.Addr().String() + "/metrics")
		if err == nil {
			text, _ := io.ReadAll(resp.Body)
			resp.Body.Close()
			if strings.Contains(string(text), "vgpu_build_info") {
				return
			}
		}
		if time.Now().After(end) {
			t.Fatalf("no answer after they have ended: %v", err)
		}
	}
}
