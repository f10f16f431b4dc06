// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/slurm-vgpu/slurm-vgpu/cmd/vgpuctl/top"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// FuzzAnswer: whatever a gresd of any release answers, each command shows it, with no
// byte in it that a terminal would obey.
func FuzzAnswer(f *testing.F) {
	for _, s := range []string{
		`{"ok":true,"status":{"version":"1\u001b[2J","cards":[{"gpu_uuid":"GPU-1","index":0,"name":"NVIDIA H200\u009b","type":"h200","why":"\u0007","memory_bytes":150754820096,"share":30,"jobs":1,"waiting":2}],"started":"2026-08-01T00:00:00Z"}}`,
		`{"ok":true,"jobs":[{"job_id":7,"user":"a\u001b]0;x\u0007","state":"refused","reason":"\r\u0085no","mode":"soft","ceiling":80,"messages":["2026 \u001b"],"cards":[{"gpu_uuid":"GPU-1","memory_used_bytes":7,"gpu_seconds":1e308,"got_percent":-1,"throttled_percent":1e300,"by_process":[{"pid":0},{"pid":7,"memory_bytes":9}]}]}]}`,
		`{"ok":true,"topology":{"cards":[{"index":0,"pci_bus_id":"\u001b","cpus":"0-\u0007"},{"index":-1,"numa_node":3}],"matrix":[["X"]],"levels":[["\u009b"]],"p2p":{"read":[["\u001b[1m"]],"write":[]},"tree":{"level":"ROOT","cards":[0,9],"children":[{"cards":[]}]},"tree_text":"\u001b","nvlink_islands":[{"cards":[9]}],"warnings":["\u0007"]}}`,
		`{"ok":true,"explain":{"request":"vgpu:30\u001b","message":"\u009b","decided":"2026-08-01T00:00:00Z","cards":[{"index":3,"reason":"x\u0000","why":"\u0085","want_share":30,"job_ids":[1,2]}]}}`, `{}`, `null`,
		`{"ok":true,"message":"\u202e\ufeff","status":{},"jobs":[{}],"topology":{},"explain":{}}`,
	} {
		f.Add([]byte(s), uint8(80))
		f.Add([]byte(s), uint8(1))
	}
	f.Fuzz(func(t *testing.T, line []byte, width uint8) {
		rep, err := wire.ReadReply(bufio.NewReader(bytes.NewReader(append(bytes.ReplaceAll(line, []byte("\n"), nil), '\n'))))
		if err != nil {
			return
		}
		cleanText(reflect.ValueOf(&rep))
		var out bytes.Buffer
		show := func(name string, write func(io.Writer) error) {
			out.Reset()
			if err := write(&out); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if strings.ContainsFunc(out.String(), func(r rune) bool { return !unicode.IsPrint(r) && r != '\n' }) {
				t.Fatalf("%s: a terminal obeys %q", name, out.String())
			}
		}
		var jobs []placed
		for _, j := range rep.Jobs {
			jobs = append(jobs, placed{Job: j})
		}
		show("message", func(w io.Writer) error { _, err := fmt.Fprintln(w, rep.Message); return err })
		show("jobs", func(w io.Writer) error { return writeJobs(w, false, jobs) })
		show("ps", func(w io.Writer) error { return writeProcesses(w, false, jobs) })
		if rep.Topology != nil {
			show("topo", func(w io.Writer) error { return writeTopology(w, *rep.Topology) })
		}
		if rep.Explain != nil {
			show("explain", func(w io.Writer) error { return writeExplanation(w, *rep.Explain) })
		}
		if rep.Status == nil {
			return
		}
		show("status", func(w io.Writer) error { return writeStatus(w, false, *rep.Status) })
		v := &top.View{ASCII: width%2 == 0}
		v.Add(top.Sample{At: time.Unix(1700000000, 0), Status: *rep.Status, Jobs: rep.Jobs})
		show("top", func(w io.Writer) error {
			for _, l := range v.Lines(int(width), 24) {
				fmt.Fprintln(w, l)
			}
			return nil
		})
	})
}
