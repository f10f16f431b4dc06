// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"golang.org/x/sys/unix"
)

// The simulated driver. Its libraries find the cards' state one folder up from
// their own.
const (
	simDir   = Dir + "/simgpu"
	simState = simDir + "/state"
	simTool  = simDir + "/bin/simgpu"
)

// wholeType is the type of the cards that are never shared.
const wholeType = "whole"

// nvidiaMajor is the device number of NVIDIA's cards.
const nvidiaMajor = 195

// gresConf is what Slurm and gresd must be told of the cards.
type gresConf struct {
	conf string // gres.conf
	node string // Gres= of the node
	lua  string // vgpu_cards.lua: memory of each type, for job_submit.lua
}

func (c *Cluster) makeCards() (gresConf, error) {
	make, devices := c.simulatedCards, Dir+"/dev"
	if c.opts.Real {
		make, devices = c.realCards, "/dev"
	}
	gres, err := make()
	mig := c.hasInstances()
	if err == nil && mig {
		err = capabilities()
		gres.lua = instancesLua(c.opts.Cards)
	}
	if err == nil && (c.opts.GresdPlaces || mig) {
		return c.gresdWrites(gres, devices)
	}
	return gres, err
}

func (c *Cluster) realCards() (gresConf, error) {
	files, err := filepath.Glob("/dev/nvidia[0-9]*")
	if err != nil {
		return gresConf{}, err
	}
	slices.SortFunc(files, func(a, b string) int {
		if len(a) != len(b) {
			return len(a) - len(b)
		}
		return strings.Compare(a, b)
	})
	if len(files) == 0 {
		return gresConf{}, errors.New("vgpu: cluster: no /dev/nvidia0: is the driver loaded?")
	}
	c.cards = len(files)
	if err := driverLibraries(); err != nil {
		return gresConf{}, err
	}
	mib, err := realMemory()
	if err != nil {
		return gresConf{}, err
	}
	return c.gres(slices.Repeat([]string{"nvidia"}, len(files)), files, slices.Repeat([]uint64{mib}, len(files))), nil
}

// driverLibraries lets jobs find a driver that only LD_LIBRARY_PATH names, as
// in containers that get it from their host.
func driverLibraries() error {
	for _, dir := range filepath.SplitList(os.Getenv("LD_LIBRARY_PATH") + ":/usr/local/nvidia/lib64") {
		if _, err := os.Stat(filepath.Join(dir, "libcuda.so.1")); err == nil && filepath.IsAbs(dir) {
			return loaderCache(dir)
		}
	}
	return nil
}

// simulatedCards installs the simulated driver where the loader looks, so that
// programs find it as they find the real one, with any environment.
func (c *Cluster) simulatedCards() (gresConf, error) {
	cards := c.opts.Cards
	if cards == nil {
		cards = slices.Repeat([]Card{{Name: "Simulated H100 80GB", Memory: "80G"}}, 4)
	}
	c.cards = len(cards)
	for _, dir := range []string{simDir + "/lib", simDir + "/bin"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return gresConf{}, err
		}
	}
	libs, err := filepath.Glob(filepath.Join(c.build, "simgpu/lib/*.so*"))
	if err != nil {
		return gresConf{}, err
	}
	if len(libs) == 0 {
		return gresConf{}, fmt.Errorf("vgpu: cluster: no libraries in %s/simgpu/lib (run make first)", c.build)
	}
	for _, lib := range libs {
		if err := copyFile(lib, filepath.Join(simDir, "lib", filepath.Base(lib)), 0o755); err != nil {
			return gresConf{}, err
		}
	}
	if err := loaderCache(simDir + "/lib"); err != nil {
		return gresConf{}, err
	}
	text := strings.Builder{}
	text.WriteString("version = 1\n")
	if c.opts.Records != "" {
		fmt.Fprintf(&text, "[model]\nswitch_records = %q\n", c.opts.Records)
	}
	var kinds []string
	var mib []uint64
	for _, card := range cards {
		memory, err := gpu.ParseBytes(card.Memory)
		if err != nil {
			return gresConf{}, err
		}
		mib, kinds = append(mib, uint64(memory/gpu.MiB)), append(kinds, cmp.Or(card.Type, "sim"))
		fmt.Fprintf(&text, "[[card]]\nname = %q\nmemory = %q\n\n", card.Name, card.Memory)
		for _, i := range card.Instances {
			fmt.Fprintf(&text, "[[card.instance]]\nprofile = %q\nmemory = %q\n\n", i.Profile, i.Memory)
		}
	}
	if err := os.WriteFile(simDir+"/cards.toml", []byte(text.String()), 0o644); err != nil {
		return gresConf{}, err
	}
	if err := copyFile(filepath.Join(c.build, "simgpu/bin/simgpu"), simTool, 0o755); err != nil {
		return gresConf{}, err
	}
	if err := command(simTool, "init", "--config", simDir+"/cards.toml", "--state", simState); err != nil {
		return gresConf{}, err
	}
	files := make([]string, len(cards))
	for i := range cards {
		files[i] = fmt.Sprintf("%s/dev/nvidia%d", Dir, i)
		if err := unix.Mknod(files[i], unix.S_IFCHR|0o666, int(unix.Mkdev(nvidiaMajor, uint32(i)))); err != nil {
			return gresConf{}, fmt.Errorf("make device %s: %w", files[i], err)
		}
	}
	return c.gres(kinds, files, mib), nil
}

