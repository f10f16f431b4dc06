// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gputime"
)

// meterEnv lets this program be what reads the records, as gresd does: the device
// files of the simulated driver must be preloaded.
const meterEnv = "SIMGPU_TEST_METER"

// reading is one line of it: what each process had, and what the log says.
type reading struct {
	Uses map[uint32]gputime.Use
	At   time.Duration
	Log  string
}

// readRecords asks for the card in the environment, every 15 ms until its
// standard input ends, and writes the last account then.
func readRecords() {
	var said bytes.Buffer
	var card gpu.Card
	if err := json.Unmarshal([]byte(os.Getenv(meterEnv)), &card); err != nil {
		said.WriteString(err.Error())
	}
	meter := gputime.NewRecords(func(gpu.UUID) (gpu.Card, bool) { return card, true }, slog.New(slog.NewTextHandler(&said, nil)))
	lines := make(chan bool)
	go func() {
		in := bufio.NewScanner(os.Stdin)
		for in.Scan() {
			lines <- true
		}
		close(lines)
	}()
	var last gputime.Account
	for {
		if a, known := meter.OnCard(card.UUID); known {
			last = a
		}
		select {
		case _, more := <-lines:
			if !more {
				return
			}
			_ = json.NewEncoder(os.Stdout).Encode(reading{last.Uses, last.At, said.String()}) // to a pipe of the test's
		case <-time.After(15 * time.Millisecond):
		}
	}
}

// meter is a running reader of the records.
type meter struct {
	t   *testing.T
	in  *os.File
	out *bufio.Scanner
}

func startMeter(t *testing.T, state string) *meter {
	t.Helper()
	return startMeterOf(t, state, gpu.Card{UUID: "A", PCIBusID: "0000:10:00.0"})
}

func startMeterOf(t *testing.T, state string, card gpu.Card) *meter {
	t.Helper()
	which, err := json.Marshal(card)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), "SIMGPU_STATE="+state, meterEnv+"="+string(which),
		"LD_PRELOAD="+filepath.Join(bin, "simgpu", "lib", "libsimrm.so"))
	cmd.Stdin, cmd.Stderr = r, os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = w.Close() // ends it
		_ = cmd.Wait()
		_ = r.Close()
	})
	return &meter{t, w, bufio.NewScanner(out)}
}

func (m *meter) read() reading {
	m.t.Helper()
	var r reading
	if _, err := fmt.Fprintln(m.in); err != nil {
		m.t.Fatal(err)
	}
	if !m.out.Scan() {
		m.t.Fatal("the reader of records has ended")
	}
	if err := json.Unmarshal(m.out.Bytes(), &r); err != nil {
		m.t.Fatal(err)
	}
	return r
}

// busy is what the machine itself counts for a tenant.
func busy(m *Machine, x *tenant) time.Duration {
	for _, card := range m.Status() {
		for _, c := range card.Contexts {
			if c.PID == x.pid() {
				return time.Duration(c.BusyNS)
			}
		}
	}
	return 0
}

// What gresd reads through the driver's files is what each process worked, whatever
// its slice is.
func TestRecordsTellWhatProcessesHad(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("the driver gives the records of all users to root only")
	}
	m, state := newMachine(t, "one-card")
	tenants := saturate(t, m, state, 2, "2", "200")
	for i, us := range []uint64{2000, 6000} {
		m.SetSlice(tenants[i].pid(), us)
	}
	meter := startMeter(t, state)
	waitFor(t, "work", func() bool { return busy(m, tenants[1]) > 200*time.Millisecond })
	a := meter.read()
	before := []time.Duration{busy(m, tenants[0]), busy(m, tenants[1])}
	time.Sleep(700 * time.Millisecond)
	b := meter.read()
	for i, x := range tenants {
		had, worked := b.Uses[uint32(x.pid())].Had-a.Uses[uint32(x.pid())].Had, busy(m, x)-before[i]
		t.Logf("tenant %d: had %v by the records, %v by the machine", i+1, had, worked)
		if d := had - worked; d < -40*time.Millisecond || d > 40*time.Millisecond {
			t.Errorf("tenant %d had %v by the records, %v by the machine", i+1, had, worked)
		}
	}
	if b.Log != "" {
		t.Errorf("log: %s", b.Log)
	}
}

