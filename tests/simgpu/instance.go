// SPDX-License-Identifier: Apache-2.0

package simgpu

/*
#include "model.h"
*/
import "C"

import (
	"crypto/sha1"
	"fmt"
	"os"
	"path/filepath"
)

// The driver numbers the files of capabilities by a table: after two of the whole
// system come 15 GPU instances for each card, and behind each its 8 compute instances.
const (
	firstCap    = 3
	capsPerGPU  = 15 * capsPerInst
	capsPerInst = 9
)

// instance is a MIG instance as a card of the model, from that of its GPU.
func (c CardConfig) instance(gpu, i int, parent C.struct_sim_card_config) (C.struct_sim_card_config, error) {
	own, out := c.Instance[i], parent
	id := uint32(i + 1)
	if own.GPU != nil {
		id = *own.GPU
	}
	if id > 14 || own.Compute > 7 {
		return out, fmt.Errorf("GPU instance %d, compute instance %d: want at most 14 and 7", id, own.Compute)
	}
	memory, err := ParseSize(own.Memory)
	if err != nil {
		return out, err
	}
	if n, err := fmt.Sscanf(own.Profile, "%dg.", &out.gi_slices); n != 1 {
		return out, fmt.Errorf("profile %q: want e.g. 1g.10gb: %w", own.Profile, err)
	}
	sum := sha1.Sum(fmt.Appendf(nil, "%s/%d/%d", c.UUID, id, own.Compute))
	uuid := fmt.Sprintf("MIG-%x-%x-%x-%x-%x", sum[0:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
	if err := setString(out.uuid[:], uuid); err != nil {
		return out, err
	}
	if err := setString(out.name[:], c.Name+" MIG "+own.Profile); err != nil {
		return out, err
	}
	out.memory, out.reserved = C.uint64_t(memory), 0
	out.sms = C.uint32_t(pick(own.SMs, max(1, c.SMs*uint32(out.gi_slices)/8)))
	out.mig, out.nvswitch, out.link = 0, 0, [MaxCards]C.uint32_t{}
	out.parent, out.gi, out.ci = C.uint32_t(gpu+1), C.uint32_t(id), C.uint32_t(own.Compute)
	out.gi_cap = firstCap + out.minor*capsPerGPU + out.gi*capsPerInst
	out.ci_cap = out.gi_cap + 1 + out.ci
	return out, nil
}

// Capabilities writes which device files stand for the instances, as a driver does in
// /proc/driver/nvidia/capabilities.
func (m *Machine) Capabilities(dir string) error {
	for i := range int(m.st.ncards) {
		c := &m.st.card[i].conf
		if c.parent == 0 {
			continue
		}
		gi := filepath.Join(dir, fmt.Sprintf("gpu%d/mig/gi%d", c.minor, c.gi))
		for path, minor := range map[string]C.uint32_t{gi: c.gi_cap, filepath.Join(gi, fmt.Sprintf("ci%d", c.ci)): c.ci_cap} {
			if err := os.MkdirAll(path, 0o755); err != nil {
				return err
			}
			text := fmt.Sprintf("DeviceFileMinor: %d\nDeviceFileMode: 292\nDeviceFileModify: 1\n", minor)
			if err := os.WriteFile(filepath.Join(path, "access"), []byte(text), 0o444); err != nil {
				return err
			}
		}
	}
	return nil
}
