// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// newServer is a control daemon of MPS as far as a client sees it, and its server, a process that
// ends with the test. env is what clients get.
func newServer(t *testing.T) (server *os.Process, env []string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "mps") // short: a socket is in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	listener, err := net.Listen("unix", filepath.Join(dir, "control"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	go func() { // ends with the listener
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			if _, err := bufio.NewReader(conn).ReadString('\n'); err == nil {
				fmt.Fprintln(conn, cmd.Process.Pid)
			}
			_ = conn.Close()
		}
	}()
	return cmd.Process, []string{"CUDA_MPS_PIPE_DIRECTORY=" + dir}
}

// did is what the work of tenants would have taken alone, of a second, by the card's own count: what a
// client measures of its own kernels beside others is too long. late is how late they were.
func did(t *testing.T, m *Machine, tenants ...*tenant) (got, late []float64) {
	t.Helper()
	waitFor(t, "all work", func() bool {
		all := contexts(m, tenants)
		for _, c := range all {
			if c.BusyNS < 3e8 {
				return false
			}
		}
		return all != nil
	})
	return busyShares(m, tenants, 2*time.Second)
}

func TestClientsOfAServerRunBesideEachOther(t *testing.T) {
	for _, c := range []struct {
		name      string
		parts     []int
		low, high float64
	}{
		{"two that fill the card", []int{100, 100}, 0.48, 0.52},
		{"two halves", []int{50, 50}, 0.96, 1.02},
		{"two of two thirds", []int{67, 67}, 0.72, 0.78},
		{"four that fill it", []int{100, 100, 100, 100}, 0.235, 0.265},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			m, state := newMachine(t, "one-card")
			_, env := newServer(t)
			var tenants []*tenant
			for _, part := range c.parts {
				tenants = append(tenants, startTenantWith(t, state, env, "--part", strconv.Itoa(part), "--kernel-us", "1000", "--saturate", "60"))
			}
			got, late := did(t, m, tenants...)
			bounded(t, got, late, [2]float64{c.low, c.high})
		})
	}
}

// For the card's scheduler a server with all its clients is one context, with one slice.
func TestAServerIsOneContextBesideOthers(t *testing.T) {
	t.Parallel()
	m, state := newMachine(t, "one-card")
	_, env := newServer(t)
	args := []string{"--kernel-us", "200", "--saturate", "60"}
	got, late := did(t, m, startTenantWith(t, state, env, args...), startTenantWith(t, state, env, args...), startTenant(t, state, args...))
	bounded(t, got, late, [2]float64{0.21, 0.24}, [2]float64{0.21, 0.24}, [2]float64{0.43, 0.475})
}

// Clients lose their work with their server, and nobody else does.
func TestClientsEndWithTheirServer(t *testing.T) {
	t.Parallel()
	_, state := newMachine(t, "one-card")
	server, env := newServer(t)
	client := startTenantWith(t, state, env, "--kernel-us", "200", "--saturate", "60")
	other := startTenant(t, state, "--kernel-us", "200", "--saturate", "4")
	time.Sleep(time.Second)
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := server.Wait(); err != nil {
		t.Fatal(err)
	}
	if err := client.cmd.Wait(); err == nil {
		t.Error("the client ended without an error")
	}
	other.next()
}
