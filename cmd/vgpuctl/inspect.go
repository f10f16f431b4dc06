// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/cmd/vgpuctl/top"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// view is a file, or a part of one: names and values in turn. A value is a number, text, or a list of
// views. A name is that of JSON, and its end is the unit. With ",omitzero" a zero value is left out.
type view []any

// fields yields the names and values.
func (v view) fields(yield func(string, any) bool) {
	for pair := range slices.Chunk(v, 2) {
		name, option, _ := strings.Cut(pair[0].(string), ",")
		if option == "omitzero" && reflect.ValueOf(pair[1]).IsZero() {
			continue
		}
		if !yield(name, pair[1]) {
			return
		}
	}
}

// MarshalJSON writes an object with the fields in their order.
func (v view) MarshalJSON() ([]byte, error) {
	out := []byte{'{'}
	for name, value := range v.fields {
		text, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		out = fmt.Appendf(out, "%q:%s,", name, text)
	}
	return append(bytes.TrimSuffix(out, []byte{','}), '}'), nil
}

// views returns a view of each item.
func views[T any](items []T, of func(i int, item T) view) []view {
	all := make([]view, len(items))
	for i, item := range items {
		all[i] = of(i, item)
	}
	return all
}

func (s *settings) inspect(w io.Writer, path string) error {
	v, err := viewFile(path)
	if err != nil {
		return err
	}
	return s.print(w, v, func(w io.Writer) error { writeView(w, v, ""); return nil })
}

func viewFile(path string) (view, error) {
	spec, schedules, err := libvgpu.ReadGrant(path)
	if err == nil {
		return viewGrant(spec, schedules), nil
	}
	if !errors.Is(err, libvgpu.ErrNotGrant) {
		return nil, err
	}
	cache, cacheErr := libvgpu.ReadCache(path)
	if cacheErr == nil {
		return viewCache(cache), nil // it begins with HAMi-core's view of the same numbers
	}
	hami, hamiErr := libvgpu.ReadHAMi(path)
	if hamiErr == nil {
		return viewHAMi(hami), nil
	}
	return nil, fmt.Errorf("%s is neither a grant nor a cache of this version, nor a file of HAMi-core: %w; %w; %w", path, err, cacheErr, hamiErr)
}

func viewGrant(spec libvgpu.GrantSpec, schedules []libvgpu.Schedule) view {
	return view{
		"kind", "grant", "job_id", spec.JobID, "uid", spec.UID, "gid", spec.GID, "created", spec.Created,
		"revoked", spec.Revoked,
		"cards", views(spec.Cards, func(i int, c libvgpu.GrantCard) view {
			return view{
				"gpu_uuid", c.UUID, "memory_limit_bytes", c.MemLimit,
				"memory_physical_bytes", cmp.Or(c.MemPhysical, c.MemLimit), "context_bytes", c.MemOverhead,
				"share", c.Share, "cores", schedules[i].Cores,
				"mode", word(c.Mode, map[uint32]string{libvgpu.ModeOff: "off", libvgpu.ModeSoft: "soft", libvgpu.ModeHard: "hard"}),
				"ceiling,omitzero", c.Ceiling,
				"priority", word(c.Priority, map[uint32]string{libvgpu.PrioNormal: "normal", libvgpu.PrioHigh: "high", libvgpu.PrioLow: "low"}),
				"slice_us", schedules[i].SliceUS, "gate", schedules[i].Gate != 0, "weight_ppm", schedules[i].WeightPPM,
				"busy_procs", schedules[i].BusyProcs, "others", schedules[i].Others,
			}
		}),
	}
}

func word(n uint32, words map[uint32]string) string {
	return cmp.Or(words[n], fmt.Sprint(n))
}