// In MIG mode, a reader has the records of the instance that it asks for, and no others; and a
// driver that has only version 1 of the call is read by that.
func TestRecordsOfInstances(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the driver gives the records of all users to root only")
	}
	m, state := newMachine(t, "instances")
	cards := m.Status()
	var tenants []*tenant
	for _, card := range cards[2:] {
		tenants = append(tenants, startTenantWith(t, state, []string{"CUDA_VISIBLE_DEVICES=" + card.UUID}, "--kernel-us", "200", "--saturate", "3"))
	}
	waitFor(t, "work", func() bool {
		return busy(m, tenants[0]) > 0 && busy(m, tenants[1]) > 0 && busy(m, tenants[2]) > 0
	})
	for i, of := range []gpu.Instance{{ID: 1, Cap: 12}, {ID: 5, Cap: 48}, {ID: 5, Compute: 1, Cap: 48}} {
		of.GPU = "GPU"
		meter := startMeterOf(t, state, gpu.Card{UUID: gpu.UUID(cards[2+i].UUID), PCIBusID: "0000:10:00.0", Instance: of})
		// Alone on its instance, it leaves no record until another comes.
		visitor := startTenantWith(t, state, []string{"CUDA_VISIBLE_DEVICES=" + cards[2+i].UUID}, "--kernel-us", "200", "--saturate", "1")
		var r reading
		waitFor(t, "a record", func() bool { r = meter.read(); return r.Uses[uint32(visitor.pid())].Had > 50*time.Millisecond })
		for k, x := range tenants {
			if had := r.Uses[uint32(x.pid())].Had; (had > 0) != (k == i) {
				t.Errorf("instance %d: tenant %d had %v", i, k, had)
			}
		}
		if r.Log != "" {
			t.Errorf("log: %s", r.Log)
		}
	}
	wrong := startMeterOf(t, state, gpu.Card{UUID: "MIG-A", PCIBusID: "0000:10:00.0", Instance: gpu.Instance{GPU: "GPU", ID: 1, Cap: 48}})
	var r reading
	waitFor(t, "a refusal", func() bool { r = wrong.read(); return r.Log != "" })
	if !strings.Contains(r.Log, "0x1b") {
		t.Errorf("with the capability of another instance: %s", r.Log)
	}
}

func TestRecordsOfVersion1(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the driver gives the records of all users to root only")
	}
	path := filepath.Join(t.TempDir(), "state")
	if err := Init(path, Config{Version: 1, Count: 1, Model: CardConfig{SwitchRecords: "v1"}}); err != nil {
		t.Fatal(err)
	}
	m, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	tenants := saturate(t, m, path, 2, "2", "200")
	meter := startMeter(t, path)
	waitFor(t, "records", func() bool {
		r := meter.read()
		return r.Uses[uint32(tenants[0].pid())].Had > 0 && r.Uses[uint32(tenants[1].pid())].Had > 0
	})
}

// The driver keeps 16384 records for a reader who does not tell it what was read, and then
// writes no more.
func TestRecordsGoOn(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("the driver gives the records of all users to root only")
	}
	soon := 10.0
	state := filepath.Join(t.TempDir(), "state")
	if err := Init(state, Config{Version: 1, Count: 1, Model: CardConfig{SwitchUS: &soon}}); err != nil {
		t.Fatal(err)
	}
	m, err := Open(state)
	if err != nil {
		t.Fatal(err)
	}
	tenants := saturate(t, m, state, 2, "4", "200")
	for _, x := range tenants {
		m.SetSlice(x.pid(), 50)
	}
	meter := startMeter(t, state)
	waitFor(t, "work", func() bool { return busy(m, tenants[1]) > 100*time.Millisecond })
	meter.read()
	first := m.Status()[0].Switches
	waitFor(t, "20000 switches", func() bool { return m.Status()[0].Switches > first+20000 })
	a, before := meter.read(), busy(m, tenants[0])
	time.Sleep(300 * time.Millisecond)
	had, worked := meter.read().Uses[uint32(tenants[0].pid())].Had-a.Uses[uint32(tenants[0].pid())].Had, busy(m, tenants[0])-before
	t.Logf("%d switches; then had %v by the records, %v by the machine", m.Status()[0].Switches-first, had, worked)
	if worked < 50*time.Millisecond || had < worked/2 || had > 2*worked {
		t.Errorf("had %v by the records, %v by the machine", had, worked)
	}
}

// A driver without records, and one that does not give them, are said once, with its status.
func TestRecordsAreRefused(t *testing.T) {
	for refusal, status := range map[string]string{"unsupported": "0x56", "denied": "0x1b"} {
		path := filepath.Join(t.TempDir(), "state")
		if err := Init(path, Config{Version: 1, Count: 1, Model: CardConfig{SwitchRecords: refusal}}); err != nil {
			t.Fatal(err)
		}
		meter := startMeter(t, path)
		var r reading
		waitFor(t, "a word of it", func() bool { r = meter.read(); return r.Log != "" })
		if len(r.Uses) != 0 || strings.Count(r.Log, "context switches cannot be read") != 1 || !strings.Contains(r.Log, status) {
			t.Errorf("%s: had %v, log %s; want status %s once", refusal, r.Uses, r.Log, status)
		}
	}
}
