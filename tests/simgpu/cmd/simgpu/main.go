// SPDX-License-Identifier: Apache-2.0

// Command simgpu makes a simulated machine with GPUs, shows what it does, and
// lets things go wrong in it.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/simgpu"
)

const usage = `usage: simgpu <command> [options]
  init --config FILE [--state FILE]         make a new machine
  status [--json]                           show cards and contexts
  used [--card I] [--ms N]                  each N ms, until its input ends: the card's clock, for how long it
                                            was used, the bytes in use, the work in its queues (ns)
  set-slice --pid PID --us N                set the time slice of a process
  fail --call NAME --code N [--count N] [--pid PID]    let calls fail, e.g. --call cuMemAlloc --code 2
  slow --call NAME --ms N [--count N] [--pid PID]      let calls take longer
  refuse-slices [--count N] [--pid PID]     refuse to set time slices
  xid --card I [--code N] [--ecc N] [--lost CODE]      report an error of a card; without --lost it is (again) usable
  capabilities --dir DIR                    write the files of MIG instances that a driver has in /proc/driver/nvidia/capabilities
  clear                                     end all faults
The state file is --state, $SIMGPU_STATE, or ../state beside this program.
`

type options struct {
	state, config, call, dir     string
	pid, code, count, card, lost int
	us, ms, ecc                  uint64
	json                         bool
}

func defaultState() string {
	if s := os.Getenv("SIMGPU_STATE"); s != "" {
		return s
	}
	self, err := os.Executable()
	if err != nil {
		return "state"
	}
	return filepath.Join(filepath.Dir(self), "..", "state")
}

func main() {
	if len(os.Args) < 2 {
		fmt.Fprint(os.Stderr, usage)
		os.Exit(2)
	}
	var o options
	fs := flag.NewFlagSet("simgpu "+os.Args[1], flag.ExitOnError)
	fs.StringVar(&o.state, "state", defaultState(), "state file")
	fs.StringVar(&o.config, "config", "", "machine description, TOML")
	fs.StringVar(&o.dir, "dir", "", "folder")
	fs.StringVar(&o.call, "call", "*", "name of the call, without version: cuMemAlloc")
	fs.IntVar(&o.pid, "pid", 0, "only this process")
	fs.IntVar(&o.code, "code", 0, "error code; with xid, the XID")
	fs.IntVar(&o.count, "count", -1, "how often; -1: always")
	fs.IntVar(&o.card, "card", 0, "index of the card")
	fs.IntVar(&o.lost, "lost", 0, "CUDA error that every later call on the card returns")
	fs.Uint64Var(&o.us, "us", 0, "microseconds")
	fs.Uint64Var(&o.ms, "ms", 0, "milliseconds")
	fs.Uint64Var(&o.ecc, "ecc", 0, "uncorrected ECC errors to add")
	fs.BoolVar(&o.json, "json", false, "machine-readable")
	fs.Usage = func() { fmt.Fprint(os.Stderr, usage) }
	_ = fs.Parse(os.Args[2:]) // ExitOnError: it does not return an error
	if err := run(os.Args[1], o); err != nil {
		fmt.Fprintln(os.Stderr, "simgpu:", err)
		os.Exit(1)
	}
}

func run(command string, o options) error {
	if command == "init" {
		c, err := simgpu.ReadConfig(o.config)
		if err != nil {
			return err
		}
		return simgpu.Init(o.state, c)
	}
	m, err := simgpu.Open(o.state)
	if err != nil {
		return err
	}
	f := simgpu.Fault{Call: o.call, Code: o.code, Count: o.count, PID: o.pid}
	switch command {
	case "status":
		return status(m, o.json)
	case "used":
		return used(m, o.card, time.Duration(max(o.ms, 1))*time.Millisecond)
	case "set-slice":
		if o.us == 0 || m.SetSlice(o.pid, o.us) == 0 {
			return fmt.Errorf("set-slice: pid %d, %d us: want a process with a context and at least 1 us", o.pid, o.us)
		}
		return nil
	case "fail":
		if o.code == 0 {
			return fmt.Errorf("fail: --code 0: want an error code, e.g. --code 2")
		}
		return m.Fail(f)
	case "slow":
		f.Slow = o.ms * 1e6
		if f.Slow == 0 {
			return fmt.Errorf("slow: --ms 0: want a time, e.g. --ms 100")
		}
		return m.Fail(f)
	case "refuse-slices":
		return m.RefuseSlices(f)
	case "xid":
		return m.XID(o.card, uint64(o.code), o.ecc, o.lost)
	case "capabilities":
		return m.Capabilities(o.dir)
	case "clear":
		m.ClearFaults()
		return nil
	}
	return fmt.Errorf("command %q: want one of init, status, used, set-slice, fail, slow, refuse-slices, xid, capabilities, clear", command)
}

func status(m *simgpu.Machine, asJSON bool) error {
	cards := m.Status()
	if asJSON {
		return json.NewEncoder(os.Stdout).Encode(cards)
	}
	var b strings.Builder
	for _, c := range cards {
		fmt.Fprintf(&b, "card %d  %s  %s  %d of %d MiB  %d %%\n", c.Index, c.UUID, c.Name, c.Used>>20, c.Memory>>20, c.Percent)
		for _, x := range c.Contexts {
			fmt.Fprintf(&b, "  pid %d %s  %d MiB  slice %d us  busy %d ms\n", x.PID, x.Process, x.MemUsed>>20, x.SliceUS, x.BusyNS/1e6)
		}
	}
	_, err := os.Stdout.WriteString(b.String())
	return err
}

// used prints a line at once, and then after each time, and one at the end.
func used(m *simgpu.Machine, card int, every time.Duration) error {
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // an error ends it as well
		close(ended)
	}()
	for last := false; ; {
		cards := m.Status()
		if card < 0 || card >= len(cards) {
			return fmt.Errorf("card %d: the machine has %d", card, len(cards))
		}
		if _, err := fmt.Println(cards[card].NowNS, cards[card].UsedNS, cards[card].Used, cards[card].QueuedNS, cards[card].Orphaned); err != nil || last {
			return err
		}
		select {
		case <-ended:
			last = true
		case <-time.After(every):
		}
	}
}
