// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/cmd/vgpuctl/top"
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
	Throttled   uint64  `json:"launches_throttled"`
	WaitSeconds float64 `json:"throttled_seconds"`
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
	UUID       string  `json:"gpu_uuid"`
	UsedBytes  uint64  `json:"memory_used_bytes"`
	GPUSeconds float64 `json:"gpu_seconds"`
	Launches   uint64  `json:"launches"`
	InflightNS uint64  `json:"inflight_ns"`
	SliceUS    uint32  `json:"slice_us"`
	Contexts   uint32  `json:"contexts"`
}

func (s *settings) inspect(w io.Writer, path string) error {
	show := func(v any) error {
		return s.print(w, v, func(w io.Writer) error { writeView(w, reflect.ValueOf(v), ""); return nil })
	}
	spec, schedules, err := libvgpu.ReadGrant(path)
	if err == nil {
		return show(viewGrant(spec, schedules))
	}
	if !errors.Is(err, libvgpu.ErrNotGrant) {
		return err
	}
	view, cacheErr := libvgpu.ReadCache(path)
	if cacheErr == nil {
		// It begins with HAMi-core's view of the same numbers.
		return show(viewCache(view))
	}
	hami, hamiErr := libvgpu.ReadHAMi(path)
	if hamiErr == nil {
		return show(viewHAMi(hami))
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
			Throttled: card.Budget.Waits, WaitSeconds: float64(card.Budget.WaitNS) / 1e9, Refused: card.Budget.Refused,
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
		for i, card := range slot.Cards {
			p.Cards = append(p.Cards, processCardView{
				UUID: c.Cards[i].UUID, UsedBytes: card.Mem, GPUSeconds: float64(card.GPUNS) / 1e9, Launches: card.Launches,
				InflightNS: card.InflightNS, SliceUS: card.SliceUS, Contexts: card.Contexts,
			})
		}
		v.Processes = append(v.Processes, p)
	}
	return v
}

// writeView prints a view: a line for each JSON field, with its unit, and the parts of lists below each other.
func writeView(w io.Writer, view reflect.Value, indent string) {
	for field, value := range view.Fields() {
		name, option, _ := strings.Cut(field.Tag.Get("json"), ",")
		label := strings.ReplaceAll(name, "_", " ")
		switch {
		case value.Kind() == reflect.Slice:
			for i := range value.Len() {
				fmt.Fprintf(w, "%s%s %d\n", indent, label, i)
				writeView(w, value.Index(i), indent+"  ")
			}
		case option == "" || !value.IsZero():
			fmt.Fprintf(w, "%-28s  %s\n", indent+label, withUnit(name, value))
		}
	}
}

// withUnit writes a number in the unit that its name ends with.
func withUnit(name string, v reflect.Value) string {
	switch unit := name[strings.LastIndex(name, "_")+1:]; {
	case unit == "bytes":
		return size(v.Uint())
	case unit == "seconds":
		return top.Seconds(v.Float())
	case slices.Contains([]string{"share", "cores", "ceiling", "percent"}, unit):
		return fmt.Sprintf("%d%%", v.Uint())
	}
	return fmt.Sprint(reflect.Indirect(v))
}
