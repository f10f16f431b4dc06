// SPDX-License-Identifier: Apache-2.0

package main

import (
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
	UUID      string `json:"gpu_uuid"`
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
				UUID: v.Cards[i].UUID, UsedBytes: u.Total, Context: u.Context, Module: u.Module, Data: u.Data, Monitored: u.Monitored, SM: u.SMUtil,
			})
			used := &v.Cards[i].UsedBytes
			*used = max(*used, *used+u.Total) // a claim: the sum may wrap
		}
		v.Processes = append(v.Processes, proc)
	}
	return v
}
