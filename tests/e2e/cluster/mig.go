// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// capsMajor is a number that no driver here has for the files of capabilities.
const capsMajor = 240

// instancesLua is vgpu_cards.lua for cards of which some have instances.
func instancesLua(cards []Card) string {
	memory := map[string]gpu.Bytes{}
	for _, card := range cards {
		parts := card.Instances
		if len(parts) == 0 {
			parts = []Instance{{strings.ReplaceAll(strings.ToLower(card.Name), " ", "-"), card.Memory}}
		}
		for _, part := range parts {
			memory[part.Profile], _ = gpu.ParseBytes(part.Memory) // the simulator has read it
		}
	}
	var words []string
	least := gpu.Bytes(math.MaxUint64)
	for _, name := range slices.Sorted(maps.Keys(memory)) {
		words = append(words, fmt.Sprintf("[%q] = %d", name, memory[name]/gpu.MiB))
		least = min(least, memory[name])
	}
	return fmt.Sprintf("return {default = %d, cards = {%s}}\n", least/gpu.MiB, strings.Join(words, ", "))
}

func (c *Cluster) hasInstances() bool {
	return slices.ContainsFunc(c.opts.Cards, func(card Card) bool { return len(card.Instances) > 0 })
}

// procDriver is where a driver says which file stands for which MIG instance. While something is
// mounted there, the kernel lets no user mount a /proc of a PID namespace: Close takes it away.
const procDriver = "/proc/driver"

// capabilities makes what a driver has for MIG instances beside their cards' device files.
func capabilities() error {
	const devices = Dir + "/dev/nvidia-caps"
	if err := unix.Mount("capabilities", procDriver, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount on %s: %w", procDriver, err)
	}
	root := procDriver + "/nvidia/capabilities"
	if err := command(simTool, "capabilities", "--dir", root, "--state", simState); err != nil {
		return err
	}
	if err := os.MkdirAll(devices, 0o755); err != nil {
		return err
	}
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var minor uint32
		if _, err := fmt.Sscanf(string(text), "DeviceFileMinor: %d", &minor); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return unix.Mknod(fmt.Sprintf("%s/nvidia-cap%d", devices, minor), unix.S_IFCHR|0o444, int(unix.Mkdev(capsMajor, minor)))
	})
}