func viewCache(c libvgpu.CacheView) view {
	return view{
		"kind", "cache", "job_id", c.JobID,
		"cards", views(c.Cards, func(_ int, card libvgpu.CacheCard) view {
			return view{
				"gpu_uuid", card.UUID, "memory_limit_bytes", card.MemLimit, "memory_used_bytes", card.MemUsed,
				"context_bytes", card.Context, "module_bytes", card.Module, "balance_ns", card.Budget.BalanceNS,
				"gpu_seconds", seconds(card.Budget.ChargedNS), "launches_throttled", card.Budget.Waits,
				"throttled_seconds", seconds(card.Budget.WaitNS), "refused_allocations", card.Budget.Refused,
			}
		}),
		"processes", views(c.Slots, func(_ int, slot libvgpu.SlotView) view {
			slices := "not set"
			switch {
			case slot.Flags&libvgpu.SlotSlicesRefused != 0:
				slices = "refused"
			case slot.Flags&libvgpu.SlotSlicesOK != 0:
				slices = "ok"
			}
			return view{
				"pid", slot.PID, "host_pid,omitzero", slot.HostPID, "alive", slot.Alive, "slices", slices,
				"gated", slot.Flags&libvgpu.SlotGated != 0, "unknown_symbols,omitzero", slot.UnknownSymbols,
				"cards", views(slot.Cards, func(i int, card libvgpu.SlotCard) view {
					return view{
						"gpu_uuid", c.Cards[i].UUID, "memory_used_bytes", card.Mem, "gpu_seconds", seconds(card.GPUNS),
						"launches", card.Launches, "inflight_ns", card.InflightNS, "slice_us", card.SliceUS,
						"contexts", card.Contexts,
					}
				}),
			}
		}),
	}
}

func seconds(ns uint64) float64 { return float64(ns) / 1e9 }

func viewHAMi(h libvgpu.HAMiView) view {
	used := make([]uint64, len(h.Devices))
	processes := views(h.Procs, func(_ int, p libvgpu.HAMiProc) view {
		return view{
			"pid", p.PID, "host_pid,omitzero", p.HostPID,
			"status", word(uint32(p.Status), map[uint32]string{0: "gone", 1: "running", 2: "suspended"}),
			"cards", views(p.Used, func(i int, u libvgpu.HAMiUse) view {
				used[i] = max(used[i], used[i]+u.Total) // a claim: the sum may wrap
				return view{
					"gpu_uuid", h.Devices[i].UUID, "memory_used_bytes", u.Total, "context_bytes", u.Context,
					"module_bytes", u.Module, "data_bytes", u.Data, "monitored_bytes", u.Monitored,
					"sm_percent", u.SMUtil,
				}
			}),
		}
	})
	return view{
		"kind", "hami", "version", h.Version,
		"priority", word(uint32(h.Priority), map[uint32]string{0: "high", 1: "normal"}),
		"sm_limit_in_force", h.SMLimited, "recent_kernel", h.Recent, "last_kernel,omitzero", h.LastKernel,
		"cards", views(h.Devices, func(i int, d libvgpu.HAMiDevice) view {
			return view{"gpu_uuid", d.UUID, "memory_limit_bytes", d.LimitBytes, "memory_used_bytes", used[i], "sm_limit_percent", d.SMLimit}
		}),
		"processes", processes,
	}
}

// writeView prints a line for each field, with its unit, and the parts of lists below each other.
func writeView(w io.Writer, v view, indent string) {
	for name, value := range v.fields {
		label := indent + strings.ReplaceAll(name, "_", " ")
		list, isList := value.([]view)
		for i, part := range list {
			fmt.Fprintf(w, "%s %d\n", label, i)
			writeView(w, part, indent+"  ")
		}
		if !isList {
			fmt.Fprintf(w, "%-28s  %s\n", label, withUnit(name, value))
		}
	}
}

// withUnit writes a number in the unit that its name ends with.
func withUnit(name string, value any) string {
	switch unit := name[strings.LastIndex(name, "_")+1:]; {
	case unit == "bytes":
		return size(value.(uint64))
	case unit == "seconds":
		return top.Seconds(value.(float64))
	case slices.Contains([]string{"share", "cores", "ceiling", "percent"}, unit):
		return fmt.Sprintf("%d%%", value)
	}
	return fmt.Sprint(value)
}