// driverEnv is what a gresd needs so that the simulated driver's device files are
// there for it.
func (c *Cluster) driverEnv() []string {
	if c.opts.Real {
		return nil
	}
	return []string{"LD_PRELOAD=" + simDir + "/lib/libsimrm.so", "PATH=" + Dir + "/mps:" + systemPath}
}

// realMemory is the memory of the smallest card in MiB.
func realMemory() (uint64, error) {
	out, err := exec.Command("nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits").Output()
	if err != nil {
		return 0, fmt.Errorf("nvidia-smi: %w", err)
	}
	var smallest uint64
	for _, word := range strings.Fields(string(out)) {
		mib, err := strconv.ParseUint(word, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("memory of the cards: %w", err)
		}
		if smallest == 0 || mib < smallest {
			smallest = mib
		}
	}
	return smallest, nil
}

// gres is the configuration for cards of these kinds and MiB, of which some may
// never be shared.
func (c *Cluster) gres(kinds, files []string, mib []uint64) gresConf {
	kinds, shared := slices.Clone(kinds), len(files)-c.opts.Whole
	var conf strings.Builder
	conf.WriteString("AutoDetect=off\n")
	for i, file := range files {
		if i >= shared {
			kinds[i] = wholeType
		}
		fmt.Fprintf(&conf, "Name=gpu Type=%s File=%s\n", kinds[i], file)
	}
	var node, memory []string
	for i, file := range files {
		if i < shared {
			fmt.Fprintf(&conf, "Name=shard Type=%s File=%s Count=%d\n", kinds[i], file, unitsPerCard)
		}
		if slices.Index(kinds, kinds[i]) < i {
			continue
		}
		memory = append(memory, fmt.Sprintf("%s = %d", kinds[i], mib[i]))
		n := len(slices.DeleteFunc(slices.Clone(kinds), func(kind string) bool { return kind != kinds[i] }))
		node = append(node, fmt.Sprintf("gpu:%s:%d", kinds[i], n))
		if i < shared {
			node = append(node, fmt.Sprintf("shard:%s:%d", kinds[i], n*unitsPerCard))
		}
	}
	return gresConf{
		conf: conf.String(), node: strings.Join(node, ","),
		lua: fmt.Sprintf("return {default = %d, cards = {%s}}\n", slices.Min(mib), strings.Join(memory, ", ")),
	}
}

// loaderCache lets the loader find libraries in dir. The cache is the private
// /etc's own; -X leaves the links in the host's library folders alone.
func loaderCache(dir string) error {
	if err := os.WriteFile("/etc/ld.so.conf.d/000-vgpu-cluster.conf", []byte(dir+"\n"), 0o644); err != nil {
		return err
	}
	return command("ldconfig", "-X", "-i")
}
