// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// grantView is a grant file in JSON.
type grantView struct {
	Kind    string          `json:"kind"`
	JobID   uint32          `json:"job_id"`
	UID     uint32          `json:"uid"`
	GID     uint32          `json:"gid"`
	Created time.Time       `json:"created"`
	Revoked bool            `json:"revoked"`
	Cards   []grantCardView `json:"cards"`
}

type grantCardView struct {
	UUID       string `json:"gpu_uuid"`
	LimitBytes uint64 `json:"memory_limit_bytes"`
	Physical   uint64 `json:"memory_physical_bytes"`
	Context    uint64 `json:"context_bytes"`
	Share      uint32 `json:"share"`
	Cores      uint32 `json:"cores"`
	Mode       string `json:"mode"`
	Ceiling    uint32 `json:"ceiling,omitempty"`
	Priority   string `json:"priority"`
	SliceUS    uint32 `json:"slice_us"`
	Gate       bool   `json:"gate"`
	WeightPPM  uint32 `json:"weight_ppm"`
	BusyProcs  uint32 `json:"busy_procs"`
	Others     uint32 `json:"others"`
}

// cacheView is a cache file in JSON.
type cacheView struct {
	Kind      string          `json:"kind"`
	JobID     uint32          `json:"job_id"`
	Cards     []cacheCardView `json:"cards"`
	Processes []processView   `json:"processes"`
}

type cacheCardView struct {
	UUID        string  `json:"gpu_uuid"`
	LimitBytes  uint64  `json:"memory_limit_bytes"`
	UsedBytes   uint64  `json:"memory_used_bytes"`
	Context     uint64  `json:"context_bytes"`
	Module      uint64  `json:"module_bytes"`
	BalanceNS   int64   `json:"balance_ns"`
	GPUSeconds  float64 `json:"gpu_seconds"`
	Waits       uint64  `json:"waits"`
	WaitSeconds float64 `json:"wait_seconds"`
	Refused     uint64  `json:"refused_allocations"`
}

type processView struct {
	PID     uint32            `json:"pid"`
	HostPID uint32            `json:"host_pid,omitempty"`
	Alive   bool              `json:"alive"`
	Slices  string            `json:"slices"`
	Gated   bool              `json:"gated"`
	Unknown uint32            `json:"unknown_symbols,omitempty"`
	Cards   []processCardView `json:"cards"`
}

type processCardView struct {
	UsedBytes  uint64  `json:"memory_used_bytes"`
	GPUSeconds float64 `json:"gpu_seconds"`
	Launches   uint64  `json:"launches"`
	InflightNS uint64  `json:"inflight_ns"`
	SliceUS    uint32  `json:"slice_us"`
	Contexts   uint32  `json:"contexts"`
}

func (s *settings) inspect(w io.Writer, path string) error {
	spec, schedules, err := libvgpu.ReadGrant(path)
	if err == nil {
		v := viewGrant(spec, schedules)
		return s.print(w, v, func(w io.Writer) error { return writeGrant(w, v) })
	}
	if !errors.Is(err, libvgpu.ErrNotGrant) {
		return err
	}
	view, cacheErr := libvgpu.ReadCache(path)
	if cacheErr == nil {
		// It begins with HAMi-core's view of the same numbers.
		v := viewCache(view)
		return s.print(w, v, func(w io.Writer) error { return writeCache(w, v) })
	}
	hami, hamiErr := libvgpu.ReadHAMi(path)
	if hamiErr == nil {
		v := viewHAMi(hami)
		return s.print(w, v, func(w io.Writer) error { return writeHAMi(w, v) })
	}
	return fmt.Errorf("%s is neither a grant nor a cache of this version, nor a file of HAMi-core: %w; %w; %w", path, err, cacheErr, hamiErr)
}

func viewGrant(spec libvgpu.GrantSpec, schedules []libvgpu.Schedule) grantView {
	v := grantView{Kind: "grant", JobID: spec.JobID, UID: spec.UID, GID: spec.GID, Created: spec.Created, Revoked: spec.Revoked}
	for i, c := range spec.Cards {
		sched := schedules[i]
		v.Cards = append(v.Cards, grantCardView{
			UUID: c.UUID, LimitBytes: c.MemLimit, Physical: cmp.Or(c.MemPhysical, c.MemLimit), Context: c.MemOverhead, Share: c.Share, Cores: sched.Cores,
			Mode:     word(c.Mode, map[uint32]string{libvgpu.ModeOff: "off", libvgpu.ModeSoft: "soft", libvgpu.ModeHard: "hard"}),
			Ceiling:  c.Ceiling,
			Priority: word(c.Priority, map[uint32]string{libvgpu.PrioNormal: "normal", libvgpu.PrioHigh: "high", libvgpu.PrioLow: "low"}),
			SliceUS:  sched.SliceUS, Gate: sched.Gate != 0, WeightPPM: sched.WeightPPM, BusyProcs: sched.BusyProcs, Others: sched.Others,
		})
	}
	return v
}

func word(n uint32, words map[uint32]string) string {
	if w, known := words[n]; known {
		return w
	}
	return fmt.Sprint(n)
}

