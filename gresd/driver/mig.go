// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// migSymbols are called only where the library has all of them.
var migSymbols = []string{
	"nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetGpuInstanceId",
	"nvmlDeviceGetComputeInstanceId", "nvmlDeviceGetAttributes_v2", "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
}

// errChanged: the places of the cards are not those that Slurm was told of.
var errChanged = errors.New("MIG mode or instances are not as they were when gresd started: write gres.conf anew " +
	"(gresd gres-conf), restart slurmd, slurmctld, slurmd in this order, then gresd")

// instances are the MIG instances of a GPU in MIG mode.
func (n *NVML) instances(of device) ([]device, error) {
	if slices.ContainsFunc(migSymbols, func(name string) bool { return n.missing[name] }) {
		return nil, nil
	}
	most, ret := of.handle.GetMaxMigDeviceCount()
	if err := check("count MIG instances", ret); err != nil {
		return nil, err
	}
	var found []device
	for i := range most {
		handle, ret := of.handle.GetMigDeviceHandleByIndex(i)
		if ret == nvml.ERROR_NOT_FOUND { // indexes have holes
			continue
		}
		if err := check("get MIG instance", ret); err != nil {
			return nil, err
		}
		card, err := n.instance(of.card, handle)
		if err != nil {
			return nil, fmt.Errorf("MIG instance %d: %w", i, err)
		}
		found = append(found, device{card, of.handle})
	}
	for i, d := range found { // memory is the GPU instance's
		found[i].card.MIG = slices.ContainsFunc(found, func(other device) bool {
			return other.card.UUID != d.card.UUID && other.card.Instance.ID == d.card.Instance.ID
		})
	}
	return found, nil
}

// instance reads one, of a GPU.
func (n *NVML) instance(of gpu.Card, handle nvml.Device) (gpu.Card, error) {
	var err error
	uuid := read(&err, "read UUID", handle.GetUUID)
	id := read(&err, "read GPU instance", handle.GetGpuInstanceId)
	compute := read(&err, "read compute instance", handle.GetComputeInstanceId)
	memory := read(&err, "read memory", handle.GetMemoryInfo)
	if err != nil {
		return gpu.Card{}, err
	}
	profile, err := profileOf(of, handle)
	if err != nil {
		return gpu.Card{}, err
	}
	instance := gpu.Instance{GPU: of.UUID, ID: id, Compute: compute}
	if instance.Cap, err = n.capability(instance.CapPath(of.Minor)); err != nil {
		return gpu.Card{}, err
	}
	if instance.ComputeCap, err = n.capability(instance.ComputeCapPath(of.Minor)); err != nil {
		return gpu.Card{}, err
	}
	card := of
	card.UUID, card.Instance = gpu.UUID(uuid), instance
	card.Name, card.Type = of.Name+" MIG "+profile, typeOf(strings.ReplaceAll(profile, "+", "."))
	card.Memory, card.Physical = gpu.Bytes(memory.Total), gpu.Bytes(memory.Total)
	return card, nil
}

// profileOf is what nvidia-smi calls an instance, "1g.10gb": the end of its name, where the
// driver tells it, else by its size, which leaves out marks such as +me.
func profileOf(of gpu.Card, handle nvml.Device) (string, error) {
	if name, ret := handle.GetName(); ret == nvml.SUCCESS {
		if _, profile, found := strings.Cut(name, " MIG "); found && strings.TrimSpace(profile) != "" {
			return strings.TrimSpace(profile), nil
		}
	}
	size, ret := handle.GetAttributes()
	if err := check("read size", ret); err != nil {
		return "", err
	}
	// Memory is cut in eighths, less what the driver takes.
	eighths := math.Ceil(8 * float64(size.MemorySizeMB) * float64(gpu.MiB) / float64(of.Memory))
	whole := math.Ceil(float64(of.Memory) / float64(gpu.GiB))
	profile := fmt.Sprintf("%dg.%dgb", size.GpuInstanceSliceCount, int(math.Round(eighths/8*whole)))
	if size.ComputeInstanceSliceCount != size.GpuInstanceSliceCount {
		profile = fmt.Sprintf("%dc.%s", size.ComputeInstanceSliceCount, profile)
	}
	return profile, nil
}

// capability reads which device file stands for one.
func (n *NVML) capability(path string) (int, error) {
	text, err := os.ReadFile(filepath.Join(n.root, path))
	if err != nil {
		return 0, fmt.Errorf("read capability: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if value, found := strings.CutPrefix(line, "DeviceFileMinor:"); found {
			minor, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil || minor < 0 {
				break
			}
			return minor, nil
		}
	}
	return 0, fmt.Errorf("read capability: %s has no DeviceFileMinor", path)
}

// whole is the handle of a card's GPU.
func (n *NVML) whole(uuid gpu.UUID, handle nvml.Device) nvml.Device {
	if !uuid.IsInstance() || n.missing["nvmlDeviceGetDeviceHandleFromMigDeviceHandle"] {
		return handle
	}
	if of, ret := handle.GetDeviceHandleFromMigDeviceHandle(); ret == nvml.SUCCESS {
		return of
	}
	return handle
}

// places are the cards' places for Slurm, as they were when all could be read for the first time.
type places struct {
	mu    sync.Mutex
	first map[gpu.UUID]gpu.Card // nil: none yet
}

// put gives the cards their places: in the order of the device files, and of instances by their
// numbers. Where there are instances, places depend on how many each GPU has: then those of the
// first time hold, and a card that was not there is none. unread are the errors of cards.
func (p *places) put(found []device, unread []error) ([]device, []error) {
	slices.SortFunc(found, func(a, b device) int {
		return cmp.Or(cmp.Compare(a.card.Minor, b.card.Minor), cmp.Compare(a.card.Instance.ID, b.card.Instance.ID),
			cmp.Compare(a.card.Instance.Compute, b.card.Instance.Compute))
	})
	for i := range found {
		found[i].card.Index = i
		// The place of a card that cannot be read is not known, but Slurm still
		// counts it; device files without holes put the others right.
		if len(unread) != 0 {
			found[i].card.Index = found[i].card.Minor
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(unread) == 0 && p.first == nil && len(found) > 0 {
		p.first = map[gpu.UUID]gpu.Card{}
		for _, d := range found {
			p.first[d.card.UUID] = d.card
		}
		return found, nil
	}
	isInstance := func(c gpu.Card) bool { return c.IsInstance() || c.MIG }
	cut := slices.ContainsFunc(found, func(d device) bool { return isInstance(d.card) })
	for c := range maps.Values(p.first) {
		cut = cut || isInstance(c)
	}
	if !cut {
		return found, unread
	}
	return p.asBefore(found, unread)
}

func (p *places) asBefore(found []device, unread []error) ([]device, []error) {
	var kept []device
	strange := len(unread) == 0 && len(found) != len(p.first)
	for _, d := range found {
		before, known := p.first[d.card.UUID]
		if !known || before.MIG != d.card.MIG || before.Instance != d.card.Instance {
			strange = true
			continue
		}
		d.card.Index = before.Index
		kept = append(kept, d)
	}
	if strange {
		unread = append(unread, &CardError{NVMLIndex: -1, Err: errChanged})
	}
	return kept, unread
}
