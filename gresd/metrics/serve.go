// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// Serve answers scrapes on a loopback address until ctx is done; another address
// is refused. Every user of the node can read what is there: series of jobs, which Slurm may keep
// private (PrivateData), only where the site wants it.
func (m *Metrics) Serve(ctx context.Context, address string, jobs bool) error {
	listener, err := listenTCP(ctx, address, "127.0.0.1:9464")
	if err != nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	if jobs {
		return serveMetrics(ctx, listener, m.registry)
	}
	return serveMetrics(ctx, listener, m.public)
}

// ServeAll answers scrapes of all series on a Unix socket, for root and a group, "" for root alone.
func (m *Metrics) ServeAll(ctx context.Context, path, group string) error {
	gid := 0
	if group != "" {
		found, err := user.LookupGroup(group)
		if err == nil {
			gid, err = strconv.Atoi(found.Gid)
		}
		if err != nil {
			return fmt.Errorf("serve metrics: %w", err)
		}
	}
	listener, err := wire.MakeSocket(path, gid, 0o660)
	if err != nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return serveMetrics(ctx, listener, m.registry)
}

func serveMetrics(ctx context.Context, listener net.Listener, of prometheus.Gatherer) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(of, promhttp.HandlerOpts{
		MaxRequestsInFlight: 4, Timeout: 10 * time.Second,
	}))
	if err := serve(ctx, listener, mux, 20*time.Second); err != nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}

// ServeProfiles answers "go tool pprof" until ctx is done, on a loopback
// address or, for root alone, on the Unix socket of an absolute path.
func ServeProfiles(ctx context.Context, address string) error {
	var listener net.Listener
	var err error
	if strings.HasPrefix(address, "/") {
		listener, err = wire.MakeSocket(address, 0, 0o600)
	} else {
		listener, err = listenTCP(ctx, address, "127.0.0.1:6060")
	}
	if err == nil {
		// As long as the longest profile that somebody asks for.
		err = serve(ctx, listener, profiles(), 10*time.Minute)
	}
	if err != nil {
		return fmt.Errorf("serve profiles: %w", err)
	}
	return nil
}

func profiles() *http.ServeMux {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("POST /debug/pprof/symbol", pprof.Symbol)
	return mux
}

func listenTCP(ctx context.Context, address, example string) (net.Listener, error) {
	if !config.IsLoopback(address) {
		return nil, fmt.Errorf("address %q: want a loopback address, for example %s", address, example)
	}
	var lc net.ListenConfig
	return lc.Listen(ctx, "tcp", address)
}

func serve(ctx context.Context, listener net.Listener, handler http.Handler, write time.Duration) error {
	server := &http.Server{
		Handler: handler, ReadTimeout: 10 * time.Second, WriteTimeout: write,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(&few{listener, make(chan struct{}, mostConns)}); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// mostConns are open at once: every user of the node can connect to a loopback
// address, and what they open must not be what the jobs' requests lack.
const mostConns = 64

// few ends the connections above a number at once.
type few struct {
	net.Listener
	open chan struct{}
}

func (f *few) Accept() (net.Conn, error) {
	for {
		conn, err := f.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case f.open <- struct{}{}:
			return &counted{Conn: conn, done: sync.OnceFunc(func() { <-f.open })}, nil
		default:
			_ = conn.Close()
		}
	}
}

type counted struct {
	net.Conn
	done func()
}

func (c *counted) Close() error {
	defer c.done()
	return c.Conn.Close()
}