func viewCache(c libvgpu.CacheView) cacheView {
	v := cacheView{Kind: "cache", JobID: c.JobID, Processes: []processView{}}
	for _, card := range c.Cards {
		v.Cards = append(v.Cards, cacheCardView{
			UUID: card.UUID, LimitBytes: card.MemLimit, UsedBytes: card.MemUsed, Context: card.Context, Module: card.Module,
			BalanceNS: card.Budget.BalanceNS, GPUSeconds: float64(card.Budget.ChargedNS) / 1e9,
			Waits: card.Budget.Waits, WaitSeconds: float64(card.Budget.WaitNS) / 1e9, Refused: card.Budget.Refused,
		})
	}
	for _, slot := range c.Slots {
		p := processView{PID: slot.PID, HostPID: slot.HostPID, Alive: slot.Alive, Gated: slot.Flags&libvgpu.SlotGated != 0, Slices: "not set", Unknown: slot.UnknownSymbols}
		switch {
		case slot.Flags&libvgpu.SlotSlicesRefused != 0:
			p.Slices = "refused"
		case slot.Flags&libvgpu.SlotSlicesOK != 0:
			p.Slices = "ok"
		}
		for _, card := range slot.Cards {
			p.Cards = append(p.Cards, processCardView{
				UsedBytes: card.Mem, GPUSeconds: float64(card.GPUNS) / 1e9, Launches: card.Launches,
				InflightNS: card.InflightNS, SliceUS: card.SliceUS, Contexts: card.Contexts,
			})
		}
		v.Processes = append(v.Processes, p)
	}
	return v
}

func writeGrant(w io.Writer, v grantView) error {
	revoked := ""
	if v.Revoked {
		revoked = ", revoked"
	}
	fmt.Fprintf(w, "grant of job %d, user %d, group %d, made %s%s\n\n", v.JobID, v.UID, v.GID, v.Created.Format(time.RFC3339), revoked)
	rows := [][]string{{"MEMORY", "CONTEXT", "SHARE", "CORES", "MODE", "PRIORITY", "SLICE", "WEIGHT", "BUSY", "OTHERS", "UUID"}}
	for _, c := range v.Cards {
		slice := "driver's"
		if c.SliceUS != 0 {
			slice = fmt.Sprintf("%d us", c.SliceUS)
		}
		if c.Gate {
			slice += " gate"
		}
		mode := c.Mode
		if c.Ceiling != 0 {
			mode += fmt.Sprintf(":%d", c.Ceiling)
		}
		rows = append(rows, []string{
			size(c.LimitBytes), size(c.Context), percent(c.Share), percent(c.Cores), mode, c.Priority, slice,
			fmt.Sprintf("%.1f%%", float64(c.WeightPPM)/1e4), fmt.Sprint(c.BusyProcs), fmt.Sprint(c.Others), shortUUID(c.UUID),
		})
	}
	if err := table(w, false, rows); err != nil {
		return err
	}
	for _, c := range v.Cards {
		if isScaled(c.LimitBytes, c.Physical) {
			fmt.Fprintf(w, "\nof its limit %s, card %s has %s\n", size(c.LimitBytes), shortUUID(c.UUID), size(c.Physical))
		}
	}
	return nil
}

// shortUUID keeps a line within the width of a terminal; --json has it all.
func shortUUID(uuid string) string {
	kind := "GPU-"
	if strings.HasPrefix(uuid, "MIG-") {
		kind = "MIG-"
	}
	if head, _, found := strings.Cut(strings.TrimPrefix(uuid, kind), "-"); found && head != "" {
		return kind + head
	}
	return uuid
}

func writeCache(w io.Writer, v cacheView) error {
	fmt.Fprintf(w, "cache of job %d, processes %d\n\n", v.JobID, len(v.Processes))
	rows := [][]string{{"CARD", "USED", "LIMIT", "CONTEXTS", "MODULES", "GPU TIME", "BUDGET", "WAITS", "WAITED", "REFUSED"}}
	for _, c := range v.Cards {
		rows = append(rows, []string{
			shortUUID(c.UUID), size(c.UsedBytes), size(c.LimitBytes), size(c.Context), size(c.Module), seconds(c.GPUSeconds),
			fmt.Sprintf("%.2f ms", float64(c.BalanceNS)/1e6), fmt.Sprint(c.Waits), seconds(c.WaitSeconds), fmt.Sprint(c.Refused),
		})
	}
	if err := table(w, false, rows); err != nil || len(v.Processes) == 0 {
		return err
	}
	rows = [][]string{{"PID", "HOST PID", "STATE", "SLICES", "CARD", "MEMORY", "GPU TIME", "LAUNCHES", "IN FLIGHT", "SLICE"}}
	for _, p := range v.Processes {
		state := "dead"
		if p.Alive {
			state = "alive"
		}
		for i, c := range p.Cards {
			rows = append(rows, []string{
				fmt.Sprint(p.PID), hostPID(p.HostPID), state, p.Slices, shortUUID(v.Cards[i].UUID), size(c.UsedBytes), seconds(c.GPUSeconds),
				fmt.Sprint(c.Launches), fmt.Sprintf("%.2f ms", float64(c.InflightNS)/1e6), fmt.Sprintf("%d us", c.SliceUS),
			})
		}
	}
	fmt.Fprintln(w)
	if err := table(w, false, rows); err != nil {
		return err
	}
	for _, p := range v.Processes {
		if p.Unknown != 0 {
			fmt.Fprintf(w, "\nprocess %d asked %d times for functions of which the driver has a newer version than its libvgpu: update slurm-vgpu\n", p.PID, p.Unknown)
		}
	}
	return nil
}
