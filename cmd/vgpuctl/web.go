// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurm-vgpu/slurm-vgpu/cmd/vgpuctl/top"
	"github.com/slurm-vgpu/slurm-vgpu/cmd/vgpuctl/web"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// queueEvery is how often the page asks Slurm who waits, for all its viewers.
const queueEvery = 30 * time.Second

func (s *settings) webCommand() *cobra.Command {
	listen, every, noQueue := "127.0.0.1:0", 2*time.Second, false
	cmd := &cobra.Command{
		Use:   "web",
		Short: "Show live in a browser what the cards and jobs do",
		Long: "Serve a page that shows live what the cards and jobs do, to a browser, until it is ended by Ctrl-C. It prints the address, " +
			"with a token: who has it sees what you see. It listens on loopback or a Unix socket; " +
			"from another machine, ssh -L leads there. gresd is asked only while somebody looks.",
		Example: "vgpuctl web\nvgpuctl web --listen 127.0.0.1:8899\nvgpuctl web --listen /tmp/me/vgpu.sock",
		Args:    cobra.NoArgs,

		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if every < 500*time.Millisecond {
				return fmt.Errorf("--interval: %s: want at least 500ms", every)
			}
			if !strings.HasPrefix(listen, "/") && !config.IsLoopback(listen) { // other machines could reach it
				return fmt.Errorf("--listen: %q: want a loopback address with a port or the path of a Unix socket, e.g. 127.0.0.1:8899; from another machine: ssh -L", listen)
			}
			return failed(s.web(cmd, listen, every, !noQueue))
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&listen, "listen", listen, "`ADDRESS`: loopback and a port (0: any), or the path of a Unix socket that you alone may open")
	flags.DurationVar(&every, "interval", every, "`TIME` between two looks")
	flags.BoolVar(&noQueue, "no-queue", false, "do not ask Slurm for jobs that wait for a share")
	complete(cmd, "interval", "1s", "2s", "5s", "10s")
	return cmd
}

func (s *settings) web(cmd *cobra.Command, listen string, every time.Duration, withQueue bool) error {
	samples, done := s.source(mostFeeds)
	defer done()
	// A first answer, so that a node without gresd says so here, and not in the browser.
	if _, err := samples(cmd.Context()); err != nil {
		return err
	}
	ask := s.webSource(samples, withQueue)
	l, err := listenLocal(cmd.Context(), listen)
	if err != nil {
		return fmt.Errorf("web: %w", err)
	}
	defer l.Close()
	server := &web.Server{Token: web.NewToken(), Feed: &web.Feed{Ask: ask, Every: every}}
	told := struct {
		URL    string `json:"url"` // a socket's: with the port that ssh -L gives it here
		Listen string `json:"listen"`
	}{Listen: l.Addr().String()}
	const forwarded = "localhost:8899"
	told.URL = "http://" + told.Listen + "/?token=" + server.Token
	if l.Addr().Network() == "unix" {
		told.URL = "http://" + forwarded + "/?token=" + server.Token
	}
	err = s.print(cmd.OutOrStdout(), told, func(w io.Writer) error {
		host, _ := os.Hostname()
		_, err := fmt.Fprintf(w, "Open in a browser, and show nobody else:\n\n    %s\n\n", told.URL)
		if err == nil {
			_, err = fmt.Fprintf(w, "On another machine first: ssh -L 8899:%s %s, and there with %s in the address. Ctrl-C ends it.\n", told.Listen, host, forwarded)
		}
		return err
	})
	if err != nil {
		return err
	}
	return server.Serve(cmd.Context(), l)
}

// listenLocal listens on loopback, or on a socket that its owner alone may open. A
// socket that nobody listens at any more is replaced.
func listenLocal(ctx context.Context, listen string) (net.Listener, error) {
	if !strings.HasPrefix(listen, "/") {
		return (&net.ListenConfig{}).Listen(ctx, "tcp", listen)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", listen)
	if err == nil {
		conn.Close()
		return nil, fmt.Errorf("listen unix %s: %w: want a path where no file is", listen, syscall.EADDRINUSE)
	}
	// No moment in which others may open it.
	mask := syscall.Umask(0o177)
	defer syscall.Umask(mask)
	l, err := wire.MakeSocket(listen, -1, 0o600)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("%w: want a path where no file is", err)
	}
	return l, err
}

// webSource is what the page shows: a sample of each node, as vgpuctl top takes them, and at
// times who waits, by Slurm. It is for one goroutine at a time.
func (s *settings) webSource(ask func(context.Context) ([]top.Sample, error), withQueue bool) func(context.Context) (web.Sample, error) {
	var queue []web.Waiting
	var asked time.Time
	return func(ctx context.Context) (web.Sample, error) {
		nodes, err := ask(ctx)
		if err != nil {
			return web.Sample{}, err
		}
		if withQueue && time.Since(asked) >= queueEvery {
			asked = time.Now()
			scontrol := ""
			if len(nodes) == 1 {
				scontrol = nodes[0].Status.Scontrol
			}
			queue = s.queue(ctx, scontrol)
		}
		return web.Sample{At: time.Now(), Nodes: nodes, Queue: queue}, nil
	}
}
