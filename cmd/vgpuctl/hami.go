// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// hamiView is a shared region of HAMi-core in JSON.
type hamiView struct {
	Kind       string         `json:"kind"`
	Version    string         `json:"version"`
	Priority   string         `json:"priority"`
	SMLimited  bool           `json:"sm_limit_in_force"`
	Recent     int32          `json:"recent_kernel"`
	LastKernel *time.Time     `json:"last_kernel,omitempty"`
	Cards      []hamiCardView `json:"cards"`
	Processes  []hamiProcView `json:"processes"`
}

type hamiCardView struct {
	UUID       string `json:"gpu_uuid"`
	LimitBytes uint64 `json:"memory_limit_bytes"` // 0: none
	UsedBytes  uint64 `json:"memory_used_bytes"`
	SMLimit    uint64 `json:"sm_limit_percent"`
}

type hamiProcView struct {
	PID     uint32        `json:"pid"`
	HostPID uint32        `json:"host_pid,omitempty"`
	Status  string        `json:"status"`
	Cards   []hamiUseView `json:"cards"`
}

type hamiUseView struct {
	UsedBytes uint64 `json:"memory_used_bytes"`
	Context   uint64 `json:"context_bytes"`
	Module    uint64 `json:"module_bytes"`
	Data      uint64 `json:"data_bytes"`
	Monitored uint64 `json:"monitored_bytes"`
	SM        uint64 `json:"sm_percent"`
}

func viewHAMi(h libvgpu.HAMiView) hamiView {
	v := hamiView{
		Kind: "hami", Version: h.Version, SMLimited: h.SMLimited, Recent: h.Recent,
		Priority:  word(uint32(h.Priority), map[uint32]string{0: "high", 1: "normal"}),
		Processes: []hamiProcView{},
	}
	if !h.LastKernel.IsZero() {
		v.LastKernel = &h.LastKernel
	}
	for _, d := range h.Devices {
		v.Cards = append(v.Cards, hamiCardView{UUID: d.UUID, LimitBytes: d.LimitBytes, SMLimit: d.SMLimit})
	}
	for _, p := range h.Procs {
		proc := hamiProcView{
			PID: p.PID, HostPID: p.HostPID,
			Status: word(uint32(p.Status), map[uint32]string{0: "gone", 1: "running", 2: "suspended"}),
		}
		for i, u := range p.Used {
			proc.Cards = append(proc.Cards, hamiUseView{
				UsedBytes: u.Total, Context: u.Context, Module: u.Module, Data: u.Data, Monitored: u.Monitored, SM: u.SMUtil,
			})
			used := &v.Cards[i].UsedBytes
			*used = max(*used, *used+u.Total) // a claim: the sum may wrap
		}
		v.Processes = append(v.Processes, proc)
	}
	return v
}

func writeHAMi(w io.Writer, v hamiView) error {
	last := "no kernel yet"
	if v.LastKernel != nil {
		last = "last kernel " + v.LastKernel.Format(time.RFC3339)
	}
	held := "compute limit not in force"
	if v.SMLimited {
		held = "compute limit in force"
	}
	fmt.Fprintf(w, "HAMi-core file, version %s, processes %d, priority %s\n%s, %s\n\n", v.Version, len(v.Processes), v.Priority, held, last)
	rows := [][]string{{"CARD", "USED", "LIMIT", "SM LIMIT"}}
	for _, c := range v.Cards {
		limit := "none"
		if c.LimitBytes != 0 {
			limit = size(c.LimitBytes)
		}
		rows = append(rows, []string{shortUUID(c.UUID), size(c.UsedBytes), limit, fmt.Sprintf("%d%%", c.SMLimit)})
	}
	if err := table(w, false, rows); err != nil || len(v.Processes) == 0 {
		return err
	}
	rows = [][]string{{"PID", "HOST PID", "STATE", "CARD", "MEMORY", "CONTEXT", "MODULES", "DATA", "SM"}}
	for _, p := range v.Processes {
		for i, c := range p.Cards {
			rows = append(rows, []string{
				fmt.Sprint(p.PID), hostPID(p.HostPID), p.Status, shortUUID(v.Cards[i].UUID), size(c.UsedBytes),
				size(c.Context), size(c.Module), size(c.Data), fmt.Sprintf("%d%%", c.SM),
			})
		}
	}
	fmt.Fprintln(w)
	return table(w, false, rows)
}

// hostPID is "?" of a process that nobody has found on the host: its utilization is not known.
func hostPID(pid uint32) string {
	if pid == 0 {
		return "?"
	}
	return fmt.Sprint(pid)
}
