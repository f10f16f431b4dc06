// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/spank/prolog"
)

// socketPath is where gresd listens. With an error, the configuration cannot be read,
// and it is where gresd probably listens all the same.
func (s *settings) socketPath() (string, error) {
	if s.socket != "" {
		return s.socket, nil
	}
	cfg, err := config.Load(s.config)
	if err == nil {
		return cfg.Paths.Socket(), nil
	}
	// A gresd that runs has an older configuration in force: ask where the hooks of
	// Slurm would.
	hooks, _ := prolog.ReadConfig(s.config)
	return config.Paths{RunDir: hooks.RunDir}.Socket(), err
}

func (s *settings) ask(ctx context.Context, req wire.Request) (wire.Reply, error) {
	socket, mistake := s.socketPath()
	client := wire.Client{Socket: socket, Timeout: 15 * time.Second}
	rep, err := client.Do(ctx, req)
	cleanText(reflect.ValueOf(&rep))
	switch {
	case err == nil && (req.Op == wire.OpStatus && rep.Status == nil || req.Op == wire.OpTopo && rep.Topology == nil ||
		req.Op == wire.OpExplain && rep.Explain == nil || req.Op == wire.OpReport && rep.Report == nil):
		return rep, fmt.Errorf("gresd: an answer to %s with nothing in it", req.Op)
	case err != nil && mistake != nil:
		return rep, mistake
	case errors.Is(err, fs.ErrNotExist):
		return rep, fmt.Errorf("%w: %s", err, noSocket(os.Getuid(), filepath.Dir(socket)))
	}
	return rep, err
}

// cleanText changes all text below a pointer so that no word of it, which a user may
// have chosen, commands the terminal of who looks.
func cleanText(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			cleanText(v.Elem())
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			if field.CanSet() {
				cleanText(field)
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			cleanText(v.Index(i))
		}
	case reflect.Map:
		for _, key := range v.MapKeys() {
			value := reflect.New(v.Type().Elem())
			value.Elem().Set(v.MapIndex(key))
			cleanText(value)
			v.SetMapIndex(key, value.Elem())
		}
	case reflect.String:
		v.SetString(strings.Map(visible, v.String()))
	}
}

// noSocket says what to do where there is no socket in that folder. Where the
// folder is missing too, this is probably no node with cards, but a host where
// users log in.
func noSocket(uid int, runDir string) string {
	if _, err := os.Stat(runDir); uid != 0 && errors.Is(err, fs.ErrNotExist) {
		return "no node with shared cards? here vgpuctl jobs, top, ps and explain JOB ask the nodes of your jobs, vgpuctl nodes shows all"
	}
	return "is gresd running? see: systemctl status gresd"
}

// change asks for a change and prints what became of it.
func (s *settings) change(cmd *cobra.Command, req wire.Request) error {
	rep, err := s.ask(cmd.Context(), req)
	if err != nil {
		return failed(err)
	}
	return s.print(cmd.OutOrStdout(), rep, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, rep.Message)
		return err
	})
}

// jobOf reads the number of a job that a command is about.
func jobOf(word string) (uint32, error) {
	job, err := strconv.ParseUint(word, 10, 32)
	if err != nil || job == 0 {
		return 0, fmt.Errorf("job %q: want the number of a job, for example 4217; squeue -O JobID gives it for an array's", word)
	}
	return uint32(job), nil
}

// showJobs prints the jobs of this node, or where users log in, of all nodes with jobs of the user.
func (s *settings) showJobs(cmd *cobra.Command, command string, write func(io.Writer, paint, []placed) error) error {
	jobs := []placed{} // [] and not null
	var err error
	if s.isAfar() {
		jobs, err = s.afarJobs(cmd.Context(), command)
	} else {
		var rep wire.Reply
		rep, err = s.ask(cmd.Context(), wire.Request{Op: wire.OpJobs, Processes: command == "ps"})
		for _, job := range rep.Jobs {
			jobs = append(jobs, placed{Job: job})
		}
	}
	if err != nil {
		return err
	}
	return s.print(cmd.OutOrStdout(), jobs, func(w io.Writer) error {
		if len(jobs) == 0 && s.isAfar() {
			_, err := fmt.Fprintln(w, "no running job of yours has a share; of all nodes: vgpuctl nodes")
			return err
		}
		return write(w, s.paint(w), jobs)
	})
}

// checkConfig loads a file as gresd would. A file that is named must exist.
func (s *settings) checkConfig(w io.Writer, args []string) error {
	path := s.config
	if len(args) == 1 {
		path = args[0]
	}
	cfg, err := config.Load(path)
	if err == nil && cfg.Path == "" && cfg.Parts == nil && path != config.DefaultPath {
		_, err = os.Stat(path)
	}
	result := struct {
		OK       bool           `json:"ok"`
		Path     string         `json:"path"`               // "": there is no file, the defaults are in force
		Parts    []string       `json:"parts,omitempty"`    // files of conf.d that were read after it
		Warnings []string       `json:"warnings,omitempty"` // keys of version 0.10
		Error    string         `json:"error,omitempty"`
		Used     *config.Config `json:"config,omitempty"`
	}{OK: err == nil, Path: cfg.Path, Parts: cfg.Parts, Warnings: cfg.Warnings}
	if err != nil {
		result.Path, result.Error = path, err.Error()
		if s.json {
			_ = s.print(w, result, nil)
		}
		return err
	}
	result.Used = &cfg
	return s.print(w, result, func(w io.Writer) error {
		what := "ok"
		if cfg.Path == "" {
			what = "no such file, the defaults are in force"
		}
		_, err := fmt.Fprintf(w, "%s: %s\n", path, what)
		for _, part := range cfg.Parts {
			_, err = fmt.Fprintf(w, "%s: ok\n", part)
		}
		for _, warning := range cfg.Warnings {
			_, err = fmt.Fprintf(w, "warning: %s\n", warning)
		}
		return err
	})
}
